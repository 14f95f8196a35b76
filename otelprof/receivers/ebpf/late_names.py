"""Names of kernels that a process looked up before anybody watched.

When a launch uses a handle that has no name, two places may know it: a look-up whose return nobody saw (its thread has made
no driver call since: the kernel still remembers where the handle was to be put), and the process's own libraries, which
register their kernels by name and, since CUDA 13, keep their handles in variables. Before CUDA 13 only the runtime knows
handles; there the runtime's own launches are probed for a while, which say the function that was registered with the name.
Libraries are scanned once each, by a child without rights; variables are read from the process's memory. Nothing is
guessed: a name is taken only for the very handle that stands where it must.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from otelprof.batch import Frame
from otelprof.counters import CUDA_SCANS, Counters
from otelprof.ebpf.layout import wire
from otelprof.ebpf.session import Session
from otelprof.errors import OtelprofError, TargetError
from otelprof.processes.maps import FileIdentity, Region, open_region, region_identity
from otelprof.processes.table import Process
from otelprof.symbols.cuda import KernelNames, kernel_frame
from otelprof.symbols.elf import Elf, FileSource
from otelprof.targets.cuda import Attachment, runtime_sites

log = logging.getLogger(__name__)

AGAIN = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds to the next look when handles without a name are met again."""
FILES_LIMIT = 1024
"""Mapped files of one process that are looked at."""
_FILES_AT_ONCE = 64
_FILES_KEPT = 4096
_OUTPUT_LIMIT = 64 << 20
_SECONDS = 150.0
_PAIRED = 60.0  # seconds that launches of a runtime are probed
_BUSY = 2.0  # seconds in which most kernels are launched once
_RUNTIME = re.compile(r"libcudart[^/]*$")
_COMMAND = ("-I", "-m", "otelprof.symbols.cuda_registrations")


@dataclass(frozen=True, slots=True)
class _File:
    """What a library registers; addresses as linked. `loads` are (offset, address, size) of its segments."""

    functions: dict[int, str] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    loads: tuple[tuple[int, int, int], ...] = ()

    def bias(self, region: Region) -> int | None:
        """Run-time minus linked addresses."""
        for offset, address, size in self.loads:
            if offset & ~0xFFF <= region.offset < offset + size:
                return region.start - (region.offset - offset + address)
        return None


@dataclass(slots=True)
class _Asked:
    """A process whose kernels have no names, and what is known of its files."""

    process: Process
    handles: set[int] = field(default_factory=set)
    tries: int = 0
    due: float = 0.0
    files: dict[FileIdentity, Region] | None = None
    hosts: dict[int, Frame] = field(default_factory=dict)
    """Kernels by host function, of all its libraries; addresses as they run."""
    busy_until: float = 0.0
    paired_until: float = 0.0
    """When launches of the runtime need no probes any more."""


@dataclass(slots=True)
class _Scan:
    """A child at work: the files that it was given, where it writes."""

    child: subprocess.Popen[bytes]
    files: list[FileIdentity]
    output: IO[bytes]
    until: float


class LateNames:
    """See the module's text. Called ten times a second, never blocks."""

    def __init__(self, session: Session, names: KernelNames, counters: Counters) -> None:
        self._session, self._names, self._counters = session, names, counters
        self._files: dict[FileIdentity, _File] = {}
        self._asked: dict[int, _Asked] = {}
        self._scan: _Scan | None = None
        self._runtimes: dict[FileIdentity, tuple[Attachment, set[int]]] = {}

    def ask(self, process: Process, handles: Iterable[int]) -> None:
        """Launches of a process use handles without a name."""
        now = time.monotonic()
        asked = self._asked.setdefault(process.incarnation, _Asked(process))
        asked.handles.update(handles)
        if asked.files is None and now >= asked.due:
            asked.files = self._mapped(process)

    @property
    def busy(self) -> list[int]:
        """Processes that are looked at for the first time just now: their launches may have names in a moment."""
        now = time.monotonic()
        looked_at = [number for number, asked in self._asked.items() if asked.files is not None and not asked.tries]
        return looked_at + [number for number, asked in self._asked.items() if now < asked.busy_until]

    def turn(self) -> None:
        """Go on."""
        self._collect()
        for asked in list(self._asked.values()):
            if asked.files is not None and self._knows(asked.files):
                self._answer(asked)
        if self._scan is None:
            self._begin()
        self._release()

    def paired(self, process: int, handle: int, host: int) -> None:
        """A launch through the runtime used `handle` for the kernel of a host function."""
        asked = self._asked.get(process)
        frame = asked.hosts.get(host) if asked else None
        if frame is not None:
            self._names.add_found(process, [(handle, frame)])

    def leave(self, process: int) -> None:
        """It has ended."""
        self._asked.pop(process, None)
        self._release()

    def close(self) -> None:
        """Stop the child, take all probes away."""
        self._asked.clear()
        self._release()
        if self._scan is not None:
            self._scan.child.kill()
            self._scan.child.wait()
            self._scan.output.close()
            self._scan = None

    # --- answers -----------------------------------------------------------------------------------------------

    def _answer(self, asked: _Asked) -> None:
        files, asked.files = asked.files or {}, None
        asked.due = time.monotonic() + AGAIN[min(asked.tries, len(AGAIN) - 1)]
        asked.tries += 1
        found = dict(self._pending(asked))
        try:
            for key, region in files.items():
                found |= self._registered(asked.process, self._files[key], region)
        except TargetError as error:
            log.debug("%s", error)
        self._names.add_found(asked.process.incarnation, found.items())
        left = [handle for handle in asked.handles if handle not in found]
        asked.handles.clear()
        if left:
            self._pair(asked, files)

    def _pending(self, asked: _Asked) -> Iterable[tuple[int, Frame]]:
        """Look-ups that the kernel holds: where the handle is to be put stands one of those that are asked for."""
        for process, name, out, before in self._session.pending_lookups():
            if process != asked.process.incarnation or not name:
                continue
            with suppress(TargetError):
                handle = asked.process.memory.pointer(out)
                if handle != before and handle in asked.handles:
                    yield handle, kernel_frame(name)

    @staticmethod
    def _registered(process: Process, file: _File, region: Region) -> dict[int, Frame]:
        """Handles in the variables of a library, with their names."""
        bias = file.bias(region)
        places = [(slot, host) for slot, host in file.slots.items() if host]
        if bias is None or not places:
            return {}
        words = process.memory.read_many([(slot + bias, 8) for slot, _ in places])
        found: dict[int, Frame] = {}
        for (_, host), word in zip(places, words, strict=True):
            handle = int.from_bytes(word or b"", "little")
            if handle and handle != host + bias:  # before the runtime knows, the function itself stands there
                found[handle] = kernel_frame(file.functions[host].encode())
        return found

    # --- the runtime's launches ---------------------------------------------------------------------------------

    def _pair(self, asked: _Asked, files: dict[FileIdentity, Region]) -> None:
        """Probe the launches of the process's runtimes, if its libraries have kernels whose names could be learnt so."""
        for key, region in files.items():
            bias = self._files[key].bias(region)
            if bias is not None:
                asked.hosts |= {host + bias: kernel_frame(name.encode()) for host, name in self._files[key].functions.items()}
        if not asked.hosts:
            return
        now = time.monotonic()
        asked.busy_until, asked.paired_until = now + _BUSY if asked.tries == 1 else 0.0, now + _PAIRED
        for key, region in files.items():
            if _RUNTIME.search(region.path) and key not in self._runtimes:
                self._attach(asked.process.pid, key, region)
            if key in self._runtimes:
                self._runtimes[key][1].add(asked.process.incarnation)

    def _attach(self, pid: int, key: FileIdentity, region: Region) -> None:
        try:
            file = open_region(pid, region)
        except OtelprofError:
            return
        try:
            sites = [(site.offset, wire()[site.entry]) for site in runtime_sites(Elf(FileSource(os.dup(file))))]
            if sites:
                self._runtimes[key] = (self._session.attach_cuda(file, sites), set())
        except OtelprofError as error:
            log.debug("launches of %s aren't probed: %s", region.path, error)
        finally:
            os.close(file)

    def _release(self) -> None:
        """Take away probes that nobody needs any more."""
        now = time.monotonic()
        for key, (probes, users) in list(self._runtimes.items()):
            if not any(now < asked.paired_until for number, asked in self._asked.items() if number in users):
                probes.close()
                del self._runtimes[key]

    # --- files -------------------------------------------------------------------------------------------------

    def _mapped(self, process: Process) -> dict[FileIdentity, Region]:
        """The code of files that a process maps, once each."""
        found: dict[FileIdentity, Region] = {}
        try:
            regions = process.refresh_maps().regions
        except TargetError:
            return found
        for region in regions:
            key = region_identity(process.pid, region) if region.executable and region.is_file else None
            if key is not None and len(found) < FILES_LIMIT:
                found.setdefault(key, region)
        return found

    def _knows(self, files: Iterable[FileIdentity]) -> bool:
        return all(key in self._files for key in files)

    def _begin(self) -> None:
        """Start a child for files that haven't been scanned."""
        for asked in self._asked.values():
            unknown = {key: region for key, region in (asked.files or {}).items() if key not in self._files}
            if unknown:
                self._start(asked.process, dict(list(unknown.items())[:_FILES_AT_ONCE]))
                return

    def _start(self, process: Process, files: dict[FileIdentity, Region]) -> None:
        opened: dict[FileIdentity, int] = {}
        for key, region in files.items():
            try:
                opened[key] = open_region(process.pid, region)
            except OtelprofError:
                self._keep(key, _File())
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it has been read
        try:
            command = [sys.executable, *_COMMAND, *map(str, opened.values())]
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, pass_fds=tuple(opened.values())
            )  # fmt: skip
            self._scan = _Scan(child, list(opened), output, time.monotonic() + _SECONDS)
        except OSError as error:
            log.warning("libraries aren't searched for names of kernels: %s", error)
            for key in opened:
                self._keep(key, _File())
        finally:
            for file in opened.values():
                os.close(file)

    def _collect(self) -> None:
        """Take what the child found, when it has ended; a file on which it failed counts as one without kernels."""
        scan = self._scan
        if scan is None:
            return
        if scan.child.poll() is None and time.monotonic() < scan.until:
            return
        scan.child.kill()
        scan.child.wait()
        scan.output.seek(0)
        lines = scan.output.read(_OUTPUT_LIMIT).splitlines()
        scan.output.close()
        self._scan = None
        for number, key in enumerate(scan.files):
            self._keep(key, _read(lines[number]) if number < len(lines) else _File())
        self._counters.add(CUDA_SCANS, len(lines), "done")
        self._counters.add(CUDA_SCANS, len(scan.files) - len(lines), "failed")

    def _keep(self, key: FileIdentity, file: _File) -> None:
        self._files[key] = file
        if len(self._files) > _FILES_KEPT:
            del self._files[next(iter(self._files))]


def _read(line: bytes) -> _File:
    """A line of the child's; one that isn't right counts as nothing."""
    try:
        document: dict[str, Any] = json.loads(line)
        functions = {int(address): str(name) for address, name in document["functions"]}
        slots = {int(slot): int(host) for slot, host in document["slots"] if host in functions}
        loads = tuple((int(offset), int(address), int(size)) for offset, address, size in document["loads"])
    except (ValueError, TypeError, KeyError):
        return _File()
    return _File(functions, slots, loads)
