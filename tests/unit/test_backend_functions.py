"""Tables of functions, callers and callees, and differences: each against the same counted the plain way."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from otelprof.backend.flame import FlameGraph, merge
from otelprof.backend.functions import sandwich, top
from otelprof.otlp.decoded import Frames, Stacks

Paths = dict[tuple[str, ...], int]
NAMES = ["main", "work", "idle", "gemm"]
KEYS = {name: number + 10 for number, name in enumerate(NAMES)}
STACKS = st.dictionaries(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=6).map(tuple), st.integers(1, 1000), min_size=1, max_size=30
)
PAIRS = st.dictionaries(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=6).map(tuple),
    st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
    max_size=30,
)


def load(_: object) -> Frames:
    """All frames that there are."""
    blank, zeros = [""] * len(NAMES), [0] * len(NAMES)
    texts = [["cpython"] * len(NAMES), NAMES, blank, ["app.py"] * len(NAMES), blank, blank]
    return Frames.of(np.array(list(KEYS.values()), np.uint64), texts, (zeros, zeros, zeros))


def stacks_of(paths: object) -> Stacks:
    """Stacks of frames named in `paths`."""
    rows = list(paths)  # type: ignore[call-overload]
    frames = np.array([KEYS[name] for path in rows for name in path], np.uint64)
    return Stacks(np.arange(len(rows), dtype=np.uint64), np.array([len(path) for path in rows], np.int64), frames)


def walked(graph: FlameGraph, side: int = 0, sides: int = 1) -> Paths:
    """Own values by path of one side; fails where a bar isn't inside one of the level above."""
    above: list[tuple[int, int, tuple[str, ...]]] = [(0, graph.totals[side], ())]
    found: Counter[tuple[str, ...]] = Counter()
    for depth, level in enumerate(graph.levels):
        here, at = [], 0
        for row in level.reshape(-1, 3 * sides + 1).tolist():
            gap, total, own = row[3 * side : 3 * side + 3]
            assert gap >= 0
            at += gap
            if total:
                (parent,) = [path for begin, end, path in above if begin <= at and at + total <= end]
                path = (*parent, graph.names[row[-1]].text) if depth else ()
                here.append((at, at + total, path))
                if own:
                    found[path] += own
            at += total
        above = here
    return dict(found)


@given(STACKS)
@settings(deadline=None)
def test_the_table_has_each_function_s_own_value_and_its_total_with_recursion_once(paths: Paths) -> None:
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for path, value in paths.items():
        own[path[-1]] += value
        total.update(dict.fromkeys(set(path), value))
    found = top(stacks_of(paths), np.array(list(paths.values())), load, 100).functions
    assert {one.name.text: (one.own[0], one.total[0]) for one in found} == {n: (own[n], total[n]) for n in total}
    assert [one.own[0] for one in found] == sorted((one.own[0] for one in found), reverse=True)
    by_total = top(stacks_of(paths), np.array(list(paths.values())), load, 2, by_total=True).functions
    assert [one.total[0] for one in by_total] == sorted(total.values(), reverse=True)[:2]


@given(STACKS, st.sampled_from(NAMES))
@settings(deadline=None)
def test_a_sandwich_has_what_stands_above_and_below_the_outermost_call(paths: Paths, name: str) -> None:
    above: Counter[tuple[str, ...]] = Counter()
    below: Counter[tuple[str, ...]] = Counter()
    for path, value in paths.items():
        if name in path:
            at = path.index(name)
            above[tuple(reversed(path[: at + 1]))] += value
            below[path[at:]] += value
    found = sandwich(stacks_of(paths), np.array(list(paths.values())), load, name, 8192)
    assert walked(found.callers) == above
    assert walked(found.callees) == below
    assert found.total == sum(below.values())
    assert found.own == sum(value for path, value in below.items() if path[-1] == name)


@given(PAIRS)
@settings(deadline=None)
def test_both_sides_of_a_difference_are_whole_graphs_of_their_own(pairs: dict[tuple[str, ...], tuple[int, int]]) -> None:
    values = np.array(list(pairs.values()), np.int64).reshape(-1, 2).T
    graph = merge(stacks_of(pairs), values, load)
    for side in (0, 1):
        assert walked(graph, side, 2) == {path: both[side] for path, both in pairs.items() if both[side]}
    assert graph.total == sum(graph.totals)


@given(PAIRS, st.integers(1, 10))
@settings(deadline=None)
def test_folding_a_difference_keeps_both_totals(pairs: dict[tuple[str, ...], tuple[int, int]], limit: int) -> None:
    values = np.array(list(pairs.values()), np.int64).reshape(-1, 2).T
    graph = merge(stacks_of(pairs), values, load, limit)
    for side in (0, 1):
        assert sum(walked(graph, side, 2).values()) == graph.totals[side] == sum(both[side] for both in pairs.values())


def test_the_table_of_a_difference_begins_with_the_largest_change_of_share() -> None:
    paths = {("main", "work"): (50, 50), ("main", "idle"): (50, 10), ("main", "gemm"): (0, 40)}
    values = np.array(list(paths.values()), np.int64).T
    found = top(stacks_of(paths), values, load, 10).functions
    assert [one.name.text for one in found[:2]] in (["idle", "gemm"], ["gemm", "idle"])
    assert {one.name.text: (one.own, one.total) for one in found[2:]} == {
        "main": ((0, 0), (100, 100)),
        "work": ((50, 50), (50, 50)),
    }


def test_a_function_that_is_not_there_has_an_empty_sandwich() -> None:
    found = sandwich(stacks_of([("main",)]), np.array([5]), load, "elsewhere", 100)
    assert (found.total, found.callers.levels, found.callees.levels) == (0, [], [])
