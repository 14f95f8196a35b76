"""Names of native addresses: the symbol that holds the address, else file+0x1234; never a guess.

Symbol tables are numpy columns (13 bytes a function), made once for each build id or file and kept while they are used.
Names are read from the file when an address needs them. Many addresses are looked up at once.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt

from otelprof.batch import Frame, FrameKind, Mapping, mark
from otelprof.errors import MalformedInput, OtelprofError, TargetError
from otelprof.processes.maps import Region, open_region, region_identity
from otelprof.processes.table import Process
from otelprof.symbols.demangle import readable
from otelprof.symbols.elf import TYPE_EXECUTABLE, BytesSource, Elf, FileSource, SymbolTable
from otelprof.text import clean

TABLE_BYTES = 64 << 20
"""Symbol tables that are kept, in bytes; libtorch_cpu.so needs 6 MB."""
FILES_LIMIT = 256
"""Files that are held open, since names are read when they are needed."""
JIT = mark("jit")
UNKNOWN = mark("unknown")

_FUNCTION, _INDIRECT_FUNCTION = 2, 10  # STT_FUNC, STT_GNU_IFUNC
_GLOBAL, _WEAK = 1, 2  # STB_GLOBAL, STB_WEAK
_LOOK_BACK = 4  # how many earlier symbols may hold an address behind a nested one
_REFRESH = 1.0  # seconds between two readings of a process's mappings
_VDSO = "[vdso]"
_VDSO_LIMIT = 1 << 16

Addresses = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Functions:
    """The sized functions of a file by address as linked. Columns of shape (functions,), sorted by `start`."""

    start: Addresses
    size: npt.NDArray[np.uint32]
    name: npt.NDArray[np.uint32]
    table: SymbolTable | None

    @property
    def weight(self) -> int:
        """Bytes of the columns."""
        return 1024 + 16 * len(self.start)

    def find(self, addresses: Addresses) -> npt.NDArray[np.int64]:
        """Row of the function that holds each address, -1 where none does."""
        found = np.full(len(addresses), -1, np.int64)
        last = np.searchsorted(self.start, addresses, "right").astype(np.int64) - 1
        for back in range(_LOOK_BACK):
            row = last - back
            open_ = (found < 0) & (row >= 0)
            inside = addresses[open_] - self.start[row[open_]] < self.size[row[open_]]
            found[open_] = np.where(inside, row[open_], -1)
        return found


_NO_FUNCTIONS = Functions(np.zeros(0, np.uint64), np.zeros(0, np.uint32), np.zeros(0, np.uint32), None)


def functions_of(elf: Elf) -> Functions:
    """The functions of .symtab, else of .dynsym; none when the file has neither or they are broken."""
    for name in (".symtab", ".dynsym"):
        try:
            table = elf.symbols(name)
        except MalformedInput:
            continue
        if table is not None and len(table.rows):
            return _functions(table)
    return _NO_FUNCTIONS


def _functions(table: SymbolTable) -> Functions:
    rows = table.rows
    kind = rows["info"] & 15
    wanted = ((kind == _FUNCTION) | (kind == _INDIRECT_FUNCTION)) & (rows["shndx"] != 0) & (rows["size"] != 0)
    rows = rows[wanted]
    binding = rows["info"] >> 4
    rank = np.where(binding == _GLOBAL, 2, np.where(binding == _WEAK, 1, 0))  # of aliases the last one shows
    rows = rows[np.lexsort((rank, rows["value"]))]
    size = np.minimum(rows["size"], np.iinfo(np.uint32).max).astype(np.uint32)
    return Functions(rows["value"].copy(), size, rows["name"].copy(), SymbolTable(rows[:0], table.names, table.names_size))


@dataclass
class _File:
    """An opened file: its ELF headers, functions and the names that were read so far."""

    elf: Elf
    functions: Functions
    names: dict[int, tuple[str, str]] = field(default_factory=dict)

    def name(self, row: int) -> tuple[str, str]:
        """(name to show, name as it stands in the file) of a function."""
        found = self.names.get(row)
        if found is None and self.functions.table is not None:
            raw = self.elf.symbol_name(self.functions.table, int(self.functions.name[row])).decode("utf-8", "replace")
            found = self.names[row] = (readable(raw), clean(raw))
        return found or ("", "")


@dataclass
class _Refreshed:
    """When a process's mappings were read last, CLOCK_MONOTONIC seconds."""

    at: float = 0.0


class NativeNames:
    """Names for the native addresses of all processes."""

    def __init__(self) -> None:
        self._files: OrderedDict[object, _File | None] = OrderedDict()
        self._by_identity: OrderedDict[object, object] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        """How many symbol tables are held."""
        return len(self._files)

    def names(self, process: Process, addresses: Addresses, returns: npt.NDArray[np.bool_] | bool = False) -> list[Frame]:
        """The frames of absolute addresses in a process, in order.

        `returns` says which are return addresses: those belong to the instruction before, which may end a function.
        `[jit]` is code without a file, `[unknown]` what is mapped nowhere (any more).
        """
        wanted = addresses - np.broadcast_to(returns, addresses.shape).astype(np.uint64)
        regions = self._regions(process, wanted)
        frames: list[Frame] = [UNKNOWN] * len(addresses)
        groups: dict[Region, list[int]] = {}
        for number, region in enumerate(regions):
            if region is not None:
                groups.setdefault(region, []).append(number)
        for region, numbers in groups.items():
            for number, frame in zip(numbers, self._in_region(process, region, wanted[numbers]), strict=True):
                frames[number] = frame
        return frames

    def _regions(self, process: Process, addresses: Addresses) -> list[Region | None]:
        try:
            found = [process.maps.find(int(address)) for address in addresses]
            refreshed = process.keep(_Refreshed, _Refreshed)
            if None in found and time.monotonic() - refreshed.at > _REFRESH and not process.ended_at:
                refreshed.at = time.monotonic()
                found = [process.refresh_maps().find(int(address)) for address in addresses]
        except TargetError:
            return [None] * len(addresses)
        return found

    def _in_region(self, process: Process, region: Region, addresses: Addresses) -> Iterable[Frame]:
        if not region.is_file and region.path != _VDSO:
            return [JIT if region.executable else UNKNOWN] * len(addresses)
        file = self._file(process, region)
        name = clean(PurePosixPath(region.path).name.strip("[]"))
        mapping = Mapping(clean(region.path), file.elf.build_id if file else "", region.start, region.end, region.offset)
        bias = _bias(file, region)
        linked = addresses - np.uint64(bias & 0xFFFFFFFFFFFFFFFF)
        rows = file.functions.find(linked).tolist() if file else [-1] * len(addresses)
        return [
            _frame(file.name(row) if file and row >= 0 else (f"{name}+{offset:#x}", ""), mapping, address)
            for row, offset, address in zip(rows, linked.tolist(), addresses.tolist(), strict=True)
        ]

    # --- files -------------------------------------------------------------------------------------------------

    def _file(self, process: Process, region: Region) -> _File | None:
        identity = region_identity(process.pid, region) if region.is_file else (_VDSO, process.pid)
        if identity is None:
            return None
        key = self._by_identity.get(identity)
        if key is None or key not in self._files:
            key = self._load(process, region, identity)
        self._files.move_to_end(key)
        return self._files[key]

    def _load(self, process: Process, region: Region, identity: object) -> object:
        """Open a file; its key: the build id, so that copies share a table, else its identity."""
        try:
            elf = _open(process, region)
            key: object = (elf.build_id, elf.source.size) if elf.build_id else identity
            found = self._files.get(key) or _File(elf, functions_of(elf))
        except OtelprofError:
            key, found = identity, None
        if key not in self._files and found is not None:
            self._weight += found.functions.weight
        self._files[key] = found
        self._by_identity[identity] = key
        self._make_room()
        return key

    def _make_room(self) -> None:
        """Forget what was unused longest, never the newest."""
        while len(self._files) > 1 and (self._weight > TABLE_BYTES or len(self._files) > FILES_LIMIT):
            _, old = self._files.popitem(last=False)
            self._weight -= old.functions.weight if old else 0
        while len(self._by_identity) > 4 * FILES_LIMIT:
            self._by_identity.popitem(last=False)


def _open(process: Process, region: Region) -> Elf:
    if region.path == _VDSO:
        return Elf(BytesSource(process.memory.read(region.start, min(region.end - region.start, _VDSO_LIMIT))))
    return Elf(FileSource(open_region(process.pid, region)))


def _bias(file: _File | None, region: Region) -> int:
    """Run-time minus linked addresses; for a file that can't be read, such that offsets in the file come out."""
    if file is not None and file.elf.type == TYPE_EXECUTABLE:
        return 0
    found = file.elf.bias(region.start, region.offset) if file is not None else None
    return region.start - region.offset if found is None else found


def _frame(names: tuple[str, str], mapping: Mapping, address: int) -> Frame:
    name, system = names
    return Frame(
        name,
        FrameKind.NATIVE,
        file=mapping.file,
        system_name=system if system != name else "",
        mapping=mapping,
        address=address,
    )
