"""What the kernel had no room for: rows under `[lost: ring full]`, so that the total of a profile stays the truth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from otelprof.batch import SAMPLES, ProfileType, Table
from otelprof.counters import LAUNCHES_LOST, SAMPLES_LOST, STACKS_INCOMPLETE, Counters
from otelprof.ebpf.layout import wire
from otelprof.otlp import semconv
from otelprof.receivers.ebpf.rows import Rows

RING_FULL = "ring full"
LAUNCH_ENTRIES = ("CUDA_LAUNCH_KERNEL", "CUDA_LAUNCH_KERNEL_EX", "CUDA_LAUNCH_COOPERATIVE", "CUDA_GRAPH_LAUNCH")
_INCOMPLETE = {
    "COUNT_PYTHON_TRUNCATED": "truncated",
    "COUNT_PYTHON_UNREADABLE": "unreadable",
    "COUNT_PYTHON_NO_THREAD_STATE": "no thread state",
    "COUNT_NATIVE_TRUNCATED": "native truncated",
    "COUNT_NATIVE_NO_TABLE": "native no table",
    "COUNT_NATIVE_NO_RULE": "native no rule",
    "COUNT_NATIVE_UNREADABLE": "native unreadable",
    "COUNT_SCRATCH_BUSY": "no scratch memory",
    "COUNT_CHUNKS_LOST": "ring full",
    "COUNT_CODES_LOST": "no room for names",
}


class Losses:
    """Turns the kernel's running totals into the rows of an interval."""

    def __init__(self, rows: Rows, counters: Counters) -> None:
        self._rows, self._counters = rows, counters
        self._seen: dict[tuple[int, int, int, int, int], int] = {}
        self._new: dict[tuple[int, int, bool], int] = {}
        self._sample = wire()["LOST_SAMPLE"]
        self._launches = {wire()[name] for name in LAUNCH_ENTRIES}

    def take(self, losses: Table, counts: Mapping[str, int]) -> None:
        """Note running totals (the map `losses`, the array `counts`)."""
        for row in losses:
            key = (int(row["process"]), int(row["pid"]), int(row["kind"]), int(row["reason"]), int(row["entry"]))
            amount = int(row["count"]) - self._seen.get(key, 0)
            self._seen[key] = int(row["count"])
            if amount:
                self._note(key, amount)
        for name, reason in _INCOMPLETE.items():
            self._counters.set(STACKS_INCOMPLETE, counts.get(name, 0), reason)

    def _note(self, key: tuple[int, int, int, int, int], amount: int) -> None:
        process, pid, kind, _, entry = key
        is_sample = kind == self._sample
        if is_sample or entry in self._launches:
            place = (process, pid, is_sample)
            self._new[place] = self._new.get(place, 0) + amount
            self._counters.add(SAMPLES_LOST if is_sample else LAUNCHES_LOST, amount, RING_FULL)

    def rows(self, cpu: ProfileType, time: int) -> Table:
        """SAMPLES rows of what was lost since the last time."""
        found = [
            self._rows.lost((process, pid), amount, cpu if is_sample else semconv.GPU_KERNEL_LAUNCHES, RING_FULL, time)
            for (process, pid, is_sample), amount in self._new.items()
        ]
        self._new.clear()
        return np.array(found, SAMPLES)
