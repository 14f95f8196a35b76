"""What the backend asks of a store. Two keep to it: memory.py, and clickhouse.py in ClickHouse's dialect (through chdb).

All calls block and may come from any thread; `insert` comes from one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from otelprof.errors import OtelprofError
from otelprof.otlp import semconv
from otelprof.otlp.content import Keys
from otelprof.otlp.decoded import Frames, Profiles, Series, Spans, Stacks, Table

POINTS = np.dtype([("series", "u8"), ("time", "i8"), ("value", "i8")])  # time: Unix milliseconds, start of the step

WEIGHTS = {
    "cpu": semconv.pyroscope_id(semconv.CPU),
    "launches": semconv.pyroscope_id(semconv.GPU_KERNEL_LAUNCHES),
    "gpu_time": semconv.pyroscope_id(semconv.GPU_KERNEL_TIME),
    "waiting": semconv.pyroscope_id(semconv.OFF_CPU),
}
"""What a trace and a span are weighed by, and the profile type of each."""

LINKED = np.dtype([("trace_hi", "u8"), ("trace_lo", "u8"), ("span", "u8"), *((name, "i8") for name in WEIGHTS)])


class StoreFailed(OtelprofError):
    """The store refused something; nothing of the block may be counted as stored."""


class StoreFull(StoreFailed):
    """The disk is full."""


@dataclass(frozen=True, slots=True)
class Block:
    """What is stored in one go."""

    profiles: Sequence[Profiles] = ()
    spans: Sequence[Spans] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """Samples of one type ("": of all in WEIGHTS) in [start, end] (Unix milliseconds); `series` (keys) None: of all series.

    With `traces` ((hi, lo) pairs) or `spans`, only samples whose link is one of them; with `profiles` ((hi, lo) pairs of
    profile ids) or `stacks` only those of these.
    """

    type: str
    start: int
    end: int
    series: Keys | None = None
    traces: tuple[tuple[int, int], ...] = ()
    spans: tuple[int, ...] = ()
    profiles: tuple[tuple[int, int], ...] = ()
    stacks: Keys | None = None

    @property
    def last_value(self) -> bool:
        """True when the type holds a state, so that the last value counts and not the sum over time."""
        parts = self.type.split(":")
        return len(parts) > 1 and parts[1] in semconv.LAST_VALUE


@dataclass(frozen=True, slots=True)
class SpanSearch:
    """Spans that began in [start, end] (Unix milliseconds) and are in one of `traces` and `services`, where given.

    `kind`: "" for all, "root" for those without a parent, the longest first, "gpu" for what ran on a GPU's stream.
    """

    start: int
    end: int
    limit: int
    traces: tuple[tuple[int, int], ...] = ()
    services: tuple[str, ...] | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Sums:
    """The value of each stack: `stacks` u8[n] distinct keys, `values` i8[n], kept within int64."""

    stacks: Keys
    values: npt.NDArray[np.int64]


@dataclass(slots=True)
class Seen:
    """A series with the times (Unix milliseconds) of its first and last sample."""

    series: Series
    first: int
    last: int


class Store(Protocol):
    """A place for samples, stacks, frames, series and spans."""

    @property
    def title(self) -> str:
        """What it is and where, for people."""

    def insert(self, block: Block) -> None:
        """Store all of it, safe from a crash when this returns. StoreFailed: none of its samples is stored."""

    def sums(self, selection: Selection) -> Sums:
        """The value of each stack of a selection."""

    def stacks(self, keys: Keys) -> Stacks:
        """The stacks with these keys, as far as they are known, in any order."""

    def frames(self, keys: Keys) -> Frames:
        """The frames with these keys, as far as they are known, in any order."""

    def points(self, selection: Selection, step: int) -> Table:
        """POINTS: the value of each series per step of `step` milliseconds; steps start at multiples of it."""

    def linked(self, selection: Selection, by_span: bool, order: str, limit: int) -> Table:
        """LINKED: what traces (`by_span`: their spans) weigh; the `limit` largest by the weight `order`."""

    def roots(self, traces: Sequence[tuple[int, int]]) -> tuple[Spans, list[int]]:
        """The root span of each trace that has spans (else its earliest), and how many spans each of these traces has."""

    def spans(self, search: SpanSearch) -> Spans:
        """Spans, each once, ordered by their start (`root`: by their duration, the longest first)."""

    def seen_series(self) -> Iterable[Seen]:
        """All series; asked once, at the start."""

    def recent_profiles(self, since: int) -> Iterable[tuple[int, int, int]]:
        """(profile_hi, profile_lo, content) of profiles with an id stored since `since` (Unix milliseconds)."""

    def make_room(self) -> str:
        """Drop the oldest day when the disk is nearly full; the day, "" when nothing was dropped."""

    def close(self) -> None:
        """Let go of the store."""
