"""Protobuf messages read by the column: the counterpart of wire.py, for tables of small messages.

protobuf has parsed the request before and found it sound; what is read here are its own bytes, written anew without unknown
fields: each field once a message, repeated integers packed. Rows go on in step, one field of every row at a time. A row
with more than MAX_STEPS fields is read on its own, so that one long row doesn't make all others wait.
Encoding: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otelprof.otlp.wire import BYTES, FIXED64, VARINT, Array, Ragged, gathered

MAX_STEPS = 32

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Messages:
    """Messages of one type: where each begins and ends in `data` (u8)."""

    data: Array
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True)
class Fields:
    """All fields of all messages, in step: number, owner, and value (a varint) or place (bytes)."""

    messages: Messages
    number: Ints
    owner: Ints
    value: Ints  # of a varint; where the bytes begin
    end: Ints

    def integers(self, number: int) -> Ints:
        """Field `number` of each message as int64; 0 where it is absent."""
        found = np.zeros(len(self.messages), np.int64)
        chosen = self.number == number
        found[self.owner[chosen]] = self.value[chosen]
        return found

    def packed(self, number: int) -> Ragged:
        """Field `number`, packed varints, of each message."""
        chosen = np.flatnonzero(self.number == number)
        sizes, starts = np.zeros(len(self.messages), np.int64), np.zeros(len(self.messages), np.int64)
        starts[self.owner[chosen]] = self.value[chosen]
        sizes[self.owner[chosen]] = self.end[chosen] - self.value[chosen]
        return unpacked(gathered(self.messages.data, starts, sizes))

    def submessages(self, number: int) -> tuple[Messages, Ints]:
        """Field `number`, repeated messages, of all messages one after the other; how many each message has."""
        chosen = np.flatnonzero(self.number == number)
        chosen = chosen[np.argsort(self.owner[chosen], kind="stable")]
        counts = np.bincount(self.owner[chosen], minlength=len(self.messages))
        return Messages(self.messages.data, self.value[chosen], self.end[chosen]), counts


def tables(data: bytes) -> dict[int, Messages]:
    """The repeated messages that a message holds, by the number of their field (up to 15); those of a field stand together."""
    found, view = {}, np.frombuffer(data, np.uint8)
    at, size = 0, len(data)
    while at < size:
        tag = data[at]
        starts, ends = [], []
        while at < size and data[at] == tag:
            length = data[at + 1]
            at += 2
            if length > 0x7F:
                length, at = _varint(data, at - 1)
            starts.append(at)
            at += length
            ends.append(at)
        found[tag >> 3] = Messages(view, np.array(starts, np.int64), np.array(ends, np.int64))
    return found


def fields(messages: Messages) -> Fields:
    """Every field of every message."""
    parts: list[tuple[Ints, Ints, Ints, Ints]] = []
    owner = np.flatnonzero(messages.starts < messages.ends)
    at = messages.starts[owner]
    for _ in range(MAX_STEPS):
        if not len(owner):
            break
        number, value, end, after = _step(messages.data, at)
        parts.append((number, owner, value, end))
        going = after < messages.ends[owner]
        owner, at = owner[going], after[going]
    rest = [one for row, begin in zip(owner.tolist(), at.tolist(), strict=True) for one in _one_by_one(messages, row, begin)]
    if rest:
        parts.append(tuple(np.array(column, np.int64) for column in zip(*rest, strict=True)))  # type: ignore[arg-type]
    nothing = np.zeros(0, np.int64)
    return Fields(messages, *(np.concatenate(column) for column in zip((nothing,) * 4, *parts, strict=True)))


def _step(data: Array, at: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The field at each place: number, value or begin, end of its bytes, and where the next field begins."""
    tag, at = _varints(data, at)
    wire = tag & 7
    value, after = np.zeros(len(at), np.int64), at + 8
    lengths = np.flatnonzero(wire != FIXED64)
    value[lengths], after[lengths] = _varints(data, at[lengths])
    inside = wire == BYTES
    size = np.where(inside, value, 0)
    begin = np.where(wire == VARINT, value, np.where(inside, after, at))
    after = after + size
    return tag >> 3, begin, after, after


def _varints(data: Array, at: Ints) -> tuple[Ints, Ints]:
    """The varint at each place, and where it ends."""
    first = data[at]
    value, after = (first & 0x7F).astype(np.uint64), at + 1
    more, shift = np.flatnonzero(first > 0x7F), 7
    while len(more) and shift < 70:
        byte = data[after[more]]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more, shift = more[byte > 0x7F], shift + 7
    return value.view(np.int64), after


def _one_by_one(messages: Messages, row: int, at: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of one message from a place on: number, owner, value or begin, end."""
    end = int(messages.ends[row])
    data, base = messages.data[at:end].tobytes(), at
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value = 0
        if tag & 7 != FIXED64:
            value, at = _varint(data, at)
        size = {FIXED64: 8, BYTES: value}.get(tag & 7, 0)
        signed = value - (1 << 64) if value >> 63 else value
        yield tag >> 3, row, signed if tag & 7 == VARINT else base + at, base + at + size
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def unpacked(rows: Ragged) -> Ragged:
    """Rows of packed varints as rows of int64."""
    ends = np.flatnonzero(rows.data < 0x80) + 1
    starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
    values, _ = _varints(rows.data, starts)
    counts = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.data < 0x80)])
    return Ragged(values, counts[rows.ends] - counts[rows.starts])
