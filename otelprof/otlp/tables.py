"""A request's dictionary, resolved as columns: every index checked, every frame and stack under its content key.

Hostile or careless senders are normal: an index outside its table marks what uses it as bad (the samples are dropped and
counted), a missing zero element does no harm, and what would unfold beyond MAX_FRAMES is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesDictionary

from otelprof.errors import TooLarge
from otelprof.otlp import semconv
from otelprof.otlp.content import Keys, combined, mixed, sequence_keys, text_keys
from otelprof.otlp.decoded import Frames, Stacks, column
from otelprof.otlp.reader import Fields, Messages, fields, tables
from otelprof.otlp.wire import Ragged

MAX_FRAMES = 16_000_000  # of all stacks of a request together
MAX_DEPTH = 8192
MAX_STRING = 65_536  # characters
_LOCATIONS, _FUNCTIONS, _STACKS = 2, 3, 7  # tables of ProfilesDictionary
UNKNOWN, TRUNCATED = "[unknown]", "[truncated]"

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def checked(indices: Ints, size: int) -> tuple[Ints, Flags]:
    """(indices with those outside [0, size) set to 0, which of them were outside); 0 is never outside."""
    outside = (indices < 0) | ((indices >= size) & (indices != 0))
    return np.where(outside, 0, indices), outside


def any_in_rows(flags: Flags, lengths: Ints) -> Flags:
    """For each row of a ragged array, whether one of its flags is set."""
    counts = np.concatenate([np.zeros(1, np.int64), np.cumsum(flags)])
    ends = np.cumsum(lengths)
    found: Flags = counts[ends] > counts[ends - lengths]
    return found


def ragged(rows: Sequence[Any]) -> Ragged:
    """Repeated integer fields, one per row, as one array with lengths."""
    lengths = column(map(len, rows), len(rows))
    return Ragged(column(chain.from_iterable(rows), int(lengths.sum())), lengths)


@dataclass(frozen=True)
class _Frames:
    """Frames whose texts are still numbers of strings: `texts` i8[n, 6], in the order of Frames.texts."""

    keys: Keys
    texts: Ints
    lines: Ints
    starts: Ints
    addresses: Keys

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class _Locations:
    """Frames of locations: frame i belongs to the location that `counts` says; innermost line first."""

    frames: _Frames
    counts: Ints  # frames of each location
    bad: Flags  # locations with an index outside its table


class Dictionary:
    """The tables of one request. Everything is computed when it is first asked for."""

    def __init__(self, message: ProfilesDictionary) -> None:
        self._message = message
        self.strings: list[str] = [text[:MAX_STRING] for text in message.string_table] or [""]
        self.strings[0] = ""
        self._string_count = len(message.string_table)

    @cached_property
    def _columns(self) -> dict[int, Fields]:
        """The fields of functions, locations and stacks, by the number of their table."""
        plain = ProfilesDictionary()
        plain.CopyFrom(self._message)
        plain.DiscardUnknownFields()
        for name in ("string_table", "attribute_table", "link_table", "mapping_table"):
            plain.ClearField(name)
        return {number: fields(messages) for number, messages in tables(plain.SerializeToString()).items()}

    def _table(self, number: int) -> Fields:
        empty = np.zeros(0, np.int64)
        return self._columns.get(number) or fields(Messages(empty.astype(np.uint8), empty, empty))

    def string(self, index: int) -> str:
        """The string, or "" when there is none."""
        return self.strings[index] if 0 <= index < len(self.strings) else ""

    def key(self, attribute: KeyValue) -> str:
        """The key of a resource's attribute, inline or by reference (key_strindex)."""
        return str(attribute.key) or self.string(attribute.key_strindex)

    def text(self, value: AnyValue) -> str | None:
        """A value as the text of a label; only strings, inline or by reference, and integers make one."""
        kind = value.WhichOneof("value")
        if kind == "string_value":
            return str(value.string_value)
        if kind == "string_value_strindex":
            return self.string(value.string_value_strindex)
        if kind == "int_value":
            return str(value.int_value)
        values = list(value.array_value.values) if kind == "array_value" else []
        return self.text(values[0]) if len(values) == 1 and not values[0].HasField("array_value") else None

    @cached_property
    def attributes(self) -> list[tuple[str, str | None]]:
        """(key, text) of each entry of attribute_table; an empty entry 0 is ("", None)."""
        return [(self.string(entry.key_strindex), self.text(entry.value)) for entry in self._message.attribute_table]

    @cached_property
    def links(self) -> npt.NDArray[np.uint64]:
        """u8[n, 3] of trace (big-endian halves) and span; ids of a wrong length are no link."""
        sound = [e.trace_id + e.span_id if len(e.trace_id) == 16 and len(e.span_id) == 8 else bytes(24) for e in self._links]
        return np.frombuffer(b"".join(sound), ">u8").astype(np.uint64).reshape(-1, 3)

    @property
    def _links(self) -> list[Any]:
        table = self._message.link_table
        return list(table) if len(table) else [table.add()]

    def _attribute_of(self, lists: Ragged, key: str) -> tuple[Ints, Flags]:
        """For each list of attribute indices: string number of `key`'s value in `self.extra`, 0 if none; bad indices."""
        table = self.attributes
        number = [self._extra(text) if name == key and text else 0 for name, text in table] or [0]
        index, outside = checked(lists.data, len(table))
        values = np.array(number, np.int64)[index]
        found = np.zeros(len(lists), np.int64)
        owner = np.repeat(np.arange(len(lists)), lists.lengths)
        found[owner[values > 0]] = values[values > 0]
        return found, any_in_rows(outside, lists.lengths)

    def _extra(self, text: str) -> int:
        """The number of a string that needn't be in the request's table; it is appended."""
        number = self._extras.get(text)
        if number is None:
            number = self._extras[text] = len(self.strings)
            self.strings.append(text[:MAX_STRING])
        return number

    @cached_property
    def _extras(self) -> dict[str, int]:
        return {"": 0}

    @cached_property
    def _functions(self) -> tuple[npt.NDArray[np.int64], Flags]:
        """i8[n, 4] of name, system name, file (string numbers) and first line; functions with a bad index."""
        table = self._table(_FUNCTIONS)
        rows = np.column_stack([table.integers(number) for number in (1, 2, 3, 4)])  # name, system name, file, first line
        rows = rows if len(rows) else np.zeros((1, 4), np.int64)
        rows[:, :3], outside = checked(rows[:, :3], self._string_count)
        bad: Flags = np.any(outside, axis=1)
        return rows, bad

    @cached_property
    def _mappings(self) -> tuple[npt.NDArray[np.int64], Flags]:
        """i8[n, 3] of file, build id (string numbers) and what turns an address into one of the file; bad ones."""
        table = list(self._message.mapping_table)
        if not table:
            return np.zeros((1, 3), np.int64), np.zeros(1, bool)
        files, bad_file = checked(column((m.filename_strindex for m in table), len(table)), self._string_count)
        build, bad_build = self._attribute_of(ragged([m.attribute_indices for m in table]), semconv.BUILD_ID_GNU)
        shift = column(((m.file_offset - m.memory_start) % 2**64 for m in table), len(table), np.uint64).view(np.int64)
        return np.column_stack([files, build, shift]), bad_file | bad_build

    @cached_property
    def locations(self) -> _Locations:
        """The frames of all locations; the last but one stands for no location, the last for what was cut."""
        table = self._table(_LOCATIONS)
        mapping, bad = checked(table.integers(1), len(self._message.mapping_table))
        address = table.integers(2).view(np.uint64)
        messages, counts = table.submessages(3)
        lines = fields(messages)
        kinds, bad_kind = self._attribute_of(table.packed(4), semconv.FRAME_TYPE)
        function, bad_function = checked(lines.integers(1), len(self._message.function_table))
        bad_function |= self._functions[1][function]
        bad = bad | bad_kind | any_in_rows(bad_function, counts) | self._mappings[1][mapping]
        where = _with_one_at_least(counts)
        of_lines = self._fields(function, lines.integers(2), where)
        parts = np.column_stack([of_lines, kinds[where.owner], self._mappings[0][mapping[where.owner], :2]])
        addresses = np.where(where.line < 0, self._in_file(address, mapping)[where.owner], 0).astype(np.uint64)
        counts = np.maximum(np.append(counts, [1, 1]), 1)
        return _Locations(self._frames(parts, addresses), counts, np.append(bad, [False, False]))

    def _in_file(self, address: Keys, mapping: Ints) -> Keys:
        """Addresses relative to their file, where the mapping says how."""
        moved: Keys = address + self._mappings[0][mapping, 2].view(np.uint64)
        return moved

    def _fields(self, function: Ints, line: Ints, where: _Rows) -> Ints:
        """i8[n, 5] of name, system name, file, first line and line of each frame; zeros where a location has no lines."""
        rows = np.zeros((len(where.owner), 5), np.int64)
        has = where.line >= 0
        rows[has, :4] = self._functions[0][function[where.line[has]]]
        rows[has, 4] = line[where.line[has]]
        return rows

    def _frames(self, fields: Ints, addresses: Keys) -> _Frames:
        """Frames from i8[n, 8]: name, system name, file, first line, line, kind, module, build id; then the two marks."""
        name = np.where(fields[:, 0] > 0, fields[:, 0], fields[:, 1])
        for row in np.flatnonzero(name == 0).tolist():
            name[row] = self._extra(_place(self.strings[fields[row, 6]], int(addresses[row])))
        name = np.append(name, [self._extra(UNKNOWN), self._extra(TRUNCATED)])
        fields = np.vstack([fields, np.zeros((2, 8), np.int64)])
        addresses = np.append(addresses, np.zeros(2, np.uint64))
        system = np.where(fields[:, 1] == name, 0, fields[:, 1])
        texts = np.column_stack([fields[:, 5], name, system, fields[:, 2], fields[:, 6], fields[:, 7]])
        hashes = text_keys(self.strings)
        keys = combined(*hashes[texts].T, fields[:, 4], fields[:, 3], addresses)
        return _Frames(keys, texts, fields[:, 4], fields[:, 3], addresses)

    @cached_property
    def stacks(self) -> tuple[Stacks, Flags]:
        """All stacks of the request, in its order (at least one), and which of them have a bad index."""
        rows = self._table(_STACKS).packed(1)
        rows = rows if len(rows) else Ragged(np.zeros(0, np.int64), np.zeros(1, np.int64))
        locations = self.locations
        index, outside = checked(rows.data, len(locations.counts) - 2)
        nothing = len(locations.counts) - 2
        bad = any_in_rows(outside | locations.bad[index], rows.lengths)
        filled = Ragged(np.insert(index, rows.ends[rows.lengths == 0], nothing), np.maximum(rows.lengths, 1))
        return _unfolded(filled, locations), bad

    def used(self, numbers: Ints) -> tuple[Stacks, Frames]:
        """The distinct stacks among `numbers`, and the distinct frames in them."""
        stacks, frames = self.stacks[0], self.locations.frames
        _, first = np.unique(stacks.keys[numbers], return_index=True)
        rows = numbers[first]
        kept = Ragged(stacks.frames, stacks.lengths).take(rows)
        _, distinct = np.unique(frames.keys, return_index=True)
        part = distinct[np.isin(frames.keys[distinct], kept.data)]
        texts = [[self.strings[i] for i in column] for column in frames.texts[part].T.tolist()]
        named = Frames.of(frames.keys[part], texts, (frames.lines[part], frames.starts[part], frames.addresses[part]))
        return Stacks(stacks.keys[rows], kept.lengths, kept.data), named


@dataclass(frozen=True)
class _Rows:
    """For each frame the number of its location and of its line among all lines (-1: the location has none)."""

    owner: Ints
    line: Ints


def _with_one_at_least(counts: Ints) -> _Rows:
    owner = np.repeat(np.arange(len(counts)), np.maximum(counts, 1))
    line = np.full(len(owner), -1, np.int64)
    line[counts[owner] > 0] = np.arange(int(counts.sum()))
    return _Rows(owner, line)


def _place(module: str, address: int) -> str:
    """The name of a frame without a symbol: `file+0x1234`, or what there is."""
    file = module.rsplit("/", 1)[-1]
    if file:
        return f"{file}+{address:#x}"
    return f"{address:#x}" if address else UNKNOWN


def _unfolded(rows: Ragged, locations: _Locations) -> Stacks:
    """Lists of locations, leaf first, as stacks of frame keys, root first, cut at MAX_DEPTH."""
    frames = Ragged(np.arange(len(locations.frames)), locations.counts)
    sizes = locations.counts[rows.data]
    if int(sizes.sum()) > MAX_FRAMES:
        raise TooLarge(f"the stacks of the request have more than {MAX_FRAMES} frames; send smaller requests")
    lengths = np.add.reduceat(sizes, rows.starts) if len(sizes) else rows.lengths
    leaf_first = _cut(Ragged(frames.take(rows.data).data, lengths), len(locations.frames) - 1)
    ends = np.repeat(leaf_first.ends, leaf_first.lengths)
    starts = np.repeat(leaf_first.starts, leaf_first.lengths)
    root_first = leaf_first.data[starts + ends - 1 - np.arange(len(leaf_first.data))]
    keys = locations.frames.keys[root_first]
    return Stacks(sequence_keys(keys, leaf_first.lengths), leaf_first.lengths, keys)


def _cut(stacks: Ragged, mark: int) -> Ragged:
    """The MAX_DEPTH innermost frames of each stack, with the mark's frame where something was cut."""
    long = stacks.lengths > MAX_DEPTH
    if not long.any():
        return stacks
    depth = np.arange(len(stacks.data)) - np.repeat(stacks.starts, stacks.lengths)
    kept = np.minimum(stacks.lengths, MAX_DEPTH)
    data = np.insert(stacks.data[depth < MAX_DEPTH], np.cumsum(kept)[long], mark)
    return Ragged(data, kept + long)


def selected(frames: Frames, rows: Ints) -> Frames:
    """These rows of the frames."""
    texts = [[text[i] for i in rows.tolist()] for text in frames.texts]
    return Frames.of(frames.keys[rows], texts, (frames.lines[rows], frames.starts[rows], frames.addresses[rows]))


def attribute_keys(pairs: Sequence[tuple[str, str]]) -> Keys:
    """A key for each (key, value) pair."""
    return combined(text_keys(key for key, _ in pairs), mixed(text_keys(value for _, value in pairs)))
