"""The receiver `otlp` as a server: both protocols, every encoding, what is refused and how."""

import gzip
import http.client
import json
import socket
import ssl
import subprocess
import time

import grpc
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceResponse

from otelprof.component import Build
from otelprof.counters import RECEIVED, RECEIVED_BAD, SAMPLES_SEEN
from otelprof.errors import OtelprofError
from otelprof.formats.otlp_json import to_json
from otelprof.otlp.encode import encode_profiles
from otelprof.otlp.server import MAX_WIRE, PROFILES_SERVICE
from otelprof.receivers.otlp import config
from otelprof.receivers.otlp.factory import FACTORY
from otelprof.testing import RecordingConsumer, RecordingHost, sample_batch
from tests.unit.otlp_requests import simple

REQUEST = encode_profiles(sample_batch({"main;work": 3, "main": 4}))[0]
PROTOBUF = "application/x-protobuf"
ANY = "127.0.0.1:0"


class Running:
    def __init__(self, grpc_settings=None, http_settings=None):
        protocols = config.Protocols(grpc_settings or config.Grpc(ANY), http_settings or config.Http(ANY))
        self.consumer, self.host = RecordingConsumer(), RecordingHost()
        self.receiver = FACTORY.create(Build("otlp/test", config.Settings(protocols), self.consumer))
        self.receiver.start(self.host)
        self.ports = self.receiver.addresses

    def values(self):
        return sum(int(batch.samples["value"].sum()) for batch in self.consumer.batches)

    def post(self, body, kind=PROTOBUF, path="/v1development/profiles", context=None, **headers):
        make = http.client.HTTPSConnection if context else http.client.HTTPConnection
        more = {"context": context} if context else {}
        connection = make("localhost" if context else "127.0.0.1", self.ports["http"], timeout=20, **more)
        try:
            given = {"Content-Type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
            connection.request("POST", path, body, given, encode_chunked=headers.get("Transfer_Encoding") == "chunked")
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()

    def call(self, data, credentials=None, name="127.0.0.1", service=PROFILES_SERVICE):
        target = f"{name}:{self.ports['grpc']}"
        channel = grpc.secure_channel(target, credentials) if credentials else grpc.insecure_channel(target)
        with channel:
            return channel.unary_unary(f"/{service}/Export")(data, timeout=20)


@pytest.fixture
def running():
    found = Running()
    yield found
    found.receiver.shutdown(time.monotonic() + 5)


def test_grpc_hands_on_what_it_takes(running):
    assert running.call(REQUEST.data) == b""
    assert running.values() == 7
    assert running.host.counters.get(RECEIVED, "otlp/test") == 2
    assert running.host.counters.get(SAMPLES_SEEN) == 7
    assert running.host.ready_ids == ["otlp/test"]


@pytest.mark.parametrize("path", ["/v1development/profiles", "/v1/profiles", "/v1/profiles?x=1"])
def test_http_takes_both_paths(running, path):
    status, body, headers = running.post(REQUEST.data, path=path)
    assert (status, body, headers["content-type"]) == (200, b"", PROTOBUF)
    assert running.values() == 7


def test_http_takes_gzip_json_and_chunks(running):
    assert running.post(gzip.compress(REQUEST.data), Content_Encoding="gzip")[0] == 200
    status, body, _ = running.post(to_json(REQUEST).encode(), "application/json; charset=utf-8")
    assert (status, json.loads(body)) == (200, {})
    parts = iter([REQUEST.data[:100], REQUEST.data[100:]])
    assert running.post(parts, Transfer_Encoding="chunked")[0] == 200
    assert running.values() == 21


def test_bad_samples_are_a_partial_success(running):
    builder = simple()
    builder.sample("main").stack_index = 99
    answer = ExportProfilesServiceResponse.FromString(running.call(builder.data()))
    assert answer.partial_success.error_message == "1 samples dropped: an index points outside its table"
    assert answer.partial_success.rejected_profiles == 0
    assert running.values() == 10
    assert running.host.counters.get(RECEIVED_BAD, "otlp/test", "index") == 1


@pytest.mark.parametrize(
    ("body", "kind", "headers", "status"),
    [
        (b"\xff\xff", PROTOBUF, {}, 400),
        (b"{", "application/json", {}, 400),
        (b"x", "text/plain", {}, 415),
        (b"x", PROTOBUF, {"Content_Encoding": "zstd"}, 415),
        (b"not gzip", PROTOBUF, {"Content_Encoding": "gzip"}, 400),
        (b"x", PROTOBUF, {"Content_Length": "many"}, 400),
        (bytes(MAX_WIRE + 10), PROTOBUF, {}, 413),
        (gzip.compress(bytes(70 << 20), 1), PROTOBUF, {"Content_Encoding": "gzip"}, 413),
    ],
    ids=str,
)
def test_what_http_refuses_and_how(running, body, kind, headers, status):
    found, answer, _ = running.post(body, kind, **headers)
    assert found == status
    assert len(answer) <= 1000
    assert running.post(REQUEST.data)[0] == 200  # and it goes on


def test_another_path_or_method_is_named(running):
    status, body, _ = running.post(REQUEST.data, path="/v1/traces")
    assert (status, body) == (404, b"profiles are taken at /v1development/profiles\n")
    connection = http.client.HTTPConnection("127.0.0.1", running.ports["http"], timeout=20)
    connection.request("GET", "/v1/profiles")
    assert connection.getresponse().status == 501
    connection.close()


def test_grpc_refuses_nonsense_and_other_services(running):
    with pytest.raises(grpc.RpcError) as caught:
        running.call(b"\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as caught:
        running.call(b"", service="opentelemetry.proto.collector.trace.v1.TraceService")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_an_older_revision_is_refused_with_a_word_on_what_to_do(running):
    builder = simple()
    for sample in builder.current.samples:
        sample.ClearField("values")
        sample.attribute_indices[:] = [100]
    status, body, _ = running.post(builder.data())
    assert status == 400
    assert "older revision of OTLP profiles" in Status.FromString(body).message


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    cert, key = folder / "cert.pem", folder / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*make, *names, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def test_tls_with_certificates_of_senders_on_both(certificate):
    cert, key = certificate
    tls = config.ServerTls(cert, key, cert)
    running = Running(config.Grpc(ANY, tls), config.Http(ANY, tls))
    try:
        own = grpc.ssl_channel_credentials(cert.read_bytes(), key.read_bytes(), cert.read_bytes())
        assert running.call(REQUEST.data, own, "localhost") == b""
        context = ssl.create_default_context(cafile=cert)
        context.load_cert_chain(cert, key)
        assert running.post(REQUEST.data, context=context)[0] == 200
        with pytest.raises(grpc.RpcError):
            running.call(REQUEST.data, grpc.ssl_channel_credentials(cert.read_bytes()), "localhost")
        with pytest.raises(OSError):
            running.post(REQUEST.data, context=ssl.create_default_context(cafile=cert))
    finally:
        running.receiver.shutdown(time.monotonic() + 5)
    assert running.values() == 14


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_port_that_is_taken_stops_the_start_in_one_line(protocol):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        chosen = config.Protocols(**{protocol: {"grpc": config.Grpc, "http": config.Http}[protocol](address)})
        receiver = FACTORY.create(Build("otlp", config.Settings(chosen), RecordingConsumer()))
        with pytest.raises(OtelprofError, match=rf"^protocols\.{protocol}\.endpoint: can't listen on {address}"):
            receiver.start(RecordingHost())
        receiver.shutdown(time.monotonic() + 5)


def test_what_is_named_is_served_and_both_when_nothing_is():
    grpc_only = config.Protocols(grpc=config.Grpc(ANY))
    assert grpc_only.served == (config.Grpc(ANY), None)
    assert config.Protocols().served == (config.Grpc(), config.Http())


def test_the_end_answers_what_was_begun():
    running = Running()
    assert running.call(REQUEST.data) == b""
    running.receiver.shutdown(time.monotonic() + 5)
    with pytest.raises(ConnectionRefusedError):
        running.post(REQUEST.data)
