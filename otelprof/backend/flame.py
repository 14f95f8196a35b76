"""Stacks with values to a flame graph, level by level with numpy: no recursion, no Python per bar.

The result has Pyroscope's form: `names`, and per level a flat list of four numbers per bar: the gap to the end of the bar
before it, its total, its own value, the index of its name. Bars lie inside their parents, siblings stand in the order of
their names (so that a live graph keeps its order), what was folded stands last as `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from otelprof.otlp import semconv
from otelprof.otlp.content import Keys
from otelprof.otlp.decode import INT64_MAX
from otelprof.otlp.decoded import Frames, Stacks
from otelprof.otlp.tables import UNKNOWN
from otelprof.otlp.wire import Ragged

MAX_NODES = 1_048_576
DEFAULT_NODES = 8192
OTHER, TOTAL = "other", "total"

Ints = npt.NDArray[np.int64]


class Name(NamedTuple):
    """What a bar is called: bars of one parent with the same name, kind and file are one bar."""

    text: str
    kind: str = ""  # python, native, kernel, cuda, mark
    file: str = ""


@dataclass(frozen=True, slots=True)
class FlameGraph:
    """`names` by index (0 is the total), `levels` i8[4 × bars] each, from the total bar down; no levels when empty."""

    names: list[Name] = field(default_factory=lambda: [Name(TOTAL)])
    levels: list[Ints] = field(default_factory=list)
    total: int = 0
    max_self: int = 0
    other: int = 0  # the value of all that was folded
    places: list[str] = field(default_factory=lambda: [""])  # `file:line` for each name


@dataclass(slots=True)
class _Level:
    """The bars of one depth, ordered by parent and name: number of the parent in the level above, name, values."""

    parent: Ints
    name: Ints
    total: Ints
    own: Ints


_KINDS = {"cpython": "python", "native": "native", "kernel": "kernel", "cuda": "cuda"}
_PREFIX = {semconv.FRAME_TYPES[kind]: text for kind, text in semconv.LABELS.items()}


def shown_name(kind: str, name: str, file: str) -> Name:
    """The name that people see of a frame in OTLP's form."""
    if not kind and name.startswith("["):
        return Name(name, "mark")
    return Name(_PREFIX.get(kind, "") + (name or UNKNOWN), _KINDS.get(kind, ""), file)


def merge(stacks: Stacks, values: Ints, load: Callable[[Keys], Frames], max_nodes: int = DEFAULT_NODES) -> FlameGraph:
    """The flame graph of stacks (root first) with their values, parallel to them.

    `load` gives the frames with certain keys; one that it doesn't know is `[unknown]`. Stacks without a positive value
    aren't drawn.
    """
    drawn = np.flatnonzero((values > 0) & (stacks.lengths > 0))
    rows = Ragged(stacks.frames, stacks.lengths).take(drawn)
    frames = load(np.sort(np.unique(rows.data)))
    names, number_of, places = _names(frames)
    limit = min(max(max_nodes, 1), MAX_NODES)
    levels = _levels(rows, _within_int64(values[drawn]), _Numbers(frames.keys, number_of, len(names)), limit)
    return _emitted(_folded(levels, limit), names, places)


def _names(frames: Frames) -> tuple[list[Name], Ints, list[str]]:
    """Distinct names in order with `[unknown]` last, the number of each frame's, and a place (`file:line`) for each."""
    shown = [shown_name(*row) for row in zip(frames.kinds, frames.names, frames.files, strict=True)]
    names = sorted(set(shown))
    number = {name: i for i, name in enumerate(names)}
    lines = np.where(frames.starts > 0, frames.starts, frames.lines).tolist()
    places = {name: f"{name.file}:{line}" if line > 0 else name.file for name, line in zip(shown, lines, strict=True)}
    unknown = Name(UNKNOWN, "mark")
    return [*names, unknown], np.array([number[name] for name in shown], np.int64), [*(places[n] for n in names), ""]


class _Numbers:
    """The numbers of names by the keys of their frames; what isn't known has the last of `count`."""

    def __init__(self, known: Keys, number_of: Ints, count: int) -> None:
        order = np.argsort(known)
        self._known, self._number_of, self.count = known[order], number_of[order], count

    def of(self, keys: Keys) -> Ints:
        """The number for each key."""
        if not len(self._known):
            return np.full(len(keys), self.count - 1, np.int64)
        at = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        return np.where(self._known[at] == keys, self._number_of[at], self.count - 1)


def _within_int64(values: Ints) -> Ints:
    """The values, lowered from where their sum passes int64."""
    if values.astype(np.float64).sum() < 2**62:
        return values
    left, kept = INT64_MAX, []
    for value in values.tolist():
        kept.append(min(value, left))
        left -= kept[-1]
    return np.array(kept, np.int64)


def _levels(stacks: Ragged, values: Ints, names: _Numbers, limit: int) -> list[_Level]:
    """The bars from the roots down; none below a bar that can't be among the `limit` largest, nor can they be then."""
    active = np.flatnonzero(stacks.lengths > 0)
    parent = np.zeros(len(stacks), np.int64)
    found: list[_Level] = []
    largest, least = np.zeros(0, np.int64), 0  # of the levels so far; in a later level only a larger bar will stay
    while len(active):
        depth = len(found)
        key = parent[active] * names.count + names.of(stacks.data[stacks.starts[active] + depth])
        bars, inverse = np.unique(key, return_inverse=True)
        total, own = np.zeros(len(bars), np.int64), np.zeros(len(bars), np.int64)
        np.add.at(total, inverse, values[active])
        ends = stacks.lengths[active] == depth + 1
        np.add.at(own, inverse[ends], values[active[ends]])
        found.append(_Level(bars // names.count, bars % names.count, total, own))
        parent[active] = inverse
        active = active[~ends & (total > least)[inverse]]
        largest, least = _largest(np.concatenate([largest, total]), limit)
    return found


def _largest(totals: Ints, limit: int) -> tuple[Ints, int]:
    """The `limit` largest, and the least of them; 0 while there are fewer."""
    if len(totals) < limit:
        return totals, 0
    kept = np.partition(totals, len(totals) - limit)[-limit:]
    return kept, int(kept[0])


@dataclass(slots=True)
class _Folded:
    """Bars that stay, per level (parents renumbered), and per level and kept parent what was folded below it."""

    levels: list[_Level]
    folded: list[Ints]


def _folded(levels: list[_Level], limit: int) -> _Folded:
    """The `limit` largest bars; a parent is never smaller than its child and stands before it, so it stays as well."""
    totals = np.concatenate([np.zeros(0, np.int64), *(level.total for level in levels)])
    keep = np.zeros(len(totals), bool)
    keep[np.argsort(-totals, kind="stable")[:limit]] = True
    result, at = _Folded([], []), 0
    above = np.zeros(1, np.int64)  # numbers of the level above in what is kept; -1: folded
    for level in levels:
        stays = keep[at : at + len(level.total)]
        at += len(level.total)
        parent = above[level.parent]
        gone = ~stays & (parent >= 0)
        lost = np.zeros(int(np.max(above, initial=-1)) + 1, np.int64)
        np.add.at(lost, parent[gone], level.total[gone])
        result.levels.append(_Level(parent[stays], level.name[stays], level.total[stays], level.own[stays]))
        result.folded.append(lost)
        if not stays.any():
            break
        above = np.where(stays, np.cumsum(stays) - 1, -1)
    return result


def _emitted(kept: _Folded, names: Sequence[Name], places: Sequence[str]) -> FlameGraph:
    """Bars with their places, in Pyroscope's form."""
    if not kept.levels:
        return FlameGraph()
    total = int(kept.levels[0].total.sum() + kept.folded[0].sum())
    rows: list[npt.NDArray[Any]] = []
    left = np.zeros(1, np.int64)  # where the bars of the level above begin
    for level, lost in zip(kept.levels, kept.folded, strict=True):
        begin = _begins(level, left)
        rows.append(_level_rows(level, lost, begin, left, len(names)))
        left = begin
    rows = [row for row in rows if len(row)]
    used = np.unique(np.concatenate([row[:, 3] for row in rows]))
    for row in rows:
        row[:, 3] = np.searchsorted(used, row[:, 3]) + 1
    shown = [Name(TOTAL), *([*names, Name(OTHER)][i] for i in used.tolist())]
    where = ["", *([*places, ""][i] for i in used.tolist())]
    top = np.array([[0, total, 0, 0]], np.int64)
    own = max(int(row[:, 2].max()) for row in rows)
    other = int(sum(lost.sum() for lost in kept.folded))
    levels = [row.reshape(-1) for row in (top, *rows)]
    return FlameGraph(shown, levels, total, own, other, where)


def _begins(level: _Level, left: Ints) -> Ints:
    """Where each bar begins: its parent's begin and the bars of the same parent before it."""
    before = np.cumsum(level.total) - level.total
    first = np.searchsorted(level.parent, level.parent)
    begins: Ints = left[level.parent] + before - before[first] if len(before) else before
    return begins


def _level_rows(level: _Level, lost: Ints, begin: Ints, left: Ints, other: int) -> Ints:
    """i8[n, 4] of gap, total, own, name: the kept bars, and one `other` after its siblings where some were folded."""
    inside = np.zeros(len(left), np.int64)
    np.add.at(inside, level.parent, level.total)
    holes = np.flatnonzero(lost)
    begins = np.concatenate([begin, (left + inside)[holes]])
    totals = np.concatenate([level.total, lost[holes]])
    own = np.concatenate([level.own, lost[holes]])
    name = np.concatenate([level.name, np.full(len(holes), other)])
    order = np.argsort(begins, kind="stable")
    begins, totals = begins[order], totals[order]
    gaps = begins - np.concatenate([[0], (begins + totals)[:-1]])[: len(begins)]
    return np.column_stack([gaps, totals, own[order], name[order]])
