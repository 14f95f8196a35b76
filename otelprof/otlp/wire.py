"""Protobuf messages written by the column: a table of messages at once, with numpy and no loop over rows.

A request holds thousands of samples and locations that are a handful of small integers each. One protobuf object per row
costs more than all else that the agent does, so the columns of a table are turned into bytes as columns.
Encoding: https://protobuf.dev/programming-guides/encoding/ (varint is wire type 0, fixed64 is 1, bytes are 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
VARINT, FIXED64, BYTES = 0, 1, 2
_SEVEN_BITS = np.uint64(0x7F)


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: `data` holds all elements row after row, `lengths` (i8) how many each row has."""

    data: Array
    lengths: Array

    @classmethod
    def of(cls, rows: Iterable[bytes]) -> Ragged:
        """Rows of bytes."""
        rows = list(rows)
        return cls(np.frombuffer(b"".join(rows), np.uint8), np.fromiter(map(len, rows), np.int64, len(rows)))

    @classmethod
    def fixed(cls, table: Array) -> Ragged:
        """Rows of equal length, from an array of two dimensions."""
        count, width = table.shape
        return cls(np.ascontiguousarray(table).reshape(-1), np.full(count, width, np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def ends(self) -> Array:
        """Where each row ends in `data`."""
        return np.cumsum(self.lengths)

    @cached_property
    def starts(self) -> Array:
        """Where each row starts in `data`."""
        return self.ends - self.lengths

    def take(self, rows: Array) -> Ragged:
        """These rows, in this order; a row may come more than once."""
        return gathered(self.data, self.starts[rows], self.lengths[rows])

    def grouped(self, counts: Array) -> Ragged:
        """Neighbouring rows put together, `counts[i]` of them into row i."""
        ends = np.concatenate([[0], self.ends])[np.cumsum(counts)]
        return Ragged(self.data, np.diff(ends, prepend=0))

    def bytes(self, first: int = 0, stop: int | None = None) -> bytes:
        """The bytes of rows [first, stop), one after the other."""
        edges = np.concatenate([[0], self.ends])
        return bytes(self.data[edges[first] : edges[len(self) if stop is None else stop]].data)


def gathered(data: Array, starts: Array, lengths: Array) -> Ragged:
    """Rows made of `lengths[i]` elements of `data` from `starts[i]` on."""
    ends = np.cumsum(lengths)
    where = np.arange(_total(ends)) + np.repeat(starts - (ends - lengths), lengths)
    return Ragged(data[where], lengths)


def varints(values: Array) -> Ragged:
    """Each value as a base 128 varint; negative ones take ten bytes, as int64 does."""
    values = _unsigned(values)
    lengths = _lengths(values)
    ends = np.cumsum(lengths)
    data = np.empty(_total(ends), np.uint8)
    _fill(data, ends - lengths, lengths, values)
    return Ragged(data, lengths)


def tagged(number: int, wire_type: int, values: Array, present: Array | None = None) -> Ragged:
    """Each value as a varint after the tag of field `number`; rows that aren't `present` (bool) are empty."""
    values = _unsigned(values)
    chosen = values if present is None else values[present]
    lengths = _lengths(chosen) + 1
    starts = np.cumsum(lengths) - lengths
    data = np.empty(int(lengths.sum()), np.uint8)
    data[starts] = number << 3 | wire_type
    _fill(data, starts + 1, lengths - 1, chosen)
    if present is None:
        return Ragged(data, lengths)
    spread = np.zeros(len(values), np.int64)
    spread[present] = lengths
    return Ragged(data, spread)


def _unsigned(values: Array) -> Array:
    signed = values.dtype.kind == "i"
    return values.astype(np.int64, copy=False).view(np.uint64) if signed else values.astype(np.uint64, copy=False)


def _lengths(values: Array) -> Array:
    """Bytes of each varint."""
    lengths = np.ones(len(values), np.int64)
    for bits in range(7, int(values.max(initial=0)).bit_length(), 7):
        lengths += values >= np.uint64(1 << bits)
    return lengths


def _fill(data: Array, starts: Array, lengths: Array, values: Array) -> None:
    """Write the groups of seven bits, lowest first; all but the last of a row carry the bit that says `more`."""
    while len(values):
        more = lengths > 1
        data[starts] = (values & _SEVEN_BITS).astype(np.uint8) | (more.view(np.uint8) << 7)
        starts, lengths, values = starts[more] + 1, lengths[more] - 1, values[more] >> np.uint64(7)


def _total(ends: Array) -> int:
    return int(ends[-1]) if len(ends) else 0


def joined(*columns: Ragged) -> Ragged:
    """The columns put side by side: row i is row i of each, one after the other."""
    lengths = np.stack([column.lengths for column in columns], axis=1)
    # Which column each byte is of: a column's bytes keep their order, so a mask puts them all in their places.
    owners = np.repeat(np.broadcast_to(np.arange(len(columns), dtype=np.uint8), lengths.shape).reshape(-1), lengths.reshape(-1))
    data = np.empty(len(owners), np.uint8)
    for number, column in enumerate(columns):
        data[owners == number] = column.data
    return Ragged(data, lengths.sum(axis=1))


def integer(number: int, values: Array) -> Ragged:
    """Field `number` as a varint; zero is left out, as proto3 does."""
    return tagged(number, VARINT, values, values != 0)


def fixed64(number: int, values: Array) -> Ragged:
    """Field `number` as eight bytes, zero included."""
    table = values.astype("<u8").view(np.uint8).reshape(-1, 8)
    tags = np.full((len(table), 1), number << 3 | FIXED64, np.uint8)
    return Ragged.fixed(np.hstack([tags, table]))


def message(number: int, *columns: Ragged) -> Ragged:
    """Field `number` as bytes, a string, or a message made of `columns` side by side; present also when it is empty."""
    lengths = sum((column.lengths for column in columns[1:]), columns[0].lengths)
    return joined(tagged(number, BYTES, lengths), *columns)


def optional(number: int, body: Ragged) -> Ragged:
    """As `message`, but rows that are empty are left out."""
    return joined(tagged(number, BYTES, body.lengths, body.lengths > 0), body)


def packed(number: int, lists: Ragged) -> Ragged:
    """Field `number` as packed repeated integers; empty lists are left out."""
    return optional(number, varints(lists.data).grouped(lists.lengths))


def constant(data: bytes, count: int) -> Ragged:
    """The same bytes in each of `count` rows."""
    return Ragged(np.tile(np.frombuffer(data, np.uint8), count), np.full(count, len(data), np.int64))


def field(number: int, body: bytes) -> bytes:
    """One field of bytes, a string or a message; numbers up to 15."""
    return bytes([number << 3 | BYTES]) + varint(len(body)) + body


def varint(value: int) -> bytes:
    """One varint."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def blanked(body: Ragged, present: Array) -> Ragged:
    """`body` with empty rows wherever `present` is false."""
    if present.all():
        return body
    return Ragged(body.data[np.repeat(present, body.lengths)], body.lengths * present)
