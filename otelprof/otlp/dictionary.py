"""What can stand in a request's dictionary, kept as columns for each interner, and the part that one request uses.

A stack is turned into location numbers once in the life of its interner, a frame and a string too. A request then picks
the rows that its samples use, numbers them from 1 (0 is the zero row of each table) and writes them as columns:
no row twice and none unused, as the conformance checker wants it.
Layout: opentelemetry-proto v1.10.0, opentelemetry/proto/profiles/v1development/profiles.proto (equal in v1.11.0).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from otelprof.batch import AttributeValue, Frame, FrameKind, Interner, Link, Mapping
from otelprof.otlp import semconv, wire
from otelprof.otlp.wire import Array, Ragged
from otelprof.text import NAME_LIMIT, utf8

KEY_LIMIT, ATTRIBUTE_LIMIT = 1024, 2048
"""Bytes of an attribute's key and value; Pyroscope refuses a series with longer ones (pkg/validation at v2.2.1)."""

MAPPING_TABLE, LOCATION_TABLE, FUNCTION_TABLE, LINK_TABLE, STRING_TABLE, ATTRIBUTE_TABLE, STACK_TABLE = range(1, 8)

MAPPINGS = np.dtype([("start", "u8"), ("limit", "u8"), ("offset", "u8"), ("file", "u4")])
FUNCTIONS = np.dtype([("name", "u4"), ("system", "u4"), ("file", "u4"), ("start", "i8")])
LOCATIONS = np.dtype([("mapping", "u4"), ("function", "u4"), ("attribute", "u4"), ("line", "i8"), ("address", "u8")])
LISTS = np.dtype([("start", "i8"), ("length", "i8")])
NUMBERS = np.dtype("u4")

Columns = tuple[Ragged, ...]
_I64 = (-(1 << 63), (1 << 63) - 1)


class Rows:
    """A growing array; row 0 is zero and stands for `none`."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._data = np.zeros(64, dtype)
        self._length = 1

    def __len__(self) -> int:
        return self._length

    @property
    def table(self) -> Array:
        """The rows so far; a view."""
        return self._data[: self._length]

    def append(self, row: object) -> int:
        """Add one row and give its number."""
        self.reach(self._length + 1)
        self._data[self._length - 1] = row
        return self._length - 1

    def extend(self, rows: Array) -> None:
        """Add rows."""
        start = self._length
        self.reach(start + len(rows))
        self._data[start : self._length] = rows

    def reach(self, length: int) -> None:
        """Be at least so long; new rows are zero."""
        if length > len(self._data):
            grown = np.zeros(max(length, 2 * len(self._data)), self._data.dtype)
            grown[: self._length] = self._data[: self._length]
            self._data = grown
        self._length = max(self._length, length)


class Lists:
    """Growing rows of numbers of different lengths; row 0 is empty."""

    def __init__(self) -> None:
        self._numbers = Rows(NUMBERS)
        self._rows = Rows(LISTS)

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, numbers: Array) -> int:
        """Add one row and give its number."""
        row = self._rows.append((len(self._numbers), len(numbers)))
        self._numbers.extend(numbers)
        return row

    def take(self, rows: Array) -> Ragged:
        """These rows, in this order."""
        found = self._rows.table[rows]
        return wire.gathered(self._numbers.table, found["start"], found["length"])


class Dictionary:
    """All that one interner's values look like in OTLP, made at first sight. Hold `lock` while you use it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.strings: list[bytes] = [wire.field(STRING_TABLE, b"")]  # each with its tag and length
        self.values: list[bytes] = [b""]  # AnyValue of each attribute
        self.keys = Rows(NUMBERS)  # string of each attribute
        self.functions, self.locations, self.mappings = Rows(FUNCTIONS), Rows(LOCATIONS), Rows(MAPPINGS)
        self.mapping_attributes, self.stacks, self.attribute_sets = Lists(), Lists(), Lists()
        self._ids: dict[Hashable, int] = {("string", b""): 0}
        self._location_of, self._stack_of = Rows(NUMBERS), Rows(NUMBERS)
        self._mapping_of: dict[Mapping, int] = {}
        self._kind_of: dict[FrameKind, int] = {}

    def string(self, text: str, limit: int = NAME_LIMIT) -> int:
        """The row of a string."""
        data = utf8(text, limit)
        found = self._ids.get(("string", data))
        if found is None:
            found = self._ids["string", data] = len(self.strings)
            self.strings.append(wire.field(STRING_TABLE, data))
        return found

    def attribute(self, key: str, value: AttributeValue) -> int:
        """The row of an attribute."""
        name, data = self.string(key), any_value(value).SerializeToString()
        found = self._ids.get(("attribute", name, data))
        if found is None:
            found = self._ids["attribute", name, data] = self.keys.append(name)
            self.values.append(data)
        return found

    def sample_attributes(self, key: Hashable, make: Callable[[], Iterable[tuple[str, AttributeValue]]]) -> int:
        """The row of the set that `make` gives; it is asked once for each `key`."""
        found = self._ids.get(("sample", key))
        if found is None:
            found = self._ids["sample", key] = self.attribute_set(make())
        return found

    def attribute_set(self, attributes: Iterable[tuple[str, AttributeValue]]) -> int:
        """The row of a set of attributes; 0 is the empty one."""
        rows = tuple(sorted(self.attribute(key, value) for key, value in attributes))
        found = self._ids.get(("set", rows))
        if found is None:
            found = self.attribute_sets.append(np.array(rows, NUMBERS)) if rows else 0
            self._ids["set", rows] = found
        return found

    def stack_rows(self, interner: Interner, ids: Array) -> Array:
        """The rows of these stacks of the interner. Two stacks that look the same in OTLP are one row."""
        self._stack_of.reach(int(ids.max(initial=0)) + 1)
        known = self._stack_of.table
        for number in set(ids[known[ids] == 0].tolist()):
            known[number] = self._stack(interner, interner.stacks[number])
        return known[ids]

    def stack_of_frames(self, frames: Sequence[Frame]) -> int:
        """The row of a stack that is in no interner, root first."""
        return self._stack_row(np.array([self._location(frame) for frame in reversed(frames)], NUMBERS))

    def _stack(self, interner: Interner, frames: tuple[int, ...]) -> int:
        return self._stack_row(self._location_rows(interner, np.array((frames or (0,))[::-1], np.int64)))

    def _stack_row(self, locations: Array) -> int:
        key = "stack", locations.tobytes()
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = self.stacks.append(locations)
        return found

    def _location_rows(self, interner: Interner, frames: Array) -> Array:
        self._location_of.reach(int(frames.max()) + 1)
        known = self._location_of.table
        for number in set(frames[known[frames] == 0].tolist()):
            known[number] = self._location(interner.frames[number])
        return known[frames]

    def _location(self, frame: Frame) -> int:
        """The row of a frame. Python frames and marks have no file of machine code, so mapping 0 and no address."""
        in_file = frame.kind not in (FrameKind.MARK, FrameKind.CPYTHON)
        row = (
            self._mapping(frame.mapping) if in_file and frame.mapping else 0,
            self._function(frame),
            self._kind(frame.kind),
            max(frame.line, 0),
            frame.address if in_file else 0,
        )
        return self._row("location", self.locations, row)

    def _kind(self, kind: FrameKind) -> int:
        """The attribute with the frame's type; marks have none."""
        found = self._kind_of.get(kind)
        if found is None:
            name = semconv.FRAME_TYPES.get(kind)
            found = self._kind_of[kind] = self.attribute(semconv.FRAME_TYPE, name) if name else 0
        return found

    def _function(self, frame: Frame) -> int:
        name = self.string(shown_name(frame))
        system = self.string(frame.system_name) if frame.system_name != frame.name else 0
        return self._row("function", self.functions, (name, system, self.string(frame.file), max(frame.start_line, 0)))

    def _mapping(self, mapping: Mapping) -> int:
        found = self._mapping_of.get(mapping)
        if found is None:
            found = self._mapping_of[mapping] = self._new_mapping(mapping)
        return found

    def _new_mapping(self, mapping: Mapping) -> int:
        bounds = (mapping.start, mapping.limit) if mapping.start < mapping.limit else (0, 0)
        ids = ((semconv.BUILD_ID_GNU, mapping.build_id), (semconv.BUILD_ID_HTLHASH, mapping.htlhash))
        attributes = tuple(self.attribute(key, value) for key, value in ids if value)
        row = (*bounds, mapping.offset, self.string(mapping.file))
        if not any(row) and not attributes:
            return 0
        found = self._ids.get(("mapping", row, attributes))
        if found is None:
            found = self._ids["mapping", row, attributes] = self.mappings.append(row)
            self.mapping_attributes.append(np.array(attributes, NUMBERS))
        return found

    def _row(self, table: str, rows: Rows, row: tuple[int, ...]) -> int:
        found = self._ids.get((table, row))
        if found is None:
            found = self._ids[table, row] = rows.append(row)
        return found


_dictionaries: weakref.WeakKeyDictionary[Interner, Dictionary] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def dictionary_of(interner: Interner) -> Dictionary:
    """The dictionary of an interner; it lives as long as the interner and is shared by all exporters."""
    with _lock:
        return _dictionaries.setdefault(interner, Dictionary())


def any_value(value: AttributeValue) -> AnyValue:
    """An attribute's value; integers beyond 64 bits are cut to the nearest."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=min(max(value, _I64[0]), _I64[1]))
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(string_value=utf8(value, ATTRIBUTE_LIMIT).decode())


def shown_name(frame: Frame) -> str:
    """A frame's name, never empty: readers want at least a name from each function."""
    unnamed = "[unknown]" if frame.kind is FrameKind.MARK else "[unnamed]"
    return frame.name or frame.system_name or unnamed


class _Numbers:
    """The rows of one table of `size` that a request uses, numbered from 1; 0 stays 0."""

    def __init__(self, size: int, *used: Array) -> None:
        marks = np.zeros(size, np.bool_)
        for rows in used:
            marks[rows] = True
        marks[0] = False
        self.rows: Array = np.flatnonzero(marks)  # of the dictionary, in the order of their numbers
        self._numbers = np.cumsum(marks)
        self._numbers[0] = 0

    def of(self, rows: Array) -> Array:
        """The numbers of rows of the dictionary."""
        return self._numbers[rows]


class Selection:
    """The part of a dictionary that one request uses; `stack`, `attributes`, `string` translate rows to its numbers."""

    def __init__(self, source: Dictionary, stacks: Array, attribute_sets: Array, strings: Sequence[int]) -> None:
        self._source = source
        self._stacks = _Numbers(len(source.stacks), stacks)
        self._lists = source.stacks.take(self._stacks.rows)
        self._locations = _Numbers(len(source.locations), self._lists.data)
        self._places = source.locations.table[self._locations.rows]
        self._functions = _Numbers(len(source.functions), self._places["function"])
        self._mappings = _Numbers(len(source.mappings), self._places["mapping"])
        self._build_ids = source.mapping_attributes.take(self._mappings.rows)
        self._sets = source.attribute_sets.take(attribute_sets)
        self._attributes = _Numbers(len(source.keys), self._places["attribute"], self._build_ids.data, self._sets.data)
        self._named = source.functions.table[self._functions.rows]
        self._files = source.mappings.table[self._mappings.rows]
        self._keys = source.keys.table[self._attributes.rows]
        names = (self._named["name"], self._named["system"], self._named["file"], self._files["file"], self._keys)
        self._strings = _Numbers(len(source.strings), *names, np.array(strings, np.int64))

    def stack(self, rows: Array) -> Array:
        """Numbers in stack_table."""
        return self._stacks.of(rows)

    def attributes(self) -> Ragged:
        """Numbers in attribute_table, for each of the sets that the selection was made with."""
        return Ragged(self._attributes.of(self._sets.data), self._sets.lengths)

    def string(self, row: int) -> int:
        """The number of a string in string_table."""
        return int(self._strings.of(np.array([row]))[0])

    def encode(self, links: Sequence[Link]) -> bytes:
        """A ProfilesDictionary; `links` are the rows of link_table from 1 on."""
        tables = (
            _table(MAPPING_TABLE, *self._mapping_table()),
            _table(LOCATION_TABLE, *self._location_table()),
            _table(FUNCTION_TABLE, *self._function_table()),
            _table(LINK_TABLE, *link_columns(links)),
            _table(ATTRIBUTE_TABLE, *self._attribute_table()),
            _table(STACK_TABLE, wire.packed(1, Ragged(self._locations.of(self._lists.data), self._lists.lengths))),
        )
        strings = self._source.strings
        return b"".join([*tables, strings[0], *(strings[row] for row in self._strings.rows.tolist())])

    def _mapping_table(self) -> Columns:
        files, build_ids = self._files, self._build_ids
        return (
            wire.integer(1, files["start"]),
            wire.integer(2, files["limit"]),
            wire.integer(3, files["offset"]),
            wire.integer(4, self._strings.of(files["file"])),
            wire.packed(5, Ragged(self._attributes.of(build_ids.data), build_ids.lengths)),
        )

    def _location_table(self) -> Columns:
        places = self._places
        kinds = self._attributes.of(places["attribute"])
        return (
            wire.integer(1, self._mappings.of(places["mapping"])),
            wire.integer(2, places["address"]),
            wire.message(3, wire.integer(1, self._functions.of(places["function"])), wire.integer(2, places["line"])),
            wire.packed(4, Ragged(kinds[kinds > 0], (kinds > 0).astype(np.int64))),
        )

    def _function_table(self) -> Columns:
        named = self._named
        return (
            wire.integer(1, self._strings.of(named["name"])),
            wire.integer(2, self._strings.of(named["system"])),
            wire.integer(3, self._strings.of(named["file"])),
            wire.integer(4, named["start"]),
        )

    def _attribute_table(self) -> Columns:
        values = Ragged.of(self._source.values[row] for row in self._attributes.rows.tolist())
        return wire.integer(1, self._strings.of(self._keys)), wire.message(2, values)


def link_columns(links: Sequence[Link]) -> Columns:
    """Trace and span id of each link as fields 1 and 2: a profile's Link, and the start of a span's."""
    traces, spans = Ragged.of(link.trace_id for link in links), Ragged.of(link.span_id for link in links)
    return wire.message(1, traces), wire.message(2, spans)


def _table(number: int, *columns: Ragged) -> bytes:
    """A table: its zero row, then the rows."""
    return wire.field(number, b"") + wire.message(number, *columns).bytes()
