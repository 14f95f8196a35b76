"""`otelprof up`: the backend, the agent and on request a demo, as child processes of one command.

Order: the backend, which prints its addresses; the agent, which sends to them; then the demo. /readyz of the backend
stays 503 until the agent is ready too, told through a pipe (`--ready-fd`). None is restarted: when one ends, all end, and
the first that failed gives the exit status. Only the agent keeps root's rights; backend and demo run as the caller.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import click

import otelprof
from otelprof.backend.options import DEFAULT_DATA_DIR
from otelprof.cli.backend import backend_options
from otelprof.cli.caller import Caller, caller
from otelprof.cli.children import ChildProcess
from otelprof.cli.messages import explain, say
from otelprof.cli.values import seconds
from otelprof.config.telemetry import split_address
from otelprof.errors import OtelprofError

_LISTENING = re.compile(r"listening on (http|grpc)://(\S+)")
_SUMMARY = re.compile(r"samples=\d+ launches=\d+ lost=\d+ sent=\d+ unsent=\d+")
_NOTHING = "samples=0 launches=0 lost=0 sent=0 unsent=0"
_START_LIMIT = 60.0  # seconds until the backend listens, and again until the agent is ready
_AGENT_END, _END = 3.6, 4.7  # seconds after the signal: the agent's flush, then everybody
_START_POLL, _POLL = 0.05, 0.2
_AGENT_PORT = 4042


@dataclass
class _Seen:
    """What the children said on their standard error."""

    addresses: dict[tuple[str, str], str] = field(default_factory=dict)
    summary: str = _NOTHING

    def backend(self, line: str) -> str:
        self._address("backend", line)
        return line

    def agent(self, line: str) -> str | None:
        if _SUMMARY.fullmatch(line):
            self.summary = line  # it is kept for the end, to be the last line of all
            return None
        self._address("agent", line)
        return f"agent: {line.removeprefix('otelprof: ')}"

    def _address(self, who: str, line: str) -> None:
        found = _LISTENING.match(line)
        if found:
            self.addresses[who, found[1]] = found[2]


def agent_config(grpc: str, token: str = "", address: str = "127.0.0.1:0", driver: str = "") -> dict[str, Any]:
    """The agent's configuration in `up`: everything, each second, to the backend's OTLP/gRPC port.

    `driver`: the CUDA driver of the demo, to be probed before the demo starts.
    """
    ebpf: dict[str, Any] = {"report_interval": "1s", **({"cuda": {"libraries": [driver]}} if driver else {})}
    headers = {"authorization": f"Bearer {token}"} if token else {}
    exporter = {"endpoint": grpc, "tls": {"insecure": True}, "headers": headers}
    pipeline = {"receivers": ["ebpf"], "processors": ["resource_detection", "cuda_stitch"], "exporters": ["otlp_grpc"]}
    return {
        "receivers": {"ebpf": ebpf},
        "processors": {"resource_detection": {}, "cuda_stitch": {}},
        "exporters": {"otlp_grpc": exporter},
        "service": {"telemetry": {"metrics": {"address": address}}, "pipelines": {"profiles": pipeline, "traces": pipeline}},
    }


def find_demo() -> Path:
    """The demo's launcher: in the source tree, or where the installation of this package put it (share/otelprof)."""
    name = "examples/inference_server/launch.py"
    files = [file for found in metadata.distributions(name="otelprof") for file in found.files or ()]
    for launcher in (Path(otelprof.__file__).parents[1] / name, *(Path(str(f.locate())) for f in files if f.match(name))):
        if launcher.is_file():
            return launcher.resolve()
    raise OtelprofError("the demo isn't installed: run `otelprof up --demo` from a checkout of otelprof's sources")


class _Up:
    """One run of the command."""

    def __init__(self, options: dict[str, Any], duration: float | None, demo: Path | None) -> None:
        self._options, self._duration = options, duration
        self._seen = _Seen()
        self._stopping = False
        self._user = user = caller()
        self._launcher = demo
        program = [sys.executable, "-m", "otelprof"]
        self._ready_read, self._ready_write = os.pipe()
        self.backend = ChildProcess("backend", [*program, "backend", *self._backend_flags()], user, self._seen.backend)
        self.agent = ChildProcess("agent", [*program, "run", "--config", "-"], Caller(), self._seen.agent)
        self.demo = ChildProcess("demo", [sys.executable, str(demo)], user, "demo: {}".format) if demo else None

    def _backend_flags(self) -> list[str]:
        flags = ["--ready-fd", str(self._ready_read)]
        for name, value in self._options.items():
            if value is True:
                flags.append(f"--{name.replace('_', '-')}")
            elif value not in (None, False, ""):
                flags += [f"--{name.replace('_', '-')}", str(value)]
        return flags

    @property
    def children(self) -> list[ChildProcess]:
        return [child for child in (self.backend, self.agent, self.demo) if child is not None and child.pid]

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        status = 0
        try:
            self._start()
            self._supervise()
        except OtelprofError as error:
            status = explain(error)
        finally:
            failed = self._end()
        sys.stderr.write(self._seen.summary + "\n")
        return 1 if failed else status

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:
            for child in self.children:
                child.signal(signal.SIGKILL)
            os._exit(128 + number)
        self._stopping = True

    def _start(self) -> None:
        self.backend.start(pass_fds=[self._ready_read])
        os.close(self._ready_read)
        self.agent.start(fed=True)  # it loads meanwhile, and waits for its configuration
        if not self._until(lambda: ("backend", "grpc") in self._seen.addresses and ("backend", "http") in self._seen.addresses):
            return
        grpc = _reachable(self._seen.addresses["backend", "grpc"])
        driver = self._demo_driver()
        config = agent_config(grpc, _token(self._options.get("token_file")), _agent_address(), driver)
        self.agent.feed(json.dumps(config).encode())
        if not self._until(self._agent_ready):
            return
        if self.demo is not None:  # only now, so that the agent sees its look-ups and knows each kernel's name
            self.demo.start()
        os.write(self._ready_write, b"!")
        say(f"ready: open http://{_reachable(self._seen.addresses['backend', 'http'])}")

    def _demo_driver(self) -> str:
        """Path of the CUDA driver that the demo will use, built if need be; empty without a demo, or with a real GPU."""
        if self._launcher is None:
            return ""
        argv = [sys.executable, str(self._launcher), "--library"]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_START_LIMIT, check=False, **self._user.popen_arguments()
        )
        if done.returncode:
            raise OtelprofError((done.stderr.strip().splitlines() or ["the demo can't be started"])[-1])
        return str(done.stdout).strip()

    def _until(self, condition: Callable[[], bool]) -> bool:
        """Wait for `condition`; false when the end came first."""
        limit = time.monotonic() + _START_LIMIT
        while not self._over():
            if condition():
                return True
            if time.monotonic() > limit:
                raise OtelprofError(f"not ready after {_START_LIMIT:.0f} s: the lines above say how far it came")
            time.sleep(_START_POLL)
        return False

    def _over(self) -> bool:
        return self._stopping or any(child.status is not None for child in self.children)

    def _agent_ready(self) -> bool:
        address = self._seen.addresses.get(("agent", "http"))
        return address is not None and _answers(f"http://{address}/readyz")

    def _supervise(self) -> None:
        end = time.monotonic() + (self._duration if self._duration is not None else 1e9)
        while not self._over() and time.monotonic() < end:
            time.sleep(_POLL)

    def _end(self) -> bool:
        """Stop all, the agent before the backend, so that its last data arrive; True when one had ended by itself."""
        failed = [child for child in self.children if child.status is not None]
        for child in failed:
            say(f"the {child.name} ended with status {child.status}" + ("" if self._stopping else "; everything stops"))
        start = time.monotonic()
        for child in self.children:
            if child is not self.backend:
                child.signal(signal.SIGTERM)
        self.agent.end(start + _AGENT_END)
        self.backend.signal(signal.SIGTERM)
        for child in self.children:
            child.end(start + _END)
        return bool(failed)


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").split()[0]
    except (OSError, ValueError, IndexError):
        raise OtelprofError(f"{path}: no token can be read there; write one on its first line") from None


def _reachable(address: str) -> str:
    """An address to connect to for one that is listened on."""
    host, port = split_address(address)
    if host in ("", "0.0.0.0", "::"):  # noqa: S104  compared, not bound
        host = "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _agent_address() -> str:
    """The agent's usual address, or a free port where that is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", _AGENT_PORT))
        except OSError:
            return "127.0.0.1:0"
    return f"127.0.0.1:{_AGENT_PORT}"


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@click.command("up", short_help="agent and backend on this machine, with one command")
@backend_options
@click.option("--duration", callback=seconds, metavar="DURATION", help="End after this time, counted from when all is ready.")
@click.option("--demo", is_flag=True, help="Start an inference server to look at (examples/inference_server).")
def command(duration: float | None, demo: bool, **options: Any) -> int:
    """Profile this machine and look at it: starts the agent and the backend, until Ctrl-C.

    The agent needs rights (root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE). Started by sudo, the backend and the demo run as
    the user who typed the command.

    \b
    Examples:
      sudo otelprof up
      sudo otelprof up --demo --duration 60s
      sudo otelprof up --listen 127.0.0.1:0 --store memory
    """  # noqa: D301  click's mark for lines that stay as they are
    options["data_dir"] = (options["data_dir"] or DEFAULT_DATA_DIR).absolute()
    return _Up(options, duration, find_demo() if demo else None).run()
