r"""Folded text, both ways: `root;…;leaf COUNT`, one stack a line, UTF-8, lines end with LF.

With lines a Python frame is `name (file:line)`. Escapes: `\\`, `\;`, `\n`, `\r`, `\t`, `\xHH` for any other control
character and for `(` in names and files of Python frames, `\[` for a `[` that starts a name. An empty name is `[unnamed]`.
Kernel and CUDA frames start with `[kernel] ` and `[cuda] `; marks stand in their own brackets. Blanks stay.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

from otelprof.batch import Batch, Frame, FrameKind, ProfileType, Resource
from otelprof.errors import MalformedInput
from otelprof.formats.merge import UNKNOWN, UNNAMED, BatchBuilder
from otelprof.otlp import semconv
from otelprof.text import clean, printable

MAX_COUNT = (1 << 63) - 1

_SHORT = {"\\": "\\\\", ";": "\\;", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPES = {ord(sign): escape for sign, escape in _SHORT.items()} | {
    code: f"\\x{code:02x}" for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in _SHORT
}
_PYTHON_ESCAPES = _ESCAPES | {ord("("): "\\x28"}
_ESCAPED = re.compile(r"(?s)\\(x[0-9a-fA-F]{2}|.|\Z)")
_PLAIN = {"n": "\n", "r": "\r", "t": "\t"}
_PLACE = re.compile(r"(?s)(.*) \(([^(]*):(\d{1,9})\)")
_MARK = re.compile(r"\[[^\[\]\\;\x00-\x1f\x7f-\x9f]+\]")


def write(batch: Batch, lines: bool = False, kind: str = semconv.CPU.type) -> bytes:
    """The samples of one type as folded text; stacks of all processes and threads together, sorted."""
    interner, counts = batch.interner, Counter[str]()
    texts: dict[int, str] = {}
    for row in batch.samples:
        found = interner.types[row["type"]]
        if found is None or found.type != kind:
            continue
        stack = int(row["stack"])
        if stack not in texts:
            frames = interner.frames_of(stack) or UNKNOWN
            texts[stack] = ";".join(frame_text(frame, lines) for frame in frames)
        counts[texts[stack]] += int(row["value"])
    return "".join(f"{text} {count}\n" for text, count in sorted(counts.items()) if count > 0).encode()


@cache
def _escapes(kind: FrameKind) -> dict[int, str]:
    return _PYTHON_ESCAPES if kind is FrameKind.CPYTHON else _ESCAPES


def frame_text(frame: Frame, lines: bool = False) -> str:
    """One frame, escaped."""
    name = clean(frame.name)
    if frame.kind is FrameKind.MARK and _MARK.fullmatch(name):
        return name
    text = name.translate(_escapes(frame.kind))
    if label := semconv.LABELS.get(frame.kind):
        return label + text
    if name.startswith("["):
        text = "\\" + text
    if frame.kind is FrameKind.CPYTHON:
        return (
            f"{text or UNNAMED} ({clean(frame.file).translate(_PYTHON_ESCAPES)}:{max(frame.line, 0)})"
            if lines
            else text or UNNAMED
        )
    if _PLACE.fullmatch(text):  # it would be read as a Python frame
        text = text.replace("(", "\\x28")
    return text or UNNAMED


def read(data: bytes, kind: ProfileType = semconv.CPU, resource: Resource | None = None, start: int = 0, end: int = 1) -> Batch:
    """The stacks of folded text as samples of `kind` in [start, end), Unix nanoseconds; MalformedInput names the bad line."""
    builder = BatchBuilder(resource or Resource(()))
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            builder.add(*_line(number, line), kind)
    return builder.batch(start, end)


def _line(number: int, line: bytes) -> tuple[list[Frame], int]:
    try:
        text = line.decode().removesuffix("\r")
    except UnicodeDecodeError as error:
        raise MalformedInput(f"line {number}: not UTF-8 at byte {error.start}") from None
    stack, _, count = text.rpartition(" ")
    if not stack or not (count.isascii() and count.isdecimal()) or len(count) > 19 or int(count) > MAX_COUNT:
        raise MalformedInput(f"line {number}: no count at its end: {printable(text[-60:])!r}")
    return [_frame(part) for part in _split(stack)], int(count)


def _split(stack: str) -> list[str]:
    """The frames, still escaped: cut at each `;` that no backslash stands before."""
    return re.findall(r"(?s)(?:\A|;)((?:[^\\;]|\\.|\\\Z)*)", stack)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(
        lambda match: chr(int(match[1][1:], 16)) if len(match[1]) == 3 else _PLAIN.get(match[1], match[1]), text
    )


def _frame(text: str) -> Frame:
    if _MARK.fullmatch(text) and text != UNNAMED:
        return Frame(text, FrameKind.MARK)
    for kind, label in semconv.LABELS.items():
        if text.startswith(label):
            return Frame(_unescaped(text[len(label) :]), kind)
    if text == UNNAMED or text.startswith(f"{UNNAMED} ("):
        text = text[len(UNNAMED) :]
    if place := _PLACE.fullmatch(text):
        return Frame(_unescaped(place[1]), FrameKind.CPYTHON, _unescaped(place[2]), int(place[3]))
    return Frame(_unescaped(text), FrameKind.NATIVE)
