"""Both sending exporters against servers that want a client's certificate."""

import http.server
import ssl
import subprocess
import threading
from concurrent import futures

import grpc
import pytest

from otelprof.exporters.answers import Verdict
from otelprof.exporters.otlp_grpc.config import Settings as GrpcSettings
from otelprof.exporters.otlp_grpc.transport import GrpcTransport
from otelprof.exporters.otlp_http.config import Settings as HttpSettings
from otelprof.exporters.otlp_http.transport import HttpTransport
from otelprof.exporters.settings import Tls
from otelprof.otlp.encode import encode_profiles
from otelprof.testing import sample_batch

REQUEST = encode_profiles(sample_batch({"main;work": 3}))[0]


@pytest.fixture(scope="module")
def issued(tmp_path_factory):
    """An authority, and certificates of a server and of a client that it signed."""
    folder = tmp_path_factory.mktemp("authority")

    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=folder)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-days", "1", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("server", "client"):
        subject = ("-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost")
        openssl("req", *key, *subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-copy_extensions", "copy")
        openssl("x509", "-req", "-in", f"{name}.csr", *sign, "-out", f"{name}.pem")
    return folder


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


class Https(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        """A handshake that failed is the client's matter."""


@pytest.fixture
def https(issued):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued / "server.pem", issued / "server.key")
    context.load_verify_locations(issued / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with Https(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"https://localhost:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def grpcs(issued):
    pair = ((issued / "server.key").read_bytes(), (issued / "server.pem").read_bytes())
    credentials = grpc.ssl_server_credentials([pair], (issued / "ca.pem").read_bytes(), require_client_auth=True)
    service = "opentelemetry.proto.collector.profiles.v1development.ProfilesService"
    handler = grpc.unary_unary_rpc_method_handler(lambda data, context: b"")
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"localhost:{port}"
    server.stop(0).wait()


def answer(transport):
    transport.open()
    try:
        return transport.send(REQUEST, 10)
    finally:
        transport.close()


def with_and_without(issued):
    own = Tls(ca_file=issued / "ca.pem", cert_file=issued / "client.pem", key_file=issued / "client.key")
    return own, Tls(ca_file=issued / "ca.pem")


def test_grpc_shows_its_certificate(issued, grpcs):
    own, bare = with_and_without(issued)
    assert answer(GrpcTransport(GrpcSettings(endpoint=grpcs, tls=own))).verdict is Verdict.ACCEPTED
    assert answer(GrpcTransport(GrpcSettings(endpoint=grpcs, tls=bare))).verdict is Verdict.RETRY


def test_http_shows_its_certificate_and_is_refused_without_it(issued, https):
    own, bare = with_and_without(issued)
    assert answer(HttpTransport(HttpSettings(endpoint=https, tls=own))).verdict is Verdict.ACCEPTED
    refused = answer(HttpTransport(HttpSettings(endpoint=https, tls=bare)))
    assert refused.verdict is Verdict.RETRY
    assert (
        "cert_file" in refused.cause or "closed" in refused.cause
    )  # whether the alert or the end comes first is the kernel's choice
