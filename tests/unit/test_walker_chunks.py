"""Chunks and their ids, bpf/stacks.h: cut from the root end, the same for the same, different for what differs."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelprof.ebpf.layout import wire
from tests.unit.walkers import build_walkers

LIMIT, CHUNK = 512, 32


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_walkers(tmp_path_factory.mktemp("walkers"))


def ids_of(library, frames, process=1):
    """Ids of the chunks of a stack (leaf first), the root's first."""
    table = np.zeros(LIMIT, wire().dtype("frame"))
    table[: len(frames)] = frames
    found = np.zeros(LIMIT // CHUNK, np.uint64)
    place = ctypes.c_void_p(found.ctypes.data)
    count = library.chunk_ids_of(ctypes.c_void_p(table.ctypes.data), len(frames), process, place)
    return found[:count].tolist()


def places_of(library, count):
    """(first frame, frames) of each chunk, the root's first."""
    start, found = ctypes.c_uint32(), []
    while length := library.chunk_place(count, len(found), ctypes.byref(start)):
        found.append((start.value, length))
    return found


def stack(depth, salt=0):
    """A stack, leaf first."""
    return [(0x10000 + 64 * n, n + salt, n) for n in range(depth, 0, -1)]


@given(st.integers(0, LIMIT))
@settings(max_examples=100, deadline=None)
def test_chunks_cover_the_stack_and_only_the_leafs_is_not_full(library, depth):
    places = places_of(library, depth)
    covered = [at for start, length in reversed(places) for at in range(start, start + length)]

    assert covered == list(range(depth))
    assert all(length == CHUNK for _, length in places[:-1])
    assert len(ids_of(library, stack(depth))) == len(places)


@given(st.integers(1, LIMIT), st.integers(0, LIMIT - 1), st.integers(0, 2), st.integers(1, 1 << 31))
@settings(max_examples=200, deadline=None)
def test_a_changed_frame_changes_the_ids_from_its_chunk_to_the_leaf(library, depth, at, field, change):
    at %= depth
    frames = stack(depth)
    changed = [list(frame) for frame in frames]
    changed[at][field] ^= change
    one, other = ids_of(library, frames), ids_of(library, [tuple(frame) for frame in changed])
    first = (depth - 1 - at) // CHUNK

    assert one[:first] == other[:first]
    assert all(a != b for a, b in zip(one[first:], other[first:], strict=True))


def test_the_same_stack_has_the_same_ids(library):
    assert ids_of(library, stack(200)) == ids_of(library, stack(200))


def test_stacks_of_two_processes_share_no_id(library):
    assert not set(ids_of(library, stack(200), 1)) & set(ids_of(library, stack(200), 2))


@given(st.integers(1, 400), st.integers(0, 100), st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_stacks_share_the_full_chunks_of_their_common_root(library, common, one, other):
    root = stack(common)
    first = ids_of(library, [(1, n, 0) for n in range(one)] + root)
    second = ids_of(library, [(2, n, 0) for n in range(other)] + root)

    assert first[: common // CHUNK] == second[: common // CHUNK]


@given(st.lists(st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, 3), st.integers(0, 3)), max_size=100))
@settings(max_examples=200, deadline=None)
def test_no_id_is_zero_and_none_repeats_within_a_stack(library, frames):
    ids = ids_of(library, frames)

    assert 0 not in ids
    assert len(set(ids)) == len(ids)
