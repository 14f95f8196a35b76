"""Launches and GPU activity find each other: any order, wrapped and repeated ids, bad times, what never comes."""

import itertools
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelprof.batch import (
    GPU_ACTIVITY,
    LAUNCHES,
    Batch,
    CallKind,
    Frame,
    FrameKind,
    Interner,
    Resource,
    Thread,
    rows,
)
from otelprof.component import Build
from otelprof.counters import STITCH_UNJOINED, STITCH_WAITING, Counters
from otelprof.processors.cuda_stitch.config import Settings
from otelprof.processors.cuda_stitch.processor import CudaStitch

SECOND = 1_000_000_000
START = 1_000 * SECOND
STACK = ("<module>", "model_forward", "attention")


class Sink:
    """Keeps what the processor hands on."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def consume(self, batch: Batch) -> None:
        self.batches.append(batch)


class FakeHost:
    """The agent as the processor sees it."""

    state_dir = None

    def __init__(self) -> None:
        self.counters = Counters()

    def ready(self, component: str) -> None: ...

    def finished(self, component: str) -> None: ...

    def fail(self, error: Exception) -> None:
        raise error


class Bench:
    """A processor between a hand that feeds it and a sink, under a clock of its own."""

    def __init__(self, **chosen: object) -> None:
        self.sink, self.host, self.clock = Sink(), FakeHost(), 0
        build = Build("cuda_stitch", Settings(**{"spans": "none", **chosen}), self.sink)
        self.stitch = CudaStitch(build, lambda: self.clock)
        self.interner = Interner()
        self.stitch._counters = self.host.counters  # as start() does, without its thread

    def feed(self, records: list[dict], end: int = START + SECOND, offset: int = 0) -> None:
        """One batch of launch and activity records."""
        launches = [launch_row(self.interner, record) for record in records if "start" not in record]
        activity = [activity_row(self.interner, record) for record in records if "start" in record]
        self.stitch.consume(
            Batch(
                self.interner,
                START,
                end,
                launches=rows(LAUNCHES, launches),
                activity=rows(GPU_ACTIVITY, activity),
                clock_offset=offset,
            )
        )

    def stop(self) -> None:
        self.stitch.shutdown(time.monotonic() + 5)

    def profile(self) -> Counter:
        """Totals by (type, pid, names of the stack), over all batches."""
        found: Counter = Counter()
        for batch in self.sink.batches:
            for row in batch.samples:
                kind = batch.interner.types[row["type"]].type
                names = tuple(frame.name for frame in batch.interner.frames_of(row["stack"]))
                found[kind, batch.interner.resources[row["resource"]].get("process.pid"), names] += int(row["value"])
        return found

    def total(self, kind: str, *inside: str) -> int:
        return sum(
            n for (found, _, names), n in self.profile().items() if found == kind and all(name in names for name in inside)
        )

    def unjoined(self, reason: str) -> float:
        return self.host.counters.get(STITCH_UNJOINED, reason)


def process(interner: Interner, pid: int) -> int:
    return interner.resources.id(Resource((("process.creation.time", "2026"), ("process.pid", pid))))


def kernel_frame(interner: Interner, name: str) -> int:
    return interner.frames.id(Frame(name, FrameKind.CUDA)) if name else 0


def launch_row(interner: Interner, record: dict) -> tuple:
    stack = interner.stack(Frame(name, FrameKind.CPYTHON) for name in record.get("stack", STACK))
    pid = record.get("pid", 42)
    return (
        record.get("time", START + 1), record.get("duration", -1), record.get("dispatch", 0), record.get("id", -1),
        record.get("kind", CallKind.KERNEL), process(interner, pid), stack, interner.threads.id(Thread(pid, "main")),
        interner.link(*record["link"]) if "link" in record else 0, interner.strings.id(record.get("entry", "")),
        kernel_frame(interner, record.get("kernel", "k")), 0, 7, (4, 2, 1), (128, 1, 1), 0, record.get("bytes", 0),
    )  # fmt: skip


def activity_row(interner: Interner, record: dict) -> tuple:
    return (
        record["start"], record["end"], record.get("kind", CallKind.KERNEL), process(interner, record.get("pid", 42)),
        record.get("id", -1), kernel_frame(interner, record.get("kernel", "k")), 0, 7,
        record.get("node", 0), record.get("bytes", 0),
    )  # fmt: skip


def ran(id: int, start: int, end: int, **more: object) -> dict:
    return {"id": id, "start": START + start, "end": START + end, **more}


# Six launches, eight records of activity: normal, none at all, end before start, launch after its activity, the last id
# and the first one after the wrap, a repeated record, a record whose launch nobody saw.
LAUNCHED = [{"id": id, "time": START + n} for n, id in enumerate((10, 11, 12, 13, 2**32 - 1, 0))]
RAN = [
    ran(10, 100, 1100), ran(12, 900, 400), ran(13, 2000, 3000), ran(2**32 - 1, 3000, 4000), ran(0, 4000, 5000),
    ran(10, 100, 1100), ran(77, 6000, 6500), {"id": 11, "start": 0, "end": 0},
]  # fmt: skip


def expect_the_six(bench: Bench) -> None:
    assert bench.total("gpu_kernel_launches") == 6
    assert bench.total("gpu_kernel_time", "attention", "k") == 4000
    assert bench.total("gpu_kernel_time", "[no launch stack]", "k") == 500
    assert bench.total("gpu_kernel_time") == 4500
    assert all(value >= 0 for value in bench.profile().values())


def test_impossible_times_wraps_repeats_and_late_launches_in_one_batch() -> None:
    """What field reports saw go wrong, all at once."""
    bench = Bench()
    bench.feed([*LAUNCHED, *RAN])
    bench.stop()
    expect_the_six(bench)
    assert bench.unjoined("bad_times") == 2
    assert bench.unjoined("duplicate") == 1
    assert bench.unjoined("no_launch") == 1
    assert bench.host.counters.get(STITCH_WAITING) == 0


@settings(max_examples=60, deadline=None)
@given(st.permutations([*LAUNCHED, *RAN]), st.lists(st.integers(0, 14), max_size=4))
def test_any_order_and_any_cut_into_batches_gives_the_same_profile(records: list[dict], cuts: list[int]) -> None:
    """Buffers complete in no order (kineto #1354), and intervals cut them anywhere."""
    bench = Bench()
    edges = [0, *sorted(cuts), len(records)]
    for first, last in itertools.pairwise(edges):
        bench.feed(records[first:last])
    bench.stop()
    expect_the_six(bench)
    assert bench.unjoined("no_activity") == 0


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_nothing_is_counted_twice_or_lost_whatever_comes(data: st.DataObject) -> None:
    """A plain model: first launch of each id counts, first good record of each id counts, by process."""
    ids = st.integers(0, 6)
    launch = st.builds(lambda id, pid: {"id": id, "pid": pid}, ids, st.sampled_from([42, 43]))
    activity = st.builds(
        lambda id, pid, a, b: ran(id, a, b, pid=pid), ids, st.sampled_from([42, 43]), st.just(10), st.integers(1, 30)
    )
    records = data.draw(st.lists(launch | activity, max_size=40))
    bench = Bench()
    for record in records:
        bench.feed([record])
    bench.stop()
    launched = {(r["pid"], r["id"]) for r in records if "start" not in r}
    good: dict = {}
    for record in records:
        if record.get("end", 0) >= record.get("start", 1):
            good.setdefault((record["pid"], record["id"]), record["end"] - record["start"])
    assert bench.total("gpu_kernel_launches") == len(launched)
    assert bench.total("gpu_kernel_time", "attention") == sum(took for key, took in good.items() if key in launched)
    assert bench.total("gpu_kernel_time") == sum(good.values())


def test_the_same_id_in_two_processes_is_two_launches() -> None:
    bench = Bench()
    bench.feed([{"id": 1, "pid": 42, "stack": ["parent"]}, {"id": 1, "pid": 43, "stack": ["child"]}])
    bench.feed([ran(1, 0, 10, pid=43), ran(1, 0, 300, pid=42)])
    assert bench.total("gpu_kernel_time", "parent") == 300
    assert bench.total("gpu_kernel_time", "child") == 10


def test_activity_waits_for_its_launch_for_one_window_of_the_data_and_no_longer() -> None:
    bench = Bench()
    bench.feed([ran(1, 0, 10), ran(2, 0, 20)], end=START)
    bench.feed([{"id": 1}], end=START + 29 * SECOND)
    assert bench.total("gpu_kernel_time", "attention") == 10
    bench.feed([], end=START + 31 * SECOND)
    assert bench.total("gpu_kernel_time", "[no launch stack]") == 20
    bench.feed([{"id": 2}], end=START + 32 * SECOND)
    assert bench.total("gpu_kernel_time", "attention") == 10
    assert bench.unjoined("no_launch") == 1


def test_an_id_that_comes_again_after_the_window_is_another_launch() -> None:
    bench = Bench()
    bench.feed([{"id": 5}, ran(5, 0, 10)], end=START)
    bench.feed([{"id": 5, "stack": ["later"]}, ran(5, 0, 7)], end=START + 60 * SECOND)
    assert bench.total("gpu_kernel_launches") == 2
    assert bench.total("gpu_kernel_time", "later") == 7
    assert bench.total("gpu_kernel_time") == 17


def test_what_waits_is_let_go_also_when_no_batch_comes() -> None:
    bench = Bench()
    bench.feed([ran(1, 0, 10), {"id": 9}])
    assert bench.host.counters.get(STITCH_WAITING) == 2
    bench.clock += 29 * SECOND
    bench.stitch.expire()
    assert bench.host.counters.get(STITCH_WAITING) == 2
    bench.clock += 2 * SECOND
    bench.stitch.expire()
    assert bench.host.counters.get(STITCH_WAITING) == 0
    assert bench.total("gpu_kernel_time", "[no launch stack]") == 10
    assert bench.unjoined("no_activity") == 1


def test_launches_of_tier_0_have_no_activity_and_never_wait() -> None:
    bench = Bench()
    bench.feed([{}, {}, {"kind": CallKind.GRAPH, "kernel": ""}])
    assert bench.host.counters.get(STITCH_WAITING) == 0
    assert bench.total("gpu_kernel_launches", "k") == 2
    assert bench.total("gpu_kernel_launches", "[graph captured before attach]") == 1


def test_memory_is_bounded_and_what_is_pushed_out_is_counted_and_kept() -> None:
    bench = Bench(waiting_limit=10)
    for number in range(50):
        bench.feed([ran(number, 0, 10), {"id": 1000 + number}])
    assert bench.host.counters.get(STITCH_WAITING) <= 20
    assert bench.unjoined("table_full") == 80
    bench.stop()
    assert bench.total("gpu_kernel_time", "[no launch stack]") == 500
    assert bench.total("gpu_kernel_launches") == 50


def test_a_replay_is_one_launch_and_its_kernels_count_apart() -> None:
    """Kernels of a replay share its id; their nodes tell them apart, and a loop runs a node again."""
    bench = Bench()
    kernels = [ran(3, 10 * n, 10 * n + 5, node=n % 2 + 1, kernel=f"k{n % 2}") for n in range(4)]
    bench.feed([{"id": 3, "kind": CallKind.GRAPH, "kernel": ""}, *kernels, kernels[0]])
    assert bench.total("gpu_kernel_launches") == 1
    assert bench.total("gpu_graph_kernels", "attention") == 4
    assert bench.total("gpu_kernel_time", "attention", "k0") == 10


def test_copies_and_waits_have_their_own_types() -> None:
    bench = Bench()
    copy = {"kind": CallKind.MEMCPY, "bytes": 4096, "kernel": "", "entry": "cuMemcpyHtoDAsync_v2", "id": 4}
    wait = {"kind": CallKind.SYNC, "duration": 700, "kernel": "", "entry": "cuStreamSynchronize"}
    bench.feed([copy, wait, {**wait, "duration": -1}, {"duration": 30}, ran(4, 0, 50, kind=CallKind.MEMCPY, kernel="")])
    assert bench.total("gpu_memcpy", "attention", "cuMemcpyHtoDAsync_v2") == 4096
    assert bench.total("gpu_memcpy_time", "attention", "cuMemcpyHtoDAsync_v2") == 50
    assert bench.total("gpu_sync", "cuStreamSynchronize") == 700
    assert bench.total("gpu_launch_time") == 30
    assert bench.total("gpu_kernel_launches") == 1


def test_halves_from_two_interners_and_two_clocks_meet() -> None:
    """Two receivers name the same things by other ids, and their intervals have other clock offsets."""
    bench = Bench()
    bench.feed([{"id": 1, "stack": ["a", "b"]}], offset=500)
    bench.interner = Interner()
    bench.interner.stack([Frame("something else", FrameKind.NATIVE)])
    bench.feed([ran(1, 0, 10)], offset=600)
    assert bench.total("gpu_kernel_time", "a", "b", "k") == 10
    bench.feed([ran(2, 0, 10)], offset=600)
    bench.interner = Interner()
    bench.feed([{"id": 2, "stack": ["c"]}], offset=0)
    assert bench.total("gpu_kernel_time", "c", "k") == 10
    late = bench.sink.batches[-1]
    assert late.samples["time"].max() == START + 600


def test_each_event_stands_in_one_table_only() -> None:
    bench = Bench()
    bench.feed([{}, ran(1, 0, 1)])
    (batch,) = bench.sink.batches
    assert len(batch.launches) == len(batch.activity) == 0
    assert batch.interner is bench.interner


def test_many_launches_with_few_stacks_make_few_new_stacks() -> None:
    """Work per launch is numpy's; the interner grows by different (stack, kernel) pairs only."""
    bench = Bench()
    launches = np.repeat(
        rows(LAUNCHES, [launch_row(bench.interner, {}), launch_row(bench.interner, {"kernel": "other"})]), 5000
    )
    before = len(bench.interner.stacks)
    bench.stitch.consume(Batch(bench.interner, START, START + SECOND, launches=launches))
    assert len(bench.interner.stacks) == before + 2
    assert bench.total("gpu_kernel_launches") == 10_000


@pytest.mark.parametrize("started", [False, True])
def test_shutdown_is_safe_without_start_and_twice(started: bool) -> None:
    bench = Bench()
    if started:
        bench.stitch.start(bench.host)
    bench.feed([ran(1, 0, 10)])
    bench.stop()
    bench.stop()
    assert bench.total("gpu_kernel_time", "[no launch stack]") == 10
