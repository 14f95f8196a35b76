"""Unwind tables: for each address of a file the rule by which its frame is left, small enough to be searched in the kernel.

A table is rows {first address, number of a rule} of 8 bytes, sorted, and the few hundred distinct rules of a file, 8 bytes
each. Made from call frame information in bounded pieces: libtorch_cpu.so's 335,000 functions are 2.2 million rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otelprof.errors import TooLarge
from otelprof.symbols.cfi import Functions, Integers, find_section, read_functions
from otelprof.symbols.cfi_lanes import Lanes, Rules, initial_state
from otelprof.symbols.elf import Elf

ROW = np.dtype([("address", "<u4"), ("rule", "<u4")])
"""`struct unwind_row` of bpf/wire.h: first address from the table's base, index of the rule."""
ROW_LIMIT = 8_000_000
RULE_LIMIT = 16_384
PIECE = 32_768
"""Functions that are run at once."""
_GAP = 16  # between functions closer than this there is padding, which no thread ever runs
_SPAN = 1 << 32


@dataclass(frozen=True)
class UnwindTable:
    """Rules by address.

    `rows` (dtype ROW) ascend and cover everything from the first to the last: what has no rule has rule number 0, whose word
    is 0. `base` is the linked address that rows count from. `rules`: words as `cfi_lanes.pack` makes them.
    """

    base: int
    rows: npt.NDArray[np.void]
    rules: npt.NDArray[np.uint64]

    def rules_at(self, addresses: Integers) -> npt.NDArray[np.uint64]:
        """The rules' words for linked addresses, 0 where there is none."""
        at = np.searchsorted(self.rows["address"].astype(np.int64), addresses - self.base, "right") - 1
        return np.where(at >= 0, self.rules[self.rows["rule"][at]], 0).astype(np.uint64)


def unwind_table(elf: Elf) -> UnwindTable | None:
    """The table of a file; None when it has no call frame information. MalformedInput when that is broken."""
    section = find_section(elf)
    if section is None:
        return None
    functions = read_functions(section, whole=bool(elf.section_names))
    initial = initial_state(section, functions.cies)
    building = _Building(int(functions.low[0]) & ~0xFFF if len(functions.low) else 0)
    for first in range(0, len(functions.low), PIECE):
        last = min(first + PIECE, len(functions.low))
        building.add(_compact(Lanes(section, functions, first, last).begin(initial).run(), functions, first, last))
    return building.table()


def _compact(found: Rules, functions: Functions, first: int, last: int) -> Rules:
    """Sorted rows of a piece without repetitions; after each function comes a row without a rule, unless the next is near."""
    low = functions.low[first : last + 1]
    high = functions.high[first:last]
    following = np.append(low[1:], np.iinfo(np.int64).max)[: last - first]
    apart = following > high + _GAP
    address = np.concatenate([high[apart], found.address])
    rule = np.concatenate([np.zeros(np.count_nonzero(apart), np.uint64), found.rule])
    order = np.argsort(address, kind="stable")
    address, rule = address[order], rule[order]
    begin = int(low[0])
    end = int(functions.low[last]) if last < len(functions.low) else int(high.max(initial=0)) + 1
    inside = (address >= begin) & (address < end)
    return _merged(Rules(address[inside], rule[inside]))


def _merged(rows: Rules) -> Rules:
    """Of several rows at one address the last; of equal ones in succession the first."""
    last = np.append(rows.address[1:] != rows.address[:-1], True)
    address, rule = rows.address[last], rows.rule[last]
    changed = np.append(True, rule[1:] != rule[:-1])[: len(rule)]
    return Rules(address[changed], rule[changed])


class _Building:
    """A table that grows piece by piece, so that only one piece is ever held at its full width."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._numbers: dict[int, int] = {0: 0}
        self._pieces: list[npt.NDArray[np.void]] = []
        self._total = 0

    def add(self, piece: Rules) -> None:
        near = piece.address - self._base < _SPAN
        words, inverse = np.unique(piece.rule[near], return_inverse=True)
        numbers = [self._numbers.setdefault(int(word), len(self._numbers)) for word in words]
        rows = np.zeros(len(inverse), ROW)
        rows["address"] = piece.address[near] - self._base
        rows["rule"] = np.array(numbers, np.uint32)[inverse.reshape(-1)]
        self._pieces.append(rows)
        self._total += len(rows)
        if self._total > ROW_LIMIT or len(self._numbers) > RULE_LIMIT:
            raise TooLarge(f"call frame information gives more than {ROW_LIMIT} rows or {RULE_LIMIT} different rules")

    def table(self) -> UnwindTable | None:
        if not self._total:
            return None
        return UnwindTable(self._base, np.concatenate(self._pieces), np.fromiter(self._numbers, np.uint64, len(self._numbers)))
