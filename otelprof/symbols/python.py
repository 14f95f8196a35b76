"""Names, files and lines of Python frames: reads code objects out of a live process, many with few system calls.

A batch of unknown code objects takes some four scattered reads whatever its size: the objects, their types' names, then
names, files and line tables with what lies behind their headers, then the rest of the long ones. A code object is known by
its address and its first line; a freed one whose place was taken by something else shows as `[unknown]`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from otelprof.batch import Frame, FrameKind, mark
from otelprof.processes.memory import Memory
from otelprof.symbols.python_lines import NO_LINE, LineTable, decode
from otelprof.targets.cpython_layouts import CPython
from otelprof.text import CUT, NAME_LIMIT, clean

Table = npt.NDArray[np.void]
Key = tuple[int, int]

CACHE_BYTES = 16 << 20
"""Rough size of the decoded code objects that are kept of a process."""
LINES_LIMIT = 1 << 17
"""Bytes of a line table that are read; instructions behind them show the first line."""
BATCH = 32
"""Code objects that are read at once: bounds what a hostile process can make us hold meanwhile."""
CHECK_UNREADABLE = 0xFFFFFFFF
"""`check` of a frame whose code object the kernel couldn't read (bpf/python_frames.h): any first line is taken."""
CAPTURED_LIMIT = 4096
"""Code objects of the kernel's that wait to be asked for."""
OFFSETS_LIMIT = 4096
"""Frames that are kept of one code object."""
UNKNOWN = mark("unknown")

_LARGEST = (1 << 31) - 1
_SPECULATIVE = 256  # bytes read at a string or line table at first; most are shorter
_PAGE = 4096
_TYPES = 256
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


@dataclass(slots=True)
class Code:
    """One decoded code object; `frames` are those made of it so far, by instruction offset."""

    name: str
    file: str
    first_line: int
    lines: LineTable
    frames: dict[int, Frame] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """Roughly the bytes that it takes."""
        return 512 + 2 * len(self.name) + 2 * len(self.file) + 8 * len(self.lines.starts)


@dataclass(frozen=True, slots=True)
class _Head:
    """The fields of a code object as read: pointers to its parts."""

    key: Key
    first_line: int
    name: int
    file: int
    lines: int


class CodeReader:
    """Decodes the Python frames of one process image. Not safe for use by several threads at once."""

    def __init__(self, memory: Memory | None, layout: CPython) -> None:
        """`memory` None: the process is gone, only what is known already has a name."""
        self._memory, self._layout = memory, layout
        self._codes: dict[Key, Code] = {}
        self._weight = 0
        self._types: dict[int, str] = {}
        self._captured: dict[Key, _Captured] = {}

    def __len__(self) -> int:
        return len(self._codes)

    def know(self, other: CodeReader) -> None:
        """Take over what another reader of the same process was told by the kernel."""
        self._captured.update(other._captured)

    def forked(self, memory: Memory | None) -> CodeReader:
        """A reader for a forked child, which has its parent's code objects: it knows at once what this one knows."""
        child = CodeReader(memory, self._layout)
        child._codes, child._weight, child._types = dict(self._codes), self._weight, dict(self._types)
        child._captured = dict(self._captured)
        return child

    def capture(self, records: Table) -> None:
        """Take what the kernel read of code objects (struct python_code): the process may be gone before anybody looks."""
        for record in records[: CAPTURED_LIMIT - len(self._captured)]:
            captured = _captured(record)
            if captured is not None:
                self._captured[int(record["address"]), int(record["check"])] = captured

    def frames(self, records: Table) -> list[Frame | None]:
        """The frames of wire records, in order; dtype has `address`, `offset` and `check` (struct frame of bpf/wire.h).

        None: not a Python frame at all (its executable is None), to be left out. `[unknown]`: the code object is gone.
        """
        self._make_room()
        keys = list(zip(records["address"].tolist(), records["check"].tolist(), strict=True))
        answers: dict[Key, Frame | None] = {}
        self._keep_captured([key for key in keys if key in self._captured], whole=True)
        unknown = list({key for key in keys if key not in self._codes})
        if self._memory is not None:
            for start in range(0, len(unknown), BATCH):
                answers |= self._load(self._memory, unknown[start : start + BATCH])
        self._keep_captured([key for key in keys if key in self._captured])
        self._decode(keys, records["offset"].tolist())
        return [
            self._codes[key].frames[offset] if key in self._codes else answers.get(key, UNKNOWN)
            for key, offset in zip(keys, records["offset"].tolist(), strict=True)
        ]

    # --- lines -------------------------------------------------------------------------------------------------

    def _decode(self, keys: Sequence[Key], offsets: Sequence[int]) -> None:
        """Make the frames that aren't there yet, all instructions of a code object at once."""
        for code in [self._codes[key] for key in set(keys) if key in self._codes]:
            if len(code.frames) > OFFSETS_LIMIT:
                code.frames.clear()
        wanted: dict[Key, set[int]] = {}
        for key, offset in zip(keys, offsets, strict=True):
            if key in self._codes and offset not in self._codes[key].frames:
                wanted.setdefault(key, set()).add(offset)
        for key, missing in wanted.items():
            self._add_frames(self._codes[key], sorted(missing))

    def _add_frames(self, code: Code, offsets: list[int]) -> None:
        lines = code.lines.at([self._instruction(offset) for offset in offsets])
        for offset, line in zip(offsets, lines, strict=True):
            shown = code.first_line if line == NO_LINE else line
            code.frames[offset] = Frame(code.name, FrameKind.CPYTHON, code.file, shown, code.first_line)

    def _instruction(self, offset: int) -> int:
        """An offset of the wire as a position in the line table; a frame that hasn't begun has one below zero."""
        if offset >= 1 << 31:
            offset -= 1 << 32
        if self._layout.minor <= 10:
            return offset if self._layout.minor <= 9 else min(2 * offset, _LARGEST)
        return (offset - self._layout.code_bytecode) >> 1

    # --- code objects ------------------------------------------------------------------------------------------

    def _load(self, memory: Memory, keys: Sequence[Key]) -> dict[Key, Frame | None]:
        """Read code objects into the cache; what to show for those that can't be."""
        images = memory.read_many([(address, self._layout.code_size) for address, _ in keys])
        kinds = self._type_names(memory, (self._type_of(image) for image in images if image))
        answers: dict[Key, Frame | None] = {}
        heads = []
        for key, image in zip(keys, images, strict=True):
            kind = kinds.get(self._type_of(image), "") if image else ""
            head = self._head(key, image) if image and kind == "code" else None
            if head is not None:
                heads.append(head)
            else:
                answers[key] = None if kind == "NoneType" else UNKNOWN
        self._keep(memory, heads)
        return answers

    def _head(self, key: Key, image: bytes) -> _Head | None:
        layout = self._layout
        (first_line,) = struct.unpack_from("<i", image, layout.code_first_line)
        if key[1] not in (first_line & 0xFFFFFFFF, CHECK_UNREADABLE):
            return None
        places = (layout.code_name, layout.code_filename, layout.code_lines)
        name, file, lines = (struct.unpack_from("<Q", image, place)[0] for place in places)
        return _Head(key, max(first_line, 0), name, file, lines)

    def _keep(self, memory: Memory, heads: Sequence[_Head]) -> None:
        """Decode what can be read whole; of a process that ends meanwhile the rest stays unknown."""
        texts, tables = self._parts(memory, heads)
        decoded = decode(self._layout.minor, [tables[head.lines] for head in heads], [head.first_line for head in heads])
        for head, lines in zip(heads, decoded, strict=True):
            name, file = texts[head.name], texts[head.file]
            if name is not None and file is not None:
                code = self._codes[head.key] = Code(name, file, head.first_line, lines)
                self._weight += code.weight

    def _keep_captured(self, keys: Iterable[Key], whole: bool = False) -> None:
        """Decode what the kernel has read, all of it or what it had in full; what is cut is read from the process first."""
        for key in keys:
            captured = self._captured.get(key)
            if captured is None or (whole and not captured.whole):
                continue
            del self._captured[key]
            if key not in self._codes:
                (lines,) = decode(self._layout.minor, [captured.lines], [key[1]])
                code = self._codes[key] = Code(captured.name, captured.file, key[1], lines)
                self._weight += code.weight

    def _make_room(self) -> None:
        """Forget the oldest until the rest fits; before a batch, so that none of its own go."""
        while self._weight > CACHE_BYTES:
            self._weight -= self._codes.pop(next(iter(self._codes))).weight

    def _type_of(self, image: bytes) -> int:
        return int.from_bytes(image[self._layout.object_type : self._layout.object_type + 8], "little")

    def _type_names(self, memory: Memory, types: Iterable[int]) -> dict[int, str]:
        """tp_name of each type object. Types are static and few, so they are read once."""
        unknown = [kind for kind in set(types) if kind not in self._types]
        pointers = memory.read_many([(kind + self._layout.type_name, 8) for kind in unknown])
        names = memory.read_many([(int.from_bytes(pointer or b"", "little"), 9) for pointer in pointers])
        found = {kind: _c_name(name) for kind, name in zip(unknown, names, strict=True)}
        known = {kind: name for kind, name in found.items() if name in ("code", "NoneType")}
        if len(self._types) < _TYPES:
            self._types.update(known)
        return {**self._types, **known}

    # --- strings and line tables -------------------------------------------------------------------------------

    def _parts(self, memory: Memory, heads: Sequence[_Head]) -> tuple[dict[int, str | None], dict[int, bytes]]:
        """Names and files as text (None: can't be read), line tables as bytes, by address."""
        layout = self._layout
        texts = list({pointer for head in heads for pointer in (head.name, head.file)})
        tables = list({head.lines for head in heads})
        starts = memory.read_many(
            [_speculative(pointer, layout.text_compact) for pointer in texts]
            + [_speculative(pointer, layout.bytes_data) for pointer in tables]
        )
        spans = [self._text_span(memory, *pair) for pair in zip(texts, starts, strict=False)]
        spans += [self._table_span(*pair) for pair in zip(tables, starts[len(texts) :], strict=True)]
        whole = self._rest(memory, [*texts, *tables], starts, spans)
        decoded = {at: _decoded(whole[n], self._kind(starts[n])) for n, at in enumerate(texts)}
        return decoded, {at: whole[len(texts) + n] or b"" for n, at in enumerate(tables)}

    def _rest(
        self, memory: Memory, objects: list[int], starts: list[bytes | None], spans: list[tuple[int, int]]
    ) -> list[bytes | None]:
        """The bytes [address, address + size) of each span, read only where the start of the object doesn't hold them."""
        found = [_within(at, start, span) for at, start, span in zip(objects, starts, spans, strict=True)]
        missing = [number for number, data in enumerate(found) if data is None]
        for number, data in zip(missing, memory.read_many([spans[n] for n in missing]), strict=True):
            found[number] = data
        return found

    def _table_span(self, address: int, start: bytes | None) -> tuple[int, int]:
        if not start:
            return address, 0
        (size,) = struct.unpack_from("<q", start, self._layout.bytes_size)
        return address + self._layout.bytes_data, min(max(size, 0), LINES_LIMIT)

    def _text_span(self, memory: Memory, address: int, start: bytes | None) -> tuple[int, int]:
        """Where a string's characters stand: behind one of two headers, or where a third says (made before 3.12)."""
        layout = self._layout
        if not start:
            return address, 0
        (length,) = struct.unpack_from("<q", start, layout.text_length)
        size = self._kind(start) * min(max(length, 0), NAME_LIMIT + 1)
        flags = self._state(start) >> 3
        if not flags & 1:
            pointer = memory.pointer(address + layout.text_compact)
            return pointer, size
        return address + (layout.text_ascii if flags & 2 else layout.text_compact), size

    def _state(self, start: bytes) -> int:
        """Bits of a string's state from `kind` on: three of kind, compact, ascii."""
        (state,) = struct.unpack_from("<I", start, self._layout.text_state)
        return int(state) >> self._layout.text_kind_shift

    def _kind(self, start: bytes | None) -> int:
        """Bytes of a character: 1, 2 or 4; 0 when the string can't be read."""
        kind = self._state(start) & 7 if start else 0
        return kind if kind in _ENCODINGS else 0


@dataclass(frozen=True, slots=True)
class _Captured:
    """A code object as the kernel read it; `lines` is empty where the table found no room: frames show the first line then."""

    name: str
    file: str
    lines: bytes
    whole: bool


def _captured(record: np.void) -> _Captured | None:
    """The contents of a `struct python_code`; None when its names couldn't be read."""
    name, name_cut = _captured_text(record["name"], record["name_data"])
    file, file_cut = _captured_text(record["file"], record["file_data"])
    size, room = int(record["lines_size"]), len(record["lines"])
    if name is None or file is None or int(record["check"]) == CHECK_UNREADABLE:
        return None
    lines = record["lines"][:size].tobytes() if size <= room else b""
    return _Captured(name, file, lines, whole=not name_cut and not file_cut and size <= room)


def _captured_text(text: np.void, data: npt.NDArray[np.uint8]) -> tuple[str | None, bool]:
    """(the text, None: not read; whether its end is missing)."""
    kind, length = int(text["kind"]), int(text["length"])
    if kind not in _ENCODINGS:
        return None, False
    size = min(kind * length, len(data) // kind * kind)
    found = data[:size].tobytes().decode(_ENCODINGS[kind], "replace")
    return clean(found + (CUT if size < kind * length else "")), size < kind * length


def _speculative(address: int, least: int) -> tuple[int, int]:
    """A read that most likely holds the whole object and never leaves the page for nothing."""
    return address, max(least, min(_SPECULATIVE, _PAGE - address % _PAGE))


def _within(address: int, start: bytes | None, span: tuple[int, int]) -> bytes | None:
    offset, size = span[0] - address, span[1]
    if start is None or not size:
        return None if start is None else b""
    return start[offset : offset + size] if offset >= 0 and offset + size <= len(start) else None


def _decoded(data: bytes | None, kind: int) -> str | None:
    return None if data is None or kind == 0 else clean(data.decode(_ENCODINGS[kind], "replace"))


def _c_name(data: bytes | None) -> str:
    return (data or b"").partition(b"\0")[0].decode("latin-1")
