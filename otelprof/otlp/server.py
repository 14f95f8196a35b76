"""OTLP's two transports for whoever takes the data (a Sink): gRPC services, and HTTP handlers for any web framework.

Limits and answers are INTERFACE "Ingest": 16 MiB on the wire, 64 MiB inflated; a bad body is 400 / INVALID_ARGUMENT, too
large is 413 / RESOURCE_EXHAUSTED, busy is 503 / UNAVAILABLE with a delay. Errors are google.rpc.Status, at most 1,000 bytes.
Rules of retries: opentelemetry-proto v1.10.0 docs/specification.md.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import grpc
from google.protobuf import json_format
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otelprof.errors import MalformedInput, OtelprofError, TooLarge
from otelprof.otlp.decode import Window, decode_profiles
from otelprof.otlp.decode_spans import decode_spans
from otelprof.otlp.decoded import Profiles, Spans

MAX_WIRE = 16 << 20
MAX_INFLATED = 64 << 20
MAX_MEMBERS = 1000  # of one gzip body
MAX_MESSAGE = 900  # characters of an error, so that its body stays under 1,000 bytes
PROTOBUF, JSON = "application/x-protobuf", "application/json"
PROFILES_PATHS = ("/v1development/profiles", "/v1/profiles")
TRACES_PATH = "/v1/traces"
PROFILES_SERVICE = "opentelemetry.proto.collector.profiles.v1development.ProfilesService"
TRACES_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"

_log = logging.getLogger(__name__)


class Busy(OtelprofError):
    """The sink can't take more now; the sender should try again after `delay` seconds."""

    def __init__(self, message: str, delay: float = 1.0) -> None:
        super().__init__(message)
        self.delay = delay


class LimitReached(Busy):
    """A sender is over its allowance; as Busy, but its own doing (429)."""


class WrongType(OtelprofError):
    """A content type or encoding that isn't spoken here."""


class Sink(Protocol):
    """Where decoded requests go. A call returns once the data is safe; Busy when it can't be taken now."""

    async def accept_profiles(self, profiles: Profiles) -> None:
        """Take the samples of a request."""

    async def accept_spans(self, spans: Spans) -> None:
        """Take the spans of a request."""


@dataclass(slots=True)
class Receiver:
    """Bytes of a request to a Sink and back to the answer; the same for both transports.

    `executor` decodes, so that the event loop goes on; no more than `max_bytes` of requests are in work at a time.
    """

    sink: Sink
    executor: Executor
    window: Window = field(default_factory=Window)
    max_bytes: int = 128 << 20
    in_work: int = 0

    async def profiles(self, data: bytes, is_json: bool = False) -> ExportProfilesServiceResponse:
        """Take a profiles request."""
        profiles = await self._decoded(partial(decode_profiles, window=self.window), data, is_json)
        await self.sink.accept_profiles(profiles)
        answer = ExportProfilesServiceResponse()
        if profiles.refused.samples:
            answer.partial_success.rejected_profiles = profiles.refused.profiles
            answer.partial_success.error_message = profiles.refused.text[:MAX_MESSAGE]
        return answer

    async def traces(self, data: bytes, is_json: bool = False) -> ExportTraceServiceResponse:
        """Take a traces request."""
        spans = await self._decoded(decode_spans, data, is_json)
        await self.sink.accept_spans(spans)
        answer = ExportTraceServiceResponse()
        if spans.refused:
            answer.partial_success.rejected_spans = spans.refused
            answer.partial_success.error_message = f"{spans.refused} spans dropped: ids of a wrong length or impossible times"
        return answer

    async def _decoded(self, decode: Callable[..., Any], data: bytes, is_json: bool) -> Any:
        if self.in_work + len(data) > self.max_bytes:
            raise Busy("too many requests at once; try again in a second")
        self.in_work += len(data)
        try:
            return await asyncio.get_running_loop().run_in_executor(self.executor, decode, data, is_json)
        finally:
            self.in_work -= len(data)


# ---- HTTP ----


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer for any web framework."""

    status: int
    body: bytes
    headers: Mapping[str, str]


Export = Callable[[bytes, bool], Awaitable[Message]]
"""Takes the bytes of a request, and whether they are JSON; the answer."""


async def http_export(export: Export, headers: Mapping[str, str], body: AsyncIterable[bytes]) -> HttpReply:
    """Answer a POST: `export` is Receiver.profiles or .traces; `headers` has lower-case names."""
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    is_json = kind == JSON
    try:
        if kind not in (PROTOBUF, JSON):
            raise WrongType(f"content type {kind[:60]!r}; send {PROTOBUF} or {JSON}")
        data = await read_body(body, headers.get("content-encoding", ""))
        return _reply(200, await export(data, is_json), is_json)
    except OtelprofError as error:
        return http_error(error, is_json)


async def read_body(body: AsyncIterable[bytes], encoding: str) -> bytes:
    """The body of a request within the limits, inflated where `encoding` says so."""
    data = await _bounded(body)
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return data
    if encoding != "gzip":
        raise WrongType(f"content encoding {encoding[:60]!r}; send gzip or none")
    return await asyncio.to_thread(inflate, data)


async def _bounded(body: AsyncIterable[bytes]) -> bytes:
    """All of a body. What is too large is read on for a while and thrown away: a sender that writes hears no answer."""
    parts: list[bytes] = []
    size = 0
    async for part in body:
        size += len(part)
        if size <= MAX_WIRE:
            parts.append(part)
        elif size > 4 * MAX_WIRE:
            break
    if size > MAX_WIRE:
        raise TooLarge(f"the body has more than {MAX_WIRE >> 20} MiB; send smaller requests")
    return b"".join(parts)


def inflate(data: bytes, limit: int = MAX_INFLATED) -> bytes:
    """All members of a gzip stream, checksums verified. Stops at `limit` bytes with TooLarge."""
    parts: list[bytes] = []
    left = limit
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(wbits=31)
        try:
            part = member.decompress(data, left + 1)
        except zlib.error as error:
            raise MalformedInput(f"not gzip: {error}") from None
        left -= len(part)
        if left < 0:
            raise TooLarge(f"the body inflates to more than {limit >> 20} MiB; send smaller requests")
        parts.append(part)
        if not member.eof:
            raise MalformedInput("the gzip body ends too early")
        data = member.unused_data.lstrip(b"\0")  # zeros may pad the end (RFC 1952, GNU gzip)
        if not data:
            return b"".join(parts)
    raise MalformedInput(f"the gzip body has more than {MAX_MEMBERS} members")


_HTTP_STATUS = ((TooLarge, 413), (MalformedInput, 400), (WrongType, 415), (LimitReached, 429), (Busy, 503))
_GRPC_STATUS = (
    (TooLarge, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (MalformedInput, grpc.StatusCode.INVALID_ARGUMENT),
    (LimitReached, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Busy, grpc.StatusCode.UNAVAILABLE),
)


def http_error(error: OtelprofError, is_json: bool) -> HttpReply:
    """The answer for an error."""
    status = next((status for kind, status in _HTTP_STATUS if isinstance(error, kind)), 500)
    reply = _reply(status, _status(error), is_json)
    delay = {"retry-after": str(max(1, round(error.delay)))} if isinstance(error, Busy) else {}
    return HttpReply(reply.status, reply.body, {**reply.headers, **delay})


def _grpc_code(error: OtelprofError) -> grpc.StatusCode:
    return next((code for kind, code in _GRPC_STATUS if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def _status(error: OtelprofError) -> Status:
    """google.rpc.Status with the delay where there is one."""
    status = Status(code=_grpc_code(error).value[0], message=str(error).encode()[:MAX_MESSAGE].decode(errors="ignore"))
    if isinstance(error, Busy):
        detail = AnyMessage()
        retry = RetryInfo()
        retry.retry_delay.FromMilliseconds(round(error.delay * 1000))
        detail.Pack(retry)
        status.details.append(detail)
    return status


def _reply(status: int, message: Message, is_json: bool) -> HttpReply:
    body = json_format.MessageToJson(message, indent=None).encode() if is_json else message.SerializeToString()
    return HttpReply(status, body, {"content-type": JSON if is_json else PROTOBUF})


# ---- gRPC ----


def grpc_server(receiver: Receiver, interceptors: tuple[Any, ...] = ()) -> Any:
    """A grpc.aio server with both services; it has no port yet."""
    return grpc_services({PROFILES_SERVICE: receiver.profiles, TRACES_SERVICE: receiver.traces}, interceptors)


def grpc_services(services: Mapping[str, Export], interceptors: tuple[Any, ...] = ()) -> Any:
    """A grpc.aio server with these services; it has no port yet."""
    options = [
        ("grpc.max_receive_message_length", MAX_WIRE),  # also of an inflated message
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 100),
    ]
    server = grpc.aio.server(options=options, interceptors=interceptors)
    for name, export in services.items():
        handler = grpc.unary_unary_rpc_method_handler(partial(_serve, export), response_serializer=_serialised)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": handler}),))
    return server


async def _serve(export: Export, data: bytes, context: Any) -> Message:
    """One call; the message comes as bytes, so that a malformed one is the sender's fault and not ours."""
    try:
        return await export(data, False)
    except OtelprofError as error:
        status = _status(error)
        details = (("grpc-status-details-bin", status.SerializeToString()),)
        await context.abort(_grpc_code(error), status.message, details)
        raise
    except Exception as error:  # a fault of ours: told in one line, and the sender keeps its data
        _log.error("a request failed: %s: %s", type(error).__name__, error)
        await context.abort(grpc.StatusCode.INTERNAL, "the receiver failed; its log says how")
        raise


def _serialised(message: Message) -> bytes:
    return message.SerializeToString()
