"""Which kernels a library brings: found in its machine code, where it registers them with the CUDA runtime.

nvcc compiles `kernel<<<…>>>` to a host function that launches, and registers that function together with the kernel's name
before main: `__cudaRegisterFunction(module, hostFun, deviceFun, deviceName, -1, 0, 0, 0, 0, 0)` (crt/host_runtime.h of CUDA
12 and 13). CUDA 13 also gets a handle for each: `__cudaGetKernel(&handle, hostFun)` at the first launch, kept in a static
variable. Both calls load addresses relative to the instruction just before, which is what is looked for; no symbols are
needed, so it works on stripped libraries and with a runtime that is linked in. Measured on code of nvcc 13.5.37, GCC 12:
all of 4 registrations and all of 5 handles at -O0 and -O3, stripped or not.

A scan runs in a child process without rights (`python -m otelprof.symbols.cuda_registrations FD …`), since libraries have
gigabytes and may be hostile.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from otelprof.errors import OtelprofError
from otelprof.symbols.elf import Elf, FileSource

FUNCTIONS_LIMIT = 65_536
SLOTS_LIMIT = 262_144
NAME_LIMIT = 4096
_CODE_LIMIT = 4 << 30  # bytes of code of one file
_STEP = 16 << 20
_TARGETS = 4  # different functions that registrations call: one for each runtime that is linked in
_WINDOW = 96  # bytes before a call in which its arguments are loaded
_MEMORY, _SECONDS = 4 << 30, 120  # for the child
_NOBODY = 65_534
_READ, _WRITE, _EXECUTE = 4, 2, 1
_FATBIN_SECTIONS = (".nv_fatbin", ".nvFatBinSegment")
_LAST_ARGUMENTS = b"\x41\xb8\xff\xff\xff\xff"  # mov $-1,%r8d: thread_limit
_CALL = 0xE8
_WIDE, _LEA, _RELATIVE = (0x48, 0x4C), 0x8D, 0x05  # lea rel32(%rip),%r64
_WIDE_MOVES, _MOVE, _BETWEEN_REGISTERS = (0x48, 0x49, 0x4C, 0x4D), 0x89, 0xC0  # mov %r64,%r64
_IMMEDIATE = range(0xB8, 0xC0)  # mov $imm32,%r32: in code that isn't position-independent
_RCX, _RDX, _RSI, _RDI = 1, 2, 6, 7  # by the processor's numbers

Code = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


@dataclass(slots=True)
class Registrations:
    """Of one file, addresses as linked: names by host function; host functions by variable that holds a handle (0: of two)."""

    functions: dict[int, str] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part:
    """Machine code, and the address that its first byte is linked to."""

    code: bytes
    address: int

    @property
    def bytes(self) -> Code:
        return np.frombuffer(self.code, np.uint8)


def has_kernels(elf: Elf) -> bool:
    """True for a file with device code in it."""
    return any(elf.section(name) is not None for name in _FATBIN_SECTIONS)


def scan(elf: Elf) -> Registrations:
    """The registrations in a file."""
    found = Registrations()
    targets = Counter(target for part in _parts(elf) for target, _ in _likely_registrations(elf, part))
    for target in sorted(targets, key=targets.__getitem__)[-_TARGETS:]:
        for part in _parts(elf):
            for call in _calls_of(part, target):
                _note_function(elf, found, _arguments(elf, part, call))
    if found.functions:
        for part in _parts(elf):
            _note_slots(elf, found, part)
    return found


# --- code ------------------------------------------------------------------------------------------------------


def _parts(elf: Elf) -> Iterator[_Part]:
    """The file's code in steps, each with the end of the one before."""
    left = _CODE_LIMIT
    for load in elf.loads[elf.loads["flags"] & _EXECUTE != 0]:
        start, size, address = int(load["offset"]), int(load["filesz"]), int(load["vaddr"])
        for at in range(0, min(size, left), _STEP):
            overlap = min(at, 2 * _WINDOW)
            code = elf.source.read(start + at - overlap, min(_STEP, size - at) + overlap)
            yield _Part(code, address + at - overlap)
        left -= size


def _words(code: Code, at: Places) -> Places:
    """The signed 32-bit numbers at places."""
    inside = at[at + 4 <= len(code)]
    columns = [code[inside + n].astype(np.int64) << (8 * n) for n in range(4)]
    words = columns[0] | columns[1] | columns[2] | columns[3]
    signed: Places = np.where(words >= 1 << 31, words - (1 << 32), words)
    return signed


def _calls_of(part: _Part, target: int) -> list[int]:
    """Places of `call` to an address."""
    code = part.bytes
    at = np.flatnonzero(code[: max(len(code) - 4, 0)] == _CALL)
    return [int(place) for place in at[_words(code, at + 1) + part.address + at + 5 == target]]


def _likely_registrations(elf: Elf, part: _Part) -> Iterator[tuple[int, int]]:
    """(target, place) of calls whose arguments can be nothing else."""
    at = part.code.find(_LAST_ARGUMENTS)
    while at >= 0:
        call = part.code.find(b"\xe8", at + len(_LAST_ARGUMENTS), at + _WINDOW)
        while call >= 0:
            target = _target(part, call)
            if _is_in(elf, target, _EXECUTE):
                if _function_of(elf, _arguments(elf, part, call)) is not None:
                    yield target, call
                break
            call = part.code.find(b"\xe8", call + 1, at + _WINDOW)
        at = part.code.find(_LAST_ARGUMENTS, at + 1)


def _arguments(elf: Elf, part: _Part, call: int) -> dict[int, int]:
    """Addresses that are loaded into registers (by number) between the call before and this one."""
    found: dict[int, int] = {}
    at = _after_last_call(elf, part, call)
    while at < call:
        code = part.code[at : at + 7]
        size = 1
        if code[0] in _WIDE and code[1] == _LEA and code[2] & 0xC7 == _RELATIVE:
            size = 7
            found[_register(code[0] & 4, code[2] >> 3)] = part.address + at + size + _signed(code[3:7])
        elif code[0] in _WIDE_MOVES and code[1] == _MOVE and code[2] >= _BETWEEN_REGISTERS:
            size = 3
            source, target = _register(code[0] & 4, code[2] >> 3), _register((code[0] & 1) * 4, code[2])
            _copy(found, source, target)
        elif code[0] in _IMMEDIATE:
            size = 5
            found[code[0] - _IMMEDIATE[0]] = int.from_bytes(code[1:5], "little")
        at += size
    return found


def _after_last_call(elf: Elf, part: _Part, call: int) -> int:
    """Where the code begins that can only be for this call."""
    first = max(0, call - _WINDOW)
    at = part.code.rfind(b"\xe8", first, call)
    while at >= 0:
        if at + 5 <= call and _is_in(elf, _target(part, at), _EXECUTE):
            return at + 5
        at = part.code.rfind(b"\xe8", first, at)
    return first


def _target(part: _Part, call: int) -> int:
    return part.address + call + 5 + _signed(part.code[call + 1 : call + 5])


def _signed(word: bytes) -> int:
    return int.from_bytes(word, "little", signed=True)


def _register(extension: int, bits: int) -> int:
    return (8 if extension else 0) | bits & 7


def _copy(found: dict[int, int], source: int, target: int) -> None:
    """A register takes another's value, or one that isn't known."""
    if source in found:
        found[target] = found[source]
    else:
        found.pop(target, None)


# --- what it means ---------------------------------------------------------------------------------------------


def _is_in(elf: Elf, address: int, rights: int) -> bool:
    """Whether an address lies in a segment with these rights."""
    for load in elf.loads:
        if int(load["vaddr"]) <= address < int(load["vaddr"]) + int(load["memsz"]):
            return bool(int(load["flags"]) & rights)
    return False


def _function_of(elf: Elf, arguments: dict[int, int]) -> tuple[int, str] | None:
    """The host function and the kernel's name in the arguments of a registration."""
    function = arguments.get(_RSI, 0)
    if not _is_in(elf, function, _EXECUTE):
        return None
    names = (_name_at(elf, arguments[register]) for register in (_RCX, _RDX) if register in arguments)
    return next(((function, name) for name in names if name), None)


def _name_at(elf: Elf, address: int) -> str:
    """The C name at an address; empty when there is none."""
    if not _is_in(elf, address, _READ):
        return ""
    raw, end, _ = elf.read_address(address, NAME_LIMIT).partition(b"\0")
    name = raw.decode("ascii", "replace")
    return name if end and name.isascii() and name.replace("$", "_").replace(".", "_").isidentifier() else ""


def _note_function(elf: Elf, found: Registrations, arguments: dict[int, int]) -> None:
    function = _function_of(elf, arguments)
    if function is not None and len(found.functions) < FUNCTIONS_LIMIT:
        found.functions.setdefault(*function)


def _note_slots(elf: Elf, found: Registrations, part: _Part) -> None:
    """Calls with a registered host function as second argument and a variable as first: it holds the function's handle."""
    for at in _mentions(part, np.fromiter(found.functions, np.int64)).tolist():
        call = part.code.find(b"\xe8", at + 5, at + _WINDOW)
        while call >= 0 and not _is_in(elf, _target(part, call), _EXECUTE):
            call = part.code.find(b"\xe8", call + 1, at + _WINDOW)
        arguments = _arguments(elf, part, call) if call >= 0 else {}
        host, place = arguments.get(_RSI, 0), arguments.get(_RDI, 0)
        if host in found.functions and place % 8 == 0 and _is_in(elf, place, _WRITE) and len(found.slots) < SLOTS_LIMIT:
            found.slots[place] = host if found.slots.get(place, host) == host else 0


def _mentions(part: _Part, addresses: Places) -> Places:
    """Places of instructions that load one of the addresses into a register."""
    code = part.bytes
    if len(code) <= _WINDOW:
        return np.zeros(0, np.int64)
    wide = (code[:-6] & 0xFB == _WIDE[0]) & (code[1:-5] == _LEA) & (code[2:-4] & 0xC7 == _RELATIVE)
    lea = np.flatnonzero(wide)
    move = np.flatnonzero(code[:-4] & 0xF8 == _IMMEDIATE[0])
    relative = lea[np.isin(_words(code, lea + 3) + part.address + lea + 7, addresses)]
    found: Places = np.concatenate([relative, move[np.isin(_words(code, move + 1), addresses)]])
    return found


# --- the child -------------------------------------------------------------------------------------------------


def _document(file: int) -> dict[str, Any]:
    """What a file registers; nothing when it is no ELF file or has no device code."""
    try:
        elf = Elf(FileSource(file))
        found = scan(elf) if has_kernels(elf) else Registrations()
        loads = [[int(load["offset"]), int(load["vaddr"]), int(load["filesz"])] for load in elf.loads]
    except OtelprofError:
        return {"functions": [], "slots": [], "loads": []}
    return {"functions": list(found.functions.items()), "slots": list(found.slots.items()), "loads": loads}


def main(arguments: list[str]) -> None:
    """One line of JSON on standard output for each descriptor."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    np.isin(np.zeros(1, np.int64), np.zeros(2, np.int64))  # what is imported late must be there before rights are given up
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    for argument in arguments:
        sys.stdout.write(json.dumps(_document(int(argument))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
