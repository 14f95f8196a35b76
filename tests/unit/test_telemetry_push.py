"""The agent's own counters by OTLP: what arrives at a real server, in time and after failures, and what is imported when."""

import http.server
import subprocess
import sys
import threading
import time
from concurrent import futures

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otelprof.config.settings import INVALID, convert_class
from otelprof.config.telemetry import Telemetry
from otelprof.counters import EXPORT_FAILED, QUEUE_BYTES, SAMPLES_SEEN, Counters
from otelprof.errors import OtelprofError
from otelprof.telemetry_push import Pushes

SERVICE = "opentelemetry.proto.collector.metrics.v1.MetricsService"


class Servers:
    """gRPC and HTTP servers that keep each request."""

    def __init__(self):
        self.got, self.headers, self.changed = [], [], threading.Condition()
        handler = grpc.unary_unary_rpc_method_handler(self._call)
        self.rpc = grpc.server(futures.ThreadPoolExecutor(1))
        self.rpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Export": handler}),))
        self.grpc = self.rpc.add_insecure_port("127.0.0.1:0")
        self.rpc.start()
        keep = self.keep

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                keep(self.rfile.read(int(self.headers["Content-Length"])), {**self.headers, "path": self.path})
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments):
                pass

        self.web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http = self.web.server_address[1]
        threading.Thread(target=self.web.serve_forever, args=(0.02,), daemon=True).start()

    def _call(self, data, context):
        self.keep(data, {str(key): value for key, value in context.invocation_metadata()})
        return b""

    def keep(self, data, headers):
        with self.changed:
            self.got.append(ExportMetricsServiceRequest.FromString(data))
            self.headers.append(headers)
            self.changed.notify_all()

    def wait(self, count=1):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= count, 20)

    def stop(self):
        self.rpc.stop(0).wait()
        self.web.shutdown()
        self.web.server_close()


@pytest.fixture
def servers():
    found = Servers()
    yield found
    found.stop()


def metrics(*readers, **more):
    mistakes = []
    found = convert_class(Telemetry, {"metrics": {"readers": list(readers), **more}}, "t", lambda *what: mistakes.append(what))
    assert found is not INVALID, mistakes
    return found.metrics


def pushes(counters, otlp, interval=100):
    return Pushes(metrics({"periodic": {"interval": interval, "timeout": 1000, "exporter": {"otlp": otlp}}}).pushes, counters)


def values(request):
    found = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        for point in (*metric.sum.data_points, *metric.gauge.data_points):
            labels = tuple(pair.value.string_value for pair in point.attributes)
            found[(metric.name, *labels)] = getattr(point, point.WhichOneof("value"))
    return found


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_counters_arrive_with_names_labels_and_headers(servers, protocol):
    counters = Counters()
    counters.add(SAMPLES_SEEN, 7)
    counters.set(QUEUE_BYTES, 5, "otlp_grpc")
    counters.add(EXPORT_FAILED, 2, "otlp_grpc", "timeout")
    port = servers.grpc if protocol == "grpc" else servers.http
    headers = [{"name": "X-Scope-OrgID", "value": "me"}]
    push = pushes(counters, {"protocol": protocol, "endpoint": f"http://127.0.0.1:{port}", "headers": headers})
    push.start()
    servers.wait()
    push.stop(time.monotonic() + 5)
    found = values(servers.got[0])
    assert found["otelprof_samples_seen",] == 7
    assert found["otelprof_queue_bytes", "otlp_grpc"] == 5
    assert found["otelprof_export_failed_profiles", "otlp_grpc", "timeout"] == 2
    resource = {pair.key: pair.value.string_value for pair in servers.got[0].resource_metrics[0].resource.attributes}
    assert resource["service.name"] == "otelprof"
    assert {name.lower(): value for name, value in servers.headers[0].items()}["x-scope-orgid"] == "me"


def test_the_last_values_leave_at_the_end(servers):
    counters = Counters()
    push = pushes(counters, {"endpoint": f"http://127.0.0.1:{servers.grpc}"}, interval=3_600_000)
    push.start()
    counters.add(SAMPLES_SEEN, 3)
    push.stop(time.monotonic() + 5)
    assert values(servers.got[-1])["otelprof_samples_seen",] == 3


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_server_that_is_away_is_one_line_and_the_end_is_in_time(caplog, protocol):
    counters = Counters()
    counters.add(SAMPLES_SEEN, 1)
    push = pushes(counters, {"protocol": protocol, "endpoint": "http://127.0.0.1:1"})
    push.start()
    end = time.monotonic() + 20
    while "metrics can't be sent" not in caplog.text:
        assert time.monotonic() < end
        time.sleep(0.02)
    begun = time.monotonic()
    push.stop(begun + 0.5)
    assert time.monotonic() - begun < 3
    assert caplog.text.count("metrics can't be sent") == 1


def test_without_a_periodic_reader_the_sdk_isn_t_imported():
    code = (
        "import sys, otelprof.agent; from otelprof.telemetry_push import Pushes; from otelprof.counters import Counters;"
        "p = Pushes((), Counters()); p.start(); p.stop(0); sys.exit('opentelemetry.sdk' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_page_stays_at_its_address_beside_a_periodic_reader():
    periodic, pull = {"periodic": {}}, {"pull": {"exporter": {"prometheus": {"host": "0.0.0.0", "port": 1}}}}
    assert metrics(periodic).listen == ("127.0.0.1", 4042)
    assert metrics(periodic, pull).listen == ("0.0.0.0", 1)
    assert len(metrics(periodic, pull, periodic).pushes) == 2
    assert metrics(periodic, level="none").pushes == ()


@pytest.mark.parametrize("reader", [{}, {"pull": {"exporter": {}}, "periodic": {"interval": 100}}])
def test_a_reader_is_one_of_the_two(reader):
    mistakes = []
    convert_class(Telemetry, {"metrics": {"readers": [reader]}}, "t", lambda path, text: mistakes.append(f"{path}: {text}"))
    assert mistakes == ["t.metrics.readers.0: pull or periodic is needed, one of the two"]


def test_a_certificate_that_can_t_be_read_stops_the_start(tmp_path):
    with pytest.raises(OtelprofError, match=r"none\.pem can't be read"):
        pushes(Counters(), {"endpoint": "https://x", "certificate": str(tmp_path / "none.pem")}).start()
