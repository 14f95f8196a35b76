"""What a user sees on standard error: one line a message, coloured only on a terminal, never a control character.

Results go to standard output through `result`. Text is UTF-8 whatever the locale says, and a closed standard output or
error never breaks a command.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from otelprof.counters import SAMPLES_LOST, SAMPLES_SEEN, Counters, summary
from otelprof.errors import ConfigError, OtelprofError
from otelprof.text import printable

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_WORDS = {
    logging.DEBUG: ("otelprof: debug: ", "2"),
    logging.WARNING: ("otelprof: warning: ", "33"),
    logging.ERROR: ("otelprof: error: ", "31"),
}
_LINE_LIMIT = 2000


def prepare_streams() -> bool:
    """Make standard streams usable and UTF-8; false when standard output was closed by the caller.

    A closed descriptor is replaced by /dev/null, since else the next file that is opened would become standard output.
    """
    closed = [fd for fd in (0, 1, 2) if not _is_open(fd)]
    for fd in closed:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != fd:
            os.dup2(opened, fd)
            os.close(opened)
    sys.stdout = _stream(sys.stdout, 1)
    sys.stderr = _stream(sys.stderr, 2)
    return 1 not in closed


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _stream(stream: IO[str] | None, fd: int) -> IO[str]:
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="replace")
        return stream
    return stream or open(fd, "w", encoding="utf-8", errors="replace", closefd=False)


def colours(stream: IO[str]) -> bool:
    """True when `stream` is a terminal and nobody asked for none (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class _OneLine(logging.Formatter):
    """`otelprof: LEVEL: message` on one line, plain messages (`listening on …`) bare; only debug shows where an error rose."""

    def __init__(self, coloured: bool) -> None:
        super().__init__()
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        word, colour = _WORDS.get(record.levelno, ("", ""))
        if self._coloured and colour:
            word = f"\033[{colour}m{word}\033[0m"
        line = f"{word}{printable(record.getMessage(), _LINE_LIMIT)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up_logging(level: str = "info") -> None:
    """Send messages of `level` and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(colours(sys.stderr)))
    logging.raiseExceptions = False  # a closed standard error is no reason to say more on it
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("otelprof").setLevel(logging.DEBUG if os.environ.get("OTELPROF_DEBUG") else _LEVELS[level])
    logging.getLogger("grpc").setLevel(logging.CRITICAL)  # its retries are counted and said by our exporters


def say(line: str) -> None:
    """One line for the user on standard error."""
    sys.stderr.write(f"otelprof: {printable(line, _LINE_LIMIT)}\n")
    sys.stderr.flush()


def explain(error: OtelprofError) -> int:
    """Say what went wrong, one line a mistake; the exit status."""
    for line in error.lines if isinstance(error, ConfigError) else [str(error)]:
        say(line)
    return error.exit_status


def finish(counters: Counters) -> None:
    """Write the summary as the last line of standard error."""
    sys.stderr.write(summary(counters) + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def progress(counters: Counters) -> Iterator[Callable[[], None] | None]:
    """What shows how far a recording is, once a second, when standard error is a terminal; its line goes at the end."""
    if not sys.stderr.isatty():
        yield None
        return
    begun = time.monotonic()

    def show() -> None:
        seen, lost = counters.get(SAMPLES_SEEN), counters.get(SAMPLES_LOST)
        sys.stderr.write(f"\r{time.monotonic() - begun:.0f} s, {seen:.0f} samples, {lost:.0f} lost; Ctrl-C ends it ")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r" + " " * 78 + "\r")


def result(text: str) -> None:
    """Text on standard output."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def json_result(value: object) -> None:
    """One JSON document on standard output."""
    result(json.dumps(value, indent=2, ensure_ascii=False))


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Rows as aligned columns; control characters are replaced."""
    cells = [tuple(printable(cell, 200) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
