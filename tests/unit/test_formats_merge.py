"""The sum of batches: complete, bounded, independent of the batches' interners."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelprof.batch import SAMPLES, Batch, Frame, FrameKind, Interner, Resource, Thread
from otelprof.formats import merge
from otelprof.formats.merge import Merged
from otelprof.otlp import semconv
from otelprof.otlp.check import check
from otelprof.otlp.encode import encode_profiles
from otelprof.testing import sample_batch


def totals(batch: Batch) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in batch.samples:
        found[";".join(frame.name for frame in batch.interner.frames_of(int(row["stack"])))] += int(row["value"])
    return found


@given(st.lists(st.dictionaries(st.sampled_from(["a", "a;b", "c"]), st.integers(1, 9)), max_size=5), st.booleans())
def test_all_batches_are_in_the_sum_whichever_interner_they_have(parts: list[dict[str, int]], shared: bool) -> None:
    merged, interner, expected = Merged(), Interner(), Counter[str]()
    for part in parts:
        merged.add(sample_batch(part, interner=interner if shared else None))
        expected.update(part)
    assert totals(merged.batch()) == expected
    assert len(merged) == len(expected)


def test_time_goes_from_the_first_to_the_last() -> None:
    merged = Merged()
    for start in (5_000, 9_000, 7_000):
        merged.add(replace(sample_batch({"a": 1}), start=start, end=start + 500, clock_offset=start))
    batch = merged.batch()
    assert (batch.start, batch.end, batch.clock_offset) == (5_000, 9_500, 5_000)


def test_threads_and_processes_stay_apart_and_links_only_when_asked_for() -> None:
    interner = Interner()
    table = np.zeros(3, SAMPLES)
    table["value"], table["type"], table["stack"] = 1, interner.types.id(semconv.CPU), interner.stack([])
    table["thread"] = [interner.threads.id(Thread(n, "t")) for n in (1, 1, 2)]
    table["link"] = [interner.link(bytes([n]) * 16, b"s" * 8) for n in (1, 2, 3)]
    batch = Batch(interner, 0, 1, table)
    sizes = []
    for keep in (False, True):
        merged = Merged(keep_links=keep)
        merged.add(batch)
        sizes.append(len(merged))
    assert sizes == [2, 3]


def test_beyond_the_limit_of_stacks_the_value_stays_and_the_stack_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "MAX_STACKS", 3)
    merged = Merged()
    merged.add(sample_batch({f"f{number}": 1 for number in range(10)}))
    assert totals(merged.batch()) == {"f0": 1, "f1": 1, "[lost: too many stacks]": 8}


def test_beyond_the_limit_of_rows_what_tells_rows_apart_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "MAX_ROWS", 2)
    merged = Merged()
    for thread in range(1, 9):
        batch = sample_batch({"a": 1})
        table = batch.samples.copy()
        table["thread"] = batch.interner.threads.id(Thread(thread, "t"))
        merged.add(replace(batch, samples=table))
    assert totals(merged.batch()) == {"a": 8}
    assert len(merged) == 3


def test_a_state_keeps_its_last_value() -> None:
    merged = Merged()
    for value in (10, 30, 20):
        batch = sample_batch({"a": value})
        table = batch.samples.copy()
        table["type"] = batch.interner.types.id(semconv.GPU_MEMORY_RESERVED)
        merged.add(replace(batch, samples=table))
    assert totals(merged.batch()) == {"a": 20}


def test_the_sum_of_nothing_is_an_empty_batch() -> None:
    assert len(Merged().batch().samples) == 0


def test_the_sum_is_a_batch_like_any_other() -> None:
    merged = Merged()
    merged.add(sample_batch({"a;b": 2}, attributes={"service.name": "shop"}))
    (request,) = encode_profiles(merged.batch())
    assert check(request.data) == []


@pytest.mark.parametrize(
    "frame",
    [Frame("k", FrameKind.CUDA), Frame("k", FrameKind.KERNEL), Frame("k", FrameKind.NATIVE), Frame("[m]", FrameKind.MARK)],
)
def test_a_name_says_its_kind_where_a_format_has_none(frame: Frame) -> None:
    assert merge.unlabelled(merge.labelled(frame), FrameKind.NATIVE) == (frame.name, frame.kind)


def test_readers_start_with_the_resource_that_they_are_given() -> None:
    builder = merge.BatchBuilder(Resource((("service.name", "x"),)))
    builder.add([Frame("f", FrameKind.NATIVE)], 3, semconv.CPU)
    batch = builder.batch(10, 10)
    assert (batch.start, batch.end, batch.clock_offset, int(batch.samples["value"][0])) == (10, 11, 0, 3)
    assert batch.interner.resources[batch.samples["resource"][0]].get("service.name") == "x"
