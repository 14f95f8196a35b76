"""CUDA driver libraries in processes: which mapped files are one, and where in them the probes go.

Probes sit on files, not on processes, so a library is attached once however many processes map it, and let go when the last
of them has ended. Whatever calls the driver passes its exported functions: libcudart and others get exactly these addresses
from cuGetProcAddress (all 846 of driver 535.261.03).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from otelprof.counters import CUDA_FILES, Counters
from otelprof.ebpf.mappings import NewMapping
from otelprof.errors import MalformedInput, OtelprofError, TargetError
from otelprof.processes.maps import Region, open_region, read_maps
from otelprof.symbols.elf import Elf, FileSource, Symbol
from otelprof.targets.cuda_entries import ENTRY_POINTS, MARKS, RUNTIME_ENTRY_POINTS, EntryPoint
from otelprof.targets.descriptors import free_descriptors
from otelprof.targets.file_identity import Identity, identity
from otelprof.targets.probe_sites import LONGEST_FORM, best_place
from otelprof.text import printable

log = logging.getLogger(__name__)

_NAME = re.compile("cuda", re.IGNORECASE)
_FUNCTION = 2  # STT_FUNC
_EXECUTABLE = 1  # PF_X
DESCRIPTORS_LIMIT = 8192
"""Descriptors that probes of drivers may take at most, however many this process may open."""
_STRANGERS_LIMIT = 4096
_WAITING_LIMIT = 1024
_WARNINGS_LIMIT = 5
_KEPT = 0  # stands among a library's users for the agent itself; incarnation numbers begin at 1


@dataclass(frozen=True, slots=True)
class Site:
    """A probe to set: enumerator of `enum cuda_entry`, exported name, offset in the file, why there.

    `emulated`: the kernel emulates the instruction there; else it is single-stepped, which costs far more.
    """

    entry: str
    symbol: str
    offset: int
    why: str
    emulated: bool


class Attachment(Protocol):
    """Probes that are set."""

    @property
    def descriptors(self) -> int:
        """How many descriptors they take."""

    def close(self) -> None:
        """Take them away; safe twice."""


class Prober(Protocol):
    """Sets probes in files; otelprof/ebpf has it."""

    def attach_cuda(self, path: int, entries: Iterable[tuple[int, int]], /) -> Attachment:
        """Probe (offset, number of the entry point) in the file behind a descriptor; OtelprofError when that can't be done."""

    def attach_return(self, path: int, offset: int, /) -> Attachment:
        """Probe a return site of driver calls."""


def mapped_region(mapping: NewMapping) -> Region:
    """A mapping that the kernel told of, as /proc/PID/maps will show it."""
    device = "{:02x}:{:02x}".format(*mapping.device)
    end = mapping.address + mapping.length
    return Region(mapping.address, end, "r-xp", mapping.offset, device, mapping.inode, mapping.path)


def may_be_libcuda(region: Region) -> bool:
    """A first look at a mapping's name; what decides is the file."""
    return region.is_file and bool(_NAME.search(region.path.rsplit("/", 1)[-1]))


def is_libcuda(elf: Elf) -> bool:
    """True for a library that exports what every driver library does."""
    return all(_exported(elf, name) for name in MARKS)


def probe_sites(elf: Elf) -> list[Site]:
    """The probes for a driver library, one for each address; none for entry points that it lacks."""
    return _sites_of(elf, ENTRY_POINTS)


def _sites_of(elf: Elf, points: Iterable[EntryPoint]) -> list[Site]:
    found: dict[int, Site] = {}
    for point in points:
        for name in point.exports:
            symbol = _exported(elf, name)
            site = _site(elf, point.entry, symbol) if symbol else None
            if site:
                found.setdefault(site.offset, site)
    return list(found.values())


def runtime_sites(elf: Elf) -> list[Site]:
    """The probes for a CUDA runtime; none when the file isn't one."""
    return _sites_of(elf, RUNTIME_ENTRY_POINTS)


def _exported(elf: Elf, name: str) -> Symbol | None:
    symbol = elf.find(name)
    return symbol if symbol and symbol.type == _FUNCTION else None


def _site(elf: Elf, entry: str, symbol: Symbol) -> Site | None:
    for load in elf.loads:
        start = symbol.value - int(load["vaddr"])
        if load["flags"] & _EXECUTABLE and 0 <= start < int(load["filesz"]):
            place = best_place(elf.read_address(symbol.value, LONGEST_FORM), symbol.size)
            return Site(entry, symbol.name, int(load["offset"]) + start + place.at, place.why, place.emulated)
    return None


def open_libcuda(pid: int, region: Region) -> tuple[int, list[Site]] | None:
    """The file at a mapping and its sites, when it is a driver library; the caller closes the file.

    TargetError when the file can't be opened.
    """
    file = open_region(pid, region)
    sites = _sites_in(file)
    if sites:
        return file, sites
    os.close(file)
    return None


def _sites_in(file: int) -> list[Site]:
    """The probes for an open file; none when it is no driver library."""
    try:
        elf = Elf(FileSource(os.dup(file)))
        return probe_sites(elf) if is_libcuda(elf) else []
    except MalformedInput:
        return []


def find_libcuda(regions: Iterable[Region]) -> dict[tuple[str, int], Region]:
    """One mapping of each file that may be a driver library, by device and inode."""
    return {region.file_key: region for region in regions if may_be_libcuda(region)}


def _mapped_files(pid: int) -> Container[tuple[str, int]]:
    try:
        return read_maps(pid).files
    except TargetError:
        return ()


@dataclass(slots=True)
class _Library:
    """A driver library that is mapped somewhere, by which processes: PID (0: not known) by incarnation number."""

    path: str
    sites: list[Site]
    probes: Attachment | None = None
    users: dict[int, int] = field(default_factory=dict)


class LibcudaFiles:
    """The driver libraries of all processes: attached at first sight, let go after the last user.

    `numbers` maps enumerators of `enum cuda_entry` to their values, `limit` is the most descriptors. Processes are named
    by incarnation number.
    """

    def __init__(self, prober: Prober, numbers: Mapping[str, int], counters: Counters, limit: int = DESCRIPTORS_LIMIT) -> None:
        self._prober, self._numbers, self._counters = prober, numbers, counters
        self._limit = limit
        self._refused = 0
        self._libraries: dict[Identity, _Library] = {}
        self._known: dict[tuple[int, tuple[str, int]], Identity] = {}
        self._strangers: dict[tuple[tuple[str, int], str], None] = {}
        self._waiting: dict[Identity, tuple[int, int, Region]] = {}

    def look_at(self, process: int, pid: int, regions: Iterable[Region]) -> int:
        """Attach the driver libraries among mappings of a process; how many were attached for the first time.

        Errors are said once per library and never raised: a process that can't be probed is no reason to stop.
        """
        found = find_libcuda(regions)
        return sum(self._take(process, pid, region) for key, region in found.items() if self._is_new(process, key, region))

    def keep(self, path: str) -> bool:
        """Attach the driver library at a path of our own file system for good, before anybody maps it.

        Then the look-ups of a program that starts later are seen from its first call, and its kernels have names. False
        when there is none at the path.
        """
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            sites = _sites_in(file)
            if sites:
                library = self._libraries.setdefault(identity(file), _Library(path, sites))
                library.users[_KEPT] = 0
                if library.probes is None:
                    self._attach(file, library)
            return bool(sites)
        finally:
            os.close(file)
            self._count()

    def inherit(self, parent: int, child: int, pid: int = 0) -> None:
        """A forked child, whose PID may be told, maps what its parent maps."""
        for library in self._libraries.values():
            if parent in library.users:
                library.users[child] = pid
        self._known |= {(child, key): found for (process, key), found in self._known.items() if process == parent}

    def leave(self, process: int) -> None:
        """A process has ended or changed its image; libraries without users are let go, others may take their place."""
        self._known = {key: found for key, found in self._known.items() if key[0] != process}
        self._waiting = {key: entry for key, entry in self._waiting.items() if entry[0] != process}
        for key, library in list(self._libraries.items()):
            library.users.pop(process, None)
            if not library.users:
                self._let_go(key)
        self._try_again()
        self._count()

    def close(self) -> None:
        """Take all probes away."""
        for key in list(self._libraries):
            self._let_go(key)
        self._count()

    def libraries_of(self, process: int) -> list[tuple[str, list[Site]]]:
        """Path and sites of each driver library that a process maps and that is probed."""
        return [(found.path, found.sites) for found in self._libraries.values() if process in found.users and found.probes]

    def _is_new(self, process: int, key: tuple[str, int], region: Region) -> bool:
        return (process, key) not in self._known and (key, region.path) not in self._strangers

    def _take(self, process: int, pid: int, region: Region) -> bool:
        try:
            opened = open_libcuda(pid, region)
        except OtelprofError as error:
            log.debug("%s", error)
            return False
        if opened is None:
            self._remember_stranger(region)
            return False
        file, sites = opened
        try:
            return self._use(file, process, pid, (region, sites))
        finally:
            os.close(file)
            self._count()

    def _remember_stranger(self, region: Region) -> None:
        self._strangers[region.file_key, region.path] = None
        if len(self._strangers) > _STRANGERS_LIMIT:
            del self._strangers[next(iter(self._strangers))]

    def _use(self, file: int, process: int, pid: int, found: tuple[Region, list[Site]]) -> bool:
        region, sites = found
        key = identity(file)
        library = self._libraries.get(key)
        if library is None and not self._has_room() and not self._drop_unmapped():
            self._wait(key, (process, pid, region))
            return False
        if library is None:
            library = self._libraries[key] = _Library(region.path, sites)
            self._attach(file, library)
        self._known[process, region.file_key] = key
        new = not library.users
        library.users[process] = pid
        return new and library.probes is not None

    def _attach(self, file: int, library: _Library) -> None:
        sites = [(site.offset, self._numbers[site.entry]) for site in library.sites if site.entry in self._numbers]
        try:
            library.probes = self._prober.attach_cuda(file, sites)
        except OtelprofError as error:
            self._refused += 1
            level = logging.WARNING if self._refused <= _WARNINGS_LIMIT else logging.DEBUG
            log.log(level, "launches through %s are not seen: %s", printable(library.path), error)

    def _wait(self, key: Identity, entry: tuple[int, int, Region]) -> None:
        if not self._waiting:
            log.warning(
                "%d driver libraries are probed, which is all that the limit of open files allows: %s waits for a place",
                len(self._libraries), printable(entry[2].path),
            )  # fmt: skip
        if len(self._waiting) < _WAITING_LIMIT:
            self._waiting[key] = entry

    def _try_again(self) -> None:
        for key, (process, pid, region) in list(self._waiting.items()):
            if not self._has_room():
                return
            del self._waiting[key]
            self._take(process, pid, region)

    def _has_room(self) -> bool:
        """True when one library more can be probed, by what the dearest one takes."""
        taken = [library.probes.descriptors for library in self._libraries.values() if library.probes]
        more = max(taken, default=1)
        return sum(taken) + more <= self._limit and free_descriptors() >= more

    def _drop_unmapped(self) -> bool:
        """Let go of libraries that their processes have closed; True when there is room then."""
        mapped = {pid: _mapped_files(pid) for library in self._libraries.values() for pid in library.users.values() if pid}
        for (process, file), key in list(self._known.items()):
            library = self._libraries[key]
            pid = library.users.get(process)
            if pid and file not in mapped[pid]:
                del self._known[process, file]
                del library.users[process]
            if not library.users:
                self._let_go(key)
        return self._has_room()

    def _let_go(self, key: Identity) -> None:
        library = self._libraries.pop(key)
        self._known = {known: found for known, found in self._known.items() if found != key}
        if library.probes is not None:
            library.probes.close()

    def _count(self) -> None:
        probed = sum(1 for library in self._libraries.values() if library.probes)
        self._counters.set(CUDA_FILES, probed, "probed")
        self._counters.set(CUDA_FILES, len(self._libraries) - probed, "refused")
        self._counters.set(CUDA_FILES, len(self._waiting), "waiting")
