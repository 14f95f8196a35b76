"""Flame graphs: bars nest, sums hold, whatever the stacks; folding keeps the total; nothing recurses."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelprof.backend.flame import OTHER, FlameGraph, merge
from otelprof.backend.names import shown_name
from otelprof.otlp.content import Keys
from otelprof.otlp.decode import INT64_MAX
from otelprof.otlp.decoded import Frames, Stacks

Paths = dict[tuple[str, ...], int]


def graph_of(paths: Paths, max_nodes: int = 8192, kinds: dict[str, str] | None = None) -> FlameGraph:
    """The graph of stacks given as names, root first."""
    names = sorted({name for path in paths for name in path})
    key = {name: number + 1000 for number, name in enumerate(names)}
    zeros = [0] * len(names)
    blank = [""] * len(names)
    texts = [[(kinds or {}).get(name, "cpython") for name in names], names, blank, blank, blank, blank]
    frames = Frames.of(np.array(list(key.values()), np.uint64), texts, (zeros, zeros, zeros))
    lengths = np.array([len(path) for path in paths], np.int64)
    elements = np.array([key[name] for path in paths for name in path], np.uint64)
    stacks = Stacks(np.arange(len(paths), dtype=np.uint64), lengths, elements)
    return merge(stacks, np.array(list(paths.values()), np.int64), lambda _: frames, max_nodes)


def walked(graph: FlameGraph) -> Paths:
    """Own values by path, walked as a viewer does; fails where a bar isn't inside one of the level above."""
    above: list[tuple[int, int, tuple[str, ...]]] = [(0, graph.total, ())]
    found: Counter[tuple[str, ...]] = Counter()
    for depth, level in enumerate(graph.levels):
        here, at = [], 0
        for gap, total, own, name in level.reshape(-1, 4).tolist():
            assert gap >= 0
            assert total > 0
            assert 0 <= own <= total
            at += gap
            (parent,) = [path for begin, end, path in above if begin <= at and at + total <= end]
            path = (*parent, graph.names[name].text) if depth else ()
            here.append((at, at + total, path))
            if own:
                found[path] += own
            at += total
        above = here
    return dict(found)


NAMES = st.sampled_from(["main", "work", "idle", "gemm", "[truncated]", "other"])
STACKS = st.dictionaries(st.lists(NAMES, min_size=1, max_size=6).map(tuple), st.integers(-5, 1000), max_size=40)


@given(STACKS)
@settings(deadline=None)
def test_bars_nest_and_their_own_values_are_those_of_the_stacks(paths: Paths) -> None:
    graph = graph_of(paths)
    kept = {path: value for path, value in paths.items() if value > 0}
    assert graph.total == sum(kept.values())
    assert walked(graph) == kept
    assert graph.max_self == max(kept.values(), default=0)
    assert graph.other == 0


@given(STACKS, st.integers(1, 12))
@settings(deadline=None)
def test_folding_keeps_the_total_and_the_largest_bars(paths: Paths, limit: int) -> None:
    paths = {path: value for path, value in paths.items() if "other" not in path}
    graph, whole = graph_of(paths, limit), graph_of(paths)
    assert graph.total == whole.total
    assert sum(walked(graph).values()) == graph.total
    names = [graph.names[i].text for level in graph.levels[1:] for i in level.reshape(-1, 4)[:, 3].tolist()]
    folded = sum(value for path, value in walked(graph).items() if path[-1:] == (OTHER,))
    assert len(names) - names.count(OTHER) == min(limit, sum(len(level) // 4 for level in whole.levels[1:]))
    assert graph.other == folded


def test_an_empty_graph_has_no_levels() -> None:
    graph = graph_of({("main",): 0})
    assert (graph.total, graph.levels) == (0, [])


def test_five_thousand_frames_deep() -> None:
    path = tuple(f"r{number % 7}" for number in range(5000))
    graph = graph_of({path: 10, path[:100]: 5})
    assert len(graph.levels) == 5001
    assert graph.levels[100].tolist()[1:3] == [15, 5]


def test_totals_saturate_and_bars_still_nest() -> None:
    graph = graph_of({("main", "a"): INT64_MAX, ("main", "b"): INT64_MAX, ("main", "c"): 7})
    assert graph.total == INT64_MAX
    assert graph.levels[1].tolist()[1] == INT64_MAX


def test_siblings_stand_in_the_order_of_their_names() -> None:
    graph = graph_of({("b",): 1, ("a",): 1, ("c",): 100})
    assert [graph.names[i].text for i in graph.levels[1].reshape(-1, 4)[:, 3].tolist()] == ["a", "b", "c"]


SHOWN = [
    (("cuda", "gemm", ""), ("[cuda] gemm", "cuda")),
    (("kernel", "do_idle", ""), ("[kernel] do_idle", "kernel")),
    (("cpython", "f", ""), ("f", "python")),
    (("native", "g", ""), ("g", "native")),
    (("", "[truncated]", ""), ("[truncated]", "mark")),
    (("jvm", "h", ""), ("h", "")),
    (("cpython", "", ""), ("[unknown]", "python")),
]


@pytest.mark.parametrize(("frame", "shown"), SHOWN)
def test_names_have_the_form_that_people_see(frame: tuple[str, str, str], shown: tuple[str, str]) -> None:
    assert shown_name(*frame)[:2] == shown


def test_a_frame_that_nobody_knows_is_unknown() -> None:
    nothing = Frames.of(np.zeros(0, np.uint64), [[]] * 6, ([], [], []))
    key: Keys = np.array([7], np.uint64)
    graph = merge(Stacks(key, np.array([1]), key), np.array([3]), lambda _: nothing)
    assert [name.text for name in graph.names] == ["total", "[unknown]"]
