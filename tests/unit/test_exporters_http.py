"""otlp_http against a real HTTP server: what arrives, and what each status means."""

from __future__ import annotations

import gzip
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesPartialSuccess,
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

from otelprof.component import Build, Signal
from otelprof.counters import EXPORT_SENT
from otelprof.exporters.answers import Answer, Verdict
from otelprof.exporters.otlp_http.config import Settings
from otelprof.exporters.otlp_http.factory import FACTORY
from otelprof.exporters.otlp_http.transport import HttpTransport, proxy_of
from otelprof.exporters.pyroscope.config import Settings as Pyroscope
from otelprof.exporters.pyroscope.factory import FACTORY as PYROSCOPE
from otelprof.otlp.check import check
from otelprof.otlp.encode import Encoded, encode_profiles
from otelprof.testing import RecordingHost, sample_batch

PROTOBUF = "application/x-protobuf"


class Server(http.server.ThreadingHTTPServer):
    """Keeps what it gets and answers as it is told."""

    daemon_threads = True

    def __init__(self, status: int = 200, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.body, self.headers = status, body, headers or {}
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.release: threading.Event | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, {key.lower(): value for key, value in self.headers.items()}, body))
        if self.server.release is not None:
            self.server.release.wait(10)
        self.send_response(self.server.status)
        for key, value in {"Content-Length": str(len(self.server.body)), **self.server.headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serving(status: int = 200, body: bytes = b"", **headers: str) -> Iterator[Server]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    with Server(status, body, given) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def request() -> Encoded:
    return encode_profiles(sample_batch({"main;work": 3}))[0]


def send(endpoint: str, sent: Encoded | None = None, seconds: float = 10.0, **settings: object) -> Answer:
    transport = HttpTransport(Settings(endpoint=endpoint, **settings))  # type: ignore[arg-type]
    transport.open()
    try:
        return transport.send(sent or request(), seconds)
    finally:
        transport.close()


def test_a_batch_arrives_compressed_and_conforms() -> None:
    with serving() as server:
        exporter = FACTORY.create(Build("otlp_http", Settings(endpoint=server.url, headers={"authorization": "Bearer x"})))
        host = RecordingHost()
        exporter.start(host)
        exporter.consume(sample_batch({"main;work": 3}))  # type: ignore[attr-defined]
        exporter.shutdown(time.monotonic() + 10)
    ((path, headers, body),) = server.got
    assert path == "/v1development/profiles"
    assert (headers["content-type"], headers["content-encoding"], headers["authorization"]) == (PROTOBUF, "gzip", "Bearer x")
    assert check(gzip.decompress(body)) == []
    assert host.counters.get(EXPORT_SENT, "otlp_http") == 1


def test_pyroscope_gets_profiles_without_ids_at_its_own_port_s_path() -> None:
    with serving() as server:
        settings = Pyroscope(endpoint=f"{server.url}/tenant/", headers={"X-Scope-OrgID": "me"})
        exporter = PYROSCOPE.create(Build("pyroscope", settings))
        exporter.start(RecordingHost())
        exporter.consume(sample_batch({"main;work": 3}, pid=7, attributes={"service.name": "shop"}))  # type: ignore[attr-defined]
        exporter.shutdown(time.monotonic() + 10)
    ((path, headers, body),) = server.got
    sent = ExportProfilesServiceRequest.FromString(gzip.decompress(body))
    assert (path, headers["x-scope-orgid"]) == ("/tenant/v1development/profiles", "me")
    assert {pair.key for pair in sent.resource_profiles[0].resource.attributes} == {"service.name"}
    assert check(sent) == []


def test_without_compression_the_bytes_are_bare() -> None:
    sent = request()
    with serving() as server:
        assert send(server.url, sent, compression="none").verdict is Verdict.ACCEPTED
    assert server.got[0][2] == sent.data
    assert "content-encoding" not in server.got[0][1]


@pytest.mark.parametrize(
    ("end", "profiles", "traces"),
    [
        ("", "/v1development/profiles", "/v1/traces"),
        ("/", "/v1development/profiles", "/v1/traces"),
        ("/v1development/profiles", "/v1development/profiles", "/v1/traces"),
        ("/v1/profiles", "/v1/profiles", "/v1/traces"),
        ("/otlp/", "/otlp/v1development/profiles", "/otlp/v1/traces"),
    ],
)
def test_the_endpoint_is_a_base_or_a_whole_path(end: str, profiles: str, traces: str) -> None:
    with serving() as server:
        send(server.url + end)
        send(server.url + end, Encoded(Signal.TRACES, b"", 1))
    assert [path for path, _, _ in server.got] == [profiles, traces]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_these_may_be_tried_again_when_the_server_says(status: int) -> None:
    with serving(status, Retry_After="3") as server:
        answer = send(server.url)
    assert (answer.verdict, answer.wait) == (Verdict.RETRY, 3.0)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (400, Verdict.REFUSED),
        (401, Verdict.DENIED),
        (403, Verdict.DENIED),
        (413, Verdict.TOO_LARGE),
        (415, Verdict.DENIED),
        (500, Verdict.DENIED),
        (404, Verdict.UNSUPPORTED),
    ],
)
def test_these_may_not(status: int, verdict: Verdict) -> None:
    with serving(status) as server:
        answer = send(server.url)
    assert (answer.verdict, answer.reason) == (verdict, f"http {status}")


def test_a_path_without_profiles_says_what_a_collector_needs() -> None:
    with serving(404, b"<html>no</html>", Content_Type="text/html") as server:
        cause = send(server.url).cause
    assert "service.profilesSupport" in cause
    assert "html" not in cause


def test_the_server_s_own_words_are_repeated_on_one_line() -> None:
    body = Status(code=3, message="bad\ndictionary\x1b[0m").SerializeToString()
    with serving(400, body, Content_Type=PROTOBUF) as server:
        assert send(server.url).cause == "HTTP 400: bad\ufffddictionary\ufffd[0m"


def test_a_redirect_is_not_followed() -> None:
    with serving(301, Location="/elsewhere") as server:
        answer = send(server.url)
    assert answer.verdict is Verdict.DENIED
    assert "/elsewhere" in answer.cause
    assert len(server.got) == 1


def test_a_proxy_of_the_environment_is_asked_with_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        monkeypatch.setenv("http_proxy", server.url.replace("://", "://me:a%20b@"))
        assert send("http://collector.example.com:4318").verdict is Verdict.ACCEPTED
    ((path, headers, _),) = server.got
    assert path == "http://collector.example.com:4318/v1development/profiles"
    assert headers["proxy-authorization"] == "Basic bWU6YSBi"


def test_proxies_are_not_for_this_machine_or_for_whom_no_proxy_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    monkeypatch.setenv("no_proxy", "inside.example.com")
    assert proxy_of("http://127.0.0.1:4318/x") is proxy_of("http://[::1]:1/") is proxy_of("http://localhost/") is None
    assert proxy_of("http://inside.example.com/") is None
    assert proxy_of("http://outside.example.com/") == "http://proxy:1"


def test_a_partial_success_is_read() -> None:
    partial = ExportProfilesPartialSuccess(rejected_profiles=1, error_message="one was bad")
    with serving(200, ExportProfilesServiceResponse(partial_success=partial).SerializeToString()) as server:
        assert send(server.url).rejected == 1


def test_only_the_start_of_an_endless_answer_is_read() -> None:
    with serving(200, b"\0" * (1 << 20)) as server:
        assert "isn't one of OTLP" in send(server.url).cause


def test_nobody_listens() -> None:
    with serving() as server:
        url = server.url
    assert send(url) == Answer(Verdict.RETRY, "unavailable", "unavailable: nobody listens there")


def test_a_silent_server_is_left_after_the_timeout() -> None:
    with serving() as server:
        server.release = threading.Event()
        answer = send(server.url, seconds=0.2)
        server.release.set()
    assert (answer.verdict, answer.reason) == (Verdict.RETRY, "timeout")


def test_tls_to_a_plain_text_server_is_named() -> None:
    with serving() as server:
        assert "plain text" in send(server.url.replace("http:", "https:")).cause
        assert server.got == []
