"""Line tables of CPython code objects as sorted arrays: one decoder for each of the three formats.

3.8, 3.9: co_lnotab, pairs of (bytes, signed lines), Objects/lnotab_notes.txt of 3.9.
3.10: co_linetable, pairs of (bytes, signed lines; -128: no line), Objects/lnotab_notes.txt of 3.10.
3.11 and newer: location table, entries that begin with a byte >= 128 (code, length), Objects/locations.md of 3.11.
Whole tables are decoded at once with numpy; nothing in a table can make a decoder loop or fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

NO_LINE = -1
_NO_LINE_310 = -128
_ONE_LINE, _LONG_WITHOUT_COLUMNS, _LONG, _NONE = 10, 13, 14, 15  # codes of the 3.11 table
_VARINT_BYTES = 6
_LARGEST = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class LineTable:
    """Line `lines[i]` (NO_LINE: none) is that of the instructions from `starts[i]` to `starts[i + 1]`.

    Both have shape (entries,); starts never fall and count bytes of bytecode, from 3.11 on code units of two bytes.
    """

    starts: npt.NDArray[np.int32]
    lines: npt.NDArray[np.int32]

    def at(self, instructions: Sequence[int]) -> list[int]:
        """The line of each instruction (below 2^31), in order; NO_LINE where the table has none."""
        if not len(self.starts):
            return [NO_LINE] * len(instructions)
        index = self.starts.searchsorted(np.array(instructions, np.int32), "right")
        lines = self.lines[index - 1].tolist()
        return [line if entry else NO_LINE for entry, line in zip(index.tolist(), lines, strict=True)]


def decode(minor: int, tables: Sequence[bytes], first_lines: Sequence[int]) -> list[LineTable]:
    """The line tables of code objects of CPython 3.`minor` that begin at `first_lines`, all in one go."""
    if not tables:
        return []
    if minor <= 10:
        tables = [table[: len(table) // 2 * 2] for table in tables]
    sizes = np.array([len(table) for table in tables], np.int64)
    data = np.frombuffer(b"".join(tables), np.uint8)
    return _pairs(minor, data, sizes // 2, first_lines) if minor <= 10 else _locations(data, sizes, first_lines)


def _pairs(minor: int, data: Bytes, counts: Integers, first_lines: Sequence[int]) -> list[LineTable]:
    spans = data[::2].astype(np.int64)
    deltas = np.ascontiguousarray(data[1::2]).view(np.int8).astype(np.int64)
    absent = (deltas == _NO_LINE_310) & (minor == 10)
    ends, lines = _running(spans, counts), _running(np.where(absent, 0, deltas), counts)
    lines = np.where(absent, NO_LINE, lines + np.repeat(np.array(first_lines, np.int64), counts))
    if minor == 10:  # an entry's line is that of the bytes that it spans
        return _split(ends - spans, lines, counts)
    # Before 3.10 it is that of the bytes behind it; those in front have the first line.
    at = np.cumsum(counts) - counts
    return _split(np.insert(ends, at, 0), np.insert(lines, at, first_lines), counts + 1)


def _locations(data: Bytes, sizes: Integers, first_lines: Sequence[int]) -> list[LineTable]:
    heads = np.flatnonzero(data & 0x80)
    counts = np.diff(np.searchsorted(heads, np.r_[0, np.cumsum(sizes)]))
    codes = (data[heads] >> 3 & 15).astype(np.int64)
    lengths = (data[heads] & 7).astype(np.int64) + 1
    deltas = np.where((codes >= _ONE_LINE) & (codes < _LONG_WITHOUT_COLUMNS), codes - _ONE_LINE, 0)
    long = (codes == _LONG_WITHOUT_COLUMNS) | (codes == _LONG)
    deltas[long] = _signed(_varints(data, heads[long] + 1))
    lines = _running(deltas, counts) + np.repeat(np.array(first_lines, np.int64), counts)
    return _split(_running(lengths, counts) - lengths, np.where(codes == _NONE, NO_LINE, lines), counts)


def _running(values: Integers, counts: Integers) -> Integers:
    """Running sums that begin anew in each of the consecutive groups of `counts` values."""
    sums = np.cumsum(values)
    before = np.r_[0, sums][np.cumsum(counts) - counts]
    totals: Integers = sums - np.repeat(before, counts)
    return totals


def _split(starts: Integers, lines: Integers, counts: Integers) -> list[LineTable]:
    narrow_starts = np.minimum(starts, _LARGEST).astype(np.int32)
    narrow_lines = np.clip(lines, NO_LINE, _LARGEST).astype(np.int32)
    ends = np.cumsum(counts).tolist()
    return [LineTable(narrow_starts[a:b], narrow_lines[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


def _varints(data: Bytes, at: Integers) -> Integers:
    """The numbers that begin at the positions `at`: six bits a byte, low ones first, 64 says that more follow."""
    padded = np.r_[data, np.zeros(_VARINT_BYTES, np.uint8)].astype(np.int64)
    values = np.zeros(len(at), np.int64)
    going = np.ones(len(at), np.bool_)
    for number in range(_VARINT_BYTES):
        part = padded[at + number]
        values |= np.where(going, (part & 63) << 6 * number, 0)
        going &= (part & 64) != 0
    return values


def _signed(values: Integers) -> Integers:
    return np.where(values & 1, -(values >> 1), values >> 1)
