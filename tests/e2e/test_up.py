"""`otelprof up`: agent and backend as one, ready together, ended together."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to attach BPF programs"),
]
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
SUMMARY = re.compile(r"samples=\d+ launches=\d+ lost=\d+ sent=\d+ unsent=\d+")


def status_of(url):
    try:
        with OPENER.open(url, timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child): Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in found}


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Up:
    """The command with free ports and its lines."""

    def __init__(self, folder, *options, **env):
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "otelprof", "up", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"),
                *("--store", "memory", "--data-dir", str(folder), *options),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        self.lines = []

    def line(self, word):
        for line in self.process.stderr:
            self.lines.append(line.strip())
            if word in line:
                return line.strip()
        raise AssertionError(f"no line with {word!r} in {self.lines}")

    def rest(self):
        self.lines += self.process.stderr.read().splitlines()
        return self.process.wait(30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        self.process.stderr.close()


def test_the_backend_is_ready_when_the_agent_is_and_ctrl_c_ends_both(tmp_path):
    with Up(tmp_path) as up:
        url = up.line("listening on http").removeprefix("listening on ")
        before = status_of(f"{url}/readyz")
        up.line("agent: ready")
        assert up.line("ready: open").endswith(url)
        deadline = time.monotonic() + 5
        while status_of(f"{url}/readyz") != 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (before, status_of(f"{url}/readyz")) == (503, 200)
        pids = list(children(up.process.pid))
        up.process.send_signal(signal.SIGINT)
        assert up.rest() == 0

    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)
    assert SUMMARY.fullmatch(up.lines[-1])
    assert int(re.search(r"sent=(\d+)", up.lines[-1])[1]) > 0


def test_a_port_that_is_taken_ends_everything_with_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Up(tmp_path, "--listen", f"127.0.0.1:{port}") as up:
            status = up.rest()

    assert status == 1
    assert len([line for line in up.lines if str(port) in line]) == 1
    assert "otelprof: the backend ended with status 1; everything stops" in up.lines
    assert "Traceback" not in "\n".join(up.lines)


def test_when_one_dies_the_other_ends_and_it_is_said(tmp_path):
    with Up(tmp_path) as up:
        up.line("ready: open")
        agent = next(pid for pid, argv in children(up.process.pid).items() if b"run" in argv)
        os.kill(agent, signal.SIGKILL)
        assert up.rest() == 1

    assert "otelprof: the agent ended with status -9; everything stops" in up.lines


def test_children_end_when_the_supervisor_is_killed(tmp_path):
    with Up(tmp_path) as up:
        up.line("ready: open")
        pids = list(children(up.process.pid))
        up.process.kill()
        deadline = time.monotonic() + 20
        while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)

    assert not any(alive(pid) for pid in pids)
