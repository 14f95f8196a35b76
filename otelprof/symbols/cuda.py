"""Names of CUDA kernels by process and handle, from the driver's own look-ups.

A look-up says `this name has this handle` (cuModuleGetFunction, cuLibraryGetKernel) or `this handle is of the same kernel
as that one` (cuKernelGetFunction). A forked child goes on with its parent's handles. A name that was read at a look-up's
return is certain; one that was read at the thread's next driver call is nearly so and never replaces a certain one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from otelprof.batch import Frame, FrameKind, Table
from otelprof.counters import CUDA_NAMES_UNKNOWN, Counters
from otelprof.ebpf.layout import wire
from otelprof.symbols.demangle import readable_kernel
from otelprof.text import CUT, clean

HANDLES_LIMIT = 65_536
"""Handles that are kept of one process; the oldest go."""
_UNKNOWN_LIMIT = 65_536
_NAME_BYTES = 4096


@lru_cache(16_384)
def kernel_frame(name: bytes, is_cut: bool = False) -> Frame:
    """The frame of a kernel: its short name as people read it, the name that the driver knows beside it where it differs."""
    full = clean(name.decode("utf-8", "replace"), _NAME_BYTES - len(CUT.encode())) + (CUT if is_cut else "")
    short = readable_kernel(full)
    return Frame(short, FrameKind.CUDA, system_name=full if full != short else "")


@dataclass(frozen=True, slots=True)
class _Entry:
    """What one look-up said of a handle: a name, or another handle that has it."""

    frame: Frame | None
    object: int
    certain: bool


@dataclass(slots=True)
class KernelNames:
    """The kernels of all processes. Processes are incarnation numbers; where it is 0 (not known yet) the PID stands in."""

    counters: Counters
    limit: int = HANDLES_LIMIT
    changed: set[int] = field(default_factory=set)
    """Processes with names that are new; who has kept them elsewhere takes them out."""
    _handles: dict[int, dict[int, _Entry]] = field(default_factory=dict)
    _unknown: dict[tuple[int, int], None] = field(default_factory=dict)

    def add(self, records: Table) -> None:
        """Take `struct cuda_name` records, oldest first. The work grows with the different handles, not with the look-ups."""
        certain, longest = wire()["NAME_AT_RETURN"], records.dtype["name"].itemsize - 1
        for record in records[_last_of_each(records)]:
            length = int(record["length"])
            name, is_cut = bytes(record["name"])[:length], length >= longest
            entry = _Entry(
                kernel_frame(name, is_cut) if name else None, int(record["object"]), int(record["source"]) == certain
            )
            self._learn(_key(int(record["process"]), int(record["pid"])), int(record["handle"]), entry)

    def known(self, process: int) -> list[tuple[int, Frame | None, int, bool]]:
        """What is known of a process: handle, frame (None: it has the name of another handle), that handle, certain."""
        return [(handle, entry.frame, entry.object, entry.certain) for handle, entry in self._handles.get(process, {}).items()]

    def restore(self, process: int, rows: Iterable[tuple[int, Frame | None, int, bool]]) -> None:
        """Take back what `known` gave; names that are learnt later stand above it."""
        for handle, frame, other, certain in rows:
            self._learn(process, handle, _Entry(frame, other, certain))
        self.changed.discard(process)

    def add_found(self, process: int, found: Iterable[tuple[int, Frame]]) -> None:
        """Names that were found in the process itself; those that look-ups gave stand."""
        for handle, frame in found:
            known = self._find(process, 0, handle)
            if known is None or not known.certain:
                self._learn(process, handle, _Entry(frame, 0, certain=True))

    def is_known(self, process: int, pid: int, handle: int) -> bool:
        """Whether the kernel of a handle has a name."""
        entry = self._find(process, pid, handle)
        named = self._find(process, pid, entry.object) if entry and entry.frame is None else entry
        return named is not None and named.frame is not None

    def inherit(self, parent: int, child: int) -> None:
        """A forked child has its parent's handles."""
        if parent in self._handles:
            self._handles[child] = self._handles[parent] | self._handles.get(child, {})

    def leave(self, process: int, pid: int = 0) -> None:
        """A process has ended or changed its image."""
        for key in (process, _key(0, pid)):
            self._handles.pop(key, None)
            self.changed.discard(key)
        self._unknown = {known: None for known in self._unknown if known[0] != process}

    def frame(self, process: int, pid: int, handle: int) -> Frame:
        """The kernel's frame; `kernel@0x…` when its look-up wasn't seen, which is counted once for each handle."""
        entry = self._find(process, pid, handle)
        named = self._find(process, pid, entry.object) if entry and entry.frame is None else entry
        if named and named.frame:
            return named.frame
        self._count_unknown((process, handle), "object_not_seen" if entry else "not_seen")
        return Frame(f"kernel@{handle:#x}", FrameKind.CUDA)

    def _find(self, process: int, pid: int, handle: int) -> _Entry | None:
        for key in (process, _key(0, pid)):
            found = self._handles.get(key, {}).get(handle)
            if found is not None:
                return found
        return None

    def _learn(self, process: int, handle: int, entry: _Entry) -> None:
        handles = self._handles.setdefault(process, {})
        known = handles.pop(handle, None)
        handles[handle] = kept = known if known and known.certain and not entry.certain else entry
        if kept != known:
            self.changed.add(process)
        if len(handles) > self.limit:
            del handles[next(iter(handles))]

    def _count_unknown(self, key: tuple[int, int], reason: str) -> None:
        if key not in self._unknown:
            self.counters.add(CUDA_NAMES_UNKNOWN, 1, reason)
            self._unknown[key] = None
            if len(self._unknown) > _UNKNOWN_LIMIT:
                del self._unknown[next(iter(self._unknown))]


def _last_of_each(records: Table) -> npt.NDArray[np.intp]:
    """Where the last record of each process, handle and source stands, in order."""
    keys = np.zeros(len(records), [(name, records.dtype[name]) for name in ("process", "pid", "handle", "source")])
    for name in keys.dtype.names or ():
        keys[name] = records[name]
    backwards = keys[::-1].copy().view(np.dtype((np.void, keys.dtype.itemsize)))
    return np.sort(len(keys) - 1 - np.unique(backwards, return_index=True)[1])


def _key(process: int, pid: int) -> int:
    """The process's number, or its PID made negative, which no incarnation is."""
    return process or -pid
