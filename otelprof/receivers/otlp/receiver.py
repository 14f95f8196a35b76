"""The receiver: two servers, one thread that turns requests into batches, and the pipeline behind it.

An answer goes out when the batch has been handed on. The pipeline never blocks; what its exporters can't keep up with they
count as theirs. Only profiles are taken: a traces pipeline gets nothing from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import grpc
import numpy as np
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceResponse

from otelprof.component import Build, Consumer, Host
from otelprof.config.telemetry import split_address
from otelprof.counters import RECEIVED, RECEIVED_BAD, SAMPLES_SEEN, Counters
from otelprof.errors import OtelprofError
from otelprof.otlp import semconv
from otelprof.otlp.server import MAX_MESSAGE, PROFILES_SERVICE, Busy, HttpReply, grpc_services, http_export
from otelprof.otlp.to_batch import Received, Requests
from otelprof.receivers.otlp.config import Grpc, Http, ServerTls, Settings
from otelprof.receivers.otlp.http_server import HttpServer

log = logging.getLogger(__name__)

MAX_IN_WORK = 64 << 20
"""Bytes of requests that may wait or be in work; beyond it senders are told to come back."""

_START, _ANSWER = 10.0, 60.0  # seconds


class Intake:
    """Bytes of a request to the pipeline and back to the answer; the same for both servers."""

    def __init__(self, component: str, consumer: Consumer, counters: Counters) -> None:
        self._id, self._next, self._counters = component, consumer, counters
        self._requests = Requests()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=component)
        self._in_work = 0

    async def profiles(self, data: bytes, is_json: bool) -> ExportProfilesServiceResponse:
        """Take a profiles request; on the servers' event loop."""
        if self._in_work + len(data) > MAX_IN_WORK:
            raise Busy("too many requests at once; try again in a second")
        self._in_work += len(data)
        try:
            received = await asyncio.get_running_loop().run_in_executor(self._worker, self._taken, data, is_json)
        finally:
            self._in_work -= len(data)
        answer = ExportProfilesServiceResponse()
        if received.refused.samples:
            answer.partial_success.rejected_profiles = received.refused.profiles
            answer.partial_success.error_message = received.refused.text[:MAX_MESSAGE]
        return answer

    def _taken(self, data: bytes, is_json: bool) -> Received:
        """Hand on a request's batch, and count; on the worker."""
        received = self._requests.received(data, is_json)
        batch = received.batch
        for reason, count in received.refused.samples.items():
            self._counters.add(RECEIVED_BAD, count, self._id, reason)
        if len(batch.samples):
            self._next.consume(batch)
            self._counters.add(RECEIVED, len(batch.samples), self._id)
            types = batch.interner.types
            cpu = [number for number in range(1, len(types)) if getattr(types[number], "type", "") == semconv.CPU.type]
            self._counters.add(SAMPLES_SEEN, int(batch.samples["value"][np.isin(batch.samples["type"], cpu)].sum()))
        return received

    def close(self) -> None:
        """Finish what was begun."""
        self._worker.shutdown(wait=True, cancel_futures=True)


class OtlpReceiver:
    """See the module's text."""

    def __init__(self, build: Build) -> None:
        settings: Settings = build.settings
        self._id, self._grpc, self._http = build.id, *settings.protocols.served
        self._next = cast(Consumer, build.consumer)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: list[threading.Thread] = []
        self._intake: Intake | None = None
        self._rpc: Any = None
        self._web: HttpServer | None = None
        self.addresses: dict[str, int] = {}
        """The chosen port of each protocol, `grpc` and `http`."""

    def start(self, host: Host) -> None:
        """Listen; OtelprofError when an address can't be had or a certificate can't be read."""
        self._intake = Intake(self._id, self._next, host.counters)
        self._loop = asyncio.new_event_loop()
        self._run(self._loop.run_forever, "loop")
        if self._grpc is not None:
            port = self._call(self._serve_grpc(self._grpc)).result(_START)
            self._listening("grpc", self._grpc.endpoint, port)
        if self._http is not None:
            self._web = _web(self._http, self._answer)
            self._run(partial(self._web.serve_forever, 0.1), "http")
            self._listening("http", self._http.endpoint, int(self._web.server_address[1]))
        host.ready(self._id)

    def _run(self, body: Any, name: str) -> None:
        thread = threading.Thread(target=body, name=f"{self._id} {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _call(self, work: Any) -> Future[Any]:
        assert self._loop is not None  # noqa: S101  # start() made it
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _listening(self, protocol: str, endpoint: str, port: int) -> None:
        self.addresses[protocol] = port
        log.info("%s: listening on %s://%s:%d", self._id, protocol, endpoint.rpartition(":")[0] or "0.0.0.0", port)  # noqa: S104

    async def _serve_grpc(self, settings: Grpc) -> int:
        assert self._intake is not None  # noqa: S101  # start() made it
        self._rpc = grpc_services({PROFILES_SERVICE: self._intake.profiles})
        host, port = split_address(settings.endpoint)
        where = f"{f'[{host}]' if ':' in host else host or '[::]'}:{port}"
        try:
            if settings.tls.cert_file is None:
                found = self._rpc.add_insecure_port(where)
            else:
                found = self._rpc.add_secure_port(where, _grpc_credentials(settings.tls))
        except RuntimeError:
            found = 0
        if not found:
            raise OtelprofError(
                f"protocols.grpc.endpoint: can't listen on {settings.endpoint}; choose a free one (port 0 picks one)"
            )
        await self._rpc.start()
        return int(found)

    def _answer(self, headers: Mapping[str, str], body: list[bytes]) -> HttpReply:
        """Answer a POST, from a connection's thread."""
        assert self._intake is not None  # noqa: S101  # start() made it

        async def parts() -> AsyncIterator[bytes]:
            for part in body:
                yield part

        return cast(HttpReply, self._call(http_export(self._intake.profiles, headers, parts())).result(_ANSWER))

    def shutdown(self, deadline: float) -> None:
        """Stop listening, finish what was begun."""
        if self._web is not None:
            self._web.shutdown()
            self._web.server_close()
            self._web = None
        if self._rpc is not None:
            grace = max(0.0, min(1.0, deadline - time.monotonic() - 0.5))
            with contextlib.suppress(TimeoutError):
                self._call(self._rpc.stop(grace)).result(max(0.1, deadline - time.monotonic()))
            self._rpc = None
        if self._intake is not None:
            self._intake.close()
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._loop is not None and not self._loop.is_running():
            self._loop.close()


def _web(settings: Http, answer: Any) -> HttpServer:
    host, port = split_address(settings.endpoint)
    try:
        return HttpServer((host, port), answer, _context(settings.tls))
    except OSError as error:
        raise OtelprofError(
            f"protocols.http.endpoint: can't listen on {settings.endpoint}: {error.strerror or error}; choose a free one"
        ) from None


def _context(tls: ServerTls) -> ssl.SSLContext | None:
    """TLS of the HTTP server; None for plain text."""
    if tls.cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
        if tls.client_ca_file is not None:
            context.load_verify_locations(tls.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise OtelprofError(f"protocols.http.tls: the certificates can't be used: {error}") from None
    return context


def _grpc_credentials(tls: ServerTls) -> Any:
    assert tls.cert_file is not None  # noqa: S101  # the caller asked
    assert tls.key_file is not None  # noqa: S101  # the settings ask for both
    try:
        pair = (tls.key_file.read_bytes(), tls.cert_file.read_bytes())
        authority = tls.client_ca_file.read_bytes() if tls.client_ca_file is not None else None
    except OSError as error:
        raise OtelprofError(f"protocols.grpc.tls: {error.filename} can't be read: {error.strerror}") from None
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
