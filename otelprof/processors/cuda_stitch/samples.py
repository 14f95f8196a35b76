"""Rows of SAMPLES from launches and GPU activity: which profile type, which value, which stack.

A launch's stack is the CPU stack with one leaf more: the kernel. Joined activity hangs under the stack of its launch;
activity without one keeps its time under `[no launch stack]`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from otelprof.batch import LAUNCHES, SAMPLES, CallKind, Frame, FrameKind, Interner, ProfileType, Table, mark
from otelprof.otlp import semconv
from otelprof.processors.cuda_stitch.keys import Mask
from otelprof.processors.cuda_stitch.window import Rows

Ids = npt.NDArray[np.uint32]
Values = npt.NDArray[np.int64]

GRAPH_BEFORE_ATTACH = mark("graph captured before attach")
NO_LAUNCH_STACK = mark("no launch stack")
UNKNOWN = mark("unknown")

_IDS = {
    "resource": "resources",
    "stack": "stacks",
    "thread": "threads",
    "link": "links",
    "kernel": "frames",
    "entry": "strings",
}
_TIMES = ("time", "start", "end")


def moved(rows: Rows, interner: Interner, clock_offset: int) -> Table:
    """The table of `rows` with its ids in `interner` and its times for `clock_offset`; time 0 (not known) stays."""
    table = rows.table
    if rows.interner is interner and rows.clock_offset == clock_offset:
        return table
    table = table.copy()
    names = table.dtype.names or ()
    for field in (name for name in _IDS if name in names and rows.interner is not interner):
        table[field] = _moved_ids(table[field], field, rows.interner, interner)
    for field in (name for name in _TIMES if name in names):
        table[field] += np.where(table[field] != 0, rows.clock_offset - clock_offset, 0)
    return table


def _moved_ids(ids: Ids, field: str, source: Interner, target: Interner) -> Ids:
    found, inverse = np.unique(ids, return_inverse=True)
    if field == "stack":
        new = [target.stack(source.frames_of(int(number))) for number in found]
    else:
        old_table, new_table = getattr(source, _IDS[field]), getattr(target, _IDS[field])
        new = [new_table.id(old_table[int(number)]) for number in found]
    return np.array(new, np.uint32)[inverse]


def times_possible(activity: Table) -> Mask:
    """False where the GPU gave no time (0) or an end before the start: CUPTI's sign that it ran out of memory."""
    start, end = activity["start"], activity["end"]
    possible: Mask = (start != 0) & (end != 0) & (end >= start)
    return possible


def with_leaf(interner: Interner, stacks: Ids, leaves: Ids) -> Ids:
    """The ids of `stacks` with a leaf frame more; leaf 0 adds none. Each different pair is made once."""
    pairs = (stacks.astype(np.uint64) << np.uint64(32)) | leaves
    found, inverse = np.unique(pairs, return_inverse=True)
    made = [_add_leaf(interner, int(pair) >> 32, int(pair) & 0xFFFFFFFF) for pair in found]
    return np.array(made, np.uint32)[inverse]


def _add_leaf(interner: Interner, stack: int, leaf: int) -> int:
    return interner.stacks.id((*interner.stacks[stack], leaf)) if leaf else stack


def launch_leaves(interner: Interner, launches: Table) -> Ids:
    """The leaf frame of each call: its kernel, else a mark, else (copies, waits) the driver's entry point."""
    kind, kernel = launches["kind"], launches["kernel"]
    leaves = _entry_frames(interner, launches["entry"])
    leaves[kind == CallKind.KERNEL] = interner.frames.id(UNKNOWN)
    leaves[kind == CallKind.GRAPH] = interner.frames.id(GRAPH_BEFORE_ATTACH)
    return np.where(kernel != 0, kernel, leaves)


def _entry_frames(interner: Interner, entries: Ids) -> Ids:
    found, inverse = np.unique(entries, return_inverse=True)
    names = [interner.strings[int(number)] for number in found]
    return np.array([interner.frames.id(Frame(n, FrameKind.CUDA)) if n else 0 for n in names], np.uint32)[inverse]


def launch_samples(interner: Interner, launches: Table) -> list[Table]:
    """What the calls themselves say: counts, CPU time of launches, bytes of copies, time of waits."""
    kind, duration = launches["kind"], launches["duration"]
    stacks = with_leaf(interner, launches["stack"], launch_leaves(interner, launches))
    started = (kind == CallKind.KERNEL) | (kind == CallKind.GRAPH)
    copied = (kind == CallKind.MEMCPY) & (launches["bytes"] > 0)
    make = _Maker(interner, launches, stacks, launches["time"])
    return [
        make.rows(semconv.GPU_KERNEL_LAUNCHES, started, np.ones(len(launches), np.int64)),
        make.rows(semconv.GPU_LAUNCH_TIME, started & (duration >= 0), duration),
        make.rows(semconv.GPU_MEMCPY, copied, launches["bytes"]),
        make.rows(semconv.GPU_MEMSET, (kind == CallKind.MEMSET) & (launches["bytes"] > 0), launches["bytes"]),
        make.rows(semconv.GPU_SYNC, (kind == CallKind.SYNC) & (duration >= 0), duration),
    ]


def joined_samples(interner: Interner, launches: Table, activity: Table) -> list[Table]:
    """What GPU activity adds to the launches beside it, row by row: exact times, kernels of graph replays."""
    kind, possible = activity["kind"], times_possible(activity)
    leaves = np.where(activity["kernel"] != 0, activity["kernel"], launch_leaves(interner, launches))
    stacks = with_leaf(interner, launches["stack"], leaves)
    took = np.where(possible, activity["end"] - activity["start"], 0)
    in_graph = (kind == CallKind.KERNEL) & (launches["kind"] == CallKind.GRAPH)
    uncounted = (kind == CallKind.MEMCPY) & (launches["bytes"] <= 0) & (activity["bytes"] > 0)
    make = _Maker(interner, launches, stacks, np.where(possible, activity["start"], launches["time"]))
    ran = (kind == CallKind.KERNEL) | (kind == CallKind.GRAPH)
    return [
        make.rows(semconv.GPU_KERNEL_TIME, ran & (took > 0), took),
        make.rows(semconv.GPU_GRAPH_KERNELS, in_graph, np.ones(len(activity), np.int64)),
        make.rows(semconv.GPU_MEMCPY_TIME, (kind == CallKind.MEMCPY) & (took > 0), took),
        make.rows(semconv.GPU_MEMCPY, uncounted, activity["bytes"]),
    ]


def unknown_launches(interner: Interner, activity: Table) -> Table:
    """Rows of LAUNCHES that stand in for the launches of `activity` that nobody saw."""
    launches = np.zeros(len(activity), LAUNCHES)
    launches["stack"] = interner.stack([NO_LAUNCH_STACK])
    launches["kind"] = np.where(activity["graph_node"] != 0, CallKind.GRAPH, activity["kind"])
    launches["resource"] = activity["resource"]
    launches["time"] = np.where(activity["start"] != 0, activity["start"], activity["end"])
    launches["duration"] = -1
    return launches


class _Maker:
    """Makes rows of SAMPLES of many types from the same calls."""

    def __init__(self, interner: Interner, calls: Table, stacks: Ids, times: Values) -> None:
        self._interner, self._calls, self._stacks, self._times = interner, calls, stacks, times

    def rows(self, kind: ProfileType, which: Mask, values: Values) -> Table:
        """One row of type `kind` for each call in `which`."""
        calls = self._calls[which]
        rows = np.zeros(len(calls), SAMPLES)
        rows["time"], rows["value"], rows["stack"] = self._times[which], values[which], self._stacks[which]
        for field in ("resource", "thread", "link"):
            rows[field] = calls[field]
        rows["type"] = self._interner.types.id(kind) if len(calls) else 0
        return rows
