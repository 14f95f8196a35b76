"""What tests on the real kernel share: sessions, targets that say what they are, waiting for a condition."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otelprof.ebpf.layout import wire
from otelprof.ebpf.session import RING_RECORDS, Drained, Session, SessionSettings
from otelprof.targets.python import Recogniser, Verdict

PATIENCE = 30.0


def interpreters() -> list[str]:
    """Every interpreter of the machine that is new enough to be a target."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {Path("/usr/bin/python3.11")} | set(pyenv.glob("versions/3.*/bin/python3"))
    known = [path for path in sorted(found) if path.exists() and "/3.6." not in str(path) and "/3.7." not in str(path)]
    return [str(path) for path in known] or [sys.executable]


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a true value."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {PATIENCE:.0f} s for {what}")


def file_offset(pid: int, address: int) -> tuple[str, int]:
    """The file that is mapped at an address of a process, and the offset in it."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, _, offset, _, _, *path = line.split()
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return path[0], address - start + int(offset, 16)
    raise AssertionError(f"nothing is mapped at {address:#x}")


class Collected:
    """Everything that a session's drains gave so far."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._parts: dict[str, list[np.ndarray]] = {name: [] for name in RING_RECORDS}
        self.last: Drained | None = None

    def more(self) -> "Collected":
        """Drain once more."""
        self.last = self._session.drain()
        for name, parts in self._parts.items():
            parts.append(getattr(self.last, name))
        return self

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in RING_RECORDS:
            raise AttributeError(name)
        return np.concatenate([np.zeros(0, wire().dtype(RING_RECORDS[name])), *self._parts[name]])

    def of(self, name: str, pid: int) -> np.ndarray:
        """The records of one process."""
        records = getattr(self, name)
        return records[(records["origin"] if "origin" in records.dtype.names else records)["pid"] == pid]

    def stack(self, leaf: int) -> list[tuple[int, int, int]]:
        """(address, offset, check) of the frames of a stack, leaf first; KeyError when a chunk is missing."""
        chunks = {int(chunk["id"]): chunk for chunk in self.chunks}
        frames = []
        while leaf:
            chunk = chunks[leaf]
            frames += [tuple(int(n) for n in frame) for frame in chunk["frames"][: chunk["count"]]]
            leaf = int(chunk["parent"])
        return frames


class Running:
    """A program whose first line of output is a JSON document about itself."""

    def __init__(self, *command: str, **options: Any) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
        self.pid = self.process.pid

    def line(self) -> Any:
        """The next line."""
        return json.loads(self.process.stdout.readline())

    def say(self, text: str = "") -> None:
        """A line to its standard input."""
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def run() -> Iterator[Callable[..., Running]]:
    """Starts programs and ends them after the test."""
    started: list[Running] = []

    def start(*command: str, **options: Any) -> Running:
        started.append(Running(*command, **options))
        return started[-1]

    yield start
    for running in started:
        running.end()


@pytest.fixture
def session() -> Iterator[Session]:
    """A session that looks at targets only."""
    if os.geteuid():
        pytest.skip("needs root")
    opened = Session.open(SessionSettings(node=False))
    yield opened
    opened.close()


def python_target(pid: int, process: int, flags: int = 0) -> np.void:
    """The record that makes a running interpreter a target, as the agent finds it out."""
    found = until(lambda: _recognised(pid), "an initialised interpreter")
    record = np.zeros(1, wire().dtype("target"))[0]
    record["process"], record["flags"] = process, wire()["TARGET_PYTHON"] | flags
    record["python"] = found.layout.to_record(wire().dtype("python_layout"))
    return record


def _recognised(pid: int) -> Any:
    recognition = Recogniser().recognise(pid)
    return recognition.target if recognition.verdict is Verdict.PYTHON else None
