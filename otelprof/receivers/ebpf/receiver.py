"""The receiver's thread: reads the rings ten times a second and makes a batch of what has gathered each interval.

Order of a turn: births and deaths, new mappings, the records themselves, then stacks, which are decoded at once. Whatever a
target does, a turn goes on: what can't be read is marked in the stack and counted.
"""

from __future__ import annotations

import logging
import threading
import time

import numpy as np

from otelprof.batch import LAUNCHES, Batch, ProfileType, Table, empty
from otelprof.component import Build, Consumer, Host
from otelprof.counters import BPF_RUN_SECONDS, LOOP_LATE, SAMPLES_SEEN, Reading
from otelprof.ebpf.session import NativeScope, Session, SessionSettings
from otelprof.errors import OtelprofError, Unsupported
from otelprof.otlp import semconv
from otelprof.processes.table import Change
from otelprof.receivers.ebpf.calls import Calls
from otelprof.receivers.ebpf.config import Settings
from otelprof.receivers.ebpf.losses import Losses
from otelprof.receivers.ebpf.rows import Rows
from otelprof.receivers.ebpf.spans import SOURCE, Spans
from otelprof.receivers.ebpf.stacks import StackTable
from otelprof.receivers.ebpf.unwind import Unwinding
from otelprof.receivers.ebpf.watch import Watch
from otelprof.symbols.unwind_cache import UnwindCache

log = logging.getLogger(__name__)

TURN = 0.1  # seconds between two readings of the rings
SHORTEST_TURN = 0.005  # seconds between two readings at least
FIRST_REPORT = 1.0  # seconds from the first event to the first batch at the latest


class EbpfReceiver:
    """See the module's text."""

    def __init__(self, build: Build) -> None:
        self._id = build.id
        self._settings: Settings = build.settings
        self._consumer = build.consumer
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._work: Work | None = None

    def start(self, host: Host) -> None:
        """Load and attach; Unsupported where the kernel or the rights don't allow it."""
        if self._settings.loader == "bcc":
            raise Unsupported(bcc_refusal())
        if self._consumer is None:
            raise OtelprofError(f"{self._id}: nobody takes its batches: name an exporter in a pipeline")
        self._work = Work(self._settings, self._consumer, host, self._id)
        self._thread = threading.Thread(target=self._run, args=(host, self._work), name=self._id, daemon=True)
        self._thread.start()

    def shutdown(self, deadline: float) -> None:
        """Detach, and hand on what the rings still hold."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, host: Host, work: Work) -> None:
        try:
            work.begin()
            host.ready(self._id)
            while not self._stop.is_set() and not work.finished:
                work.turn()
                work.rest()
        except OtelprofError as error:
            host.fail(error)
        finally:
            work.end()
            host.finished(self._id)


class Work:
    """What the thread holds: the kernel session and all that turns its records into batches."""

    def __init__(self, settings: Settings, consumer: Consumer, host: Host, name: str) -> None:
        self._settings, self._consumer, self._counters, self._name = settings, consumer, host.counters, name
        native: NativeScope = "all" if settings.native_frames else "without_python"
        self._session = Session.open(SessionSettings(node=not settings.targets.pids, native=native))
        log.info("%s: %s", name, self._session.loader_line)
        self._watch = Watch(self._session, settings.targets, host.counters)
        self._stacks = StackTable(self._watch.decode, self._session.forget_chunks, self._watch.decode_native)
        kept = UnwindCache(host.state_dir / "unwind" if host.state_dir else None)
        self._unwinding = Unwinding(self._session, host.counters, kept)
        self._spans = self._new_spans()
        self._watch.use(self._stacks, self._spans.found if self._spans else None)
        self._rows = Rows(self._stacks, self._watch)
        self._calls = self._new_calls(host)
        self._losses = Losses(self._rows, host.counters)
        self._samples: list[Table] = []
        self._begun = time.monotonic_ns()
        self._due = 0.0
        self._next_turn = time.monotonic()
        self._statistics_on = False
        host.counters.observe(self._bpf_seconds)

    def _new_calls(self, host: Host) -> Calls | None:
        cuda = self._settings.cuda
        return Calls(self._session, self._rows, self._watch, host, cuda) if cuda.enabled else None

    def _new_spans(self) -> Spans | None:
        wanted = self._settings.trace_context
        others = [source for source in wanted if source != SOURCE]
        if others:
            level = logging.DEBUG if wanted == Settings().trace_context else logging.INFO
            log.log(level, "%s: trace_context: this version doesn't read %s yet", self._name, " and ".join(others))
        return Spans(self._session, self._counters) if SOURCE in wanted else None

    def begin(self) -> None:
        """Look at what runs now, then attach: nothing of a process that was alive at the start is missed."""
        self._session.watch_mappings()
        self._follow(self._watch.scan())
        if self._spans is not None:
            self._spans.look()
        if self._calls is not None:
            self._calls.keep(self._settings.cuda.libraries)
        self._session.attach_sampler(self._settings.sampling_frequency)
        self._begun = time.monotonic_ns()

    @property
    def finished(self) -> bool:
        """True when only some processes were wanted and all of them have ended."""
        return self._watch.finished

    def turn(self) -> None:
        """Read everything, once."""
        drained = self._session.drain()
        self._follow(self._watch.apply(drained.events))
        self._follow(self._watch.meet(drained.samples["origin"]))
        self._follow(self._watch.meet(drained.calls["origin"]))
        self._look_at_mappings()
        self._watch.retry()
        if self._spans is not None:
            self._spans.look()
            self._spans.count(drained)
        self._watch.capture(drained.codes)
        self._stacks.add(drained.chunks)
        self._unwinding.learn(drained.chunks, self._watch.alive(np.unique(drained.chunks["process"]).tolist()))
        self._unwinding.turn()
        if len(drained.samples):
            self._samples.append(drained.samples)
        if self._calls is not None:
            self._calls.take(drained)
        self._losses.take(drained.losses, drained.counts)
        self._report_if_due(bool(len(drained.samples) or len(drained.calls)))

    def _follow(self, changes: list[Change]) -> None:
        self._unwinding.follow(changes)
        if self._calls is not None:
            self._calls.follow(changes)

    def _look_at_mappings(self) -> None:
        for mapping in self._session.mappings():
            process = self._watch.mapped(mapping)
            if process is not None:
                self._unwinding.mapped(process, mapping)
            if self._calls is not None:
                self._calls.mapped(process, mapping)

    def rest(self) -> None:
        """Wait for the next turn: it comes early when the kernel tells of processes that may be gone a moment later."""
        pause = self._pause()
        if pause > SHORTEST_TURN:
            time.sleep(SHORTEST_TURN)
            self._session.wait(pause - SHORTEST_TURN)

    def _pause(self) -> float:
        """Seconds until the next turn; how late this one came is a gauge."""
        now = time.monotonic()
        late = max(0.0, now - self._next_turn - TURN)
        self._counters.set(LOOP_LATE, max(late, self._counters.get(LOOP_LATE) if late else 0.0))
        self._next_turn = max(now, self._next_turn + TURN)
        return max(0.0, self._next_turn - now)

    def end(self) -> None:
        """Detach, and report the rest."""
        try:
            self.turn()
            self._report(last=True)
        except OtelprofError as error:
            log.warning("%s: the last records are lost: %s", self._name, error)
        finally:
            if self._calls is not None:
                self._calls.close()
            self._unwinding.close()
            self._watch.close()
            self._session.close()

    def _report_if_due(self, something: bool) -> None:
        now = time.monotonic()
        interval = float(self._settings.report_interval)
        if not self._due and something:
            self._due = now + min(FIRST_REPORT, interval)
        elif self._due and now >= self._due:
            self._due = max(now, self._due + interval)
            self._report()

    def _report(self, last: bool = False) -> None:
        """Make one batch of what has gathered, and hand it on."""
        begun, self._begun = self._begun, time.monotonic_ns()
        records = np.concatenate(self._samples) if self._samples else None
        self._samples.clear()
        if records is not None:
            self._counters.add(SAMPLES_SEEN, len(records))
        tables = [] if records is None else [self._rows.samples(self._watch.identified(records), self._cpu)]
        tables.append(self._losses.rows(self._cpu, self._begun))
        interner = self._stacks.interner
        launches = self._calls.rows(interner, last) if self._calls is not None else empty(LAUNCHES)
        if self._calls is not None:
            tables.append(self._calls.replayed())
        samples = np.concatenate(tables)
        batch = Batch(interner, begun, self._begun, samples, launches)
        if not batch.is_empty:
            self._consumer.consume(batch)
        gone = self._watch.forget_ended(begun)
        if self._spans is not None:
            self._spans.leave(gone)
        if self._calls is not None:
            self._calls.leave(gone)
        self._stacks.new_generation_if_full()

    @property
    def _cpu(self) -> ProfileType:
        return semconv.cpu(self._settings.sampling_frequency)

    def _bpf_seconds(self) -> list[Reading]:
        found = self._session.statistics()
        return [(BPF_RUN_SECONDS, (name,), program.run_seconds) for name, program in found.items()]


def bcc_refusal() -> str:
    """Why the second loader can't be used, in one line."""
    try:
        import bcc  # noqa: F401, PLC0415
    except ImportError:
        return "loader bcc: its package isn't installed: apt-get install python3-bpfcc (PyPI's `bcc` is another project)"
    return "loader bcc is not in this version: use loader auto or libbpf (the package python3-bpfcc is installed)"
