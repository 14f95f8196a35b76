"""Builds the graph of a configuration and runs its lifecycle: exporters start first, receivers stop first.

One component id is one instance, and a batch passes it once (see otelprof/config/routes.py for the merging). Whatever a
component does wrong stays here: an error in `consume` loses that batch, is counted and is said once; a component that
doesn't return from `shutdown` in time is left behind. A consumer is never entered by two threads at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import cast

from otelprof.batch import Batch, Process
from otelprof.component import Build, Component, Consumer, Host, Kind
from otelprof.config import ComponentConfig, Configuration, Route
from otelprof.counters import COMPONENT_ERRORS, Counters
from otelprof.errors import OtelprofError

log = logging.getLogger(__name__)

_SHARES = {Kind.RECEIVER: 0.4, Kind.PROCESSOR: 0.3, Kind.EXPORTER: 0.9, Kind.EXTENSION: 1.0}
"""How much of the time that is left each stage of a shutdown may take; the rest is for the stages after it."""


class Contained:
    """The way into a consumer: one thread at a time, and no error comes out."""

    def __init__(self, component: str, consumer: Consumer, counters: Counters) -> None:
        self._component, self._consumer, self._counters = component, consumer, counters
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def consume(self, batch: Batch) -> None:
        """Hand `batch` on; an error loses it, is counted and is said at its first sight."""
        try:
            with self._lock:
                self._consumer.consume(batch)
        except Exception as error:
            self._counters.add(COMPONENT_ERRORS, 1, self._component)
            self._say(error)

    def _say(self, error: Exception) -> None:
        kind = type(error).__name__
        if kind not in self._said and len(self._said) < 20:
            self._said.add(kind)
            log.error("%s failed on a batch, which is lost: %s: %s (said once)", self._component, kind, error)
            log.debug("where %s failed", self._component, exc_info=error)


class Fanout:
    """Hands each batch to several consumers; they share it, since it is immutable."""

    def __init__(self, consumers: Iterable[Consumer]) -> None:
        self._consumers = tuple(consumers)

    def consume(self, batch: Batch) -> None:
        """Hand `batch` to all, in order."""
        for consumer in self._consumers:
            consumer.consume(batch)


class Stateless:
    """A processor made from a plain function."""

    def __init__(self, function: Process, consumer: Consumer) -> None:
        self._function, self._consumer = function, consumer

    def start(self, host: Host) -> None:
        """Nothing to get going."""

    def consume(self, batch: Batch) -> None:
        """Hand on what the function makes of `batch`."""
        self._consumer.consume(self._function(batch))

    def shutdown(self, deadline: float) -> None:
        """Nothing to stop."""


class Pipeline:
    """All components of a configuration, connected; nothing runs before `start`."""

    def __init__(self, configuration: Configuration, counters: Counters) -> None:
        self._configuration, self._counters = configuration, counters
        self._stages: dict[Kind, dict[str, Component]] = {kind: {} for kind in Kind}
        self._started: list[tuple[Kind, str]] = []
        self._entries: dict[str, list[Consumer]] = {}
        self._build()

    @property
    def receivers(self) -> tuple[str, ...]:
        """The ids of all receivers that run."""
        return tuple(self._stages[Kind.RECEIVER])

    def components(self, kind: Kind) -> dict[str, Component]:
        """The instances of a kind by id."""
        return dict(self._stages[kind])

    def _build(self) -> None:
        for name in self._configuration.extensions:
            self._make(Kind.EXTENSION, name, None)
        sinks: dict[str, Consumer] = {}
        for route in self._configuration.routes:
            self._build_route(route, sinks)
        for receiver, entries in self._entries.items():
            self._make(Kind.RECEIVER, receiver, entries[0] if len(entries) == 1 else Fanout(entries))

    def _build_route(self, route: Route, sinks: dict[str, Consumer]) -> None:
        for name in route.exporters:
            if name not in sinks:
                sinks[name] = self._contained(name, self._make(Kind.EXPORTER, name, None))
        ends = [sinks[name] for name in route.exporters]
        entry: Consumer = ends[0] if len(ends) == 1 else Fanout(ends)
        for name in reversed(route.processors):
            entry = self._contained(name, self._make(Kind.PROCESSOR, name, entry))
        for name in route.receivers:
            self._entries.setdefault(name, []).append(entry)

    def _contained(self, name: str, component: Component) -> Contained:
        if not hasattr(component, "consume"):
            raise OtelprofError(f"{name} can't take batches: this component is broken, remove it from the configuration")
        return Contained(name, cast(Consumer, component), self._counters)

    def _make(self, kind: Kind, name: str, consumer: Consumer | None) -> Component:
        config: ComponentConfig = self._configuration.components[kind, name]
        build = Build(name, config.settings, consumer)
        if kind is Kind.EXPORTER:
            build = Build(name, config.settings, None, self._configuration.signals(name))
        made = config.factory.create(build)
        if not hasattr(made, "shutdown") and consumer is not None:
            made = Stateless(made, consumer)
        component = self._stages[kind][name] = cast(Component, made)
        return component

    def start(self, host: Host) -> None:
        """Start extensions, exporters, processors (the last one first), receivers; the first error goes to the caller.

        After an error the caller still calls `shutdown`.
        """
        for kind in (Kind.EXTENSION, Kind.EXPORTER, Kind.PROCESSOR, Kind.RECEIVER):
            for name, component in self._stages[kind].items():
                log.debug("starting %s %s", kind.value[:-1], name)
                self._started.append((kind, name))
                component.start(host)

    def shutdown(self, deadline: float) -> None:
        """Stop receivers, processors in the order of the data, exporters, extensions; back at the latest at `deadline`."""
        self._stop(Kind.RECEIVER, [list(self._stages[Kind.RECEIVER])], deadline)
        self._stop(Kind.PROCESSOR, [[name] for name in reversed(self._stages[Kind.PROCESSOR])], deadline)
        self._stop(Kind.EXPORTER, [list(self._stages[Kind.EXPORTER])], deadline)
        self._stop(Kind.EXTENSION, [list(self._stages[Kind.EXTENSION])], deadline)

    def _stop(self, kind: Kind, groups: Sequence[list[str]], deadline: float) -> None:
        for group in groups:
            now = time.monotonic()
            until = now + max(0.0, deadline - now) * _SHARES[kind]
            threads = [self._stopping(kind, name, until) for name in group if (kind, name) in self._started]
            for name, thread in threads:
                thread.join(max(0.0, until - time.monotonic()) + 0.1)
                if thread.is_alive():
                    log.warning("%s didn't stop in time and is left behind", name)

    def _stopping(self, kind: Kind, name: str, until: float) -> tuple[str, threading.Thread]:
        component = self._stages[kind][name]

        def stop() -> None:
            begun = time.monotonic()
            try:
                component.shutdown(until)
                log.debug("%s stopped in %.3f s", name, time.monotonic() - begun)
            except Exception as error:
                log.error("%s failed while it stopped: %s: %s", name, type(error).__name__, error)  # noqa: TRY400
                log.debug("where %s failed", name, exc_info=error)

        thread = threading.Thread(target=stop, name=f"stop {name}", daemon=True)
        thread.start()
        return name, thread
