"""Which processes are targets, and what is inside each: keeps the kernel's map `targets` and the readers of code objects.

Each process is looked at when it is first seen (a scan, an exec, a record without an incarnation), and again when it maps
a new file, when its interpreter wasn't initialised yet, and when one thread alone couldn't prove where thread states are.
How much is looked at in one turn is bounded, so that a machine that starts thousands of processes a second costs no more.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from otelprof.batch import Frame, Interner, Resource, Table
from otelprof.counters import PROCESSES, SYMBOL_TABLES, Counters
from otelprof.ebpf.layout import wire
from otelprof.ebpf.mappings import NewMapping
from otelprof.ebpf.session import Session
from otelprof.errors import OtelprofError, TargetError
from otelprof.otlp import semconv
from otelprof.processes.identity import program_of, read_stat
from otelprof.processes.maps import Maps
from otelprof.processes.memory import Memory
from otelprof.processes.resource import process_resource
from otelprof.processes.table import Change, ChangeKind, Process, Processes
from otelprof.receivers.ebpf.config import Targets
from otelprof.receivers.ebpf.spans import span_flag
from otelprof.receivers.ebpf.stacks import NO_PYTHON, STOPPED, UNKNOWN, StackTable
from otelprof.receivers.ebpf.unwind import Space
from otelprof.symbols.native import NativeNames
from otelprof.symbols.python import CodeReader
from otelprof.targets.python import PythonTarget, Recogniser, Recognition, Verdict
from otelprof.text import printable

log = logging.getLogger(__name__)

LOOKS_A_TURN = 64
YOUNG_LIMIT = 4096  # processes at a time for which that is done
YOUNG = 1.0  # seconds in which the kernel wakes us for each new stack of a process
RETRIES = (0.005, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds to the next look
PythonFound = Callable[[Process, PythonTarget, Process | None], None]
"""Told of an interpreter in a process; with its parent, when it was forked with it."""
PROGRAMS_LIMIT = 1024  # as many as the kernel's map `programs` has room for
UNSUPPORTED_TRIES = 3  # a program that is being started can look broken


@dataclass
class Interpreter:
    """What a look gave, kept with its process; `reader` decodes frames once there is an interpreter."""

    verdict: Verdict
    reason: str = ""
    target: PythonTarget | None = None
    reader: CodeReader | None = None
    tries: int = 0


class Watch:
    """See the module's text."""

    def __init__(self, session: Session, settings: Targets, counters: Counters) -> None:
        self._session, self._settings, self._counters = session, settings, counters
        self._processes = Processes()
        self._recogniser = Recogniser()
        self._native = NativeNames()
        self._due: dict[int, float] = {}
        self._young: dict[int, float] = {}
        self._programs: dict[tuple[int, int], PythonTarget] = {}
        self._members: set[int] = set(settings.pids)
        self._resources: dict[tuple[int, int], int] = {}
        self._generation = 0
        self._said: set[str] = set()
        self._interner: Callable[[], Interner] = Interner
        self._ended: Callable[[Set[int]], None] = lambda numbers: None
        self._found: PythonFound = lambda process, target, parent: None

    def use(self, stacks: StackTable, found: PythonFound | None = None) -> None:
        """Where stacks go, and who is told of interpreters."""
        self._interner, self._ended = lambda: stacks.interner, stacks.ended
        self._found = found or self._found

    # --- who there is ------------------------------------------------------------------------------------------

    def scan(self) -> list[Change]:
        """Take in what runs now: the whole node, or the wanted processes (TargetError when one isn't there)."""
        if not self._settings.pids:
            return self._took(self._processes.scan(), young=False)
        changes: list[Change] = []
        for pid in self._settings.pids:
            found = self._processes.look(pid)
            if not found:
                raise TargetError(f"there is no process {pid} to profile (it may have ended): look it up with `otelprof ps`")
            changes += self._took(found, young=False)
        return changes

    def apply(self, events: Table) -> list[Change]:
        """Births and deaths, as `struct process_event` tells them."""
        if self._members and len(events):
            events = self._of_members(events)
        return self._took(self._processes.apply(events))

    def meet(self, origin: Table) -> list[Change]:
        """Records of processes that aren't known yet."""
        unknown = np.unique(origin["pid"][origin["process"] == 0]) if len(origin) else ()
        changes: list[Change] = []
        for pid in list(unknown)[:LOOKS_A_TURN]:
            if self._processes.by_pid(int(pid)) is None:
                changes += self._took(self._processes.look(int(pid)))
        return changes

    def mapped(self, mapping: NewMapping) -> Process | None:
        """A process has mapped a file: look again when no interpreter was found so far. The process, when it is wanted."""
        process = self._processes.by_pid(mapping.pid)
        found = process.kept(Interpreter) if process else None
        if process is None or found is None:
            return process
        process.forget(Maps)
        if found.verdict is Verdict.NOT_PYTHON and mapping.inode:
            self._due[process.incarnation] = time.monotonic()
        return process

    def retry(self) -> None:
        """Look again at those whose time has come."""
        now = time.monotonic()
        self._grow_up(now)
        for number in [number for number, due in self._due.items() if due <= now][:LOOKS_A_TURN]:
            del self._due[number]
            process = self._processes.get(number)
            if process is not None and not process.ended_at:
                self._look(process)

    def _grow_up(self, now: float) -> None:
        """Take the mark from those that have lived for a second: nobody need hurry for them any more."""
        for number in [number for number, until in self._young.items() if until <= now]:
            del self._young[number]
            process = self._processes.get(number)
            if process is not None and not process.ended_at:
                self._session.change_flags(process.pid, 0, wire()["TARGET_YOUNG"])

    @property
    def finished(self) -> bool:
        """True when only some processes are wanted and none of them lives."""
        return bool(self._settings.pids) and not len(self._processes)

    def forget_ended(self, until: int) -> list[Process]:
        """All records up to `until` are in batches: let go of who ended before."""
        gone = self._processes.decoded(until)
        numbers = {number: process.pid for process in gone for number in (process.incarnation, *process.aliases)}
        for number, pid in numbers.items():
            self._due.pop(number, None)
            self._resources.pop((number, pid), None)
        self._ended(numbers.keys())
        self._count()
        return gone

    def close(self) -> None:
        """Let go of everything."""
        self._processes.close()

    def process(self, number: int) -> Process | None:
        """The process of an incarnation number."""
        return self._processes.get(number)

    def living(self, pid: int) -> Process | None:
        """The living process of a PID, as far as known."""
        return self._processes.by_pid(pid)

    def _of_members(self, events: Table) -> Table:
        fork = wire()["PROCESS_FORK"]
        inherited = events[(events["kind"] == fork) & (events["process"] != 0)]
        self._members.update(int(pid) for pid in inherited["pid"])
        return events[np.isin(events["pid"], list(self._members))]

    def _took(self, changes: Iterable[Change], young: bool = True) -> list[Change]:
        changes = list(changes)
        for change in changes:
            if young and change.kind is not ChangeKind.ENDED and len(self._young) < YOUNG_LIMIT:
                self._young[change.process.incarnation] = time.monotonic() + YOUNG
            if change.kind is ChangeKind.FOUND:
                self._look(change.process)
            elif change.kind is ChangeKind.FORKED:
                self._inherit(change.process, change.parent)
        return changes

    # --- what is inside ----------------------------------------------------------------------------------------

    def _look(self, process: Process) -> None:
        known = process.kept(Interpreter)
        found = self._recognise(process)
        interpreter = Interpreter(found.verdict, found.reason, found.target, tries=known.tries + 1 if known else 0)
        if known is not None:
            process.forget(Interpreter)
        process.keep(Interpreter, lambda: interpreter)
        if found.target is not None:
            interpreter.reader = CodeReader(_memory(process), found.target.cpython)
            if known is not None and known.reader is not None:
                interpreter.reader.know(known.reader)
            self._resources.pop((process.incarnation, process.pid), None)
        if found.target is None and found.verdict is Verdict.NOT_PYTHON:
            process.forget(Memory)  # a descriptor, of which most processes need none
        if not process.ended_at:
            self._tell_kernel(process, found.target)
        self._plan(process, interpreter)
        if found.target is not None and found.verdict is Verdict.PYTHON:
            self._found(process, found.target, None)

    def _recognise(self, process: Process) -> Recognition:
        if not self._settings.python:
            return Recognition(Verdict.NOT_PYTHON, "Python is switched off in the settings")
        try:
            process.forget(Maps)
            found = self._recogniser.recognise(process.pid, process.memory, process.maps)
        except OtelprofError as error:
            if _lives(process.pid):
                return Recognition(Verdict.UNSUPPORTED, str(error))
            return Recognition(Verdict.NOT_PYTHON, str(error), self._programs.get(process.program))
        self._learn(process, found)
        if found.verdict is Verdict.NOT_YET:
            return replace(found, target=self._programs.get(process.program))
        return found

    def _learn(self, process: Process, found: Recognition) -> None:
        """Have the kernel know the next process of this program from its first instruction on, as far as we can tell now."""
        process.program = process.program if process.program[0] else program_of(process.pid)
        target, program = found.target, process.program
        known = self._programs.get(program)
        if target is not None and known is None and len(self._programs) < PROGRAMS_LIMIT and program[0]:
            if self._is_wanted(process.facts.executable_name):
                layout = replace(target.layout, evaluation=())  # those are addresses of this process
                self._programs[program] = replace(target, layout=layout)
                self._session.set_program(*program, layout.to_record(wire().dtype("python_layout")))
        elif known is not None and found.verdict in (Verdict.NOT_PYTHON, Verdict.UNSUPPORTED):
            del self._programs[program]
            self._session.set_program(*program, None)

    def _tell_kernel(self, process: Process, target: PythonTarget | None) -> None:
        flags = wire()["TARGET_FOLLOW"] if self._settings.follow else 0
        if not self._is_wanted(process.facts.executable_name):
            flags |= wire()["TARGET_IGNORED"]
        if process.incarnation in self._young:
            flags |= wire()["TARGET_YOUNG"]
        record = np.zeros(1, wire().dtype("target"))
        if target is not None:
            flags |= wire()["TARGET_PYTHON"]
            flags |= span_flag(process)
            record["python"] = target.layout.to_record(wire().dtype("python_layout"))
        record["process"], record["flags"] = process.incarnation, flags
        space = process.kept(Space)
        if space is not None:
            record["mappings"], record["mappings_count"] = space.first, space.count
        try:
            self._session.set_target(process.pid, record[0])
        except OtelprofError as error:
            self._say(f"process {process.pid} can't be made a target: {error}")

    def _is_wanted(self, name: str) -> bool:
        include, exclude = self._settings.include, self._settings.exclude
        if any(fnmatchcase(name, pattern) for pattern in exclude):
            return False
        return not include or any(fnmatchcase(name, pattern) for pattern in include)

    def _plan(self, process: Process, found: Interpreter) -> None:
        """When to look again: soon, while an interpreter starts; a few times, where it can't be read."""
        broken = found.verdict is Verdict.UNSUPPORTED
        unsure = found.verdict is Verdict.NOT_YET or (found.target is not None and not found.target.sure)
        if found.tries < (UNSUPPORTED_TRIES if broken else len(RETRIES) if unsure else 0):
            self._due[process.incarnation] = time.monotonic() + RETRIES[found.tries]
        elif broken:
            name = process.facts.executable_name or process.facts.comm
            self._say(f"{printable(name)}: no Python frames: {found.reason}")

    def _inherit(self, child: Process, parent: Process | None) -> None:
        known = parent.kept(Interpreter) if parent else None
        if known is None:
            return self._look(child)
        copy = Interpreter(known.verdict, known.reason, known.target)
        if known.reader is not None:
            copy.reader = known.reader.forked(_memory(child))
        child.keep(Interpreter, lambda: copy)
        if known.target is not None:
            self._found(child, known.target, parent)
        return self._plan(child, copy)

    def _say(self, line: str) -> None:
        if line not in self._said and len(self._said) < 100:
            self._said.add(line)
            log.warning("%s (said once)", line)

    def _count(self) -> None:
        states = Counter(found.verdict for process in self._processes if (found := process.kept(Interpreter)))
        for verdict in Verdict:
            self._counters.set(PROCESSES, states[verdict], verdict.value)
        self._counters.set(SYMBOL_TABLES, len(self._native))

    # --- what rows ask -----------------------------------------------------------------------------------------

    def capture(self, codes: Table) -> None:
        """Code objects that the kernel has read (struct python_code)."""
        for number in np.unique(codes["process"]) if len(codes) else ():
            process = self._processes.get(int(number))
            found = process.kept(Interpreter) if process else None
            if found is not None and found.reader is not None:
                found.reader.capture(codes[codes["process"] == number])

    def decode(self, number: int, records: Table) -> Sequence[Frame | None]:
        """The frames of records (struct frame) of an incarnation."""
        process = self._processes.get(number)
        found = process.kept(Interpreter) if process else None
        if found is None or found.reader is None:
            return [UNKNOWN] * len(records)
        try:
            return found.reader.frames(records)
        except TargetError:
            return [UNKNOWN] * len(records)

    def decode_native(self, number: int, records: Table) -> Sequence[Frame | None]:
        """The frames of native records (struct frame) of an incarnation."""
        process = self._processes.get(number)
        if process is None:
            return [UNKNOWN] * len(records)
        return self._native.names(process, records["address"].astype(np.uint64), records["offset"] != 0)

    def alive(self, numbers: Iterable[int]) -> dict[int, Process]:
        """The processes of these incarnations that haven't ended."""
        found = {number: self._processes.get(number) for number in numbers}
        return {number: process for number, process in found.items() if process is not None and not process.ended_at}

    def identified(self, records: Table) -> Table:
        """`records` with the incarnation filled in where it wasn't known in the kernel but is now."""
        unknown = records["origin"]["process"] == 0
        if unknown.any():
            pids, inverse = np.unique(records["origin"]["pid"][unknown], return_inverse=True)
            found = [self._processes.by_pid(int(pid)) for pid in pids]
            numbers = np.array([process.incarnation if process else 0 for process in found], np.uint32)
            records["origin"]["process"][unknown] = numbers[inverse]
        return records

    def resource(self, number: int, pid: int) -> int:
        """The interner's id of a process's resource; its PID alone when it was gone before anybody looked."""
        interner = self._interner()
        if interner.generation != self._generation:
            self._resources.clear()
            self._generation = interner.generation
        key = (number, pid)
        if key not in self._resources:
            self._resources[key] = interner.resources.id(self._resource(number, pid))
        return self._resources[key]

    def _resource(self, number: int, pid: int) -> Resource:
        process = self._processes.get(number)
        if process is None:
            return Resource(((semconv.PROCESS_PID, pid),) if pid else ())
        found = process.kept(Interpreter)
        target = found.target if found else None
        return process_resource(process.facts, "cpython" if target else "", target.version if target else "")

    def leaf(self, number: int, instruction: int) -> int:
        """The interner's id of the stack of a process without Python."""
        process = self._processes.get(number)
        frame = UNKNOWN
        if process is not None and instruction:
            try:
                frame = self._native.names(process, np.array([instruction], np.uint64))[0]
            except TargetError:
                frame = UNKNOWN
        return self._interner().stack((STOPPED, frame))

    def without_python(self, number: int, state: int) -> Frame:
        """The mark of an event without a Python stack: a native thread, or an interpreter not yet known."""
        process = self._processes.get(number)
        found = process.kept(Interpreter) if process else None
        is_native = found is not None and found.verdict is Verdict.NOT_PYTHON
        return NO_PYTHON if state != wire()["PYTHON_NOT_TARGET"] or is_native else UNKNOWN


def _memory(process: Process) -> Memory | None:
    """A process's memory, None when it has ended already."""
    try:
        return process.memory
    except TargetError:
        return None


def _lives(pid: int) -> bool:
    """False when a process has ended in the meantime, waited for by its parent or not."""
    try:
        return not read_stat(pid).is_zombie
    except TargetError:
        return False
