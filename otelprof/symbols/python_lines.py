"""Line tables of CPython code objects as sorted arrays: one decoder for each of the three formats.

3.8, 3.9: co_lnotab, pairs of (bytes, signed lines), Objects/lnotab_notes.txt of 3.9.
3.10: co_linetable, pairs of (bytes, signed lines; -128: no line), Objects/lnotab_notes.txt of 3.10.
3.11 and newer: location table, entries that begin with a byte >= 128 (code, length), Objects/locations.md of 3.11.
Whole tables are decoded at once with numpy; nothing in a table can make a decoder loop or fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

NO_LINE = -1
_NO_LINE_310 = -128
_ONE_LINE, _LONG_WITHOUT_COLUMNS, _LONG, _NONE = 10, 13, 14, 15  # codes of the 3.11 table
_VARINT_BYTES = 6


@dataclass(frozen=True, slots=True)
class LineTable:
    """Line `lines[i]` (NO_LINE: none) is that of the instructions from `starts[i]` to `starts[i + 1]`.

    Both have shape (entries,); starts never fall and count bytes of bytecode, from 3.11 on code units of two bytes.
    """

    starts: npt.NDArray[np.int32]
    lines: npt.NDArray[np.int32]

    def at(self, instructions: Integers) -> Integers:
        """The line of each instruction, shape as given; NO_LINE where the table has none."""
        index = np.searchsorted(self.starts, instructions, "right") - 1
        known = index >= 0
        found: Integers = np.full(len(instructions), NO_LINE, np.int64)
        found[known] = self.lines[index[known]]
        return found


def decode(minor: int, data: bytes, first_line: int) -> LineTable:
    """The table in `data` of a code object of CPython 3.`minor` that begins at `first_line`."""
    starts, lines = _decoder(minor)(np.frombuffer(data, np.uint8), first_line)
    return LineTable(_narrow(starts), _narrow(lines))


def _decoder(minor: int) -> Callable[[npt.NDArray[np.uint8], int], tuple[Integers, Integers]]:
    if minor <= 9:
        return _pairs_39
    return _pairs_310 if minor == 10 else _locations


def _narrow(values: Integers) -> npt.NDArray[np.int32]:
    return np.clip(values, -1, np.iinfo(np.int32).max).astype(np.int32)


def _pairs(data: npt.NDArray[np.uint8]) -> tuple[Integers, Integers]:
    pairs = data[: len(data) // 2 * 2].reshape(-1, 2)
    return pairs[:, 0].astype(np.int64), np.ascontiguousarray(pairs[:, 1]).view(np.int8).astype(np.int64)


def _pairs_39(data: npt.NDArray[np.uint8], first_line: int) -> tuple[Integers, Integers]:
    spans, deltas = _pairs(data)
    return np.cumsum(np.r_[0, spans]), np.cumsum(np.r_[first_line, deltas])


def _pairs_310(data: npt.NDArray[np.uint8], first_line: int) -> tuple[Integers, Integers]:
    spans, deltas = _pairs(data)
    absent = deltas == _NO_LINE_310
    lines = first_line + np.cumsum(np.where(absent, 0, deltas))
    return np.cumsum(spans) - spans, np.where(absent, NO_LINE, lines)


def _locations(data: npt.NDArray[np.uint8], first_line: int) -> tuple[Integers, Integers]:
    heads = np.flatnonzero(data & 0x80)
    codes = (data[heads] >> 3 & 15).astype(np.int64)
    lengths = (data[heads] & 7).astype(np.int64) + 1
    deltas = np.where((codes >= _ONE_LINE) & (codes < _LONG_WITHOUT_COLUMNS), codes - _ONE_LINE, 0)
    long = (codes == _LONG_WITHOUT_COLUMNS) | (codes == _LONG)
    deltas[long] = _signed(_varints(data, heads[long] + 1))
    lines = np.where(codes == _NONE, NO_LINE, first_line + np.cumsum(deltas))
    return np.cumsum(lengths) - lengths, lines


def _varints(data: npt.NDArray[np.uint8], at: Integers) -> Integers:
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
