"""Ring columns to rows: the CPU samples and driver calls of one interval become the tables of a batch.

Nothing here runs once per record: each column is reduced to its distinct values, those are interned, and numpy puts the
ids back in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from otelprof.batch import LAUNCHES, SAMPLES, Frame, Interner, ProfileType, Table, Thread, mark
from otelprof.ebpf.layout import wire
from otelprof.receivers.ebpf.stacks import NO_PYTHON, STOPPED, TRUNCATED, StackTable, Walked
from otelprof.text import clean

Ids = npt.NDArray[np.uint32]


class Places(Protocol):
    """What rows need to know of processes."""

    def resource(self, process: int, pid: int) -> int:
        """The interner's id of a process's resource."""

    def leaf(self, process: int, instruction: int) -> int:
        """The interner's id of the stack of a process without Python, by the address of its leaf."""

    def without_python(self, process: int, state: int) -> Frame:
        """The mark for an event of a process without a Python stack; `state` is enum python_state."""


def distinct(keys: Table, make: Callable[[Table], int]) -> Ids:
    """`make` of each distinct row of `keys` (a structured array), put back in the order of the rows."""
    if not len(keys):
        return np.zeros(0, np.uint32)
    packed = np.ascontiguousarray(keys)
    raw = packed.view(np.dtype((np.void, packed.dtype.itemsize))).ravel()
    _, first, inverse = np.unique(raw, return_index=True, return_inverse=True)
    return np.array([make(packed[index]) for index in first], np.uint32)[inverse.ravel()]


def columns(records: Table, *names: str) -> Table:
    """A packed copy of some fields of `records`."""
    packed = np.zeros(len(records), [(name, records.dtype[name]) for name in names])
    for name in names:
        packed[name] = records[name]
    return packed


_STACK = ("process", "python", "python_state", "native", "native_state")  # fields of `struct origin` that name a stack


class Rows:
    """Makes tables of one interner from ring records."""

    def __init__(self, stacks: StackTable, places: Places) -> None:
        self._stacks = stacks
        self._places = places
        self._not_target = wire()["PYTHON_NOT_TARGET"]
        self._root_marks = {wire()["PYTHON_TRUNCATED"]: TRUNCATED, wire()["PYTHON_UNREADABLE"]: STOPPED}
        self._complete = wire()["NATIVE_COMPLETE"]
        self._truncated = wire()["NATIVE_TRUNCATED"]

    @property
    def interner(self) -> Interner:
        """The interner that ids of rows belong to now."""
        return self._stacks.interner

    def samples(self, records: Table, kind: ProfileType) -> Table:
        """SAMPLES rows of `struct sample` records, one each, value 1."""
        table = np.zeros(len(records), SAMPLES)
        table["value"] = 1
        table["type"] = self.interner.types.id(kind)
        self._origin(table, records["origin"])
        table["stack"] = self._sample_stacks(records)
        return table

    def launches(self, records: Table) -> Table:
        """LAUNCHES rows of `struct cuda_call` records; kind, entry, kernel and duration are filled in by the caller."""
        table = np.zeros(len(records), LAUNCHES)
        self._origin(table, records["origin"])
        table["stack"] = distinct(columns(records["origin"], *_STACK), self._call_stack)
        for name, source in (("dispatch", "dispatch"), ("stream", "stream"), ("grid", "grid"), ("block", "block")):
            table[name] = records[source]
        table["shared"], table["bytes"] = records["shared_bytes"], records["bytes"]
        table["duration"] = table["correlation"] = table["device"] = -1
        return table

    def lost(self, who: tuple[int, int], amount: int, kind: ProfileType, reason: str, time: int) -> tuple[object, ...]:
        """One SAMPLES row that stands for `amount` events of `who` (incarnation, PID) without a record."""
        stack = self._stacks.marked(mark(f"lost: {reason}"))
        return (time, amount, self.interner.types.id(kind), self._places.resource(*who), stack, 0, 0, 0)

    def _origin(self, table: Table, origin: Table) -> None:
        table["time"] = origin["time"]
        table["resource"] = distinct(columns(origin, "process", "pid"), self._resource)
        table["thread"] = distinct(columns(origin, "tid", "comm"), self._thread)
        table["link"] = distinct(columns(origin, "trace_id", "span_id"), self._link)

    def _resource(self, key: Table) -> int:
        return self._places.resource(int(key["process"]), int(key["pid"]))

    def _thread(self, key: Table) -> int:
        name = bytes(key["comm"]).split(b"\0", 1)[0].decode("utf-8", "replace")
        return self.interner.threads.id(Thread(int(key["tid"]), clean(name)))

    def _link(self, key: Table) -> int:
        return self.interner.link(key["trace_id"].tobytes(), key["span_id"].tobytes())

    def _sample_stacks(self, records: Table) -> Ids:
        keys = columns(records["origin"], *_STACK)
        whole = np.zeros(len(records), [*((name, keys.dtype[name]) for name in keys.dtype.names or ()), ("leaf", "u8")])
        for name in keys.dtype.names or ():
            whole[name] = keys[name]
        outside = (keys["python_state"] == self._not_target) & (keys["native"] == 0)
        whole["leaf"][outside] = records["instruction"][outside]
        return distinct(whole, self._sample_stack)

    def _sample_stack(self, key: Table) -> int:
        if key["python_state"] == self._not_target and not key["native"]:
            return self._places.leaf(int(key["process"]), int(key["leaf"]))
        return self._call_stack(key)

    def _call_stack(self, key: Table) -> int:
        if key["native"]:
            return self._stacks.whole(self._walked(key))
        if not key["python"]:
            return self._stacks.marked(self._places.without_python(int(key["process"]), int(key["python_state"])))
        return self._stacks.stack(int(key["python"]), self._root_marks.get(int(key["python_state"])))

    def _walked(self, key: Table) -> Walked:
        """A stack with native frames. Without Python frames a thread of an interpreter says so at its root."""
        state = int(key["native_state"])
        native_mark = None if state == self._complete else TRUNCATED if state == self._truncated else STOPPED
        root_mark = self._root_marks.get(int(key["python_state"]))
        if not key["python"] and key["python_state"] != self._not_target:
            root_mark = NO_PYTHON
        return Walked(int(key["python"]), root_mark, int(key["native"]), native_mark)
