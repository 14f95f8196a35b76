"""Says in the log what a batch holds."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np

from otelprof.batch import Batch
from otelprof.component import Build, Host, Signal
from otelprof.counters import EXPORT_SENT, EXPORT_SENT_SPANS, Counters
from otelprof.otlp import semconv

log = logging.getLogger(__name__)

MAX_LINES = 10
"""Stacks and spans of a batch that `detailed` shows."""


class Debug:
    """The exporter."""

    def __init__(self, build: Build) -> None:
        self._id, self._signals = build.id, build.signals
        self._detailed = build.settings.verbosity == "detailed"
        self._counters = Counters()

    def start(self, host: Host) -> None:
        """Count where the agent counts."""
        self._counters = host.counters

    def shutdown(self, deadline: float) -> None:
        """Nothing waits here."""

    def consume(self, batch: Batch) -> None:
        """Log the batch."""
        profiles = len(np.unique(batch.samples[["resource", "type"]])) if Signal.PROFILES in self._signals else 0
        spans = len(batch.spans) if Signal.TRACES in self._signals else 0
        log.info("%s: profiles %d, samples %d, spans %d", self._id, profiles, len(batch.samples), spans)
        self._counters.add(EXPORT_SENT, profiles, self._id)
        self._counters.add(EXPORT_SENT_SPANS, spans, self._id)
        for line in self._details(batch) if self._detailed else ():
            log.info("%s:   %s", self._id, line)

    def _details(self, batch: Batch) -> Iterator[str]:
        if Signal.PROFILES in self._signals:
            rows = batch.samples[np.argsort(-batch.samples["value"], kind="stable")[:MAX_LINES]]
            yield from (_sample(batch, row) for row in rows)
        if Signal.TRACES in self._signals:
            yield from (_span(batch, row) for row in batch.spans[:MAX_LINES])


def _sample(batch: Batch, row: np.void) -> str:
    interner = batch.interner
    kind, resource = interner.types[row["type"]], interner.resources[row["resource"]]
    frames = ";".join(semconv.LABELS.get(frame.kind, "") + frame.name for frame in interner.frames_of(row["stack"]))
    name = f"{kind.type}/{kind.unit}" if kind else "no type"
    service = resource.get(semconv.SERVICE_NAME) or f"process {resource.get(semconv.PROCESS_PID)}"
    return f"{name} {service} {interner.threads[row['thread']].name}: {frames} {row['value']}"


def _span(batch: Batch, row: np.void) -> str:
    name, span, trace = batch.interner.strings[row["name"]], row["span_id"].tobytes().hex(), row["trace_id"].tobytes().hex()
    return f"span {name} {span} of trace {trace}: {row['end'] - row['start']} ns"
