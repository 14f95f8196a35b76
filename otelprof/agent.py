"""The agent: runs one pipeline until a signal, the end of all receivers, a duration or a failure, then flushes and ends.

It is the Host of its components. Signals: the first SIGTERM or SIGINT ends it cleanly within five seconds, the second at
once; SIGHUP ends it for another configuration where its caller has one. Nothing here exits the process but the guard that
holds those promises when a component doesn't.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from otelprof.component import Component, Kind
from otelprof.config import Configuration
from otelprof.counters import OWN_CPU, OWN_MEMORY, Counters, Reading, summary
from otelprof.errors import OtelprofError
from otelprof.pipeline import Pipeline
from otelprof.telemetry import Page
from otelprof.telemetry_push import Pushes

log = logging.getLogger(__name__)

Call = Callable[[], None]

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CLEAN_END = 4.0  # seconds for components after a signal
_PUSH_END = 0.5  # seconds for the last metrics by OTLP, after that
_LATEST_END = 4.7  # seconds after a signal when the process ends in any case
_NATURAL_END = 25.0  # seconds for flushing when the receivers have no more data


def find_state_dir() -> Path | None:
    """A folder that survives restarts, made if missing: systemd's, root's or the user's; None when none can be written."""
    places = [os.environ.get("STATE_DIRECTORY", "").partition(":")[0]]
    if os.geteuid() == 0:
        places.append("/var/lib/otelprof")
    else:
        home = os.environ.get("HOME", "")
        places.append(f"{os.environ.get('XDG_STATE_HOME') or f'{home}/.local/state'}/otelprof" if home else "")
    for place in filter(None, places):
        with contextlib.suppress(OSError):
            path = Path(place)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.access(path, os.W_OK):
                return path
    return None


def _raise_descriptors() -> None:
    """Take all descriptors that the system allows us: each Python process that is watched takes one, each probe too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def own_cost() -> list[Reading]:
    """CPU time and memory of this process, for its counters."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return [(OWN_CPU, (), time.process_time()), (OWN_MEMORY, (), float(pages * resource.getpagesize()))]


class _Wake:
    """Wakes the main thread, from any thread and from signal handlers (where locks could deadlock: a pipe can't)."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"!")

    def wait(self, seconds: float) -> None:
        if select.select([self._read], [], [], max(0.0, seconds))[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 4096)


class Agent:
    """One run of a configuration; the Host of its components."""

    def __init__(self, configuration: Configuration, state_dir: Path | None = None, counters: Counters | None = None) -> None:
        if counters is None:
            counters = Counters()
            counters.observe(own_cost)
        self.counters = counters
        self.state_dir = state_dir
        self._configuration = configuration
        self._on_hangup: Callable[[], bool] | None = None
        self._wake = _Wake()
        self._signals = self._hangups = 0
        self._replaced = False
        self.is_started = False
        """True when all components had started: what fails then isn't the configuration."""
        self._error: OtelprofError | None = None
        self._finished: set[str] = set()
        self._ready: set[str] = set()
        self._ready_at = 0.0
        self.pipeline = Pipeline(configuration, self.counters)

    # --- what components ask for (component.Host)

    def extension(self, name: str) -> Component | None:
        """See Host."""
        return self.pipeline.components(Kind.EXTENSION).get(name)

    def ready(self, component: str) -> None:
        """See Host."""
        self._ready.add(component)
        if self.is_ready and not self._ready_at:
            self._ready_at = time.monotonic()
            self._wake.set()

    def finished(self, component: str) -> None:
        """See Host."""
        self._finished.add(component)
        self._wake.set()

    def fail(self, error: OtelprofError) -> None:
        """See Host."""
        self._error = self._error or error
        self._wake.set()

    # --- the run

    @property
    def is_ready(self) -> bool:
        """True when every receiver is usable."""
        return self._ready.issuperset(self.pipeline.receivers)

    def run(
        self,
        duration: float | None = None,
        on_ready: Call | None = None,
        on_second: Call | None = None,
        on_hangup: Callable[[], bool] | None = None,
    ) -> None:
        """Run to the end, which `duration` seconds after all receivers were ready is one; raises what made it fail.

        `on_ready` is called once and `on_second` about once a second from then on, `on_hangup` at SIGHUP (true ends the run),
        all on this thread.
        """
        _raise_descriptors()
        page = self._page()
        pushes = Pushes(self._configuration.telemetry.metrics.pushes, self.counters)
        self._on_hangup = on_hangup
        with self._handled_signals(), self._handled_deaths():
            try:
                if page is not None:
                    log.info("listening on %s", page.start())
                pushes.start()
                self.pipeline.start(self)
                self.is_started = True
                self._wait(duration, on_ready, on_second)
            except OtelprofError as error:
                self.fail(error)
            finally:
                self._end(page, pushes)
        if self._error is not None:
            raise self._error

    def _page(self) -> Page | None:
        listen = self._configuration.telemetry.metrics.listen
        return None if listen is None else Page(listen, self.counters, lambda: self.is_ready)

    @property
    def _over(self) -> bool:
        done = self._finished.issuperset(self.pipeline.receivers)
        return bool(self._signals) or self._error is not None or self._replaced or done

    def _wait(self, duration: float | None, on_ready: Call | None, on_second: Call | None) -> None:
        while not self._over:
            if self._ready_at and on_ready is not None:
                on_ready()
                on_ready = None
            left = 3600.0 if on_second is None else 1.0
            if duration is not None and self._ready_at:
                left = min(left, self._ready_at + duration - time.monotonic())
                if left <= 0:
                    return
            self._wake.wait(left)
            self._heed_hangup()
            if self._ready_at and on_second is not None:
                on_second()

    def _heed_hangup(self) -> None:
        if self._hangups and self._on_hangup is not None:
            self._hangups = 0
            self._replaced = self._on_hangup()

    def _end(self, page: Page | None, pushes: Pushes) -> None:
        forced = bool(self._signals) or self._error is not None or self._replaced
        self.pipeline.shutdown(time.monotonic() + (_CLEAN_END if forced else _NATURAL_END))
        pushes.stop(time.monotonic() + _PUSH_END)
        if page is not None:
            page.stop()

    @contextlib.contextmanager
    def _handled_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        if self._on_hangup is not None and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which nohup asks for
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_hangup_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def _handled_deaths(self) -> Iterator[None]:
        before, threading.excepthook = threading.excepthook, self._on_death
        try:
            yield
        finally:
            threading.excepthook = before

    def _on_death(self, what: threading.ExceptHookArgs) -> None:
        """A thread of a component died of a bug: what it did is no longer done, so the agent ends."""
        name = what.thread.name if what.thread else "a thread"
        log.debug("where %s died", name, exc_info=what.exc_value)
        self.fail(
            OtelprofError(
                f"internal error in {name}: {what.exc_type.__name__}: {what.exc_value}; run again with OTELPROF_DEBUG=1 and "
                "report what it shows"
            )
        )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        threading.Thread(target=self._guard, name="guard", daemon=True).start()
        self._wake.set()

    def _on_hangup_signal(self, number: int, frame: FrameType | None) -> None:
        self._hangups += 1
        self._wake.set()

    def _guard(self) -> None:
        """Ends the process when it is still there long after the first signal."""
        time.sleep(_LATEST_END)
        os.write(2, f"otelprof: a component didn't stop in time\n{summary(self.counters)}\n".encode())
        os._exit(1)
