"""Stacks with values to a flame graph, level by level with numpy: no recursion, no Python per bar.

The result has Pyroscope's form: `names`, and per level a flat list of four numbers per bar: the gap to the end of the bar
before it, its total, its own value, the index of its name. Bars lie inside their parents, siblings stand in the order of
their names (so that a live graph keeps its order), what was folded stands last as `other`. A graph of two sides (a
difference) has gap, total and own value for each of them, seven numbers per bar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from otelprof.backend.names import Ints, Name, Naming
from otelprof.otlp.content import Keys
from otelprof.otlp.decode import INT64_MAX
from otelprof.otlp.decoded import Frames, Stacks
from otelprof.otlp.wire import Ragged

MAX_NODES = 1_048_576
DEFAULT_NODES = 8192
OTHER, TOTAL = "other", "total"


@dataclass(frozen=True, slots=True)
class FlameGraph:
    """`names` by index (0 is the total), `levels` i8[4 × bars] each, from the total bar down; no levels when empty.

    With two sides a level is i8[7 × bars]; `totals` has the total of each side, `total` is all of them.
    """

    names: list[Name] = field(default_factory=lambda: [Name(TOTAL)])
    levels: list[Ints] = field(default_factory=list)
    total: int = 0
    max_self: int = 0
    other: int = 0  # the value of all that was folded
    places: list[str] = field(default_factory=lambda: [""])  # `file:line` for each name
    totals: tuple[int, ...] = (0, 0)


@dataclass(slots=True)
class _Level:
    """The bars of one depth, ordered by parent and name: number of the parent in the level above, name, values.

    `total` and `own` are i8[sides, bars].
    """

    parent: Ints
    name: Ints
    total: Ints
    own: Ints


def node_limit(asked: int) -> int:
    """How many bars an answer has at most: what was asked for within bounds; 0 and less is no wish."""
    return min(asked, MAX_NODES) if asked > 0 else DEFAULT_NODES


def merge(stacks: Stacks, values: Ints, load: Callable[[Keys], Frames], max_nodes: int = DEFAULT_NODES) -> FlameGraph:
    """The flame graph of stacks (root first) with their values, i8[n] parallel to them or i8[sides, n].

    `load` gives the frames with certain keys; one that it doesn't know is `[unknown]`. Stacks without a positive value
    aren't drawn.
    """
    values = np.maximum(np.atleast_2d(values), 0)
    drawn = np.flatnonzero(values.any(axis=0) & (stacks.lengths > 0))
    rows = Ragged(stacks.frames, stacks.lengths).take(drawn)
    naming = Naming.of(load(np.sort(np.unique(rows.data))))
    limit = node_limit(max_nodes)
    levels = _levels(rows, within_int64(values[:, drawn]), naming, limit)
    return _emitted(_folded(levels, limit), naming)


def within_int64(values: Ints) -> Ints:
    """The values, lowered from where their sum passes int64."""
    if values.astype(np.float64).sum() < 2**62:
        return values
    left, kept = INT64_MAX, []
    for value in values.reshape(-1).tolist():
        kept.append(min(value, left))
        left -= kept[-1]
    return np.array(kept, np.int64).reshape(values.shape)


def sums_of(group: Ints, values: Ints, groups: int) -> Ints:
    """i8[sides, groups] of i8[sides, n]."""
    sums = np.zeros((len(values), groups), np.int64)
    for side, of_side in zip(sums, values, strict=True):
        np.add.at(side, group, of_side)
    return sums


def _levels(stacks: Ragged, values: Ints, naming: Naming, limit: int) -> list[_Level]:
    """The bars from the roots down; none below a bar that can't be among the `limit` largest, nor can they be then."""
    active = np.flatnonzero(stacks.lengths > 0)
    parent = np.zeros(len(stacks), np.int64)
    found: list[_Level] = []
    largest, least = np.zeros(0, np.int64), 0  # of the levels so far; in a later level only a larger bar will stay
    while len(active):
        depth = len(found)
        key = parent[active] * len(naming) + naming.of_frames(stacks.data[stacks.starts[active] + depth])
        bars, inverse = np.unique(key, return_inverse=True)
        total = sums_of(inverse, values[:, active], len(bars))
        ends = stacks.lengths[active] == depth + 1
        own = sums_of(inverse[ends], values[:, active[ends]], len(bars))
        found.append(_Level(bars // len(naming), bars % len(naming), total, own))
        parent[active] = inverse
        weight = total.sum(axis=0)
        active = active[~ends & (weight > least)[inverse]]
        largest, least = _largest(np.concatenate([largest, weight]), limit)
    return found


def _largest(totals: Ints, limit: int) -> tuple[Ints, int]:
    """The `limit` largest, and the least of them; 0 while there are fewer."""
    if len(totals) < limit:
        return totals, 0
    kept = np.partition(totals, len(totals) - limit)[-limit:]
    return kept, int(kept[0])


@dataclass(slots=True)
class _Folded:
    """Bars that stay, per level (parents renumbered), and per level what was folded below each parent, i8[sides, parents]."""

    levels: list[_Level]
    folded: list[Ints]


def _folded(levels: list[_Level], limit: int) -> _Folded:
    """The `limit` largest bars; a parent is never smaller than its child and stands before it, so it stays as well."""
    weights = np.concatenate([np.zeros(0, np.int64), *(level.total.sum(axis=0) for level in levels)])
    keep = np.zeros(len(weights), bool)
    keep[np.argsort(-weights, kind="stable")[:limit]] = True
    result, at = _Folded([], []), 0
    above = np.zeros(1, np.int64)  # numbers of the level above in what is kept; -1: folded
    for level in levels:
        stays = keep[at : at + len(level.parent)]
        at += len(level.parent)
        parent = above[level.parent]
        gone = ~stays & (parent >= 0)
        result.folded.append(sums_of(parent[gone], level.total[:, gone], int(np.max(above, initial=-1)) + 1))
        result.levels.append(_Level(parent[stays], level.name[stays], level.total[:, stays], level.own[:, stays]))
        if not stays.any():
            break
        above = np.where(stays, np.cumsum(stays) - 1, -1)
    return result


def _emitted(kept: _Folded, naming: Naming) -> FlameGraph:
    """Bars with their places, in Pyroscope's form."""
    if not kept.levels:
        return FlameGraph()
    totals = kept.levels[0].total.sum(axis=1) + kept.folded[0].sum(axis=1)
    rows: list[Ints] = []
    left = np.zeros((len(totals), 1), np.int64)  # where the bars of the level above begin
    for level, lost in zip(kept.levels, kept.folded, strict=True):
        begin = _begins(level, left)
        rows.append(_level_rows(level, lost, begin, left, len(naming)))
        left = begin
    rows = [row for row in rows if len(row)]
    used = np.unique(np.concatenate([row[:, -1] for row in rows]))
    for row in rows:
        row[:, -1] = np.searchsorted(used, row[:, -1]) + 1
    names, places = [*naming.names, Name(OTHER)], [*naming.places, ""]
    shown = [Name(TOTAL), *(names[i] for i in used.tolist())]
    where = ["", *(places[i] for i in used.tolist())]
    top = np.array([*(number for total in totals.tolist() for number in (0, total, 0)), 0], np.int64)
    own = max(int(row[:, 2:-1:3].max()) for row in rows)
    other = int(sum(lost.sum() for lost in kept.folded))
    levels = [top, *(row.reshape(-1) for row in rows)]
    return FlameGraph(shown, levels, int(totals.sum()), own, other, where, tuple(totals.tolist()))


def _begins(level: _Level, left: Ints) -> Ints:
    """Where each bar begins, i8[sides, bars]: its parent's begin and the bars of the same parent before it."""
    before = np.cumsum(level.total, axis=1) - level.total
    first = np.searchsorted(level.parent, level.parent)
    begins: Ints = left[:, level.parent] + before - before[:, first] if before.size else before
    return begins


def _level_rows(level: _Level, lost: Ints, begin: Ints, left: Ints, other: int) -> Ints:
    """i8[n, 3 × sides + 1] of gap, total, own and name: the kept bars, and one `other` after its siblings where needed."""
    inside = sums_of(level.parent, level.total, left.shape[1])
    holes = np.flatnonzero(lost.any(axis=0))
    of = np.concatenate([level.parent, holes])
    order = np.lexsort((np.arange(len(of)) >= len(level.parent), of))
    begins = np.concatenate([begin, (left + inside)[:, holes]], axis=1)[:, order]
    totals = np.concatenate([level.total, lost[:, holes]], axis=1)[:, order]
    own = np.concatenate([level.own, lost[:, holes]], axis=1)[:, order]
    ends = np.concatenate([np.zeros((len(begins), 1), np.int64), (begins + totals)[:, :-1]], axis=1)[:, : len(of)]
    name = np.concatenate([level.name, np.full(len(holes), other)])[order]
    sides = zip(begins - ends, totals, own, strict=True)
    return np.column_stack([*(column for side in sides for column in side), name])
