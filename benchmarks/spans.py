"""What reading the current OpenTelemetry span adds to a sample, in the kernel; what finding OpenTelemetry takes the agent.

One session and one busy process for each row; the reading is switched on and off in turn, so that load and drift cancel.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, paired
from otelprof.ebpf.layout import wire
from otelprof.ebpf.session import Session, SessionSettings
from otelprof.processes.memory import Memory
from otelprof.targets.opentelemetry import SpanFinder
from otelprof.targets.python import PythonTarget, Recogniser

ROUNDS, SECONDS, HERTZ = 12, 0.4, 3999
BUSY = """
import contextvars, sys
count = int(sys.argv[1])
kept = [contextvars.ContextVar(f"v{n}") for n in range(max(count - 1, 0))]
for one in kept: one.set(1)
def deep(n):
    if n: return deep(n - 1)
    print("ready", flush=True)
    while True: pass
if count:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())
    with trace.get_tracer("t").start_as_current_span("s"): deep(10)
else:
    deep(10)
"""
STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")


@contextmanager
def busy(variables: int) -> Iterator[int]:
    """The PID of a busy program in a span with so many context variables, one of them OpenTelemetry's; 0: without either."""
    child = subprocess.Popen([sys.executable, "-c", BUSY, str(variables)], stdout=subprocess.PIPE)
    try:
        assert child.stdout
        child.stdout.readline()
        yield child.pid
    finally:
        child.kill()
        child.communicate()


@contextmanager
def counted() -> Iterator[None]:
    """While the kernel counts the time in programs."""
    before = STATISTICS.read_text()
    STATISTICS.write_text("1")
    try:
        yield
    finally:
        STATISTICS.write_text(before)


class Sampled:
    """A session that samples one process, with and without its span."""

    def __init__(self, session: Session, pid: int) -> None:
        self._session, self._pid = session, pid
        found = Recogniser().recognise(pid).target
        assert found
        self._target = wire().record("target", {"process": 1, "flags": 0})
        self._target["python"] = found.layout.to_record(wire().dtype("python_layout"))
        for layout in finder(pid, found).look():
            session.set_spans(pid, 0, layout.to_record(wire().dtype("span_layout")))

    def cost(self, spans: bool) -> float:
        """Nanoseconds of the sampler's program for a sample of the process."""
        self._target["flags"] = wire()["TARGET_PYTHON"] | (wire()["TARGET_SPANS"] if spans else 0)
        self._session.set_target(self._pid, self._target)
        self._session.drain()
        seen, spent = self._now()
        time.sleep(SECONDS)
        more, longer = self._now()
        return (longer - spent) / max(more - seen, 1)

    def linked(self) -> float:
        """The share of the samples of one turn that have a span."""
        self.cost(True)
        origin = self._session.drain().samples["origin"]
        return float(np.mean(origin["span_id"] != 0))

    def _now(self) -> tuple[int, float]:
        spent = self._session.statistics()["sample_cpu"].run_seconds * 1e9
        return self._session.counts()["COUNT_SAMPLES_SEEN"], spent


def finder(pid: int, target: PythonTarget) -> SpanFinder:
    """What looks for OpenTelemetry in a process."""
    return SpanFinder(Memory(pid), target.cpython, target.runtime)


def added(variables: int) -> Figure:
    """What the span adds to a sample, with a number of context variables."""
    with busy(variables) as pid:
        session = Session.open(SessionSettings(node=False, samples=1 << 22))
        try:
            sampled = Sampled(session, pid)
            session.attach_sampler(HERTZ)
            share = sampled.linked()
            without, with_span, ratios = paired(lambda: sampled.cost(False), lambda: sampled.cost(True), ROUNDS)
        finally:
            session.close()
    what = f"current span, {variables} context variables" if variables else "the same switch, a process without OpenTelemetry"
    beside = f"{without / 1000:.2f} µs a sample without, {with_span / 1000:.2f} µs with; {100 * share:.0f} % have a span"
    return Figure(what, f"{(with_span - without) / 1000:+.2f} µs", beside, f"{statistics.median(ratios):.2f}")


def discovery() -> list[Figure]:
    """CPU time of the first look, and of one more when nothing was imported."""
    with busy(1) as pid:
        target = Recogniser().recognise(pid).target
        assert target
        first, again = [], []
        for _ in range(ROUNDS):
            one = finder(pid, target)
            begun = time.process_time_ns()
            assert one.look()
            first.append(time.process_time_ns() - begun)
            begun = time.process_time_ns()
            for _ in range(100):
                one.look()
            again.append((time.process_time_ns() - begun) / 100)
    return [
        Figure("finding OpenTelemetry in a process, once", f"{statistics.median(first) / 1e6:.1f} ms of the agent's CPU"),
        Figure("looking once more, nothing imported", f"{statistics.median(again) / 1e3:.1f} µs of the agent's CPU"),
    ]


def measure() -> list[Figure]:
    """All rows."""
    if os.geteuid():
        raise SystemExit("benchmark spans: run as root")
    with counted():
        rows = [added(variables) for variables in (0, 1, 4, 8, 60)]
    return [*rows, *discovery()]
