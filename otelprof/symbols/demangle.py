"""Mangled C++ and Rust names as people read them. A child does it (otelprof/symbols/demangler.py), since names are hostile."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import subprocess
import sys
import threading
import time
from functools import lru_cache

from otelprof.text import CUT, clean

_MANGLED = ("_Z", "_R", "__Z")
_LENGTH_LIMIT = 1 << 14  # longer ones are left as they are
_ANSWER_LIMIT = 1 << 17
_OPENING, _CLOSING = "(<[{", ")>]}"
_CLONE = re.compile(r"(?: (?:\(\.[\w.]+\)|\[clone [^\]]*\]))+$")  # LLVM's and GCC's way to write `.isra.0`, `.cold`
_PATIENCE = 0.3  # seconds for an answer
_START = 5.0  # seconds for the first answer of a child, which has to start
_FAILURES = 5  # answers that may fail before names stay mangled for a while
_REST = 60.0  # seconds that they stay so


class Demangler:
    """A child at the other end of two pipes, started when it is needed first. Safe to use from any thread.

    A name that makes it end, or on which it doesn't answer in time, stays as it is; a few of these in a row, and names stay
    mangled for a minute, so that a hostile program costs the agent little.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._failures = 0
        self._rests_until = 0.0

    def demangle(self, name: str) -> str:
        """The whole name as it stood in the source, or `name`."""
        with self._lock:
            if time.monotonic() < self._rests_until:
                return name
            try:
                found = self._ask(name.encode())
            except OSError:
                found = None
            if found is None:
                self._fail()
                return name
            self._failures = 0
            return found.decode("utf-8", "replace")

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None and self._owner == os.getpid():
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _ask(self, name: bytes) -> bytes | None:
        patience = _PATIENCE
        if self._child is None or self._owner != os.getpid():
            self._start()
            patience = _START
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            return None
        child.stdin.write(name + b"\n")
        child.stdin.flush()
        return _line(child.stdout.fileno(), patience)

    def _start(self) -> None:
        self._owner = os.getpid()
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-m", "otelprof.symbols.demangler"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        atexit.register(self.close)

    def _fail(self) -> None:
        self.close()
        self._failures += 1
        if self._failures >= _FAILURES:
            self._failures = 0
            self._rests_until = time.monotonic() + _REST


def _line(file: int, patience: float) -> bytes | None:
    """A line from a pipe; None when it doesn't come in time or the other end is closed."""
    until = time.monotonic() + patience
    found = b""
    while not found.endswith(b"\n"):
        left = until - time.monotonic()
        if left <= 0 or len(found) > _ANSWER_LIMIT or not select.select([file], [], [], left)[0]:
            return None
        more = os.read(file, 1 << 16)
        if not more:
            return None
        found += more
    return found[:-1]


_demangler = Demangler()


@lru_cache(16_384)
def readable(name: str) -> str:
    """The name without return type and parameters: `at::add<float>` of `_ZN2at3addIfEEvRKNS_6TensorE`."""
    return clean(short(demangle(name)))


def readable_kernel(name: str) -> str:
    """The same, shorter: of template arguments those of the outermost template only, `scan<float, Sum<…>>`."""
    return _outer_arguments(readable(name))


def _outer_arguments(name: str) -> str:
    """`name` with the arguments of templates in arguments left out."""
    parts: list[str] = []
    depth = 0
    for place, letter in enumerate(name):
        depth -= letter == ">" and not name.startswith("->", place - 1) and depth > 0
        if depth < 2:
            parts.append(letter)
        opens = letter == "<" and not name[:place].endswith(("operator", "operator<"))
        if opens and depth == 1:
            parts.append(CUT)
        depth += opens
    return "".join(parts)


@lru_cache(16_384)
def demangle(name: str) -> str:
    """The whole name as it stood in the source; `name` itself when it isn't mangled or nothing can demangle it."""
    if not name.startswith(_MANGLED) or len(name) > _LENGTH_LIMIT or not name.isascii() or not name.isprintable():
        return name
    return _demangler.demangle(name)


def short(name: str) -> str:
    """A demangled name without its parameters, the type that it returns and the suffixes of the compiler's copies."""
    name = _CLONE.sub("", name)
    start = _parameters(name)
    return name if start is None else _without_type(name[:start])


def _parameters(name: str) -> int | None:
    """Where the parenthesis opens that the last one closes; None when the name has no parameters."""
    depth = 0
    for place in range(name.rfind(")"), -1, -1):
        depth += (name[place] == ")") - (name[place] == "(")
        if depth == 0:
            return place if not name[:place].endswith("operator") and place > 0 else None
    return None


def _without_type(name: str) -> str:
    """The part behind the last blank outside all brackets; an operator's own blanks and brackets don't count."""
    end = name.rfind("operator")
    depth = 0
    for place in range((end if end >= 0 else len(name)) - 1, -1, -1):
        letter = name[place]
        depth += (letter in _CLOSING) - (letter in _OPENING)
        if letter == " " and depth == 0:
            return name[place + 1 :]
    return name
