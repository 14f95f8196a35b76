"""Who lives now and who has just ended: the one table of processes, their numbers and their state.

Every program image gets an incarnation number here (1 to 2^31-1), or comes with one from the kernel's fork program (top bit
set), and all that others keep about it hangs on its Process, so that one place lets go of it: `decoded`, called when the
last samples of an ended process have been turned into stacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from otelprof.errors import TargetError
from otelprof.processes.identity import OTEL_VARIABLES, Facts, Identity, Stat, read_facts, read_stat, unix_time
from otelprof.processes.maps import Maps, read_maps
from otelprof.processes.memory import Memory
from otelprof.text import clean

PROCESS_LIMIT = 65_536
"""Processes that are known at once; PIDs end at 4,194,304, but no node we profile runs that many."""
NUMBER_LIMIT = (1 << 31) - 1
FORK, EXEC, EXIT = 1, 2, 3  # enum process_event_kind, bpf/wire.h

_Kept = TypeVar("_Kept")


@runtime_checkable
class _Closing(Protocol):
    def close(self) -> None: ...


class Process:
    """One program image. Not made by hand: `Processes` does."""

    def __init__(self, incarnation: int, identity: Identity, seen_at: int, facts: Facts) -> None:
        self.incarnation = incarnation
        """The number by which the kernel's records name it."""
        self.identity = identity
        self.facts = facts
        self.seen_at = seen_at
        """CLOCK_MONOTONIC nanoseconds of the look at /proc, or of the fork, that it is known from."""
        self.ended_at = 0
        """CLOCK_MONOTONIC nanoseconds; 0: it lives."""
        self.image = 0
        self.program = (0, 0)
        """Inode and device of its executable as the kernel names them; 0: not known."""
        self.aliases: list[int] = []
        self._kept: dict[type[object], object] = {}

    @property
    def pid(self) -> int:
        """Its number in our PID namespace."""
        return self.identity.pid

    @property
    def memory(self) -> Memory:
        """Its memory, opened at first use; TargetError when it can't be."""
        return self.keep(Memory, lambda: Memory(self.pid))

    @property
    def maps(self) -> Maps:
        """Its mappings as they were read last; TargetError when they can't be."""
        return self.keep(Maps, lambda: read_maps(self.pid))

    def refresh_maps(self) -> Maps:
        """Its mappings, read anew."""
        self._kept.pop(Maps, None)
        return self.maps

    def keep(self, kind: type[_Kept], make: Callable[[], _Kept]) -> _Kept:
        """The thing of this kind that belongs to the process, made at first use; `close` is called on it at the end."""
        found = self._kept.get(kind)
        if found is None:
            found = self._kept[kind] = make()
        if not isinstance(found, kind):
            raise TypeError(f"{found!r} was kept as {kind}")
        return found

    def kept(self, kind: type[_Kept]) -> _Kept | None:
        """The thing of this kind if there is one already."""
        found = self._kept.get(kind)
        return found if isinstance(found, kind) else None

    def forget(self, kind: type[object]) -> None:
        """Let go of what was kept of this kind."""
        found = self._kept.pop(kind, None)
        if isinstance(found, _Closing):
            found.close()

    def close(self) -> None:
        """Let go of all that is kept."""
        for kind in list(self._kept):
            self.forget(kind)


class ChangeKind(Enum):
    """What happened to a process."""

    FOUND = "found"
    """Seen for the first time, or a new program in a known process."""
    FORKED = "forked"
    """The kernel has made the child a target like its parent already."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Change:
    """A change in the table; `parent` is the forked child's parent, if known."""

    kind: ChangeKind
    process: Process
    parent: Process | None = None


@dataclass
class Processes:
    """The table. Used by one thread."""

    variables: Iterable[str] = OTEL_VARIABLES
    """Environment variables that facts keep."""
    limit: int = PROCESS_LIMIT
    refused: int = 0
    """How often a process wasn't taken in because the table was full."""
    _living: dict[int, Process] = field(default_factory=dict)
    _numbers: dict[int, Process] = field(default_factory=dict)
    _ended: dict[int, Process] = field(default_factory=dict)
    _last: int = 0

    def __iter__(self) -> Iterator[Process]:
        return iter(list(self._living.values()))

    def __len__(self) -> int:
        return len(self._living)

    @property
    def ended(self) -> int:
        """How many have ended and are still remembered."""
        return len(self._ended)

    def get(self, incarnation: int) -> Process | None:
        """The process that a record names, living or ended."""
        return self._numbers.get(incarnation)

    def by_pid(self, pid: int) -> Process | None:
        """The living process of this number, as far as known."""
        return self._living.get(pid)

    # --- first sight -------------------------------------------------------------------------------------------

    def scan(self) -> list[Change]:
        """Compare the table with /proc: new ones, those that ended or run another program unnoticed."""
        present = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
        changes = [self._end(process, time.monotonic_ns()) for process in self if process.pid not in present]
        for pid in sorted(present):
            changes += self.look(pid)
        return changes

    def look(self, pid: int) -> list[Change]:
        """Look at one process: no change when it is known, a kernel thread, or has ended."""
        now = time.monotonic_ns()
        try:
            stat = read_stat(pid)
        except TargetError:
            stat = None
        known = self._living.get(pid)
        if known is not None and stat is not None and not stat.is_zombie and _same(known, stat):
            known.image = known.image or stat.image
            return []
        changes = [] if known is None else [self._end(known, now)]
        if stat is not None and not stat.kernel_thread and not stat.is_zombie:
            changes += self._find(pid, stat, now, _generation(known, stat))
        return changes

    def _find(self, pid: int, stat: Stat, now: int, generation: int, number: int = 0) -> list[Change]:
        if not self._has_room():
            return []
        parent = self._living.get(stat.parent)
        try:
            facts = read_facts(pid, self.variables, parent.facts.service if parent else "")
        except TargetError:
            return []
        number = number if number and number not in self._numbers else self._number()
        process = self._add(number, Identity(pid, stat.start_ticks, generation), now, facts)
        process.image = stat.image
        return [Change(ChangeKind.FOUND, process)]

    def _add(self, incarnation: int, identity: Identity, now: int, facts: Facts) -> Process:
        process = Process(incarnation, identity, now, facts)
        self._living[identity.pid] = self._numbers[incarnation] = process
        return process

    def _number(self) -> int:
        while True:
            self._last = self._last % NUMBER_LIMIT + 1
            if self._last not in self._numbers:
                return self._last

    def _has_room(self) -> bool:
        if len(self._living) + len(self._ended) >= self.limit and self._ended:
            self._delete(next(iter(self._ended.values())))
        full = len(self._living) >= self.limit
        self.refused += full
        return not full

    # --- events ------------------------------------------------------------------------------------------------

    def apply(self, events: npt.NDArray[np.void]) -> list[Change]:
        """Take in records of `struct process_event`, in order; what they changed."""
        handlers = {FORK: self._forked, EXEC: self._executed, EXIT: self._exited}
        changes: list[Change] = []
        for event in events:
            kind = int(event["kind"])
            if kind in handlers:
                changes += handlers[kind](_event(event))
        return changes

    def _forked(self, event: _Event) -> list[Change]:
        moment, pid, incarnation = event.time, event.pid, event.process
        known = self._living.get(pid)
        if known is not None and known.seen_at >= moment:  # /proc told us first, under a number of our own
            self._alias(known, incarnation)
            return []
        changes = [] if known is None else [self._end(known, moment)]
        parent = self._living.get(event.parent)
        if incarnation == 0:  # not a target: it will be looked at when it runs a program of its own, or by a scan
            return changes
        if parent is None or incarnation in self._numbers:
            return changes + self.look(pid)
        if not self._has_room():
            return changes
        ticks = _start_ticks(pid)
        child = self._add(incarnation, Identity(pid, ticks, 0), moment, _child_facts(parent.facts, pid, ticks))
        child.program = parent.program
        return [*changes, Change(ChangeKind.FORKED, child, parent)]

    def _alias(self, process: Process, incarnation: int) -> None:
        if incarnation and incarnation not in self._numbers and len(process.aliases) < 4:
            process.aliases.append(incarnation)
            self._numbers[incarnation] = process

    def _executed(self, event: _Event) -> list[Change]:
        known = self._living.get(event.pid)
        if known is not None and known.seen_at >= event.time:
            known.program = event.program
            self._alias(known, event.next)
            return []
        changes = [] if known is None else [self._end(known, event.time)]
        now = time.monotonic_ns()
        try:
            stat = read_stat(event.pid)
        except TargetError:
            return changes + self._missed(event, known)
        found = self._find(event.pid, stat, now, _generation(known, stat), event.next) or self._missed(event, known)
        for change in found:
            change.process.program = event.program
        return changes + found

    def _missed(self, event: _Event, known: Process | None) -> list[Change]:
        """A program that the kernel knows as Python has ended before anybody looked: what the fork and the exec told."""
        if not event.next or event.next in self._numbers or not self._has_room():
            return []
        facts = known.facts if known is not None else Facts(event.pid)
        name = clean(event.comm)
        facts = replace(facts, comm=name, command=name, service=name, executable_path="", environment=())
        process = self._add(event.next, Identity(event.pid, 0, 0), event.time, facts)
        process.program = event.program
        return [Change(ChangeKind.FOUND, process)]

    def _exited(self, event: _Event) -> list[Change]:
        known = self._living.get(event.pid)
        return [] if known is None or known.seen_at >= event.time else [self._end(known, event.time)]

    # --- the end -----------------------------------------------------------------------------------------------

    def _end(self, process: Process, moment: int) -> Change:
        process.ended_at = max(moment, 1)
        del self._living[process.pid]
        self._ended[process.incarnation] = process
        return Change(ChangeKind.ENDED, process)

    def decoded(self, until: int) -> list[Process]:
        """All records up to `until` (CLOCK_MONOTONIC nanoseconds) are stacks now: forget who ended before, and say who."""
        gone = [process for process in self._ended.values() if process.ended_at < until]
        for process in gone:
            self._delete(process)
        return gone

    def _delete(self, process: Process) -> None:
        process.close()
        del self._ended[process.incarnation]
        for number in (process.incarnation, *process.aliases):
            del self._numbers[number]

    def close(self) -> None:
        """Let go of everything."""
        for process in list(self._numbers.values()):
            process.close()
        for table in (self._living, self._ended, self._numbers):
            table.clear()


@dataclass(frozen=True, slots=True)
class _Event:
    """One `struct process_event`; `program`: inode and device."""

    time: int
    pid: int
    parent: int
    process: int
    next: int
    program: tuple[int, int]
    comm: str


def _event(record: np.void) -> _Event:
    time, pid, parent, process, following = (int(record[name]) for name in ("time", "pid", "parent", "process", "next"))
    program = record["program"]
    comm = bytes(record["comm"]).split(b"\0", 1)[0].decode("utf-8", "replace")
    return _Event(time, pid, parent, process, following, (int(program["inode"]), int(program["device"])), comm)


def _same(process: Process, stat: Stat) -> bool:
    """Whether /proc shows the image that we know; a number that we couldn't read then proves nothing."""
    begun = process.identity.start_ticks in (0, stat.start_ticks)
    return begun and (process.image == stat.image or not process.image or not stat.image)


def _generation(known: Process | None, stat: Stat) -> int:
    same = known is not None and known.identity.start_ticks == stat.start_ticks
    return known.identity.generation + 1 if known is not None and same else 0


def _child_facts(facts: Facts, pid: int, ticks: int) -> Facts:
    """A forked child's facts: its parent's, but for its number and the time."""
    begun = unix_time(ticks) if ticks else time.time_ns()
    return replace(facts, pid=pid, parent=facts.pid, namespace_pid=0, start_time=begun)


def _start_ticks(pid: int) -> int:
    try:
        return read_stat(pid).start_ticks
    except TargetError:
        return 0
