"""`otelprof record`: every format, every kind of target, every way to end; what can't be is one line."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to attach BPF programs"),
]
TARGET = str(Path(__file__).parent / "record_target.py")
SUMMARY = re.compile(r"samples=(\d+) launches=0 lost=\d+ sent=(\d+) unsent=(\d+)")


def argv(*options):
    return [sys.executable, "-m", "otelprof", "record", *map(str, options)]


def record(*options, wrap=(), **how):
    return subprocess.run([*wrap, *argv(*options)], capture_output=True, timeout=90, **how)


@pytest.fixture(scope="module")
def target():
    """A busy process."""
    process = subprocess.Popen([sys.executable, TARGET, "600"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def folded(data):
    return {stack: int(count) for stack, _, count in (line.rpartition(" ") for line in data.decode().splitlines())}


def summary(log):
    return [int(number) for number in SUMMARY.fullmatch(log.decode().splitlines()[-1]).groups()]


@pytest.mark.parametrize("form", ["pprof", "folded", "speedscope", "otlp", "otlp-json", "session"])
def test_each_format_holds_the_work_of_the_process(target, tmp_path, form):
    out = tmp_path / "out"
    done = record("--pid", target, "--duration", 1.5, "--format", form, "-o", out)

    assert done.returncode == 0, done.stderr
    data = out.read_bytes()
    if form == "pprof" and data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    assert b"heavy" in data
    assert b"working" in data
    samples, sent, unsent = summary(done.stderr)
    assert samples > 10
    assert (sent, unsent) == (1, 0)


def test_folded_text_counts_each_sample_and_lines_are_on_request(target):
    bare = record("--pid", target, "--duration", 1, "--format", "folded", "-o", "-")
    lined = record("--pid", target, "--duration", 1, "--format", "folded", "--lines", "-o", "-")

    stacks = folded(bare.stdout)
    assert sum(stacks.values()) == summary(bare.stderr)[0]
    assert any(stack.startswith("<module>;main;working;heavy") for stack in stacks)
    assert re.search(rf"working \({re.escape(TARGET)}:\d+\);heavy \({re.escape(TARGET)}:\d+\)", lined.stdout.decode())


def test_a_command_is_recorded_from_its_first_instruction_with_its_children(tmp_path):
    done = record("--format", "otlp-json", "-o", tmp_path / "out", "--", sys.executable, TARGET, 2, "child")

    assert done.returncode == 0, done.stderr
    assert b"ready" in done.stdout
    found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    busy = {
        attribute["value"]["intValue"]
        for request in found
        for resource in request["resourceProfiles"]
        for attribute in resource["resource"]["attributes"]
        if attribute["key"] == "process.pid"
    }
    assert len(busy) >= 2


def test_the_commands_words_do_not_mix_with_a_result_on_standard_output():
    done = record("--format", "folded", "-o", "-", "--", sys.executable, TARGET, 1)

    assert b"ready" not in done.stdout
    assert b"ready" in done.stderr
    assert folded(done.stdout)


def test_a_command_that_outlives_the_duration_is_asked_to_end(tmp_path):
    start = time.monotonic()
    done = record("--duration", 1, "-o", tmp_path / "out.pb", "--", sys.executable, TARGET, 100)

    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 60
    assert b"note: the command ended with status -15" in done.stderr


class Recording:
    """A recording in the background, once it has begun."""

    def __init__(self, *options):
        self.process = subprocess.Popen(argv(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.log = b""
        while not self.log.endswith(b"recording\n"):
            line = self.process.stderr.readline()
            assert line, self.log
            self.log += line

    def end(self):
        """Its standard output and all of its log."""
        out, log = self.process.communicate(timeout=60)
        return out, self.log + log


def work(pid, seconds):
    """Wait until a process has used so much more CPU."""

    def used():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    start = used()
    while used() < start + seconds:
        time.sleep(0.05)


def test_it_ends_with_its_target():
    process = subprocess.Popen([sys.executable, TARGET, "600"], stdout=subprocess.PIPE)
    process.stdout.readline()
    recording = Recording("--pid", process.pid, "-f", "folded", "-o", "-")
    work(process.pid, 0.5)
    process.terminate()
    process.wait()
    process.stdout.close()
    out, log = recording.end()

    assert recording.process.returncode == 0, log
    assert sum(folded(out).values()) == summary(log)[0] > 10


def test_ctrl_c_ends_it_and_the_file_is_written(target, tmp_path):
    recording = Recording("--pid", target, "-f", "folded", "-o", tmp_path / "out")
    work(target, 0.5)
    recording.process.send_signal(signal.SIGINT)
    _, log = recording.end()

    assert recording.process.returncode == 0, log
    assert sum(folded((tmp_path / "out").read_bytes()).values()) == summary(log)[0] > 10


def test_the_summary_is_a_document(target, tmp_path):
    record("--pid", target, "-d", "1s", "-o", tmp_path / "out", "--summary", tmp_path / "sum.json")
    found = json.loads((tmp_path / "sum.json").read_text())

    assert list(found) == ["duration_s", "samples", "launches", "lost", "sent", "unsent", "processes", "output"]
    assert (found["processes"], found["sent"], found["output"]) == (1, 1, str(tmp_path / "out"))
    assert found["duration_s"] >= 1


def test_a_target_without_python_is_recorded_natively_with_one_note(tmp_path):
    done = record("-f", "folded", "-o", "-", "-d", 1, "--", "sh", "-c", "while :; do :; done")

    assert done.returncode == 0, done.stderr
    assert folded(done.stdout)
    assert done.stderr.count(b"note: process") == 1


def test_a_target_that_sleeps_gives_nothing_and_says_so(tmp_path):
    done = record("-o", tmp_path / "out", "-d", 1, "--", "sleep", "30")

    assert done.returncode == 1
    assert b"nothing was recorded" in done.stderr
    assert summary(done.stderr)[1:] == [0, 0]


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--pid", "4194304", "-o", "x"], 1, "there is no process 4194304"),
        (["--pid", "1", "-o", "x", "--", "true"], 2, "can't go together"),
        (["-o", "/no/such/folder/x", "-d", "1"], 1, "can't be written: No such file or directory"),
        (["-o", "x", "--", "no-such-program-here"], 1, "no-such-program-here: no such command"),
        (["-d", "1"], 2, "Missing option '--output'"),
        (["-o", "x", "-f", "svg"], 2, "'svg' is not one of"),
        (["-o", "x", "-d", "0"], 2, "above zero"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, options, status, words):
    done = record(*options, cwd=tmp_path)

    assert done.returncode == status
    assert words in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1


def test_a_full_disk_is_one_line_and_counted(target):
    done = record("--pid", target, "-d", 1, "-f", "folded", "-o", "/dev/full")

    assert done.returncode == 1
    assert b"/dev/full: can't be written: No space left on device" in done.stderr
    assert summary(done.stderr)[1:] == [0, 1]


def test_a_closed_standard_output_is_told_before_anything_is_recorded(target):
    done = record("--pid", target, "-d", 1, "-f", "folded", "-o", "-", wrap=["sh", "-c", 'exec "$@" >&-', "sh"])

    assert (done.returncode, done.stderr) == (1, b"otelprof: standard output is closed: name a file with -o\n")


def test_in_a_pid_namespace_of_its_own_it_refuses_and_says_what_to_set(tmp_path):
    done = record("-d", 1, "-o", tmp_path / "out", wrap=["unshare", "--pid", "--fork", "--mount-proc"])

    assert done.returncode == 1
    assert b"hostPID" in done.stderr
    assert b"PID namespace" in done.stderr
    assert len(done.stderr.splitlines()) == 1
