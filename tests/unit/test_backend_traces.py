"""What requests cost: the same from both stores, from samples alone, from spans alone, and from both."""

import time
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otelprof.backend.memory import MemoryStore
from otelprof.backend.query import MAX_TIME
from otelprof.backend.series import Range, SeriesIndex
from otelprof.backend.store import Block, Seen, Store
from otelprof.backend.traces import Traces
from otelprof.errors import MalformedInput
from otelprof.otlp.decode import decode_profiles
from otelprof.otlp.decode_spans import decode_spans
from tests.unit.otlp_requests import PERIOD, Builder

FIRST, SECOND, THIRD = b"\x01" * 16, b"\x02" * 16, b"\x03" * 16
NOW = time.time_ns()


@pytest.fixture(scope="module", params=["memory", "chdb"])
def traces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traces]:
    """Answers over three traces: two with samples, one of them and a third with spans."""
    store: Store = MemoryStore()
    if request.param == "chdb":
        pytest.importorskip("chdb", reason="missing: chdb")
        from otelprof.backend.chdb_engine import ChdbEngine
        from otelprof.backend.clickhouse import ClickHouseStore

        store = ClickHouseStore(ChdbEngine(tmp_path_factory.mktemp("traces")))
    index = SeriesIndex()
    profiles = decode_profiles(samples())
    for spans in (decode_spans(requests()), decode_spans(requests())):  # a sender that tries again
        store.insert(Block([], [spans]))
    store.insert(Block([profiles]))
    for series in profiles.series:
        index.add(Seen(series, NOW // 10**6 - 5000, NOW // 10**6 + 5000))
    yield Traces(store, index)
    store.close()


def samples() -> bytes:
    """CPU time in two traces and without one, and launches in the first."""
    builder = Builder("web", start=NOW)
    builder.sample("main", "handle", values=(3,), link_index=builder.link(FIRST, b"\x0a" * 8))
    builder.sample("main", "query", values=(2,), link_index=builder.link(FIRST, b"\x0b" * 8))
    builder.sample("main", "handle", values=(9,), link_index=builder.link(SECOND, b"\x0c" * 8))
    builder.sample("main", "idle", values=(50,))
    builder.profile(("gpu_kernel_launches", "count"), ("gpu", "count", 1))
    builder.sample("main", "handle", values=(7,), link_index=builder.link(FIRST, b"\x0a" * 8))
    return builder.data()


def requests() -> bytes:
    """The spans of two requests; a kernel's among them."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "web"
    spans = group.scope_spans.add().spans
    rows = [
        (FIRST, b"\x0b" * 8, b"\x0a" * 8, "SELECT", 1, 3),
        (FIRST, b"\x0a" * 8, b"", "GET /", 0, 5),
        (FIRST, b"\x0d" * 8, b"\x0a" * 8, "gemm", 2, 3),
        (THIRD, b"\x0e" * 8, b"", "GET /slow", 0, 9000),
    ]
    for trace, span, parent, name, start, end in rows:
        made = spans.add(trace_id=trace, span_id=span, parent_span_id=parent, name=name)
        made.start_time_unix_nano, made.end_time_unix_nano = NOW + start * 10**6, NOW + end * 10**6
        if name == "gemm":
            made.attributes.add(key="cuda.stream").value.int_value = 7
    return request.SerializeToString()


def test_requests_are_ordered_by_what_is_asked_for(traces: Traces) -> None:
    found = traces.requests("{}", Range(), "cpu", 10)
    assert [one.trace[1] & 0xFF for one in found] == [2, 1]
    assert [one.weights["cpu"] for one in found] == [9 * PERIOD, 5 * PERIOD]
    assert [(one.root.name, one.spans) for one in found] == [("", 0), ("GET /", 3)]
    assert [one.trace[1] & 0xFF for one in traces.requests("{}", Range(), "launches", 1)] == [1]


def test_the_longest_requests_come_from_spans_and_have_their_weights(traces: Traces) -> None:
    found = traces.requests('{service_name="web"}', Range(), "duration", 10)
    assert [(one.root.name, one.root.duration, one.weights["launches"]) for one in found] == [
        ("GET /slow", 9000 * 10**6, 0),
        ("GET /", 5 * 10**6, 7),
    ]


def test_a_trace_has_its_spans_once_in_order_with_their_own_weights(traces: Traces) -> None:
    found = traces.trace(FIRST.hex())
    assert [(one.name, one.weights["cpu"], one.weights["launches"]) for one in found] == [
        ("GET /", 3 * PERIOD, 7),
        ("SELECT", 2 * PERIOD, 0),
        ("gemm", 0, 0),
    ]
    (alone,) = traces.trace(SECOND.hex())
    assert (alone.name, alone.start, alone.weights["cpu"]) == ("", 0, 9 * PERIOD)
    assert traces.trace("ff" * 16) == []


@pytest.mark.parametrize("within", [Range(1, 2), Range(MAX_TIME, MAX_TIME * 2), Range(2**62, -5), Range(NOW // 10**6 + 10**6)])
def test_a_range_without_data_has_no_requests(traces: Traces, within: Range) -> None:
    assert traces.requests("{}", within, "cpu", 10) == []
    assert traces.requests("{}", within, "duration", 10) == []


def test_a_selector_that_selects_nothing_has_no_requests(traces: Traces) -> None:
    for order in ("cpu", "duration"):
        assert traces.requests('{service_name="other"}', Range(), order, 10) == []


def test_kernels_are_what_ran_on_a_stream(traces: Traces) -> None:
    assert [(one.name, one.attributes["cuda.stream"]) for one in traces.on_gpu("{}", Range())] == [("gemm", "7")]


def test_an_order_or_an_id_that_there_is_not_is_said(traces: Traces) -> None:
    with pytest.raises(MalformedInput, match="order is one of cpu"):
        traces.requests("{}", Range(), "colour", 10)
    with pytest.raises(MalformedInput, match="32 hex digits"):
        traces.trace("zz")
