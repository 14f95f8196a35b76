"""Memory that processes hold from the driver, by the stack that asked for it.

What the driver gives are segments: caching allocators (PyTorch's, JAX's) cut tensors out of them, of which the driver knows
nothing. Segments that were taken before the attach aren't known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from otelprof.batch import SAMPLES, Frame, FrameKind, Table
from otelprof.ebpf.layout import wire
from otelprof.otlp import semconv
from otelprof.receivers.ebpf.rows import Rows

SEGMENTS_LIMIT = 65_536
"""Segments of a process; the oldest are forgotten."""
STACKS_LIMIT = 4096
CALLS_A_TURN = 50_000
_WAITING_LIMIT = 1024
_GIVING = ("CUDA_MEM_ALLOC", "CUDA_MEM_ALLOC_ASYNC", "CUDA_MEM_CREATE")
_TAKING = ("CUDA_MEM_FREE", "CUDA_MEM_FREE_ASYNC", "CUDA_MEM_RELEASE")

Stack = tuple[Frame, ...]


@dataclass(slots=True)
class _Held:
    """One process: segments by address, sums by stack, calls whose address isn't known yet."""

    process: int
    pid: int
    segments: dict[int, tuple[int, Stack]] = field(default_factory=dict)
    sums: dict[Stack, int] = field(default_factory=dict)
    waiting: dict[int, tuple[int, Stack]] = field(default_factory=dict)

    def give(self, address: int, size: int, stack: Stack) -> None:
        self.free(address)
        self.segments[address] = (size, stack)
        self.sums[stack] = self.sums.get(stack, 0) + size
        if len(self.segments) > SEGMENTS_LIMIT:
            self.free(next(iter(self.segments)))

    def free(self, address: int) -> None:
        size, stack = self.segments.pop(address, (0, ()))
        if size:
            self.sums[stack] -= size
            if not self.sums[stack]:
                del self.sums[stack]


class Allocations:
    """The segments of all processes; `key_of` gives one number for a process from a record's incarnation and PID."""

    def __init__(self, rows: Rows, key_of: Callable[[int, int], int], entries: dict[int, str]) -> None:
        self._rows, self._key_of, self._entries = rows, key_of, entries
        self._giving = [wire()[name] for name in _GIVING]
        self._ours = np.zeros(max(entries) + 1, bool)
        self._ours[[wire()[name] for name in (*_GIVING, *_TAKING)]] = True
        self._processes: dict[int, _Held] = {}

    def take(self, calls: Table, returns: Table) -> None:
        """Note what a reading of the rings brought, in the order of time."""
        calls, returns = calls[self._ours[calls["entry"]]][:CALLS_A_TURN], returns[self._ours[returns["entry"]]]
        if not len(calls) and not len(returns):
            return
        stacks = self._rows.launches(calls)["stack"] if len(calls) else np.zeros(0, np.uint32)
        events: list[tuple[int, int, np.void, int]] = [
            (int(call["origin"]["time"]), 1, call, int(stack)) for call, stack in zip(calls, stacks, strict=True)
        ]
        events += [(int(end["time"]), 0, end, 0) for end in returns]
        for _, is_call, event, stack in sorted(events, key=lambda one: one[:2]):
            if is_call:
                self._call(event, stack)
            else:
                self._end(event)

    def leave(self, process: int) -> None:
        """It has ended."""
        self._processes.pop(process, None)

    def samples(self, time: int, resource: Callable[[int, int], int]) -> Table:
        """SAMPLES rows: what each stack holds now."""
        rows = list(self._sums(time, resource))
        return np.array(rows, SAMPLES) if rows else np.zeros(0, SAMPLES)

    def _sums(self, time: int, resource: Callable[[int, int], int]) -> Iterator[tuple[int, ...]]:
        interner = self._rows.interner
        kind = interner.types.id(semconv.GPU_MEMORY_RESERVED)
        for held in self._processes.values():
            for stack, size in list(held.sums.items())[:STACKS_LIMIT]:
                yield time, size, kind, resource(held.process, held.pid), interner.stack(stack), 0, 0, 0

    def _held(self, process: int, pid: int) -> _Held:
        return self._processes.setdefault(self._key_of(process, pid), _Held(process, pid))

    def _call(self, call: np.void, stack: int) -> None:
        held = self._held(int(call["origin"]["process"]), int(call["origin"]["pid"]))
        entry = int(call["entry"])
        if entry not in self._giving:
            held.free(int(call["function"]))
            return
        leaf = Frame(self._entries[entry], FrameKind.CUDA)
        held.waiting[int(call["dispatch"])] = (int(call["bytes"]), (*self._rows.interner.frames_of(stack), leaf))
        if len(held.waiting) > _WAITING_LIMIT:
            del held.waiting[next(iter(held.waiting))]

    def _end(self, end: np.void) -> None:
        held = self._held(int(end["process"]), int(end["pid"]))
        size, stack = held.waiting.pop(int(end["dispatch"]), (0, ()))
        if size and end["value"]:
            held.give(int(end["value"]), size, stack)
