"""Unwind tables for the code that samples fall into: which are missing, who makes them, and which process uses which.

Nothing is prepared. A native stack that stops in code without a table names the file that needs one: its outermost frame.
A thread has the tables of such files made by a process without privileges, and the next turn of the receiver writes them to
the kernel and tells which processes map them. So a table exists only for files in which a walk has been, and is shared by
all processes that map the file.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from otelprof.batch import Table
from otelprof.counters import UNWIND_REFUSED, UNWIND_ROWS, UNWIND_TABLES, Counters
from otelprof.ebpf.layout import wire
from otelprof.ebpf.mappings import NewMapping
from otelprof.ebpf.session import Session
from otelprof.errors import OtelprofError, TargetError
from otelprof.processes.maps import Region, open_region, region_identity
from otelprof.processes.table import Change, ChangeKind, Process
from otelprof.symbols.elf import TYPE_EXECUTABLE, BytesSource, Elf, FileSource
from otelprof.symbols.unwind_cache import UnwindCache
from otelprof.symbols.unwind_parser import Parsed, parse
from otelprof.text import printable

log = logging.getLogger(__name__)

FILES_LIMIT = 4096
"""Files whose tables, or refusals, are remembered."""
BATCH = 16
"""Files that one parsing process is handed."""
VDSO = "[vdso]"
_VDSO_LIMIT = 1 << 16
_LIBC = re.compile(r"libc[.-]|ld-musl-")

Key = tuple[object, ...]
"""Which file it is: identity of a file, or the bytes of a vDSO."""


@dataclass
class _File:
    """A file that is being looked at (`base` None), has a table, or has none (`rows` 0)."""

    name: str
    first: int = 0
    rows: int = 0
    base: int | None = None
    waiting: set[int] = field(default_factory=set)
    """Incarnations that wait for the table."""


@dataclass
class Space:
    """What one process has in the kernel's table of mappings. Hangs on the process and goes with it."""

    session: Session
    keys: dict[tuple[int, int], Key | None] = field(default_factory=dict)
    """Files by mapping (start, end), as they were asked for; None: memory without a file."""
    biases: dict[tuple[int, int], int | None] = field(default_factory=dict)
    """Run-time minus linked addresses of those that have a table; None: it can't be told."""
    first: int = 0
    count: int = 0
    listed: tuple[tuple[int, int, int, int, int], ...] = ()

    def publish(self, pid: int, mappings: Iterable[tuple[int, int, int, int, int]]) -> None:
        """Write the process's mappings anew, when they have changed."""
        mappings = tuple(sorted(mappings))[: wire()["LIMIT_MAPPINGS"]]
        if mappings == self.listed:
            return
        first = self.session.unwind.put_mappings(mappings)
        if first is not None and self.session.set_mappings(pid, first, len(mappings)):
            self.session.unwind.drop_mappings(self.first, self.count)
            self.first, self.count, self.listed = first, len(mappings), mappings
        elif first is not None:
            self.session.unwind.drop_mappings(first, len(mappings))

    def close(self) -> None:
        """The process has ended."""
        self.session.unwind.drop_mappings(self.first, self.count)
        self.first = self.count = 0


class Unwinding:
    """See the module's text. Used by the receiver's thread; `close` ends its own."""

    def __init__(self, session: Session, counters: Counters, cache: UnwindCache | None = None) -> None:
        self._session, self._counters, self._cache = session, counters, cache or UnwindCache(None)
        self._native = wire()["STACK_NATIVE"]
        self._files: dict[Key, _File] = {}
        self._processes: dict[int, Process] = {}
        self._asked: queue.Queue[tuple[Key, int] | None] = queue.Queue(FILES_LIMIT)
        self._made: queue.Queue[tuple[Key, Parsed]] = queue.Queue()
        self._thread: threading.Thread | None = None

    # --- what is missing ---------------------------------------------------------------------------------------

    def learn(self, chunks: Table, processes: dict[int, Process]) -> None:
        """Stacks that have just arrived (struct stack_chunk): the code that each ended in must have a table.

        `processes` has the living ones of the chunks' incarnations.
        """
        roots = chunks[(chunks["kind"] == self._native) & (chunks["parent"] == 0) & (chunks["count"] > 0)]
        last = roots["frames"][np.arange(len(roots)), roots["count"] - 1]
        addresses = last["address"] - last["offset"]
        for number in np.unique(roots["process"]).tolist():
            process = processes.get(number)
            if process is not None:
                with suppress(TargetError):  # it has ended meanwhile
                    self._need(process, np.unique(addresses[roots["process"] == number]).tolist())

    def _need(self, process: Process, addresses: list[int]) -> None:
        space = process.kept(Space) or self._begin(process)
        regions = {region for address in addresses if (region := _region(process, address)) is not None}
        for region in regions:
            if (region.start, region.end) not in space.keys:
                self._ask(process, space, region)
        self._publish(process, space)

    def _begin(self, process: Process) -> Space:
        """A process is met: what it maps of files that have tables is listed at once."""
        space = process.keep(Space, lambda: Space(self._session))
        code = [region for region in process.maps.regions if region.executable]
        for region in code if self._files else ():
            key = _key(process, region)
            file = self._files.get(key) if key is not None else None
            if file is not None and file.rows:
                space.keys[region.start, region.end] = key
        for region in _outermost(code):
            if (region.start, region.end) not in space.keys:
                self._ask(process, space, region)
        return space

    def _ask(self, process: Process, space: Space, region: Region) -> None:
        key = space.keys[region.start, region.end] = _key(process, region)
        if key is None:
            return
        if key not in self._files and not self._hand_over(key, process, region):
            del space.keys[region.start, region.end]
            return
        if self._files[key].base is None:
            self._files[key].waiting.add(process.incarnation)
            self._processes[process.incarnation] = process

    def _hand_over(self, key: Key, process: Process, region: Region) -> bool:
        """Have a file's table made; False when it can't be opened, or too many wait."""
        if len(self._files) >= FILES_LIMIT or self._asked.full():
            return False
        try:
            self._asked.put_nowait((key, _open(process, region)))
        except (TargetError, OSError):
            return False
        self._files[key] = _File(printable(region.path))
        if self._thread is None:
            self._thread = threading.Thread(target=self._make, name="otelprof-unwind", daemon=True)
            self._thread.start()
        return True

    # --- making tables, in a thread of its own -----------------------------------------------------------------

    def _make(self) -> None:
        while (job := self._asked.get()) is not None:
            jobs = [job]
            while len(jobs) < BATCH and not self._asked.empty():
                following = self._asked.get()
                if following is None:
                    self._asked.put(None)
                    break
                jobs.append(following)
            jobs.sort(key=lambda job: os.fstat(job[1]).st_size)  # the small ones needn't wait for the big ones
            while jobs:
                jobs = self._parsed(jobs)

    def _parsed(self, jobs: list[tuple[Key, int]]) -> list[tuple[Key, int]]:
        """Jobs that the parsing process didn't come to; the others are done, from the cache where that has them."""
        names = {file: self._cache.key(file) for _, file in jobs}
        left = [job for job in jobs if not self._was_kept(job, names[job[1]])]
        missed = []
        for (key, file), found in zip(left, parse([file for _, file in left]) if left else (), strict=True):
            name = names[file]
            if found is None:
                missed.append((key, file))
                continue
            if name is not None:
                self._cache.put(name, found)
            self._done(key, file, found)
        return missed

    def _was_kept(self, job: tuple[Key, int], name: str | None) -> bool:
        found = self._cache.get(name) if name is not None else None
        if found is not None:
            self._done(*job, found)
        return found is not None

    def _done(self, key: Key, file: int, found: Parsed) -> None:
        os.close(file)
        self._made.put((key, found))

    # --- what has been made ------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Write the tables that are ready to the kernel."""
        ready: dict[int, Process] = {}
        while not self._made.empty():
            key, parsed = self._made.get()
            file = self._files[key]
            self._write(file, parsed)
            for number in file.waiting:
                process = self._processes.get(number)
                if process is not None:
                    ready[number] = process
            file.waiting.clear()
        for number, process in ready.items():
            space = process.kept(Space)
            if space is not None and not process.ended_at:
                self._publish(process, space)
            if not any(number in file.waiting for file in self._files.values()):
                self._processes.pop(number, None)

    def _write(self, file: _File, parsed: Parsed) -> None:
        file.base = parsed.base
        try:
            first = self._session.unwind.add_table(parsed) if parsed.rules is not None else None
        except OtelprofError as error:
            parsed.refusal, first = str(error), None
        finally:
            parsed.close()
        if first is not None:
            file.first, file.rows = first, parsed.rows
            self._counters.add(UNWIND_TABLES, 1)
            self._counters.set(UNWIND_ROWS, self._session.unwind.rows)
            return
        reason = parsed.refusal or ("no room" if parsed.rules is not None else "none in the file")
        self._counters.add(UNWIND_REFUSED, 1, _kind(reason))
        log.info("no native frames through %s: %s", file.name, reason)

    def _publish(self, process: Process, space: Space) -> None:
        """List all of the process's mappings that have a table by now."""
        listed = []
        for place, key in space.keys.items():
            file = self._files.get(key) if key is not None else None
            if file is None or not file.rows or file.base is None:
                continue
            if place not in space.biases:
                space.biases[place] = _bias(process, *place)
            bias = space.biases[place]
            if bias is not None:
                listed.append((*place, bias + file.base, file.first, file.rows))
        try:
            space.publish(process.pid, listed)
        except OtelprofError as error:
            log.info("%s", error)

    # --- lives of processes ------------------------------------------------------------------------------------

    def follow(self, changes: Iterable[Change]) -> None:
        """A forked child has its parent's mappings; it gets entries of its own, since the parent's go with the parent."""
        for change in changes:
            if change.kind is ChangeKind.FORKED:
                self._inherit(change.process, change.parent)

    def _inherit(self, child: Process, parent: Process | None) -> None:
        known = parent.kept(Space) if parent else None
        if known is not None and not child.ended_at:
            space = child.keep(Space, lambda: Space(self._session))
            space.keys.update(known.keys)
            space.biases.update(known.biases)
            self._publish(child, space)

    def mapped(self, process: Process, mapping: NewMapping) -> None:
        """New code: what was mapped in its place is gone."""
        space = process.kept(Space)
        if space is None:
            return
        end = mapping.address + mapping.length
        gone = [place for place in space.keys if place[0] < end and mapping.address < place[1]]
        for place in gone:
            del space.keys[place]
            space.biases.pop(place, None)
        if gone:
            self._publish(process, space)

    def close(self) -> None:
        """End the thread; what it is at is not waited for."""
        if self._thread is not None:
            self._asked.put(None)


def _region(process: Process, address: int) -> Region | None:
    try:
        region = process.maps.find(address) or process.refresh_maps().find(address)
    except TargetError:
        return None
    return region if region is not None and region.executable else None


def _outermost(code: list[Region]) -> list[Region]:
    """Code in which every stack ends: the program's own, which is mapped lowest, and the C library's."""
    files = [region for region in code if region.is_file]
    return files[:1] + [region for region in files[1:] if _LIBC.match(region.path.rpartition("/")[2])]


def _key(process: Process, region: Region) -> Key | None:
    """Which file a mapping is of; None for memory without one (JITs)."""
    if region.path == VDSO:
        try:
            return VDSO, process.memory.read(region.start, min(region.end - region.start, _VDSO_LIMIT))
        except TargetError:
            return None
    return region_identity(process.pid, region) if region.is_file else None


def _open(process: Process, region: Region) -> int:
    """A descriptor for the parsing process."""
    if region.path != VDSO:
        return open_region(process.pid, region)
    file = os.memfd_create("otelprof-vdso", os.MFD_CLOEXEC)
    os.write(file, process.memory.read(region.start, min(region.end - region.start, _VDSO_LIMIT)))
    return file


def _bias(process: Process, start: int, end: int) -> int | None:
    """Run-time minus linked addresses of a mapping; None when it is gone."""
    try:
        region = process.maps.find(start)
        if region is None or (region.start, region.end) != (start, end):
            return None
        elf = Elf(_source(process, region))
    except OtelprofError:
        return None
    return 0 if elf.type == TYPE_EXECUTABLE else elf.bias(region.start, region.offset)


def _source(process: Process, region: Region) -> BytesSource | FileSource:
    if region.path == VDSO:
        return BytesSource(process.memory.read(region.start, min(region.end - region.start, _VDSO_LIMIT)))
    return FileSource(open_region(process.pid, region))


def _kind(reason: str) -> str:
    """A refusal's kind, for the counter: few different ones."""
    return reason if reason in {"no room", "none in the file"} else "malformed"
