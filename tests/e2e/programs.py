"""Programs as children of a test: started, waited for by a condition, always ended, with their output in the failure."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def otelprof() -> str:
    """Path of the installed command."""
    return str(Path(sys.executable).parent / "otelprof")


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Program:
    """One child process; standard output and error go to files under `work`."""

    http = 0
    grpc = 0

    def __init__(self, argv: Sequence[str], work: Path, name: str, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.out, self.err = work / f"{name}.out", work / f"{name}.err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            full = {**os.environ, **(env or {})}
            self.process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=full, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def log(self) -> str:
        """What it wrote to standard error so far."""
        return self.err.read_text(errors="replace")

    def text(self) -> str:
        """What it wrote to standard output so far."""
        return self.out.read_text(errors="replace")

    def alive(self) -> bool:
        """True while it runs."""
        return self.process.poll() is None

    def wait(self, seconds: float) -> int:
        """Its exit status; an AssertionError with its last words when it goes on."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {seconds:g} s: {self.log()[-2000:]}") from None

    def stop(self, seconds: float = 10) -> int:
        """SIGTERM and its exit status."""
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def get(self, url: str) -> int:
        """Status of a GET; 0 when nobody answers."""
        return fetch(url)[0]

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)


def fetch(url: str, timeout: float = 5) -> tuple[int, bytes]:
    """Status and body of a GET; status 0 when nobody answers."""
    try:
        with _OPENER.open(url, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def wait_for(ready: Callable[[], object], seconds: float, *programs: Program) -> None:
    """Wait until `ready` is true; fails with the programs' last words when it isn't in time or one of them has ended."""
    end = time.monotonic() + seconds
    while not ready():
        dead = [program for program in programs if not program.alive()]
        if time.monotonic() > end or dead:
            words = "\n".join(f"--- {program.name}\n{program.log()[-3000:]}" for program in programs)
            raise AssertionError(f"{'ended' if dead else f'not ready within {seconds:g} s'}\n{words}")
        time.sleep(0.05)
