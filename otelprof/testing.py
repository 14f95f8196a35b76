"""Fakes for tests of components; users may write theirs with them too.

RecordingConsumer stands behind a receiver or processor, RecordingHost stands for the agent, FakeClock for time, and
`sample_batch` makes a small Batch from folded text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from otelprof.batch import SAMPLES, AttributeValue, Batch, Frame, FrameKind, Interner, ProfileType, Resource, Thread, rows
from otelprof.component import Component
from otelprof.counters import Counters
from otelprof.errors import OtelprofError

CPU = ProfileType("samples", "count", "cpu", "nanoseconds", 10_101_010)


class RecordingConsumer:
    """Keeps every batch; `error`, when set, is raised by `consume` instead."""

    def __init__(self, error: Exception | None = None) -> None:
        self.batches: list[Batch] = []
        self.error = error
        self._changed = threading.Condition()

    def consume(self, batch: Batch) -> None:
        """Keep `batch`, or raise `error`."""
        if self.error is not None:
            raise self.error
        with self._changed:
            self.batches.append(batch)
            self._changed.notify_all()

    def wait(self, count: int = 1, seconds: float = 10.0) -> bool:
        """Wait until `count` batches came; false when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.batches) >= count, seconds)


@dataclass
class RecordingHost:
    """A component.Host that keeps what it was told."""

    counters: Counters = field(default_factory=Counters)
    state_dir: Path | None = None
    ready_ids: list[str] = field(default_factory=list)
    finished_ids: list[str] = field(default_factory=list)
    errors: list[OtelprofError] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    extensions: dict[str, Component] = field(default_factory=dict)

    def extension(self, name: str) -> Component | None:
        """One of `extensions`."""
        return self.extensions.get(name)

    def ready(self, component: str) -> None:
        """Keep the id."""
        self._keep(self.ready_ids, component)

    def finished(self, component: str) -> None:
        """Keep the id."""
        self._keep(self.finished_ids, component)

    def fail(self, error: OtelprofError) -> None:
        """Keep the error."""
        self._keep(self.errors, error)

    def wait_finished(self, seconds: float = 10.0) -> bool:
        """Wait until some component has finished or failed."""
        with self.changed:
            return self.changed.wait_for(lambda: bool(self.finished_ids or self.errors), seconds)

    def _keep(self, kept: list[str] | list[OtelprofError], what: object) -> None:
        with self.changed:
            kept.append(what)  # type: ignore[arg-type]  # each caller brings the list's own type
            self.changed.notify_all()


class FakeClock:
    """CLOCK_MONOTONIC nanoseconds that go on only when told to."""

    def __init__(self, start: int = 1_000_000_000) -> None:
        self.now = start

    def __call__(self) -> int:
        """The time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now += round(seconds * 1e9)


def sample_batch(
    stacks: Mapping[str, int], pid: int = 1, interner: Interner | None = None, attributes: Mapping[str, str] | None = None
) -> Batch:
    """CPU samples of one process: `root;leaf` names to counts, as Python frames, one row a stack."""
    interner = interner or Interner()
    now = time.monotonic_ns()
    facts: dict[str, AttributeValue] = {"process.pid": pid, **(attributes or {})}
    resource = Resource(tuple(sorted(facts.items())))
    values = [
        (
            now,
            count,
            interner.types.id(CPU),
            interner.resources.id(resource),
            interner.stack(Frame(name, FrameKind.CPYTHON) for name in text.split(";")),
            interner.threads.id(Thread(pid, "main")),
            0,
            0,
        )
        for text, count in stacks.items()
    ]
    return Batch(interner, now, now + 1, samples=rows(SAMPLES, values))
