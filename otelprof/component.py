"""The whole component contract: what receivers, processors, exporters and extensions are to the pipeline.

A component package (say otelprof/exporters/file/) has `config.py` (a frozen dataclass of settings with defaults), the
body, and `factory.py` with one `FACTORY`; pyproject.toml lists it under the entry point group `otelprof.components`.

Lifecycle, the same for all and checked for all by tests/contract:
1. `create` only stores its arguments: no I/O, no threads, no kernel.
2. `start(host)` gets it going and returns fast; what can't work raises an OtelprofError. Exporters start first.
3. Data flows: a receiver calls `consume` of the consumer that it was created with.
4. `shutdown(deadline)` stops background work and flushes before it returns, at the latest at `deadline`
   (CLOCK_MONOTONIC seconds). Receivers stop first. It is safe without `start` and safe twice.

One component id (`type/name`) is one instance, and a batch passes it once, however many pipelines name it: exporters are
told which signals their pipelines carry and take those tables. (In the Collector each pipeline has its own processors.)
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from otelprof.batch import Batch, Process
from otelprof.counters import Counters
from otelprof.errors import OtelprofError


class Kind(Enum):
    """The section of the configuration that a component stands in."""

    RECEIVER = "receivers"
    PROCESSOR = "processors"
    EXPORTER = "exporters"
    EXTENSION = "extensions"


class Stability(Enum):
    """How much a component may still change, in the Collector's words."""

    DEVELOPMENT = "development"
    ALPHA = "alpha"
    BETA = "beta"
    STABLE = "stable"


class Signal(Enum):
    """A kind of pipeline."""

    PROFILES = "profiles"
    TRACES = "traces"


class Consumer(Protocol):
    """Takes batches. The batch is immutable, so nobody has to copy it."""

    def consume(self, batch: Batch) -> None:
        """Take a batch; never block longer than 10 ms, never raise: what can't be kept is counted."""


class Host(Protocol):
    """What a running component may ask of the agent."""

    @property
    def counters(self) -> Counters:
        """The agent's own counters."""

    @property
    def state_dir(self) -> Path | None:
        """A folder that survives restarts, or None when there is none."""

    def extension(self, name: str) -> Component | None:
        """The running extension with this id, or None."""

    def ready(self, component: str) -> None:
        """The component with this id is usable now (receivers: attached, first scan done)."""

    def finished(self, component: str) -> None:
        """A receiver has no more data: when all have said so the agent flushes and ends."""

    def fail(self, error: OtelprofError) -> None:
        """Something broke for good: the agent flushes and ends with this error."""


class Component(Protocol):
    """Anything with a lifecycle; see the module's text."""

    def start(self, host: Host) -> None:
        """Get going; return fast."""

    def shutdown(self, deadline: float) -> None:
        """Stop and flush, at the latest at `deadline` (CLOCK_MONOTONIC seconds)."""


class Processor(Component, Consumer, Protocol):
    """Takes batches and hands changed ones to the next consumer."""


class Exporter(Component, Consumer, Protocol):
    """Takes batches out of the agent."""


@dataclass(frozen=True, slots=True)
class Build:
    """What a factory gets: the id in the configuration, the typed settings, whom to hand batches to (None: exporters)."""

    id: str
    settings: Any
    consumer: Consumer | None = None
    signals: frozenset[Signal] = frozenset({Signal.PROFILES})


@dataclass(frozen=True, slots=True)
class Factory:
    """One component type. `settings` is a frozen dataclass whose defaults are the documented ones.

    `create` may return a plain function from batch to batch for a processor without state; `signals` are those that an
    exporter can take.
    """

    type: str
    kind: Kind
    stability: Stability
    settings: builtins.type[Any]
    create: Callable[[Build], Component | Process]
    summary: str = ""
    signals: frozenset[Signal] = frozenset(Signal)
