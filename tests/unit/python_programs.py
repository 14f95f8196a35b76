"""Live Python programs of every interpreter that this machine has, and a walk over their frames as the kernel does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from otelprof.processes.memory import Memory
from otelprof.targets import thread_state
from otelprof.targets.python import PythonLayout, PythonTarget, Recogniser, Recognition, Verdict

RECORD = np.dtype([("address", "u8"), ("offset", "u4"), ("check", "u4")])  # struct frame of bpf/wire.h
PATIENCE = 30.0
TAGGED, SHIMS, LASTI = 1, 2, 8  # enum python_flag


@dataclass(frozen=True)
class Interpreter:
    """How to start one Python; `root` is the folder to change the root to, if any."""

    path: str
    version: tuple[int, int, int]
    root: str = ""

    @property
    def command(self) -> list[str]:
        return [*(["chroot", self.root] if self.root else []), self.path]

    @property
    def file(self) -> str:
        """The executable's path in our own root."""
        return os.path.realpath(self.root + self.path)

    def __str__(self) -> str:
        return (
            f"{'.'.join(map(str, self.version))}{'-' + Path(self.root).parent.name if self.root else ''}-{Path(self.path).name}"
        )


ROOTS = Path(os.environ.get("OTELPROF_ROOTS", Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "otelprof/roots")))
"""Where `make roots` puts interpreters that the machine hasn't."""


def _roots() -> Iterator[Path]:
    """Folders of interpreters: those of `make roots`, and what OTELPROF_TEST_ROOTS names (`a:b`)."""
    for folder in sorted(ROOTS.glob("*")):
        yield folder / "root" if (folder / "root").exists() else folder
    yield from map(Path, filter(None, os.environ.get("OTELPROF_TEST_ROOTS", "").split(":")))


def _places() -> Iterator[tuple[str, str]]:
    """(path, root): this one, the distribution's, pyenv's, and those of other roots.

    Those are unpacked roots (with usr/bin/python3.X, run by chroot) or prefixes of own builds (with bin/python3).
    """
    yield sys.executable, ""
    yield from ((str(path), "") for path in sorted(Path("/usr/bin").glob("python3.[0-9]*")) if path.name[8:].isdigit())
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from ((str(path), "") for path in sorted(pyenv.glob("versions/*/bin/python")))
    for root in _roots():
        yield from ((str(path), "") for path in root.glob("bin/python3") if not (root / "usr").exists())
        yield from ((f"/{path.relative_to(root)}", str(root)) for path in sorted(root.glob("usr/bin/python3.[0-9]*[0-9dt]")))


@cache
def all_interpreters() -> list[Interpreter]:
    """Every CPython here, each file once, oldest first."""
    found: dict[str, Interpreter] = {}
    for path, root in _places():
        command = [*(["chroot", root] if root else []), path, "-c", "import sys; print(list(sys.version_info[:3]))"]
        try:
            said = subprocess.run(command, capture_output=True, timeout=20, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        one = Interpreter(path, tuple(json.loads(said)), root)
        found.setdefault(one.file, one)
    return sorted(found.values(), key=lambda one: one.version)


def supported() -> list[Interpreter]:
    """Those that are targets: 3.8 and newer."""
    return [one for one in all_interpreters() if (3, 8) <= one.version < (3, 16)]


def default() -> Interpreter:
    """The newest that needs no other root."""
    return next(one for one in reversed(supported()) if not one.root)


@contextmanager
def running(interpreter: Interpreter, code: str, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The program as a child with pipes; killed at the end."""
    command = [*interpreter.command, "-c", code, *arguments]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", **options)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def said(child: subprocess.Popen[str]) -> Any:
    """The program's next line, JSON."""
    assert child.stdout is not None
    return json.loads(child.stdout.readline())


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a true value."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited {PATIENCE:.0f} s for {what}")


def recognise(pid: int) -> PythonTarget:
    """The target in a process, as soon as it is initialised."""
    recogniser = Recogniser()

    def found() -> PythonTarget | None:
        answer: Recognition = recogniser.recognise(pid)
        assert answer.verdict in (Verdict.PYTHON, Verdict.NOT_YET), answer
        return answer.target

    target = until(found, f"the interpreter of {pid}")
    assert isinstance(target, PythonTarget)
    return target


def sleeping(pid: int, thread: int | None = None) -> bool:
    """True when the thread waits in the kernel, so that its frames stand still."""
    stat = Path(f"/proc/{pid}/task/{thread or pid}/stat").read_bytes()
    return stat[stat.rfind(b")") + 2 :][:1] == b"S"


def thread_pointers(memory: Memory, target: PythonTarget) -> list[int]:
    """Thread pointers of all Python threads, newest first."""
    return list(thread_state.threads_of(memory, target.cpython, target.runtime))


def walk(memory: Memory, layout: PythonLayout, thread_pointer: int, limit: int = 512) -> np.ndarray:
    """The frames of a thread, leaf first, by nothing but the kernel's layout."""
    state = layout.thread_state.follow(memory, thread_pointer)
    frame = layout.frame.follow(memory, state) if state else 0
    found = []
    while frame and len(found) < limit:
        data = memory.read(frame, layout.frame_size)
        frame = word(data, layout.frame_previous)
        if layout.flags & SHIMS and data[layout.frame_owner] >= layout.shim_owner:
            continue
        code = word(data, layout.frame_code) & (~7 if layout.flags & TAGGED else ~0)
        if layout.flags & LASTI:
            offset = word(data, layout.frame_instruction, 4)
        else:
            offset = (word(data, layout.frame_instruction) - code) & 0xFFFFFFFF
        found.append((code, offset, word(memory.read(code + layout.code_first_line, 4), 0, 4)))
    return np.array(found, RECORD)


def word(data: bytes, offset: int, size: int = 8) -> int:
    return int.from_bytes(data[offset : offset + size], "little")
