"""Runs the call frame programs of many functions in lock step with numpy: one lane a function, one instruction a round.

A lane's state is what a profiler needs to leave a frame on x86-64: how the canonical frame address (CFA) is found, where the
caller's rbp is, and whether the return address stands right below the CFA, as it does nearly always. Instructions: DWARF 5,
sections 6.4.2 and 7.24; registers: System V ABI for x86-64, figure 3.36.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from otelprof.symbols.cfi import Bytes, Cie, Functions, Integers, Section, fixed, sleb, uleb

ROUND_LIMIT = 20_000
"""Instructions of one function; the largest seen has some 5,000. What is behind them has no rules."""
_REMEMBERED = 4  # nesting of remembered states; compilers nest once
_RSP, _RBP, _RETURN = 7, 6, 16
_SIGNAL_EXPRESSION = 160  # rsp in the saved context: struct ucontext, bits/types of glibc's __restore_rt


class Cfa(IntEnum):
    """enum unwind_cfa of bpf/wire.h: how the CFA is found. LEAF_REGISTER + n: register n (DWARF numbers), at a leaf only."""

    NONE = 0
    END = 1
    RSP = 2
    RBP = 3
    DEREF_RSP = 4
    DEREF_RBP = 5
    PLT = 6
    SIGNAL = 7
    LEAF_REGISTER = 16


class FramePointer(IntEnum):
    """enum unwind_fp of bpf/wire.h: where the caller's rbp is."""

    SAME = 0
    AT_CFA = 1
    AT_RBP = 2
    LOST = 3


@dataclass(frozen=True)
class Rules:
    """Rows that a run gave, in no order: address as linked, and rule, see `pack`."""

    address: Integers
    rule: npt.NDArray[np.uint64]


def pack(cfa: Integers, fp: Integers, fp_offset: Integers, cfa_offset: Integers) -> npt.NDArray[np.uint64]:
    """Rules as the bytes of `struct unwind_rule`: u8 cfa, u8 fp, s16 fp_offset, s32 cfa_offset."""
    fits = (np.abs(cfa_offset) < 1 << 31) & (cfa >= 0) & (cfa != Cfa.NONE)
    fp = np.where(np.abs(fp_offset) < 1 << 15, fp, int(FramePointer.LOST))
    used = (fp == FramePointer.AT_CFA) | (fp == FramePointer.AT_RBP)
    offset = np.where(used, fp_offset, 0) & 0xFFFF
    packed = cfa & 0xFF | (fp & 0xFF) << 8 | offset << 16 | (cfa_offset & 0xFFFFFFFF) << 32
    plain = np.where((cfa == Cfa.END) | (cfa == Cfa.SIGNAL), cfa, packed)
    return np.where(fits, plain, 0).astype(np.uint64)


class Lanes:
    """The functions [first, last) of a table, each a lane; `run` gives their rows."""

    def __init__(self, section: Section, functions: Functions, first: int, last: int) -> None:
        part = slice(first, last)
        count = last - first
        self._data: Bytes = section.data
        self._at, self._end = functions.start[part].copy(), functions.end[part]
        self._pc = functions.low[part].copy()
        self._state = _State.zeros(count)
        self._initial = _State.zeros(count)
        self._saved = [_State.zeros(count) for _ in range(_REMEMBERED)]
        self._depth = np.zeros(count, np.int64)
        self._cies = functions.cie[part]
        self._code = np.array([cie.code_factor for cie in functions.cies], np.int64)[self._cies]
        self._factor = np.array([cie.data_factor for cie in functions.cies], np.int64)[self._cies]
        self._signal = np.array([cie.signal for cie in functions.cies], np.bool_)[self._cies]
        self._rows: list[tuple[Integers, ...]] = []
        self._operations = self._table()

    def begin(self, initial: _State) -> Lanes:
        """Start from the states that the CIEs' instructions lead to; `initial` has a lane for each CIE."""
        for own, start, given in zip(self._state.columns, self._initial.columns, initial.columns, strict=True):
            own[:] = given[self._cies]
            start[:] = own
        return self

    def run(self) -> Rules:
        """Run all lanes to their ends."""
        active = np.arange(len(self._at))
        for _ in range(ROUND_LIMIT):
            active = active[self._at[active] < self._end[active]]
            if not len(active):
                break
            self._round(active)
        self._fail(active)
        self._emit(np.arange(len(self._at)))
        lanes, address, cfa, offset, fp, fp_offset, ra = map(np.concatenate, zip(*self._rows, strict=True))
        cfa[self._signal[lanes] & (cfa == Cfa.DEREF_RSP) & (offset == _SIGNAL_EXPRESSION)] = Cfa.SIGNAL
        cfa[(ra == _RA_UNUSUAL) & (cfa != Cfa.SIGNAL)] = Cfa.NONE
        cfa[ra == _RA_UNDEFINED] = Cfa.END
        return Rules(address, pack(cfa, fp, fp_offset, offset))

    @property
    def state(self) -> _State:
        """Where the lanes stand."""
        return self._state

    def _round(self, active: Integers) -> None:
        """One instruction of each lane. The three that carry an operand in their own byte are nine tenths of all."""
        code = self._data[self._at[active]]
        self._at[active] += 1
        high, low = code >> 6, (code & 63).astype(np.int64)
        for number, operation in ((1, self._advance), (2, self._offset), (3, self._restore)):
            chosen = high == number
            if chosen.any():
                operation(active[chosen], low[chosen])
        rest = np.flatnonzero(high == 0)
        if len(rest):
            self._others(active[rest], low[rest])

    def _others(self, lanes: Integers, codes: Integers) -> None:
        for code in np.unique(codes).tolist():
            self._operations.get(code, self._fail)(lanes[codes == code])

    def _table(self) -> dict[int, Callable[[Integers], None]]:
        nothing: Callable[[Integers], None] = lambda lanes: None  # noqa: E731
        return {
            0x00: nothing,
            0x02: lambda lanes: self._advance(lanes, self._fixed(lanes, 1)),
            0x03: lambda lanes: self._advance(lanes, self._fixed(lanes, 2)),
            0x04: lambda lanes: self._advance(lanes, self._fixed(lanes, 4)),
            0x05: lambda lanes: self._offset(lanes, self._uleb(lanes)),
            0x06: lambda lanes: self._restore(lanes, self._uleb(lanes)),
            0x07: self._undefined,
            0x08: lambda lanes: self._same(lanes, self._uleb(lanes)),
            0x09: lambda lanes: self._elsewhere(lanes, self._uleb(lanes), self._uleb(lanes)),
            0x0A: self._remember,
            0x0B: self._recall,
            0x0C: lambda lanes: self._cfa(lanes, self._uleb(lanes), self._uleb(lanes)),
            0x0D: lambda lanes: self._cfa(lanes, self._uleb(lanes), self._state.offset[lanes]),
            0x0E: self._cfa_offset,
            0x0F: self._cfa_expression,
            0x10: self._expression,
            0x11: lambda lanes: self._saved_at(lanes, self._uleb(lanes), self._sleb(lanes) * self._factor[lanes]),
            0x12: lambda lanes: self._cfa(lanes, self._uleb(lanes), self._sleb(lanes) * self._factor[lanes]),
            0x13: self._cfa_offset_signed,
            0x14: lambda lanes: self._elsewhere(lanes, self._uleb(lanes), self._uleb(lanes)),
            0x15: lambda lanes: self._elsewhere(lanes, self._uleb(lanes), self._uleb(lanes)),
            0x16: self._value_expression,
            0x2E: lambda lanes: nothing(self._uleb(lanes)),  # DW_CFA_GNU_args_size
            0x2F: lambda lanes: self._saved_at(lanes, self._uleb(lanes), -self._uleb(lanes) * self._factor[lanes]),
        }

    # --- operands ----------------------------------------------------------------------------------------------

    def _fixed(self, lanes: Integers, size: int) -> Integers:
        value = fixed(self._data, self._at[lanes], size, False)
        self._at[lanes] += size
        return value

    def _uleb(self, lanes: Integers) -> Integers:
        value, width = uleb(self._data, self._at[lanes])
        self._at[lanes] += width
        return value

    def _sleb(self, lanes: Integers) -> Integers:
        value, width = sleb(self._data, self._at[lanes])
        self._at[lanes] += width
        return value

    def _block(self, lanes: Integers) -> list[bytes]:
        """The bytes of DWARF expressions, at most 16 of each: those that we know are shorter."""
        length = self._uleb(lanes)
        starts = self._at[lanes]
        self._at[lanes] += length
        lengths = np.minimum(length, _EXPRESSION_LIMIT)
        return [self._data[at : at + size].tobytes() for at, size in zip(starts.tolist(), lengths.tolist(), strict=True)]

    # --- instructions ------------------------------------------------------------------------------------------

    def _emit(self, lanes: Integers) -> None:
        """What holds from here on, packed when all have run."""
        self._rows.append((lanes, self._pc[lanes], *(column[lanes] for column in self._state.columns)))

    def _advance(self, lanes: Integers, steps: Integers) -> None:
        moved = lanes[steps > 0]
        self._emit(moved)
        self._pc[moved] += steps[steps > 0] * self._code[moved]

    def _offset(self, lanes: Integers, registers: Integers) -> None:
        self._saved_at(lanes, registers, self._uleb(lanes) * self._factor[lanes])

    def _saved_at(self, lanes: Integers, registers: Integers, offsets: Integers) -> None:
        of = registers == _RBP
        self._state.fp[lanes[of]], self._state.fp_offset[lanes[of]] = FramePointer.AT_CFA, offsets[of]
        of = registers == _RETURN
        self._state.ra[lanes[of]] = np.where(offsets[of] == -8, _RA_USUAL, _RA_UNUSUAL)

    def _restore(self, lanes: Integers, registers: Integers) -> None:
        of = lanes[registers == _RBP]
        self._state.fp[of], self._state.fp_offset[of] = self._initial.fp[of], self._initial.fp_offset[of]
        of = lanes[registers == _RETURN]
        self._state.ra[of] = self._initial.ra[of]

    def _same(self, lanes: Integers, registers: Integers) -> None:
        self._state.fp[lanes[registers == _RBP]] = FramePointer.SAME

    def _undefined(self, lanes: Integers) -> None:
        registers = self._uleb(lanes)
        self._state.ra[lanes[registers == _RETURN]] = _RA_UNDEFINED
        self._state.fp[lanes[registers == _RBP]] = FramePointer.LOST

    def _elsewhere(self, lanes: Integers, registers: Integers, _: Integers) -> None:
        """In another register, or computed: nothing that we can follow."""
        self._state.fp[lanes[registers == _RBP]] = FramePointer.LOST
        self._state.ra[lanes[registers == _RETURN]] = _RA_UNUSUAL

    def _cfa(self, lanes: Integers, registers: Integers, offsets: Integers) -> None:
        self._state.cfa[lanes] = _CFA_OF[np.minimum(registers, _RETURN)]
        self._state.offset[lanes] = offsets

    def _cfa_offset(self, lanes: Integers) -> None:
        self._state.offset[lanes] = self._uleb(lanes)

    def _cfa_offset_signed(self, lanes: Integers) -> None:
        self._state.offset[lanes] = self._sleb(lanes) * self._factor[lanes]

    def _cfa_expression(self, lanes: Integers) -> None:
        known = [cfa_expression(block) for block in self._block(lanes)]
        table = np.array(known, np.int64).reshape(-1, 2)
        self._state.cfa[lanes], self._state.offset[lanes] = table[:, 0], table[:, 1]

    def _expression(self, lanes: Integers) -> None:
        registers = self._uleb(lanes)
        blocks = self._block(lanes)
        self._elsewhere(lanes, registers, registers)
        for lane, register, block in zip(lanes.tolist(), registers.tolist(), blocks, strict=True):
            offset = register_offset(block, _RBP)
            if register == _RBP and offset is not None:
                self._state.fp[lane], self._state.fp_offset[lane] = FramePointer.AT_RBP, offset

    def _value_expression(self, lanes: Integers) -> None:
        registers = self._uleb(lanes)
        self._block(lanes)
        self._elsewhere(lanes, registers, registers)

    def _remember(self, lanes: Integers) -> None:
        for level, saved in enumerate(self._saved):
            saved.take(self._state, lanes[self._depth[lanes] == level])
        self._depth[lanes] += 1

    def _recall(self, lanes: Integers) -> None:
        self._depth[lanes] -= 1
        for level, saved in enumerate(self._saved):
            self._state.take(saved, lanes[self._depth[lanes] == level])
        self._fail(lanes[(self._depth[lanes] < 0) | (self._depth[lanes] >= _REMEMBERED)])

    def _fail(self, lanes: Integers) -> None:
        """From here on these functions have no rules."""
        self._state.cfa[lanes] = Cfa.NONE
        self._at[lanes] = self._end[lanes]


@dataclass(frozen=True)
class _State:
    """One value a lane of everything that a row holds."""

    cfa: Integers
    offset: Integers
    fp: Integers
    fp_offset: Integers
    ra: Integers
    columns: tuple[Integers, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", (self.cfa, self.offset, self.fp, self.fp_offset, self.ra))

    @classmethod
    def zeros(cls, lanes: int) -> _State:
        return cls(*(np.zeros(lanes, np.int64) for _ in range(5)))

    def take(self, other: _State, lanes: Integers) -> None:
        """The values of `lanes` from another state."""
        for own, given in zip(self.columns, other.columns, strict=True):
            own[lanes] = given[lanes]


_CFA_OF = np.array([*(Cfa.LEAF_REGISTER + number for number in range(_RETURN)), Cfa.NONE], np.int64)
"""The Cfa of each register."""
_CFA_OF[_RSP], _CFA_OF[_RBP] = Cfa.RSP, Cfa.RBP
_RA_UNUSUAL, _RA_USUAL, _RA_UNDEFINED = 0, 1, 2
_EXPRESSION_LIMIT = 16
# A PLT's entry: CFA = rsp + 8 + ((rip & 15) >= n) * 8, as GNU ld and lld write it; n is 11, or 10 and 9 with IBT.
_PLT_HEAD, _PLT_TAIL = bytes([0x77, 8, 0x80, 0, 0x3F, 0x1A]), bytes([0x2A, 0x33, 0x24, 0x22])
_BREG0, _DEREF, _LIT0 = 0x70, 0x06, 0x30


def cfa_expression(block: bytes) -> tuple[int, int]:
    """(Cfa, offset) of a DWARF expression; (Cfa.NONE, 0) where it is none of those that compilers write."""
    if len(block) == 11 and block.startswith(_PLT_HEAD) and block.endswith(_PLT_TAIL) and _LIT0 <= block[6] < _LIT0 + 16:
        return Cfa.PLT, block[6] - _LIT0
    for register, kind in ((_RSP, Cfa.DEREF_RSP), (_RBP, Cfa.DEREF_RBP)):
        offset = register_offset(block[:-1], register)
        if block[-1:] == bytes([_DEREF]) and offset is not None:
            return kind, offset
    return Cfa.NONE, 0


def register_offset(block: bytes, register: int) -> int | None:
    """The number n when the expression is `register + n` and nothing else."""
    if not 2 <= len(block) <= 6 or block[0] != _BREG0 + register or block[-1] & 128 or any(b < 128 for b in block[1:-1]):
        return None
    value = sum((byte & 127) << (7 * place) for place, byte in enumerate(block[1:]))
    bits = 7 * (len(block) - 1)
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def initial_state(section: Section, cies: tuple[Cie, ...]) -> _State:
    """The states that the instructions of CIEs lead to, one lane each."""
    count = len(cies)
    table = Functions(
        cies, np.zeros(count, np.int64), np.zeros(count, np.int64), np.arange(count),
        np.array([cie.start for cie in cies], np.int64), np.array([cie.end for cie in cies], np.int64),
    )  # fmt: skip
    lanes = Lanes(section, table, 0, count)
    lanes.run()
    return lanes.state
