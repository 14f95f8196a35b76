"""otlp_grpc against real gRPC servers: what arrives, and what each refusal means."""

from __future__ import annotations

import http.server
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesPartialSuccess,
    ExportProfilesServiceResponse,
)

from otelprof.component import Build, Signal
from otelprof.counters import EXPORT_SENT
from otelprof.errors import OtelprofError
from otelprof.exporters.answers import Answer, Verdict
from otelprof.exporters.otlp_grpc.config import Settings
from otelprof.exporters.otlp_grpc.factory import FACTORY
from otelprof.exporters.otlp_grpc.transport import GrpcTransport
from otelprof.exporters.settings import Tls
from otelprof.otlp.check import check
from otelprof.otlp.encode import Encoded, encode_profiles
from otelprof.testing import RecordingHost, sample_batch

PROFILES = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Server(grpc.GenericRpcHandler):
    """A server that keeps what it gets and answers as it is told."""

    def __init__(self, code: grpc.StatusCode | None = None, details: str = "", wait: float | None = None) -> None:
        self.code, self.details, self.wait = code, details, wait
        self.body = b""
        self.got: list[tuple[str, bytes, dict[str, str]]] = []

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if call.method not in (PROFILES, TRACES) or self.code is grpc.StatusCode.UNIMPLEMENTED:
            return None
        metadata = {str(key): str(value) for key, value in call.invocation_metadata}
        return grpc.unary_unary_rpc_method_handler(lambda data, context: self.answer(call.method, data, metadata, context))

    def answer(self, method: str, data: bytes, metadata: dict[str, str], context: grpc.ServicerContext) -> bytes:
        self.got.append((method, data, metadata))
        if self.wait is not None:
            detail = AnyMessage()
            detail.Pack(RetryInfo(retry_delay=Duration(seconds=int(self.wait))))
            status = Status(code=8, details=[detail])
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        if self.code is not None:
            context.abort(self.code, self.details)
        return self.body


@contextmanager
def serving(server: Server, credentials: grpc.ServerCredentials | None = None) -> Iterator[int]:
    runner = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    runner.add_generic_rpc_handlers((server,))
    if credentials is None:
        port = runner.add_insecure_port("127.0.0.1:0")
    else:
        port = runner.add_secure_port("127.0.0.1:0", credentials)
    runner.start()
    try:
        yield port
    finally:
        runner.stop(0).wait()


def request() -> Encoded:
    return encode_profiles(sample_batch({"main;work": 3}))[0]


def send(endpoint: str, sent: Encoded | None = None, seconds: float = 10.0, **settings: object) -> Answer:
    settings.setdefault("tls", Tls(insecure=True))
    transport = GrpcTransport(Settings(endpoint=endpoint, **settings))  # type: ignore[arg-type]
    transport.open()
    try:
        return transport.send(sent or request(), seconds)
    finally:
        transport.close()


def test_a_batch_arrives_as_a_request_that_conforms() -> None:
    server = Server()
    with serving(server) as port:
        settings = Settings(endpoint=f"127.0.0.1:{port}", tls=Tls(insecure=True), headers={"X-Scope-OrgID": "me"})
        exporter, host = FACTORY.create(Build("otlp_grpc", settings)), RecordingHost()
        exporter.start(host)
        exporter.consume(sample_batch({"main;work": 3}))  # type: ignore[attr-defined]
        exporter.shutdown(time.monotonic() + 10)
    ((method, data, metadata),) = server.got
    assert (method, check(data), metadata["x-scope-orgid"]) == (PROFILES, [], "me")
    assert metadata["user-agent"].startswith("otelprof/")
    assert host.counters.get(EXPORT_SENT, "otlp_grpc") == 1


def test_spans_go_to_the_trace_service() -> None:
    server = Server()
    with serving(server) as port:
        assert send(f"127.0.0.1:{port}", Encoded(Signal.TRACES, b"", 1)).verdict is Verdict.ACCEPTED
    assert server.got[0][0] == TRACES


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "http://127.0.0.1:{}", "http://127.0.0.1:{}/", "localhost:{}"])
def test_endpoints_are_taken_in_their_usual_forms(form: str) -> None:
    with serving(Server()) as port:
        assert send(form.format(port)).verdict is Verdict.ACCEPTED


@pytest.mark.parametrize("code", ["CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"])
def test_these_codes_may_be_tried_again(code: str) -> None:
    with serving(Server(grpc.StatusCode[code])) as port:
        assert send(f"127.0.0.1:{port}").verdict is Verdict.RETRY


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("INVALID_ARGUMENT", Verdict.REFUSED),
        ("UNAUTHENTICATED", Verdict.DENIED),
        ("PERMISSION_DENIED", Verdict.DENIED),
        ("INTERNAL", Verdict.DENIED),
        ("RESOURCE_EXHAUSTED", Verdict.TOO_LARGE),
    ],
)
def test_these_codes_may_not(code: str, verdict: Verdict) -> None:
    with serving(Server(grpc.StatusCode[code], "no\x1b[31m")) as port:
        answer = send(f"127.0.0.1:{port}")
    assert (answer.verdict, answer.reason) == (verdict, code.lower())
    assert "\x1b" not in answer.cause


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAVAILABLE"])
def test_retry_info_says_how_long_to_wait(code: str) -> None:
    with serving(Server(grpc.StatusCode[code], "slow down", wait=3)) as port:
        answer = send(f"127.0.0.1:{port}")
    assert (answer.verdict, answer.wait) == (Verdict.RETRY, 3.0)


def test_a_server_without_profiles_is_told_what_it_needs() -> None:
    with serving(Server(grpc.StatusCode.UNIMPLEMENTED)) as port:
        answer = send(f"127.0.0.1:{port}")
    assert answer.verdict is Verdict.UNSUPPORTED
    assert "ProfilesService" in answer.cause
    assert "service.profilesSupport" in answer.cause


def test_a_partial_success_is_read() -> None:
    server = Server()
    partial = ExportProfilesPartialSuccess(rejected_profiles=2, error_message="two were bad")
    server.body = ExportProfilesServiceResponse(partial_success=partial).SerializeToString()
    with serving(server) as port:
        assert send(f"127.0.0.1:{port}") == Answer(Verdict.ACCEPTED, cause="refused a part: two were bad", rejected=2)


def test_an_answer_that_is_no_message_is_said_and_not_sent_again() -> None:
    server = Server()
    server.body = b"\xff" * 11
    with serving(server) as port:
        answer = send(f"127.0.0.1:{port}")
    assert answer.verdict is Verdict.ACCEPTED
    assert "isn't one of OTLP" in answer.cause


def free_port() -> int:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        return int(server.server_address[1])


def test_nobody_listens() -> None:
    answer = send(f"127.0.0.1:{free_port()}")
    assert (answer.verdict, answer.cause) == (Verdict.RETRY, "unavailable: nobody listens there")


@contextmanager
def plain_http() -> Iterator[int]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_an_http_server_on_the_port_is_named() -> None:
    with plain_http() as port:
        answer = send(f"127.0.0.1:{port}")
    assert "HTTP/1" in answer.cause


def test_tls_to_a_plain_text_server_is_named_and_never_falls_back() -> None:
    server = Server()
    with serving(server) as port:
        answer = send(f"https://127.0.0.1:{port}", tls=Tls())
    assert "plain text" in answer.cause
    assert server.got == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that nobody has signed, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *names, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def test_tls_with_the_right_ca_works_and_without_it_the_certificate_is_named(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    with serving(Server(), credentials) as port:
        assert send(f"localhost:{port}", tls=Tls(ca_file=cert)).verdict is Verdict.ACCEPTED
        assert "certificate" in send(f"localhost:{port}", tls=Tls()).cause


def test_a_certificate_that_can_t_be_read_stops_the_start(tmp_path: Path) -> None:
    transport = GrpcTransport(Settings(tls=Tls(ca_file=tmp_path / "none.pem")))
    with pytest.raises(OtelprofError, match=r"ca_file: .*none\.pem can't be read"):
        transport.open()


def test_a_silent_server_is_left_after_the_timeout() -> None:
    release = threading.Event()

    class Silent(Server):
        def answer(self, method: str, data: bytes, metadata: dict[str, str], context: grpc.ServicerContext) -> bytes:
            release.wait(10)
            return b""

    with serving(Silent()) as port:
        answer = send(f"127.0.0.1:{port}", seconds=0.2)
        release.set()
    assert (answer.verdict, answer.reason) == (Verdict.RETRY, "deadline_exceeded")
