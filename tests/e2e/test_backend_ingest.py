"""Real clients against the running backend: what they send is what a query has, and refusals are as the interface says."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc.status_pb2 import Status

from tests.e2e.backend_program import JSON, PROFILES, PROTOBUF, TRACES, Backend
from tests.e2e.programs import fetch
from tests.unit.otlp_requests import CPU, PERIOD, Builder, simple
from tests.unit.test_otlp_decode_json import document, spans

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=["memory", "chdb"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """A backend of each store; every test uses services of its own."""
    with Backend(tmp_path_factory.mktemp("backend"), store=request.param) as program:
        yield program
        assert "Traceback" not in program.log()


def selector(service: str) -> str:
    """Selects one service."""
    return json.dumps({"service_name": service}).replace('"service_name": ', "service_name=")


def test_every_way_in_ends_in_the_same_store(backend: Backend) -> None:
    for number, send in enumerate(
        [backend.send, backend.call, lambda d: backend.send(d, squeeze=True), lambda d: backend.call(d, grpc.Compression.Gzip)]
    ):
        builder = simple("ways")
        builder.current.profile_id = bytes([number + 1]) * 16
        assert not send(builder.data()).partial_success.error_message
    backend.send(json.dumps(document()).encode(), JSON)
    assert backend.total(CPU, selector("ways")) == 40 * PERIOD
    assert backend.total(CPU, selector("json")) == 7 * PERIOD
    assert fetch(f"{backend.url}/v1/profiles")[0] == 405
    status, _, _ = backend.post("/v1/profiles", simple("ways").data(), content_type=PROTOBUF)
    assert status == 200


def test_stacks_come_back_with_kinds_files_and_nesting(backend: Backend) -> None:
    builder = Builder("frames")
    gpu = [builder.location("gemm<float>", "cuda", file=""), builder.location("launch", "native"), builder.location("step")]
    builder.tables.stack_table.add(location_indices=gpu)
    builder.profile(("gpu_kernel_time", "nanoseconds"), ("gpu", "nanoseconds", 1))
    builder.current.samples.add(stack_index=len(builder.tables.stack_table) - 1, values=[1234])
    backend.send(builder.data())
    kind = "gpu:gpu_kernel_time:nanoseconds:gpu:nanoseconds"
    status, body = fetch(f"{backend.url}/api/v1/flamegraph?type={kind}&query={{service_name=%22frames%22}}&from=0")
    graph = json.loads(body)
    assert status == 200
    bars = {graph["names"][level[3]]: (level[0], level[1], level[2]) for level in graph["levels"]}
    assert bars == {"total": (0, 1234, 0), "step": (0, 1234, 0), "launch": (0, 1234, 0), "[cuda] gemm<float>": (0, 1234, 1234)}
    kinds = dict(zip(graph["names"], graph["kinds"], strict=True))
    assert kinds == {"total": "", "step": "python", "launch": "native", "[cuda] gemm<float>": "cuda"}
    assert dict(zip(graph["names"], graph["files"], strict=True))["step"] == "app.py:1"
    assert (graph["unit"], graph["total"], graph["max_self"], graph["other"]) == ("nanoseconds", 1234, 1234, 0)


def test_a_trace_and_a_span_select_their_samples(backend: Backend) -> None:
    builder = Builder("traced")
    builder.sample("inside", values=(3,), link_index=builder.link(b"\x01" * 16, b"\x02" * 8))
    builder.sample("outside", values=(4,))
    backend.send(builder.data())
    chosen = selector("traced")
    assert backend.total(CPU, chosen) == 7 * PERIOD
    assert backend.total(CPU, chosen, traceIdSelector=["01" * 16]) == 3 * PERIOD
    assert backend.total(CPU, chosen, spanSelector=["02" * 8]) == 3 * PERIOD
    assert backend.total(CPU, chosen, spanSelector=["03" * 8]) == 0
    request = {"profileTypeID": CPU, "labelSelector": chosen, "spanSelector": ["02" * 8]}
    assert backend.ask("SelectMergeSpanProfile", **request)["flamegraph"]["total"] == str(3 * PERIOD)


def test_a_deep_stack_is_answered(backend: Backend) -> None:
    builder = Builder("deep")
    places = [builder.location(f"r{number}") for number in range(7)]
    builder.tables.stack_table.add(location_indices=[places[number % 7] for number in range(5000)])
    builder.current.samples.add(stack_index=1, values=[2])
    backend.send(builder.data())
    answer = backend.ask("SelectMergeStacktraces", profileTypeID=CPU, labelSelector=selector("deep"))
    assert len(answer["flamegraph"]["levels"]) == 5001


def test_a_state_counts_by_its_last_value(backend: Backend) -> None:
    builder = Builder("memory", start=(time.time_ns() // 10**9 - 60) * 10**9)
    builder.profile(("gpu_memory_reserved", "bytes"), ("gpu", "bytes", 1))
    times = [builder.start + second * 10**9 for second in range(3)]
    builder.sample("cudaMalloc", values=(100, 300, 200), timestamps_unix_nano=times)
    builder.sample("other", values=(5, 6, 7), timestamps_unix_nano=times)
    backend.send(builder.data())
    kind = "gpu:gpu_memory_reserved:bytes:gpu:bytes"
    assert backend.total(kind, selector("memory")) == 207
    points = backend.ask("SelectSeries", profileTypeID=kind, labelSelector=selector("memory"), step=1)["series"][0]["points"]
    assert [point["value"] for point in points] == [105, 306, 207]


def test_bad_samples_are_told_and_the_good_ones_stored(backend: Backend) -> None:
    builder = simple("partly")
    builder.sample("main", values=(1, 2, 3), timestamps_unix_nano=[builder.start])
    for answer in (backend.send(builder.data()), backend.call(builder.data())):
        assert "values and timestamps differ" in answer.partial_success.error_message
        assert answer.partial_success.rejected_profiles == 0
    assert backend.total(CPU, selector("partly")) == 10 * PERIOD


def test_refusals_have_the_right_status_and_a_short_body(backend: Backend) -> None:
    good = simple("refused").data()
    refused = [
        (PROFILES, b"\xff\xff", {"content_type": PROTOBUF}, 400),
        (PROFILES, b"{", {"content_type": JSON}, 400),
        (PROFILES, good, {"content_type": "text/plain"}, 415),
        (PROFILES, good, {"content_type": PROTOBUF, "content_encoding": "zstd"}, 415),
        (PROFILES, b"no gzip", {"content_type": PROTOBUF, "content_encoding": "gzip"}, 400),
        (PROFILES, bytes(17 << 20), {"content_type": PROTOBUF}, 413),
        (TRACES, b"\xff\xff", {"content_type": PROTOBUF}, 400),
        ("/querier.v1.QuerierService/Nope", b"{}", {"content_type": JSON}, 501),
        ("/querier.v1.QuerierService/Series", b"{", {"content_type": JSON}, 400),
        ("/querier.v1.QuerierService/Series", b"", {"content_type": "text/plain"}, 415),
        (PROFILES, good, {"content_type": PROTOBUF, "origin": "http://elsewhere.example"}, 403),
        (PROFILES, good, {"content_type": PROTOBUF, "host": "rebound.example:4040"}, 403),
    ]
    for path, data, headers, status in refused:
        got, body, _ = backend.post(path, data, **headers)
        assert (got, len(body) <= 1000) == (status, True), (path, headers, body)
    assert backend.total(CPU, selector("refused")) == 0


def test_grpc_refusals_say_whether_to_try_again(backend: Backend) -> None:
    for data, code in ((b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT), (bytes(17 << 20), grpc.StatusCode.RESOURCE_EXHAUSTED)):
        with pytest.raises(grpc.RpcError) as caught:
            backend.call(data)
        assert caught.value.code() is code  # type: ignore[attr-defined]


def test_an_error_in_protobuf_is_a_status(backend: Backend) -> None:
    _, body, headers = backend.post(PROFILES, b"\xff\xff", content_type=PROTOBUF)
    status = Status.FromString(body)
    assert (headers["content-type"], status.code) == (PROTOBUF, grpc.StatusCode.INVALID_ARGUMENT.value[0])
    assert status.message


def test_spans_are_taken(backend: Backend) -> None:
    assert backend.post(TRACES, spans(), content_type=JSON)[0] == 200
    status, body, _ = backend.post(TRACES, spans(traceId="00"), content_type=JSON)
    assert (status, json.loads(body)["partialSuccess"]["rejectedSpans"]) == (200, "1")


def test_many_clients_at_once_lose_nothing(backend: Backend) -> None:
    failures: list[str] = []

    def client(number: int) -> None:
        for turn in range(10):
            builder = simple("crowd")
            builder.current.profile_id = bytes([number + 1, turn + 1]) * 8
            try:
                (backend.send if turn % 2 else backend.call)(builder.data())
            except (AssertionError, grpc.RpcError, OSError) as error:
                failures.append(repr(error))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert backend.total(CPU, selector("crowd")) == 800 * PERIOD


def test_news_come_as_events(backend: Backend) -> None:
    host, port = backend.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as link:
        link.sendall(b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        seen = b""
        while b"event: data" not in seen:
            seen += link.recv(4096)
        before = seen.count(b"event: data")
        backend.send(simple("news").data())
        while seen.count(b"event: data") <= before:
            seen += link.recv(4096)
    assert b"text/event-stream" in seen
    assert json.loads(seen.rsplit(b"data: ", 1)[1].split(b"\n")[0])["last"] > 0


def test_types_and_metrics_tell_what_is_there(backend: Backend) -> None:
    backend.send(simple("told").data())
    (kind,) = [one for one in json.loads(fetch(f"{backend.url}/api/v1/types")[1])["types"] if one["id"] == CPU]
    assert kind["unit"] == "nanoseconds"
    assert "told" in kind["services"]
    assert 0 < kind["first"] <= kind["last"]
    metrics = fetch(f"{backend.url}/metrics")[1].decode()
    assert "otelprof_backend_accepted_samples_total " in metrics


def test_errors_of_the_pages_api_have_a_code_and_a_message(backend: Backend) -> None:
    for query in ("type=x&query={", "type=x&from=yesterday"):
        status, body = fetch(f"{backend.url}/api/v1/flamegraph?{query}")
        assert status == 400
        assert set(json.loads(body)) == {"code", "message"}


def test_an_empty_range_has_no_levels(backend: Backend) -> None:
    graph = json.loads(fetch(f"{backend.url}/api/v1/flamegraph?type={CPU}&from=1&until=2")[1])
    assert (graph["total"], graph["levels"]) == (0, [])


def test_the_page_comes_with_a_strict_policy(backend: Backend, tmp_path: Path) -> None:
    status, body = fetch(f"{backend.url}/explore")
    assert status == 200
    assert b"<script type=" in body
    parts = backend.url.removeprefix("http://").split(":")
    with socket.create_connection((parts[0], int(parts[1])), timeout=10) as link:
        link.sendall(b"GET /explore HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head = link.recv(65536).split(b"\r\n\r\n")[0].decode().lower()
    assert "content-security-policy: default-src 'self'" in head
    assert "unsafe-inline" not in head
