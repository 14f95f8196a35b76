"""How long kernels can have run at most: from the launch to the end of the next wait for their stream.

Without activity records nobody outside the GPU knows when a kernel runs. A wait that began after the launch and has ended
proves that the kernel is done; so it ran somewhere in between. These are bounds, each launch's own: kernels of one stream
share the time up to their wait, so bounds of many launches add up to more than has passed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from otelprof.batch import SAMPLES, CallKind, Interner, Table
from otelprof.otlp import semconv

LIMIT = 200_000
"""Launches that wait for a wait; the oldest are let go."""
LONGEST = 30 * 10**9  # nanoseconds that a launch waits
_STREAMS_LIMIT = 1024
_OPEN = np.dtype(
    [
        ("process", "i8"), ("stream", "u8"), ("time", "i8"), ("resource", "u4"), ("stack", "u4"), ("kernel", "u4"),
        ("thread", "u4"), ("link", "u4"),
    ]
)  # fmt: skip
_PLACE = ("resource", "stack", "kernel", "thread", "link")
ALL_STREAMS = np.uint64(2**64 - 1)
"""The stream of a wait for all that the process has launched."""

Keys = npt.NDArray[np.int64]


class Bounds:
    """Launches of the current interner that nobody has waited for yet."""

    def __init__(self) -> None:
        self._generation = 0
        self._open = np.zeros(0, _OPEN)
        self._done: list[Table] = []

    def take(self, interner: Interner, processes: Keys, rows: Table, waits: tuple[Keys, Table]) -> None:
        """LAUNCHES rows of launches that run, and of waits (whose stream may be ALL_STREAMS), each with their process."""
        if interner.generation != self._generation:
            self._generation, self._open = interner.generation, np.zeros(0, _OPEN)
        new = np.zeros(len(rows), _OPEN)
        new["process"] = processes
        for name in ("stream", "time", *_PLACE):
            new[name] = rows[name]
        self._open = np.concatenate([self._open, new])
        self._close(*waits)
        if len(self._open):
            young = self._open["time"] > self._open["time"].max() - LONGEST
            self._open = self._open[young][-LIMIT:]

    def samples(self, interner: Interner) -> Table:
        """SAMPLES rows of the bounds that were found since the last time: one for each place, their sum."""
        done, self._done = np.concatenate([np.zeros(0, _OPEN), *self._done]), []
        keys = np.zeros(len(done), [(name, "u4") for name in _PLACE])
        for name in _PLACE:
            keys[name] = done[name]
        found, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        table = np.zeros(len(found), SAMPLES)
        table["value"] = np.bincount(inverse.ravel(), done["stream"].astype("f8"), len(found)).astype(np.int64)
        table["time"] = done["time"][first]
        table["stack"] = [interner.stacks.id((*interner.stacks[int(k["stack"])], int(k["kernel"]))) for k in found]
        table["type"] = interner.types.id(semconv.GPU_TIME_BOUND) if len(found) else 0
        for name in ("resource", "thread", "link"):
            table[name] = found[name]
        return table

    def _close(self, processes: Keys, waits: Table) -> None:
        """Give launches the earliest end of a wait that began after them."""
        ends = np.full(len(self._open), np.iinfo(np.int64).max)
        keys = np.zeros(len(waits), [("process", "i8"), ("stream", "u8")])
        keys["process"], keys["stream"] = processes, waits["stream"]
        for key in np.unique(keys)[:_STREAMS_LIMIT]:
            mine = waits[keys == key]
            mine = mine[np.argsort(mine["time"], kind="stable")]
            earliest = np.minimum.accumulate((mine["time"] + mine["duration"])[::-1])[::-1]
            whose = self._open["process"] == key["process"]
            whose &= (key["stream"] == ALL_STREAMS) | (self._open["stream"] == key["stream"])
            at = np.searchsorted(mine["time"], self._open["time"][whose])
            found = np.append(earliest, np.iinfo(np.int64).max)[at]
            ends[whose] = np.minimum(ends[whose], found)
        closed = ends != np.iinfo(np.int64).max
        done = self._open[closed]
        done["stream"] = ends[closed] - done["time"]  # the bound stands where the stream stood
        self._done.append(done)
        self._open = self._open[~closed]


def launches_that_run(rows: Table) -> npt.NDArray[np.bool_]:
    """Kernels and replays among LAUNCHES rows."""
    run: npt.NDArray[np.bool_] = (rows["kind"] == CallKind.KERNEL) | (rows["kind"] == CallKind.GRAPH)
    return run
