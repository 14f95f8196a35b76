"""Time bounds: from a launch to the end of the first wait for its stream that began after it."""

import numpy as np

from otelprof.batch import LAUNCHES, CallKind, Frame, FrameKind, Interner, Table
from otelprof.receivers.ebpf.bounds import ALL_STREAMS, LONGEST, Bounds


def rows(interner: Interner, kind: CallKind, *calls: tuple[int, int, int]) -> Table:
    """LAUNCHES rows of (time, stream, duration)."""
    table = np.zeros(len(calls), LAUNCHES)
    table["kind"] = kind
    table["stack"] = interner.stack([Frame("forward", FrameKind.CPYTHON)])
    table["kernel"] = interner.frames.id(Frame("gemm", FrameKind.CUDA))
    for row, (time, stream, duration) in zip(table, calls, strict=True):
        row["time"], row["stream"], row["duration"] = time, stream, duration
    return table


def taken(bounds: Bounds, interner: Interner, launches=(), waits=(), process: int = 1) -> None:
    started, ended = rows(interner, CallKind.KERNEL, *launches), rows(interner, CallKind.SYNC, *waits)
    bounds.take(interner, np.full(len(started), process), started, (np.full(len(ended), process), ended))


def test_the_next_wait_of_the_stream_bounds_a_launch() -> None:
    interner, bounds = Interner(), Bounds()
    taken(bounds, interner, [(100, 7, -1), (200, 7, -1), (250, 8, -1)], [(300, 7, 50), (900, 7, 10), (900, 8, 5)])
    (found,) = bounds.samples(interner)
    assert found["value"] == (350 - 100) + (350 - 200) + (905 - 250)
    assert [frame.name for frame in interner.frames_of(int(found["stack"]))] == ["forward", "gemm"]
    assert len(bounds.samples(interner)) == 0


def test_a_wait_that_began_before_the_launch_proves_nothing() -> None:
    interner, bounds = Interner(), Bounds()
    taken(bounds, interner, [(100, 7, -1)], [(50, 7, 100)])
    assert len(bounds.samples(interner)) == 0
    taken(bounds, interner, waits=[(400, 7, 1)])
    assert bounds.samples(interner)["value"].tolist() == [301]


def test_a_wait_for_everything_bounds_every_stream_of_its_process_only() -> None:
    interner, bounds = Interner(), Bounds()
    taken(bounds, interner, [(100, 7, -1), (100, 8, -1)])
    taken(bounds, interner, [(100, 7, -1)], process=2)
    taken(bounds, interner, waits=[(200, int(ALL_STREAMS), 100)])
    assert bounds.samples(interner)["value"].tolist() == [400]


def test_an_earlier_end_of_a_later_wait_counts() -> None:
    """Two threads wait for one stream; the second wait is over first."""
    interner, bounds = Interner(), Bounds()
    taken(bounds, interner, [(100, 7, -1)], [(150, 7, 1000), (200, 7, 10)])
    assert bounds.samples(interner)["value"].tolist() == [110]


def test_what_nobody_waits_for_is_let_go() -> None:
    interner, bounds = Interner(), Bounds()
    taken(bounds, interner, [(100, 7, -1)])
    taken(bounds, interner, [(100 + LONGEST, 8, -1)])
    taken(bounds, interner, waits=[(200 + LONGEST, 7, 1)])
    assert len(bounds.samples(interner)) == 0
