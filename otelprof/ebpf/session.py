"""The kernel side in one object: what is loaded and attached, which processes are targets, and what has happened.

    session = Session.open(SessionSettings())
    session.attach_sampler(99)
    session.set_target(pid, wire().record("target", {...}))
    while …:
        drained = session.drain()
    session.close()

Not for use from several threads at once. Attachments end with the process at the latest, also by kill -9.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from otelprof.ebpf.attach import Link, Sampler, attach_tracepoint
from otelprof.ebpf.cuda_probes import CudaProbes, Probes
from otelprof.ebpf.layout import wire
from otelprof.ebpf.loader import BpfObject, Loader, ProgramStatistics, statistics
from otelprof.ebpf.mappings import Mappings, NewMapping
from otelprof.ebpf.maps import PerCpuCounters, Table
from otelprof.ebpf.refusals import preflight
from otelprof.ebpf.rings import Ring
from otelprof.ebpf.unwind_maps import UnwindMaps
from otelprof.ebpf.uprobes import UPROBE_MULTI, can_attach_many

Records = npt.NDArray[np.void]

TRACEPOINTS = {
    "process_forked": "sched_process_fork",
    "process_executed": "sched_process_exec",
    "process_exited": "sched_process_exit",
}
RING_RECORDS = {
    "samples": "sample",
    "calls": "cuda_call",
    "returns": "cuda_return",
    "names": "cuda_name",
    "chunks": "stack_chunk",
    "codes": "python_code",
    "events": "process_event",
}
WAKING = ("events", "chunks")
"""Rings whose records may wake a reader that waits; the others are for who comes by."""
NativeScope = Literal["off", "without_python", "all"]
_U32 = np.dtype("u4")
_U64 = np.dtype("u8")
LOSSES = 8192  # entries of the map `losses`
PENDING_CALLS, PENDING_LOOKUPS = 8192, 512  # of the maps `pending` and `pending_names`


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How much room there is, and who is looked at. Sizes of rings are bytes, powers of two."""

    node: bool = True
    """Every process (SCOPE_NODE), or only those that are targets (SCOPE_TARGETS)."""
    events: int = 1 << 17
    samples: int = 1 << 19
    chunks: int = 1 << 20
    codes: int = 1 << 20
    calls: int = 1 << 22
    returns: int = 1 << 19
    names: int = 1 << 19
    native: NativeScope = "off"
    """Whose native stacks are walked, by the tables that `Session.unwind` fills."""
    unwind_pages: int = 128
    """Pages of unwind tables at most, 512 KiB of kernel memory each."""

    def sizes(self) -> dict[str, int]:
        """Sizes by map."""
        tables = {} if self.native != "off" else {"unwind_mappings": 1, "unwind_rules": 1}
        return {**{name: getattr(self, name) for name in RING_RECORDS}, **tables}


@dataclass(frozen=True, slots=True)
class Drained:
    """What has happened since the last time: records as in bpf/wire.h, totals since the start.

    `losses` has the fields of `struct loss` and `count`, the events without a record so far.
    """

    events: Records
    samples: Records
    calls: Records
    returns: Records
    names: Records
    chunks: Records
    codes: Records
    counts: Mapping[str, int]
    losses: Records


class Session:
    """See the module's text."""

    def __init__(self, settings: SessionSettings, loader: Loader) -> None:
        self.loader_line = loader.line
        self._settings = settings
        self._loader = loader
        self._objects: dict[str, BpfObject] = {}
        self._rings: dict[str, Ring] = {}
        self._links: list[Link] = []
        self._sampler: Sampler | None = None
        self._mappings: Mappings | None = None
        self._woken = select.epoll()
        self._cuda_probes: CudaProbes | None = None
        self._count_names = [name for name in wire().enum("count") if name != "COUNT_KINDS"]
        self._nothing = {name: np.zeros(0, wire().dtype(record)) for name, record in RING_RECORDS.items()}
        self._lost = 0
        self._last_losses = _with_counts(np.zeros(0, wire().dtype("loss")), np.zeros(0, np.uint64))

    @classmethod
    def open(cls, settings: SessionSettings | None = None) -> Self:
        """Load what tells of processes and attach it; Unsupported with one line when the kernel can't."""
        preflight()
        settings = settings or SessionSettings()
        session = cls(settings, Loader(settings.sizes()))
        try:
            session._begin()
        except BaseException:
            session.close()
            raise
        return session

    def attach_sampler(self, hz: float) -> None:
        """Take a sample `hz` times a second of what each CPU runs."""
        program = self._load("sampler").programs["sample_cpu"]
        self._open_rings("samples")
        self._sampler = Sampler(program, hz)

    def attach_cuda(self, path: str | int, entries: Iterable[tuple[int, int]]) -> Probes:
        """Probe a driver's entry points: (file offset, enum cuda_entry) in the file at `path` or behind a descriptor.

        By inode, so it meets all processes that map the file. TargetError when the file is gone.
        """
        return self._cuda().attach_entries(path, entries)

    def attach_return(self, path: str | int, offset: int) -> Probes:
        """Probe a caller's return site, by which waits get durations and look-ups certain names, from the next call on."""
        return self._cuda().attach_return(path, offset)

    def watch_mappings(self) -> None:
        """Begin to notice new executable mappings, see `mappings`."""
        self._mappings = Mappings()

    def mappings(self) -> list[NewMapping]:
        """Executable mappings that any process made since the last time; none before `watch_mappings`."""
        return self._mappings.read() if self._mappings else []

    @property
    def mappings_lost(self) -> int:
        """Mappings that found no room in the kernel's rings, since the start."""
        return self._mappings.lost if self._mappings else 0

    @cached_property
    def unwind(self) -> UnwindMaps:
        """The unwind tables of the kernel; `native` must have been set."""
        return UnwindMaps(self._loader.maps, self._settings.unwind_pages)

    def set_mappings(self, pid: int, first: int, count: int) -> bool:
        """Tell which entries of the table of mappings are the process's; False when it is no target."""
        table = self._table("targets", _U32, wire().dtype("target"))
        record = table.get(pid)
        if record is None:
            return False
        record["mappings"], record["mappings_count"] = first, count
        return table.replace(pid, record)

    def set_target(self, pid: int, target: np.void) -> None:
        """Make a process (tgid in the host's namespace) a target, or change it; `target` is a record of `struct target`."""
        self._table("targets", _U32, wire().dtype("target")).put(pid, target)

    def set_program(self, inode: int, device: int, layout: np.void | None) -> None:
        """Have the next processes of a program be Python targets at once, by a `struct python_layout`; None: no more."""
        table = self._table("programs", wire().dtype("program"), wire().dtype("python_layout"))
        key = wire().record("program", {"inode": inode, "device": device})
        if layout is None:
            table.delete(key)
        else:
            table.put(key, layout)

    def change_flags(self, pid: int, more: int = 0, less: int = 0) -> bool:
        """Set and take away flags (enum target_flag) of a target; False when it is none (any more)."""
        table = self._table("targets", _U32, wire().dtype("target"))
        record = table.get(pid)
        if record is None:
            return False
        record["flags"] = record["flags"] & ~np.uint32(less) | np.uint32(more)
        return table.replace(pid, record)

    def drop_target(self, pid: int) -> bool:
        """Make it no target any more; False when it wasn't."""
        return self._table("targets", _U32, wire().dtype("target")).delete(pid)

    def target(self, pid: int) -> np.void | None:
        """The process's record in the kernel, which a fork may have made; None when it is no target."""
        found: np.void | None = self._table("targets", _U32, wire().dtype("target")).get(pid)
        return found

    def set_spans(self, pid: int, interpreter: int, layout: np.void) -> None:
        """Have the spans of a process read, where its target says so; `layout` is a record of `struct span_layout`.

        `interpreter` is the address of the interpreter's state, 0: the main one.
        """
        self._spans().put(_span_owner(pid, interpreter), layout)

    def spans(self, pid: int, interpreter: int = 0) -> np.void | None:
        """The layout that the kernel has, with what it has learnt; None when it has none."""
        found: np.void | None = self._spans().get(_span_owner(pid, interpreter))
        return found

    def drop_spans(self, pid: int, interpreter: int = 0) -> bool:
        """Read them no more; False when they weren't."""
        return self._spans().delete(_span_owner(pid, interpreter))

    def forget_chunks(self, ids: Iterable[int]) -> None:
        """Have these stack chunks sent again when they are seen again: for a reader that has thrown them away."""
        seen = self._table("chunks_seen", _U64, np.dtype("u1"))
        for number in ids:
            seen.delete(number)

    def pending_lookups(self) -> list[tuple[int, bytes, int, int]]:
        """Look-ups that no one saw returning: process, name, where the handle is to be put, what stood there before."""
        if "cuda" not in self._objects:
            return []
        names = dict(zip(*self._items("pending_names", wire().dtype("kernel_name"), PENDING_LOOKUPS), strict=True))
        found = []
        for thread, call in zip(*self._items("pending", wire().dtype("pending"), PENDING_CALLS), strict=True):
            name = names.get(thread)
            if name is not None and call["out"]:
                text = bytes(name["text"])[: int(name["length"])]
                found.append((int(call["process"]), text, int(call["out"]), int(call["before"])))
        return found

    def _items(self, name: str, value: np.dtype[Any], limit: int) -> tuple[list[int], list[np.void]]:
        keys, values = self._table(name, _U64, value).items(limit)
        return keys.tolist(), list(values)

    def drain(self) -> Drained:
        """Take all records out of the rings.

        In this order: a record is written after the chunks of its stack, a chunk after the code objects in it, and all of
        them after the birth of their process, so what a record names is in the same drain (but for what another CPU is
        writing at this very moment, which comes with the next one).
        """
        if self._sampler:
            self._sampler.dither()
        records = {name: self._read(name) for name in RING_RECORDS}
        counts = self.counts()
        return Drained(counts=counts, losses=self._losses(counts["COUNT_LOST"]), **records)

    def counts(self) -> dict[str, int]:
        """Totals since the start, by the names of enum count."""
        return dict(zip(self._count_names, self._counters.read().tolist(), strict=True))

    def wait(self, seconds: float) -> None:
        """Wait until a process was born or has died, or a young one has a new stack; `seconds` at most."""
        self._woken.poll(seconds)

    def statistics(self) -> dict[str, ProgramStatistics]:
        """What the kernel knows of each loaded program."""
        return {name: found for loaded in self._objects.values() for name, found in statistics(loaded).items()}

    def close(self) -> None:
        """Detach everything and drop it; safe twice."""
        for closing in (self._sampler, self._mappings, self._cuda_probes, *self._links, *self._rings.values()):
            if closing is not None:
                closing.close()
        self._sampler = self._mappings = self._cuda_probes = None
        if "unwind" in self.__dict__:
            self.unwind.close()
        self._links.clear()
        self._rings.clear()
        self._woken.close()
        self._objects.clear()
        self._loader.close()

    def _cuda(self) -> CudaProbes:
        if self._cuda_probes is None:
            programs = self._load("cuda", UPROBE_MULTI if can_attach_many() else 0)
            self._open_rings("calls", "returns", "names")
            self._cuda_probes = CudaProbes(programs, self._table("return_sites", _U32, _U64))
        return self._cuda_probes

    def _begin(self) -> None:
        processes = self._load("processes")
        self._write_settings()
        self._admit_losses()
        self._open_rings("events", "chunks", "codes")
        self._counters = PerCpuCounters(self._loader.maps["counts"], len(self._count_names))
        for program, tracepoint in TRACEPOINTS.items():
            self._links.append(attach_tracepoint(processes.programs[program], tracepoint))

    def _load(self, name: str, attach_type: int = 0) -> BpfObject:
        if name not in self._objects:
            self._objects[name] = self._loader.load(name, attach_type)
        return self._objects[name]

    def _table(self, name: str, key: np.dtype[Any], value: np.dtype[Any]) -> Table:
        return Table(self._loader.maps[name], key, value)

    def _spans(self) -> Table:
        return self._table("spans_of", wire().dtype("span_owner"), wire().dtype("span_layout"))

    def _write_settings(self) -> None:
        scope = wire()["SCOPE_NODE" if self._settings.node else "SCOPE_TARGETS"]
        epoch = int.from_bytes(os.urandom(2), "little")
        native = wire()[f"NATIVE_{self._settings.native.upper()}"]
        record = wire().record("settings", {"scope": scope, "epoch": epoch, "native": native})
        self._table("settings", _U32, wire().dtype("settings")).put(0, record)

    def _admit_losses(self) -> None:
        """The keys under which losses count when the map has no room for their process."""
        table = self._table("losses", wire().dtype("loss"), _U64)
        reason = wire()["LOST_RING_FULL"]
        table.put(wire().record("loss", {"kind": wire()["LOST_SAMPLE"], "reason": reason}), 0)
        for entry in wire().enum("cuda_entry").values():
            table.put(wire().record("loss", {"kind": wire()["LOST_CALL"], "reason": reason, "entry": entry}), 0)

    def _open_rings(self, *names: str) -> None:
        sizes = self._settings.sizes()
        for name in names:
            if name not in self._rings:
                if name in WAKING:
                    self._woken.register(self._loader.maps[name], select.EPOLLIN)
                self._rings[name] = Ring(self._loader.maps[name], sizes[name], wire().dtype(RING_RECORDS[name]))

    def _read(self, name: str) -> Records:
        ring = self._rings.get(name)
        return ring.read() if ring else self._nothing[name]

    def _losses(self, lost: int) -> Records:
        """What the map `losses` holds, read only when it has changed; `lost` is COUNT_LOST."""
        if lost != self._lost:
            self._lost = lost
            self._last_losses = _with_counts(*self._table("losses", wire().dtype("loss"), _U64).items(LOSSES))
        return self._last_losses


def _span_owner(pid: int, interpreter: int) -> np.void:
    return wire().record("span_owner", {"pid": pid, "interpreter": interpreter})


def _with_counts(keys: Records, values: npt.NDArray[np.uint64]) -> Records:
    """One array of the map's keys and their counts; those without any are left out."""
    fields = [(name, keys.dtype[name]) for name in keys.dtype.names or ()]
    table = np.zeros(len(keys), [*fields, ("count", "u8")])
    for name, _ in fields:
        table[name] = keys[name]
    table["count"] = values
    kept: Records = table[values > 0]
    return kept
