"""Giving out and taking back runs of the kernel's unwind tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelprof.ebpf import unwind_maps
from otelprof.ebpf.unwind_maps import Space


def test_what_was_taken_back_rests_before_it_is_given_out_again(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(unwind_maps.time, "monotonic", lambda: now[0])
    space = Space(10)
    assert space.take(10) == 0
    space.give(0, 10)
    assert space.take(1) is None
    now[0] += unwind_maps.RESTING
    assert space.take(10) == 0


def test_neighbours_join(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(unwind_maps.time, "monotonic", lambda: now[0])
    space = Space(9)
    runs = [space.take(3) for _ in range(3)]
    assert (runs, space.take(1)) == ([0, 3, 6], None)
    for run in (3, 0, 6):
        space.give(run, 3)
    now[0] = 1000.0
    assert space.take(9) == 0


@pytest.mark.parametrize("size", [0, 1])
def test_a_small_space_is_soon_full(size):
    space = Space(size)
    assert [space.take(1) for _ in range(2)] == [*range(size), *[None] * (2 - size)]


@given(st.lists(st.integers(1, 9), max_size=30))
def test_runs_never_overlap(counts):
    space = Space(64)
    taken = [(start, count) for count in counts if (start := space.take(count)) is not None]
    numbers = [number for start, count in taken for number in range(start, start + count)]
    assert len(numbers) == len(set(numbers)) == space.used
    assert all(0 <= number < 64 for number in numbers)
