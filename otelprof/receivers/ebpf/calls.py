"""Driver calls: sets the probes, learns the kernels' names and how long waits took, and makes rows of LAUNCHES.

Captures of graphs are followed beside (graphs.py), and what is seen only once is kept for the next agent (journal.py).

A wait is held back until its end was seen at its return site, or for half a minute; everything else goes out with the
next batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from otelprof.batch import LAUNCHES, SAMPLES, CallKind, Frame, Interner, Table
from otelprof.component import Host
from otelprof.counters import LAUNCHES_SEEN
from otelprof.ebpf.layout import wire
from otelprof.ebpf.mappings import NewMapping
from otelprof.ebpf.session import Drained, Session
from otelprof.errors import TargetError
from otelprof.processes.table import Change, ChangeKind, Process
from otelprof.receivers.ebpf.allocations import Allocations
from otelprof.receivers.ebpf.bounds import ALL_STREAMS, Bounds, launches_that_run
from otelprof.receivers.ebpf.config import Cuda
from otelprof.receivers.ebpf.graphs import REPLAY, Graphs, process_keys
from otelprof.receivers.ebpf.journal import Journal
from otelprof.receivers.ebpf.late_names import LateNames
from otelprof.receivers.ebpf.rows import Ids, Rows, columns, distinct
from otelprof.receivers.ebpf.watch import Watch
from otelprof.symbols.cuda import KernelNames
from otelprof.targets.cuda import LibcudaFiles, mapped_region, may_be_libcuda
from otelprof.targets.cuda_entries import BY_ENTRY, Returns
from otelprof.targets.return_sites import ReturnSites

WAIT_LIMIT = 30 * 10**9  # nanoseconds that a wait is held back for its end
WAITS_HELD = 65_536
NAMES_LIMIT = 5 * 10**9  # nanoseconds that launches are held back while their kernels' names are searched
LAUNCHES_HELD = 500_000
_ODD = np.uint64(0x9E3779B97F4A7C15)


def keyed(calls: Table, *fields: str) -> Table:
    """Process and further fields of calls: what a handle or an address means in them."""
    keys = np.zeros(len(calls), [("process", "u4"), ("pid", "u4"), *((name, "u8") for name in fields)])
    keys["process"], keys["pid"] = calls["origin"]["process"], calls["origin"]["pid"]
    for name in fields:
        keys[name] = calls[name]
    return keys


class Calls:
    """See the module's text."""

    def __init__(self, session: Session, rows: Rows, watch: Watch, host: Host, settings: Cuda) -> None:
        self._rows, self._watch, self._counters = rows, watch, host.counters
        self._files = LibcudaFiles(session, wire().enum("cuda_entry"), host.counters)
        self._sites = ReturnSites(session, host.counters)
        self._names = KernelNames(host.counters)
        self._journal = Journal(host.state_dir)
        self._late = LateNames(session, self._names, host.counters)
        self._calls: list[Table] = []
        self._ended: dict[int, int] = {}
        points = [(wire()[name], point) for name, point in BY_ENTRY.items()]
        self._kinds = np.zeros(max(number for number, _ in points) + 1, "u1")
        self._returning = np.zeros(len(self._kinds), bool)
        self._entries = {number: point.name for number, point in points}
        for number, point in points:
            self._kinds[number] = point.kind or 0
            self._returning[number] = point.returns is not Returns.NOTHING
        self._graphs = Graphs(rows, self._names, self._key, self._kinds, self._entries, settings.graph_stacks == "replay")
        self._follows_graphs = settings.graphs
        self._bounds = Bounds() if settings.time_bounds else None
        self._memory = Allocations(rows, self._key, self._entries) if settings.memory else None

    # --- probes ------------------------------------------------------------------------------------------------

    def keep(self, libraries: Iterable[str]) -> None:
        """Probe these driver libraries now, whether anybody maps them or not."""
        for path in libraries:
            self._files.keep(path)

    def follow(self, changes: Iterable[Change]) -> None:
        """Births: probe the driver libraries that a process maps."""
        for change in changes:
            if change.kind is ChangeKind.FOUND:
                self._load(change.process)
                self._look_at(change.process)
            elif change.kind is ChangeKind.FORKED and change.parent is not None:
                self._files.inherit(change.parent.incarnation, change.process.incarnation, change.process.pid)
                self._names.inherit(change.parent.incarnation, change.process.incarnation)

    def leave(self, gone: Iterable[Process]) -> None:
        """These have ended and their last records are in batches."""
        for process in gone:
            self._files.leave(process.incarnation)
            self._sites.leave(process.incarnation)
            self._names.leave(process.incarnation, process.pid)
            self._graphs.leave(process.incarnation)
            self._late.leave(process.incarnation)
            if self._memory is not None:
                self._memory.leave(process.incarnation)
            self._journal.leave(process)

    def mapped(self, process: Process | None, mapping: NewMapping) -> None:
        """A process has mapped a file: it may be a driver library."""
        region = mapped_region(mapping)
        if process is not None and may_be_libcuda(region):
            self._files.look_at(process.incarnation, process.pid, [region])

    def close(self) -> None:
        """Take all probes away."""
        self._keep_journal(last=True)
        self._late.close()
        self._sites.close()
        self._files.close()

    def _load(self, process: Process) -> None:
        """What an earlier agent knew of the process."""
        if self._journal.has(process):
            self._journal.load(process, self._names, self._graphs.of(process.incarnation))

    def _look_at(self, process: Process) -> None:
        try:
            self._files.look_at(process.incarnation, process.pid, process.maps.regions)
        except TargetError:
            return  # it has ended, or hides its mappings: then its launches can't be named either

    # --- records -----------------------------------------------------------------------------------------------

    def take(self, drained: Drained) -> None:
        """Note what a turn brought."""
        self._names.add(drained.names)
        calls = self._watch.identified(drained.calls)
        if len(calls):
            self._calls.append(calls)
            self._learn_callers(calls)
            self._ask_for_names(calls)
        self._late.turn()
        if self._follows_graphs:
            self._graphs.take(calls, drained.returns)
        if self._memory is not None:
            self._memory.take(calls, drained.returns)
        self._keep_journal()
        self._note_ends(drained.returns[self._kinds[drained.returns["entry"]] == CallKind.SYNC])

    def _note_ends(self, returns: Table) -> None:
        durations = returns["time"] - returns["begin"]
        for dispatch, duration in zip(returns["dispatch"].tolist(), durations.tolist(), strict=True):
            if len(self._ended) < WAITS_HELD:
                self._ended[dispatch] = duration

    def _key(self, number: int, pid: int) -> int:
        """One number for a process, whatever number the kernel had for it."""
        process = self._watch.process(number) if number else self._watch.living(pid)
        return process.incarnation if process else number or -pid

    def _keep_journal(self, last: bool = False) -> None:
        graphs = self._graphs.all()
        changed = self._names.changed | {number for number, found in graphs.items() if found.changed}
        processes = [process for number in changed if (process := self._watch.process(number)) and not process.ended_at]
        self._journal.save(processes, self._names, graphs, last)

    def _ask_for_names(self, calls: Table) -> None:
        """Have the kernels searched that are launched and have no name."""
        launches = calls[self._kinds[calls["entry"]] == CallKind.KERNEL]
        mixed = launches["function"] * _ODD + launches["origin"]["process"]  # one number sorts faster than a row
        keys = keyed(launches[np.unique(mixed, return_index=True)[1]], "function")
        for number, pid, handle in keys.tolist():
            process = self._watch.process(number)
            if process is not None and not process.ended_at and not self._names.is_known(number, pid, handle):
                self._late.ask(process, [handle])

        paired = launches[launches["host"] != 0]
        for number, _, handle, host in np.unique(keyed(paired, "function", "host")).tolist():
            self._late.paired(self._key(number, 0), handle, host)

    def _learn_callers(self, calls: Table) -> None:
        returning = calls[self._returning[np.minimum(calls["entry"], len(self._returning) - 1)]]
        for number in np.unique(returning["origin"]["process"]):
            process = self._watch.process(int(number))
            if process is not None and not process.ended_at:
                callers = np.unique(returning["caller"][returning["origin"]["process"] == number])
                self._sites.learn(int(number), process.pid, callers.tolist())

    def rows(self, interner: Interner, last: bool = False) -> Table:
        """LAUNCHES rows of what has gathered; waits without an end stay for later, unless this is the last time.

        `replayed` is for afterwards: it forgets which calls were replays.
        """
        if not self._calls:
            return np.zeros(0, LAUNCHES)
        calls = np.concatenate(self._calls)
        kinds = self._kinds[np.minimum(calls["entry"], len(self._kinds) - 1)]
        calls, kinds = calls[kinds != 0], kinds[kinds != 0]
        held = self._held(calls, kinds) & (not last)
        self._calls = [calls[held]] if held.any() else []
        return self._made(calls[~held], kinds[~held], interner)

    def replayed(self) -> Table:
        """SAMPLES rows of the kernels in replays of graphs, of time bounds, and of the driver memory that is held."""
        tables = [np.zeros(0, SAMPLES)]
        if self._follows_graphs:
            tables.append(self._graphs.samples())
        if self._bounds is not None:
            tables.append(self._bounds.samples(self._rows.interner))
        if self._memory is not None:
            tables.append(self._memory.samples(time.monotonic_ns(), self._watch.resource))
        return np.concatenate(tables)

    def _held(self, calls: Table, kinds: Table) -> npt.NDArray[np.bool_]:
        """Waits that go on, as far as one can tell: young, not seen ending, and their end would be seen."""
        young = calls["origin"]["time"].astype("i8") > time.monotonic_ns() - WAIT_LIMIT
        open_ = ~np.isin(calls["dispatch"], np.fromiter(self._ended, "u8", len(self._ended)))
        held: npt.NDArray[np.bool_] = (kinds == CallKind.SYNC) & young & open_
        held[held] = distinct(keyed(calls[held], "caller"), self._is_watched) != 0
        return held | self._unnamed(calls, kinds)

    def _unnamed(self, calls: Table, kinds: Table) -> npt.NDArray[np.bool_]:
        """Launches whose kernels may have names in a moment."""
        young = calls["origin"]["time"].astype("i8") > time.monotonic_ns() - NAMES_LIMIT
        busy = np.isin(calls["origin"]["process"], np.array(self._late.busy, np.uint32))
        unnamed: npt.NDArray[np.bool_] = (kinds == CallKind.KERNEL) & young & busy
        return unnamed if np.count_nonzero(unnamed) <= LAUNCHES_HELD else np.zeros(len(calls), bool)

    def _is_watched(self, key: Table) -> int:
        return int(self._sites.is_probed(int(key["process"]), int(key["caller"])))

    def _made(self, calls: Table, kinds: Table, interner: Interner) -> Table:
        table = self._rows.launches(calls)
        table["kind"] = kinds
        table["entry"] = distinct(columns(calls, "entry"), lambda key: interner.strings.id(self._entries[int(key["entry"])]))
        launches = kinds == CallKind.KERNEL
        table["kernel"][launches] = self._kernels(calls[launches], interner)
        table["kernel"][self._graphs.is_replay(calls["dispatch"])] = interner.frames.id(REPLAY)
        captured = self._graphs.is_captured(calls["dispatch"])
        table["bytes"][captured & ((kinds == CallKind.MEMCPY) | (kinds == CallKind.MEMSET))] = (
            0  # they are moved by the replays
        )
        waits = kinds == CallKind.SYNC
        table["duration"][waits] = [self._ended.pop(int(number), -1) for number in calls["dispatch"][waits]]
        if self._bounds is not None:
            self._bound(self._bounds, calls, table, interner)
        self._counters.add(LAUNCHES_SEEN, int(np.count_nonzero(launches | (kinds == CallKind.GRAPH))))
        return table

    def _bound(self, bounds: Bounds, calls: Table, table: Table, interner: Interner) -> None:
        """Have launches that ran bounded by waits that have ended."""
        processes = process_keys(calls["origin"], self._key)
        run = launches_that_run(table) & ~self._graphs.is_captured(calls["dispatch"])
        waits = (
            (table["kind"] == CallKind.SYNC) & (table["duration"] >= 0) & (calls["entry"] != wire()["CUDA_EVENT_SYNCHRONIZE"])
        )
        ended = table[waits].copy()
        ended["stream"][calls["entry"][waits] == wire()["CUDA_CONTEXT_SYNCHRONIZE"]] = ALL_STREAMS
        bounds.take(interner, processes[run], table[run], (processes[waits], ended))

    def _kernels(self, calls: Table, interner: Interner) -> Ids:
        return distinct(keyed(calls, "function"), lambda key: interner.frames.id(self._kernel(key)))

    def _kernel(self, key: Table) -> Frame:
        return self._names.frame(int(key["process"]), int(key["pid"]), int(key["function"]))
