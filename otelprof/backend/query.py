"""The backend's answers, whatever the transport: flame graphs, time lines, and what types and labels there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from otelprof.backend import functions
from otelprof.backend.flame import DEFAULT_NODES, FlameGraph, merge
from otelprof.backend.functions import Sandwich, Top
from otelprof.backend.selector import label_name
from otelprof.backend.series import Range, SeriesIndex
from otelprof.backend.store import Selection, Store, Sums
from otelprof.errors import MalformedInput
from otelprof.otlp.content import Keys
from otelprof.otlp.decoded import Frames, Stacks
from otelprof.otlp.wire import Ragged

MAX_IDS = 1000  # trace and span ids of one query
MAX_POINTS = 11_000  # per series, as in Prometheus
MAX_SERIES = 10_000
MAX_TIME = 9_000_000_000_000  # Unix milliseconds, in the year 2255

Pairs = tuple[tuple[str, str], ...]
Values = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Question:
    """Which samples: a profile type id, a selector, Unix milliseconds [start, end], and links as hex where given."""

    type: str
    selector: str = ""
    start: int = 0
    end: int = 0
    traces: Sequence[str] = ()
    spans: Sequence[str] = ()
    profiles: Sequence[str] = ()  # ids, as UUIDs

    @property
    def range(self) -> Range:
        """Its time."""
        return Range(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Side:
    """A question, only for stacks that begin at the root with the names of `path`."""

    question: Question
    path: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """A time line: sorted labels that it is grouped by, and (Unix milliseconds, value) in order."""

    labels: Pairs
    points: list[tuple[int, int]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """All its values together."""
        return sum(value for _, value in self.points)


class Querier:
    """Answers questions from a store and the index of its series. Its methods block and may run in any thread."""

    def __init__(self, store: Store, index: SeriesIndex) -> None:
        self.store, self.index = store, index

    def flame(self, question: Question, max_nodes: int = DEFAULT_NODES, path: Sequence[str] = ()) -> FlameGraph:
        """The merged flame graph; with `path` only of stacks that begin with these names."""
        return merge(*self.stacks(question, path), self.store.frames, max_nodes)

    def diff(self, left: Side, right: Side, max_nodes: int = DEFAULT_NODES) -> FlameGraph:
        """The merged flame graph of two sides."""
        return merge(*self._both(left, right), self.store.frames, max_nodes)

    def top(self, question: Question, limit: int, by_total: bool = False) -> Top:
        """The functions with the largest own (or total) values."""
        stacks, values = self.stacks(question)
        return functions.top(stacks, values, self.store.frames, limit, by_total)

    def changed(self, left: Side, right: Side, limit: int) -> Top:
        """The functions whose own share changed most between two sides."""
        return functions.top(*self._both(left, right), self.store.frames, limit)

    def sandwich(self, question: Question, name: str, max_nodes: int = DEFAULT_NODES) -> Sandwich:
        """What calls a function and what it calls."""
        stacks, values = self.stacks(question)
        return functions.sandwich(stacks, values, self.store.frames, name, max_nodes)

    def _both(self, left: Side, right: Side) -> tuple[Stacks, Values]:
        """The stacks of two sides, and i8[2, n] of their values."""
        parts = [self.stacks(side.question, side.path) for side in (left, right)]
        keys, first = np.unique(np.concatenate([stacks.keys for stacks, _ in parts]), return_index=True)
        frames = np.concatenate([stacks.frames for stacks, _ in parts])
        kept = Ragged(frames, np.concatenate([stacks.lengths for stacks, _ in parts])).take(first)
        values = np.zeros((2, len(keys)), np.int64)
        for side, (stacks, own) in zip(values, parts, strict=True):
            side[np.searchsorted(keys, stacks.keys)] = own
        return Stacks(keys, kept.lengths, kept.data), values

    def stacks(self, question: Question, path: Sequence[str] = ()) -> tuple[Stacks, Values]:
        """The selected stacks and the value of each; values of stacks that aren't known go to one of one unknown frame."""
        selection = self._selection(question)
        if selection is None:
            return Stacks(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.uint64)), np.zeros(0, np.int64)
        sums = self.store.sums(selection)
        stacks, values = _known(self.store.stacks(sums.stacks), sums)
        if path:
            values = np.where(_begin_with(stacks, self.store.frames(np.unique(stacks.frames)), path), values, 0)
        return stacks, values

    def lines(self, side: Side, step: float, group_by: Sequence[str] = (), limit: int = 0) -> list[Lines]:
        """Sums per step of `step` seconds, one line for each set of values of `group_by`; the `limit` largest."""
        milliseconds = self._step(side.question, step)
        selection = self._selection(side.question)
        if selection is not None and side.path:
            stacks, values = self.stacks(side.question, side.path)
            selection = replace(selection, stacks=stacks.keys[values != 0]) if values.any() else None
        if selection is None:
            return []
        groups: dict[Pairs, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for key, at, value in self.store.points(selection, milliseconds).tolist():
            groups[self._group(key, group_by)][at] += value
        found = [Lines(labels, sorted(points.items())) for labels, points in groups.items()]
        if limit > 0:
            found = sorted(found, key=lambda line: -line.total)[:limit]
        return sorted(found, key=lambda line: line.labels)

    def _step(self, question: Question, seconds: float) -> int:
        """The step in milliseconds; MalformedInput when it is no step or makes too many points."""
        if not 0 < seconds < MAX_TIME:
            raise MalformedInput(f"a step is a number of seconds above 0, not {seconds}")
        step = max(round(seconds * 1000), 1000)
        first, last = self.index.times()
        end = min(question.end, MAX_TIME) if question.end > 0 else last
        if end - max(question.start, first if question.end <= 0 else 0) > MAX_POINTS * step:
            raise MalformedInput(f"more than {MAX_POINTS} points: take a longer step or a shorter time")
        return step

    def series(self, selectors: Sequence[str], names: Sequence[str], within: Range) -> list[Pairs]:
        """Distinct label sets, cut to `names` when given; then only those that have one of them."""
        wanted = {label_name(name) for name in names}
        found = set()
        for _, labels in self.index.any_of(selectors, within):
            kept = tuple(sorted((k, v) for k, v in labels.items() if not wanted or k in wanted))
            if kept:
                found.add(kept)
        return sorted(found)[:MAX_SERIES]

    def _group(self, key: int, group_by: Sequence[str]) -> Pairs:
        labels = self.index.labels_of(key)
        return tuple(sorted((name, labels[label_name(name)]) for name in group_by if labels.get(label_name(name))))

    def _selection(self, question: Question) -> Selection | None:
        """The question for the store; None when it can't have an answer."""
        keys = self.index.keys(question.type, question.selector, question.range)
        start, end = max(question.start, 0), min(question.end, MAX_TIME) if question.end > 0 else MAX_TIME
        if not question.type or start > end or (keys is not None and not len(keys)):
            return None
        traces = tuple(trace_numbers(text) for text in question.traces[:MAX_IDS])
        spans = tuple(_number(text, 16, "span") for text in question.spans[:MAX_IDS])
        profiles = tuple(_profile(text) for text in question.profiles[:MAX_IDS])
        return Selection(question.type, start, end, keys, traces, spans, profiles)


def _number(text: str, digits: int, what: str) -> int:
    try:
        if len(text) == digits:
            return int(text, 16)
    except ValueError:
        pass
    raise MalformedInput(f"a {what} id has {digits} hex digits, not {text[:40]!r}")


def trace_numbers(text: str) -> tuple[int, int]:
    """A trace id of 32 hex digits as two numbers."""
    number = _number(text, 32, "trace")
    return number >> 64, number & (2**64 - 1)


def _profile(text: str) -> tuple[int, int]:
    number = _number(text.replace("-", ""), 32, "profile")
    return number >> 64, number & (2**64 - 1)


def _known(stacks: Stacks, sums: Sums) -> tuple[Stacks, Values]:
    order = np.argsort(sums.stacks)
    at = order[np.searchsorted(sums.stacks[order], stacks.keys)] if len(stacks) else np.zeros(0, np.int64)
    values = sums.values[at]
    missing = np.delete(sums.values, at)
    if not len(missing):
        return stacks, values
    lone: Keys = np.zeros(1, np.uint64)
    filled = Stacks(np.append(stacks.keys, lone), np.append(stacks.lengths, 1).astype(np.int64), np.append(stacks.frames, lone))
    return filled, np.append(values, missing.sum())


def _begin_with(stacks: Stacks, frames: Frames, path: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which stacks begin (at the root) with frames of these names."""
    starts = np.cumsum(stacks.lengths) - stacks.lengths
    fits = stacks.lengths >= len(path)
    for depth, name in enumerate(path):
        named = frames.keys[np.array([own == name for own in frames.names], bool)]
        rows = np.flatnonzero(fits)
        fits[rows] = np.isin(stacks.frames[starts[rows] + depth], named)
    return fits
