"""Answers by function instead of by stack: the table of self and total, and what calls a function and what it calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from otelprof.backend.flame import FlameGraph, merge, sums_of, within_int64
from otelprof.backend.names import Ints, Name, Naming
from otelprof.otlp.content import Keys
from otelprof.otlp.decoded import Frames, Stacks
from otelprof.otlp.wire import Ragged

MAX_FUNCTIONS = 10_000

Load = Callable[[Keys], Frames]


@dataclass(frozen=True, slots=True)
class Function:
    """A function with its own value and its total (recursion counts once) for each side of the question."""

    name: Name
    place: str  # `file:line`
    own: tuple[int, ...]
    total: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Top:
    """The largest functions, and the total of each side."""

    functions: list[Function]
    totals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sandwich:
    """`callers` grows from the function towards the roots, `callees` towards the leaves; both begin with the function."""

    own: int = 0
    total: int = 0
    callers: FlameGraph = field(default_factory=FlameGraph)
    callees: FlameGraph = field(default_factory=FlameGraph)


def top(stacks: Stacks, values: Ints, load: Load, limit: int, by_total: bool = False) -> Top:
    """The `limit` largest functions of stacks with values i8[n] or, of two sides, i8[2, n].

    One side: by own value or total. Two sides: by how much the share of the own value changed.
    """
    values = within_int64(np.maximum(np.atleast_2d(values), 0))
    naming = Naming.of(load(np.unique(stacks.frames)))
    numbers = naming.of_frames(stacks.frames)
    own = sums_of(_leaves(stacks, numbers), values[:, stacks.lengths > 0], len(naming))
    rows = np.repeat(np.arange(len(stacks)), stacks.lengths)
    once = np.sort(rows * len(naming) + numbers)  # np.unique hashes first, which takes ten times as long here
    once = once[np.concatenate([np.ones(len(once[:1]), bool), once[1:] != once[:-1]])]
    total = sums_of(once % len(naming), values[:, once // len(naming)], len(naming))
    weight = total[0] if by_total else own[0]
    if len(values) > 1:
        share = own / np.maximum(values.sum(axis=1, keepdims=True), 1)
        weight = np.abs(share[1] - share[0])
    order = np.lexsort((-total.sum(axis=0), -weight))
    chosen = order[total.sum(axis=0)[order] > 0][: min(max(limit, 1), MAX_FUNCTIONS)].tolist()
    found = [
        Function(naming.names[i], naming.places[i], tuple(own[:, i].tolist()), tuple(total[:, i].tolist())) for i in chosen
    ]
    return Top(found, tuple(values.sum(axis=1).tolist()))


def _leaves(stacks: Stacks, numbers: Ints) -> Ints:
    """The name of the last frame of each stack that has one."""
    filled = stacks.lengths > 0
    leaves: Ints = numbers[np.cumsum(stacks.lengths)[filled] - 1]
    return leaves


def sandwich(stacks: Stacks, values: Ints, load: Load, name: str, max_nodes: int) -> Sandwich:
    """What calls the functions that are shown as `name`, and what they call; a stack counts from its outermost call of it."""
    naming = Naming.of(load(np.unique(stacks.frames)))
    numbers = naming.of_frames(stacks.frames)
    wanted = np.array([one.text == name for one in naming.names], bool)
    rows = Ragged(stacks.frames, stacks.lengths)
    owner, first = np.unique(np.repeat(np.arange(len(stacks)), stacks.lengths)[wanted[numbers]], return_index=True)
    if not len(owner):
        return Sandwich()
    at = np.flatnonzero(wanted[numbers])[first]  # of the outermost call in each stack that has one
    below = _part(stacks, at, rows.ends[owner] - at)
    above = _reversed(_part(stacks, rows.starts[owner], at + 1 - rows.starts[owner]))
    chosen = values[owner]
    leaf = wanted[_leaves(below, naming.of_frames(below.frames))]
    graphs = [merge(part, chosen, load, max_nodes) for part in (above, below)]
    return Sandwich(int(within_int64(np.maximum(chosen[leaf], 0)).sum()), graphs[1].total, *graphs)


def _part(stacks: Stacks, starts: Ints, lengths: Ints) -> Stacks:
    """Stacks of `lengths[i]` frames from `starts[i]` on, in `frames`."""
    begin = np.cumsum(lengths) - lengths
    where = np.arange(int(lengths.sum())) + np.repeat(starts - begin, lengths)
    return Stacks(np.arange(len(lengths), dtype=np.uint64), lengths, stacks.frames[where])


def _reversed(stacks: Stacks) -> Stacks:
    """The same stacks, last frame first."""
    ends = np.cumsum(stacks.lengths)
    turned = np.repeat(2 * ends - stacks.lengths - 1, stacks.lengths) - np.arange(len(stacks.frames))
    return Stacks(stacks.keys, stacks.lengths, stacks.frames[turned])
