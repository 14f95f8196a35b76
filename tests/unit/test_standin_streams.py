"""The stand-in's clocks: order and time of work on streams, waiting, events, and captured graphs.

Nothing here measures how fast the machine is: what happened when is read from the driver's own clock."""

import ctypes
from pathlib import Path

import pytest

from tests.unit.standin_driver import (
    CAPTURE_INVALIDATED,
    CAPTURE_UNSUPPORTED,
    ILLEGAL_STATE,
    INVALID_HANDLE,
    NOT_READY,
    SUCCESS,
    Driver,
)

MS = 1_000_000
LONG = 3_600_000 * MS  # an hour: work that isn't over before the test is
NON_BLOCKING = 1
SPIN, YIELD, BLOCKING_SYNC = 1, 2, 4


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """A driver with the first device's context current."""
    return Driver(tmp_path).start()


def stream_of(driver: Driver, flags: int = NON_BLOCKING) -> int:
    """A new stream."""
    return driver.make("cuStreamCreate", flags)


def record(driver: Driver, stream: int) -> int:
    """A new event, recorded on the stream."""
    event = driver.make("cuEventCreate", 0)
    driver.ok("cuEventRecord", event, stream)
    return event


def capture(driver: Driver, stream: int, *functions: int) -> int:
    """A graph of these kernels."""
    driver.ok("cuStreamBeginCapture_v2", stream, 0)
    for function in functions:
        assert driver.launch(function, stream) == SUCCESS
    return driver.make_last("cuStreamEndCapture", stream)


def test_kernels_of_a_stream_follow_each_other_for_their_set_time(driver: Driver) -> None:
    function, stream = driver.kernel("gemm", 20 * MS), stream_of(driver)
    before = driver.now()
    for _ in range(3):
        driver.launch(function, stream)
    after = driver.now()
    assert before + 60 * MS <= driver.busy_until(stream) <= after + 60 * MS


@pytest.mark.parametrize("flags", [0, SPIN, YIELD, BLOCKING_SYNC])
def test_synchronize_returns_when_the_stream_is_idle_and_not_before(driver: Driver, flags: int) -> None:
    driver.ok("cuDevicePrimaryCtxSetFlags_v2", 0, flags)
    function, stream = driver.kernel("gemm", 15 * MS), stream_of(driver)
    driver.launch(function, stream)
    until = driver.busy_until(stream)
    assert driver.call("cuStreamQuery", stream) == NOT_READY or driver.now() >= until
    driver.ok("cuStreamSynchronize", stream)
    assert driver.now() >= until
    assert driver.call("cuStreamQuery", stream) == SUCCESS


def test_a_launch_does_not_wait(driver: Driver) -> None:
    function, stream = driver.kernel("slow", LONG), stream_of(driver)
    driver.launch(function, stream)
    assert driver.call("cuStreamQuery", stream) == NOT_READY


def test_context_synchronize_waits_for_every_stream(driver: Driver) -> None:
    function = driver.kernel("gemm", 5 * MS)
    streams = [0, stream_of(driver), stream_of(driver, 0)]
    for times, stream in enumerate(streams, start=1):
        for _ in range(times):
            driver.launch(function, stream)
    until = max(driver.busy_until(stream) for stream in streams)
    driver.ok("cuCtxSynchronize")
    assert driver.now() >= until


def test_streams_run_side_by_side(driver: Driver) -> None:
    function, first, second = driver.kernel("slow", LONG), stream_of(driver), stream_of(driver)
    driver.launch(function, first)
    driver.launch(function, second)
    assert driver.busy_until(second) - driver.busy_until(first) < LONG


def test_the_default_stream_waits_for_blocking_streams_and_they_for_it(driver: Driver) -> None:
    function, blocking = driver.kernel("slow", LONG), stream_of(driver, 0)
    driver.launch(function, blocking)
    driver.launch(function, 0)
    assert driver.busy_until(0) == driver.busy_until(blocking) + LONG
    driver.launch(function, blocking)
    assert driver.busy_until(blocking) >= driver.now() + 2 * LONG


def test_a_non_blocking_stream_does_not_care_for_the_default_stream(driver: Driver) -> None:
    function, stream = driver.kernel("slow", LONG), stream_of(driver)
    driver.launch(function, 0)
    driver.launch(function, stream)
    assert driver.busy_until(stream) < driver.now() + 2 * LONG - 1


def test_the_per_thread_variant_uses_the_threads_own_default_stream(driver: Driver) -> None:
    function = driver.kernel("slow", LONG)
    driver.launch(function, 0, "cuLaunchKernel_ptsz")
    assert driver.call("cuStreamQuery_ptsz", 0) == NOT_READY
    assert driver.call("cuStreamQuery", 2) == NOT_READY  # CU_STREAM_PER_THREAD
    assert driver.busy_until(2) > driver.now()


def test_a_copy_takes_time_on_its_stream_and_a_plain_one_waits_for_it(driver: Driver) -> None:
    memory, stream = driver.make("cuMemAlloc_v2", 1 << 20), stream_of(driver)
    data = ctypes.create_string_buffer(1 << 20)
    before = driver.now()
    driver.ok("cuMemcpyHtoDAsync_v2", memory, data, 1 << 20, stream)
    assert driver.busy_until(stream) - before >= (1 << 20) // 25
    driver.ok("cuMemcpyHtoD_v2", memory, data, 1 << 20)
    assert driver.now() >= driver.busy_until(0)


# ---- events


def test_the_time_between_two_events_is_the_set_time_of_the_work_between(driver: Driver) -> None:
    stream, first_work, work = stream_of(driver), driver.kernel("first", 5 * MS), driver.kernel("gemm", 7 * MS)
    driver.launch(first_work, stream)
    start = record(driver, stream)
    driver.launch(work, stream)
    end = record(driver, stream)
    milliseconds = ctypes.c_float()
    driver.ok("cuEventSynchronize", end)
    driver.ok("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
    # The stream went from one to the other without a pause, unless the test itself was held up in between.
    assert milliseconds.value >= 7.0


def test_an_event_is_ready_when_the_work_before_it_is(driver: Driver) -> None:
    stream = stream_of(driver)
    event = driver.make("cuEventCreate", 0)
    assert driver.call("cuEventQuery", event) == SUCCESS  # never recorded
    driver.launch(driver.kernel("slow", LONG), stream)
    driver.ok("cuEventRecord", event, stream)
    assert driver.call("cuEventQuery", event) == NOT_READY
    assert driver.call("cuEventElapsedTime", ctypes.byref(ctypes.c_float()), event, event) == NOT_READY


def test_a_stream_that_waits_for_an_event_starts_after_it(driver: Driver) -> None:
    function, first, second = driver.kernel("slow", LONG), stream_of(driver), stream_of(driver)
    driver.launch(function, first)
    driver.ok("cuStreamWaitEvent", second, record(driver, first), 0)
    driver.launch(function, second)
    assert driver.busy_until(second) == driver.busy_until(first) + LONG


# ---- graphs


def test_capture_notes_launches_and_replay_runs_them(driver: Driver) -> None:
    stream, gemm, gelu = stream_of(driver), driver.kernel("gemm", 2 * MS), driver.kernel("gelu", MS)
    graph = capture(driver, stream, gemm, gelu, gemm)
    assert driver.busy_until(stream) == 0
    run = driver.make("cuGraphInstantiateWithFlags", graph, 0)
    before = driver.now()
    for _ in range(4):
        driver.ok("cuGraphLaunch", run, stream)
    assert driver.busy_until(stream) >= before + 4 * 5 * MS
    row = driver.ledger()["kernels"]["gemm"]
    assert (row["launches"], row["captured"], row["replayed"], row["busy_ns"]) == (2, 2, 8, 16 * MS)
    assert driver.ledger()["calls"]["cuGraphLaunch"] == 4


def test_a_graph_lives_on_in_what_was_made_of_it(driver: Driver) -> None:
    stream, function = stream_of(driver), driver.kernel("gemm")
    graph = capture(driver, stream, function)
    run = driver.make("cuGraphInstantiateWithFlags", graph, 0)
    driver.ok("cuGraphDestroy", graph)
    driver.ok("cuGraphLaunch", run, stream)
    driver.ok("cuGraphExecDestroy", run)
    assert driver.call("cuGraphLaunch", run, stream) == INVALID_HANDLE
    assert driver.call("cuGraphInstantiateWithFlags", ctypes.byref(ctypes.c_uint64()), graph, 0) == INVALID_HANDLE


def test_copies_in_a_graph_happen_at_each_replay(driver: Driver) -> None:
    stream, memory = stream_of(driver), driver.make("cuMemAlloc_v2", 64)
    data, back = ctypes.create_string_buffer(b"one", 8), ctypes.create_string_buffer(8)
    driver.ok("cuStreamBeginCapture_v2", stream, 0)
    driver.ok("cuMemcpyHtoDAsync_v2", memory, data, 8, stream)
    driver.ok("cuMemcpyDtoHAsync_v2", back, memory, 8, stream)
    run = driver.make("cuGraphInstantiateWithFlags", driver.make_last("cuStreamEndCapture", stream), 0)
    assert back.value == b""
    data.value = b"two"
    driver.ok("cuGraphLaunch", run, stream)
    assert back.value == b"two"


def test_a_stream_joins_a_capture_through_an_event(driver: Driver) -> None:
    first, second, function = stream_of(driver), stream_of(driver), driver.kernel("gemm")
    driver.ok("cuStreamBeginCapture_v2", first, 0)
    driver.ok("cuStreamWaitEvent", second, record(driver, first), 0)
    driver.launch(function, second)
    status = ctypes.c_int()
    driver.ok("cuStreamIsCapturing", second, ctypes.byref(status))
    assert status.value == 1
    run = driver.make("cuGraphInstantiateWithFlags", driver.make_last("cuStreamEndCapture", first), 0)
    driver.ok("cuGraphLaunch", run, first)
    driver.ok("cuStreamIsCapturing", second, ctypes.byref(status))
    assert status.value == 0
    assert driver.ledger()["kernels"]["gemm"]["replayed"] == 1


def test_waiting_in_a_capture_spoils_it(driver: Driver) -> None:
    stream, out = stream_of(driver), ctypes.c_uint64()
    driver.ok("cuStreamBeginCapture_v2", stream, 0)
    assert driver.call("cuStreamSynchronize", stream) == CAPTURE_UNSUPPORTED
    assert driver.call("cuStreamEndCapture", stream, ctypes.byref(out)) == CAPTURE_INVALIDATED
    assert out.value == 0


def test_captures_begin_and_end_in_order(driver: Driver) -> None:
    stream, out = stream_of(driver), ctypes.c_uint64()
    assert driver.call("cuStreamEndCapture", stream, ctypes.byref(out)) == ILLEGAL_STATE
    assert driver.call("cuStreamBeginCapture_v2", 0, 0) == CAPTURE_UNSUPPORTED
    driver.ok("cuStreamBeginCapture_v2", stream, 0)
    assert driver.call("cuStreamBeginCapture_v2", stream, 0) == ILLEGAL_STATE
