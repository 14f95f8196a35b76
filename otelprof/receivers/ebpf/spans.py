"""The current spans of processes: finds OpenTelemetry in each interpreter and tells the kernel how to read its spans.

A process usually imports OpenTelemetry after its interpreter was found, at times minutes later, so it is looked at again
and again, which takes microseconds while nothing was imported. A forked child has its parent's spans at once, by the kernel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from otelprof.counters import SPAN_PROCESSES, SPANS_READ, SPANS_UNREADABLE, Counters
from otelprof.ebpf.layout import wire
from otelprof.ebpf.session import Drained, Session
from otelprof.errors import OtelprofError, TargetError
from otelprof.processes.table import Process
from otelprof.targets.opentelemetry import SpanFinder, SpanLayout, blank_layout
from otelprof.targets.python import PythonTarget
from otelprof.text import printable

log = logging.getLogger(__name__)

SOURCE = "opentelemetry_python"
LOOKS_A_TURN = 64
DELAYS = (0.0, 0.1, 0.1, 0.2, 0.3, 0.5, 0.5, 1.0)  # seconds between looks while a program starts
SOON, WAITING, SETTLED = 0.5, 2.0, 10.0  # seconds between looks: it is half there, it isn't there, it is read
SAID_LIMIT = 100


@dataclass(slots=True)
class SpanSource:
    """What is known of a process, kept with it; `layouts` are those that the kernel has, by interpreter (0: the main one)."""

    finder: SpanFinder
    drop: Callable[[int], object]
    layouts: dict[int, SpanLayout] = field(default_factory=dict)
    looks: int = 0

    def close(self) -> None:
        """The process has ended: the kernel has let go of the main interpreter's layout by itself, not of the others."""
        for interpreter in filter(None, self.layouts):
            self.drop(interpreter)


class Spans:
    """See the module's text."""

    def __init__(self, session: Session, counters: Counters) -> None:
        self._session, self._counters = session, counters
        self._due: dict[int, tuple[float, Process]] = {}
        self._known: set[int] = set()
        self._said: set[str] = set()

    def found(self, process: Process, target: PythonTarget, parent: Process | None = None) -> None:
        """An interpreter was found in a process, or came with it from its parent at a fork."""
        known = process.kept(SpanSource)
        if known is not None:  # the interpreter was looked at once more
            return
        try:
            source = self._new(process, target, parent.kept(SpanSource) if parent else None)
        except TargetError:
            return  # it has ended
        process.keep(SpanSource, lambda: source)
        self._plan(process, source)

    def look(self) -> None:
        """Look at the processes whose time has come."""
        now = time.monotonic()
        for number in [number for number, (due, _) in self._due.items() if due <= now][:LOOKS_A_TURN]:
            _, process = self._due.pop(number)
            source = process.kept(SpanSource)
            if source is not None and not process.ended_at:
                self._look(process, source)
                self._plan(process, source)

    def count(self, drained: Drained) -> None:
        """Count the spans that records bring."""
        for records in (drained.samples, drained.calls):
            self._counters.add(SPANS_READ, int(np.count_nonzero(records["origin"]["span_id"])), SOURCE)
        self._counters.set(SPANS_UNREADABLE, drained.counts["COUNT_SPANS_LOST"])

    def leave(self, gone: Iterable[Process]) -> None:
        """These have ended and their last records are in batches."""
        for process in gone:
            self._due.pop(process.incarnation, None)
            self._known.discard(process.incarnation)
        self._counters.set(SPAN_PROCESSES, len(self._known), SOURCE)

    def _new(self, process: Process, target: PythonTarget, parent: SpanSource | None) -> SpanSource:
        drop = partial(self._session.drop_spans, process.pid)
        if parent is None:
            return SpanSource(SpanFinder(process.memory, target.cpython, target.runtime), drop)
        main = {0: parent.layouts[0]} if parent.layouts else {}
        return SpanSource(parent.finder.forked(process.memory), drop, main, parent.looks)

    # --- one process -------------------------------------------------------------------------------------------

    def _plan(self, process: Process, source: SpanSource) -> None:
        if source.finder.reason:
            self._say(f"{printable(process.facts.service)}: no spans are read: {source.finder.reason}")
            return
        settled = SOON if source.finder.waits else SETTLED if source.layouts else WAITING
        delay = DELAYS[source.looks] if source.looks < len(DELAYS) else settled
        self._due[process.incarnation] = (time.monotonic() + delay, process)

    def _look(self, process: Process, source: SpanSource) -> None:
        source.looks += 1
        found = source.finder.look()
        for interpreter, layout in source.layouts.items():
            more = self._with_unknown_type(process.pid, interpreter, source)
            if more is not None and not any(layout.interpreter == one.interpreter for one in found):
                found.append(more)
        if not found and not source.layouts:
            return
        try:
            self._tell(process, source, found)
        except OtelprofError as error:
            self._say(f"the spans of process {process.pid} can't be read: {error}")

    def _with_unknown_type(self, pid: int, interpreter: int, source: SpanSource) -> SpanLayout | None:
        """The layout with a class of spans more, when the kernel has met one that wasn't known."""
        record = self._session.spans(pid, interpreter)
        kind = 0 if record is None else int(record["unknown_type"])
        return source.finder.add_type(source.layouts[interpreter], kind) if kind else None

    def _tell(self, process: Process, source: SpanSource, found: Sequence[SpanLayout]) -> None:
        main = source.finder.main
        for layout in found:
            self._put(process, source, 0 if layout.interpreter == main else layout.interpreter, layout)
        if 0 not in source.layouts:  # only a sub-interpreter has OpenTelemetry
            self._put(process, source, 0, blank_layout(found[0], main))
        self._announce(process, source)
        self._known.add(process.incarnation)
        self._counters.set(SPAN_PROCESSES, len(self._known), SOURCE)

    def _put(self, process: Process, source: SpanSource, interpreter: int, layout: SpanLayout) -> None:
        self._session.set_spans(process.pid, interpreter, layout.to_record(wire().dtype("span_layout")))
        source.layouts[interpreter] = layout

    def _announce(self, process: Process, source: SpanSource) -> None:
        """Set the flag that has the kernel read spans, unless another program runs there by now.

        A child that was forked just before its parent was told of has neither the flag nor the layouts.
        """
        record = self._session.target(process.pid)
        flag = wire()["TARGET_SPANS"]
        if record is None or int(record["process"]) not in (process.incarnation, *process.aliases):
            self._session.drop_spans(process.pid)
        elif not record["flags"] & flag:
            for interpreter, layout in source.layouts.items():
                self._put(process, source, interpreter, layout)
            record["flags"] |= flag
            self._session.set_target(process.pid, record)

    def _say(self, line: str) -> None:
        if line not in self._said and len(self._said) < SAID_LIMIT:
            self._said.add(line)
            log.warning("%s (said once)", line)


def span_flag(process: Process) -> int:
    """The target's flag TARGET_SPANS when the kernel has been told how to read the process's spans."""
    source = process.kept(SpanSource)
    return wire()["TARGET_SPANS"] if source is not None and source.layouts else 0
