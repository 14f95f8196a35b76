"""The agent's own page: /metrics for Prometheus, /healthz and /readyz for probes.

A small threaded HTTP server from the standard library; the exposition format is prometheus_client's. One request at a
time may take at most a few seconds, and at most 16 are answered at once, so that nobody can use the page against the agent.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from otelprof.counters import Counters, MetricKind
from otelprof.counters import Metric as Description
from otelprof.errors import OtelprofError

_TIMEOUT = 5.0
_AT_ONCE = 16
_PLAIN = "text/plain; charset=utf-8"


class _Readings(Collector):
    """Our counters as prometheus_client's families."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        for description, readings in groupby(self._counters.read(), key=lambda reading: reading[0]):
            family = _family(description)
            for _, labels, value in readings:
                family.add_metric(labels, value)
            yield family


def _family(description: Description) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if description.kind is MetricKind.COUNTER else GaugeMetricFamily
    return kind(description.name, description.meaning, labels=description.labels)


def exposition(counters: Counters) -> bytes:
    """All counters in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Readings(counters))
    return generate_latest(registry)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], page: Page) -> None:
        self.page = page
        self.slots = threading.BoundedSemaphore(_AT_ONCE)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        if self.slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is nobody's error."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT
    server: _Server
    server_version, sys_version = "otelprof", ""

    def do_GET(self) -> None:
        status, kind, body = self.server.page.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Requests aren't logged."""


class Page:
    """Serves the page on a thread of its own from `start` to `stop`. `ready` says whether /readyz is 200."""

    def __init__(self, listen: tuple[str, int], counters: Counters, ready: Callable[[], bool]) -> None:
        self._listen, self._counters, self._ready = listen, counters, ready
        self._server: _Server | None = None

    def start(self) -> str:
        """Listen; the chosen URL. OtelprofError when the address can't be had."""
        host, port = self._listen
        try:
            self._server = _Server((host, port), self)
        except OSError as error:
            raise OtelprofError(
                f"can't listen on {host}:{port}: {error.strerror or error}; set service.telemetry.metrics.address to a free "
                "one (port 0 picks one)"
            ) from None
        threading.Thread(target=self._server.serve_forever, args=(0.2,), name="telemetry", daemon=True).start()
        chosen = self._server.server_address
        shown = f"[{chosen[0]!s}]" if ":" in str(chosen[0]) else str(chosen[0])
        return f"http://{shown}:{chosen[1]}"

    def stop(self) -> None:
        """Stop listening; safe without start."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, content type and body for a path."""
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, exposition(self._counters)
        if path == "/healthz":
            return HTTPStatus.OK, _PLAIN, b"ok\n"
        if path == "/readyz":
            ready = self._ready()
            return (
                (HTTPStatus.OK, _PLAIN, b"ready\n") if ready else (HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, b"not ready yet\n")
            )
        return HTTPStatus.NOT_FOUND, _PLAIN, b"try /metrics, /healthz or /readyz\n"
