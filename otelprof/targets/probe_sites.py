"""Where in a function a probe costs least: the one table of instruction bytes (x86-64).

The kernel emulates some instructions under a uprobe (nop, push of a register, relative jumps: arch/x86/kernel/uprobes.c,
branch_setup_xol_ops and push_setup_xol_ops, Linux 5.15 to 6.18) and single-steps the rest out of line, which cost 15 times
as much on the machine where it was measured (0.7 to 11 µs). A function may therefore be probed a few bytes later, where what
stands before leaves argument registers and stack alone. All bytes of a form are compared; without a known form the probe
sits on the first byte, which is always right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENDBR64 = rb"\xf3\x0f\x1e\xfa"  # marks a target of indirect jumps (CET), does nothing
_EMULATED = rb"(?:\x90|[\x50-\x57]|\x41[\x50-\x57]|\x0f\x1f\x44\x00\x00|\xe9....|\xeb.|[\x70-\x7f].|\x0f[\x80-\x8f]....)"

LONGEST_FORM = 18
"""Bytes that are looked at."""


@dataclass(frozen=True, slots=True)
class Form:
    """How functions begin: a pattern over their first bytes, where the probe goes, what it is in words."""

    pattern: re.Pattern[bytes]
    at: int
    why: str


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes from the function's start, the reason in words, and whether the kernel emulates the instruction there."""

    at: int
    why: str
    emulated: bool = True


def _form(pattern: bytes, at: int, why: str) -> Form:
    return Form(re.compile(pattern, re.DOTALL), at, why)


FORMS = (
    # cmpl $0x321cba00,deinitialized(%rip); je +12; jmp *table(%rip): 589 of 600 exports of NVIDIA's libcuda 535.261.03
    _form(rb"\x81\x3d....\x00\xba\x1c\x32\x74\x0c\xff\x25", 10, "je of the driver's trampoline"),
    _form(rb"\x0f\x1f\x44\x00\x00", 0, "5-byte nop"),
    _form(rb"\x90", 0, "nop"),
    _form(rb"[\x50-\x57]|\x41[\x50-\x57]", 0, "push"),
    _form(_EMULATED, 0, "relative jump"),
    _form(_ENDBR64 + _EMULATED, 4, "emulated instruction behind endbr64"),
)


def best_place(code: bytes, size: int = 0) -> Place:
    """The cheapest place in a function that begins with `code`; `size` bytes long, 0 when that isn't known."""
    for form in FORMS:
        if form.pattern.match(code) and not 0 < size <= form.at:
            return Place(form.at, form.why)
    return Place(0, "first instruction, single-stepped", emulated=False)
