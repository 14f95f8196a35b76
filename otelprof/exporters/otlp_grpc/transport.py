"""OTLP over gRPC.

Codes that may be tried again: opentelemetry-proto v1.10.0 docs/specification.md, "Failures".
"""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as profiles_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service

from otelprof import __version__
from otelprof.component import Signal
from otelprof.exporters.answers import NO_ANSWER, Answer, Verdict, accepted, connection_cause, words_of
from otelprof.exporters.otlp_grpc.config import Settings
from otelprof.exporters.settings import read_file
from otelprof.otlp.encode import Encoded

Code = grpc.StatusCode
RETRYABLE = frozenset(
    {Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.ABORTED, Code.OUT_OF_RANGE, Code.UNAVAILABLE, Code.DATA_LOSS}
)
SERVICES = {
    Signal.PROFILES: profiles_service.DESCRIPTOR.services_by_name["ProfilesService"].full_name,
    Signal.TRACES: trace_service.DESCRIPTOR.services_by_name["TraceService"].full_name,
}
_OPTIONS = (
    ("grpc.max_send_message_length", -1),  # requests are split before they come here
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.primary_user_agent", f"otelprof/{__version__}"),
    ("grpc.enable_retries", 0),  # ours are counted
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5000),  # the default of 120 s would outlast our own waits
    ("grpc.use_local_subchannel_pool", 1),
)


class GrpcTransport:
    """One channel to one server."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.endpoint = settings.endpoint
        self._headers = tuple((name.lower(), value) for name, value in settings.headers.items())
        self._gzip = grpc.Compression.Gzip if settings.compression == "gzip" else grpc.Compression.NoCompression
        self._credentials: Any = None
        self._channel: Any = None
        self._calls: dict[Signal, Any] = {}

    def open(self) -> None:
        """Read the certificates; the channel is made by the first call."""
        tls = self._settings.tls
        if self._settings.address.secure:
            self._credentials = grpc.ssl_channel_credentials(
                read_file(tls.ca_file, "tls.ca_file"),
                read_file(tls.key_file, "tls.key_file"),
                read_file(tls.cert_file, "tls.cert_file"),
            )

    def _connect(self) -> None:
        where = self._settings.address
        self._channel = (
            grpc.secure_channel(where.target, self._credentials, _OPTIONS)
            if where.secure
            else grpc.insecure_channel(where.target, _OPTIONS)
        )
        # Bytes in and out: requests are serialised long before, and a malformed answer must not raise in gRPC's thread.
        self._calls = {signal: self._channel.unary_unary(f"/{name}/Export") for signal, name in SERVICES.items()}

    def send(self, request: Encoded, seconds: float) -> Answer:
        """One call."""
        if self._channel is None:
            self._connect()
        call = self._calls[request.signal]
        try:
            body = call(request.data, timeout=seconds, metadata=self._headers, compression=self._gzip)
        except grpc.RpcError as error:
            return answer_of(error, request.signal)
        except ValueError:  # the channel was closed meanwhile
            return Answer(Verdict.RETRY, "stopped")
        return accepted(request.signal, body)

    def close(self) -> None:
        """Close the channel, which cancels a call under way."""
        if self._channel is not None:
            self._channel.close()


def answer_of(error: Any, signal: Signal) -> Answer:
    """What a failed call means."""
    code, details = error.code(), error.details() or ""
    reason, wait = code.name.lower(), retry_info(error.trailing_metadata())
    if code in RETRYABLE:
        return Answer(Verdict.RETRY, reason, _retry_cause(code, details), wait)
    if code is Code.RESOURCE_EXHAUSTED:
        verdict = Verdict.TOO_LARGE if wait is None else Verdict.RETRY
        return Answer(verdict, reason, f"RESOURCE_EXHAUSTED: {words_of(details)}", wait)
    if code is Code.UNIMPLEMENTED:
        return Answer(Verdict.UNSUPPORTED, reason, unimplemented(signal, details))
    verdict = Verdict.REFUSED if code is Code.INVALID_ARGUMENT else Verdict.DENIED
    return Answer(verdict, reason, f"{code.name}: {connection_cause(details)}")


def _retry_cause(code: Any, details: str) -> str:
    if code is Code.DEADLINE_EXCEEDED:
        return NO_ANSWER
    if code is Code.UNAVAILABLE:
        return f"unavailable: {connection_cause(details)}"
    return f"{code.name}: {words_of(details)}"


def unimplemented(signal: Signal, details: str) -> str:
    """What to do when the service isn't there."""
    if signal is Signal.TRACES:
        return f"it has no {SERVICES[signal]}: add a traces pipeline there, or remove ours ({words_of(details)})"
    return (
        f"it has no {SERVICES[signal]}: a Collector needs a profiles pipeline and --feature-gates=+service.profilesSupport "
        f"({words_of(details)})"
    )


def retry_info(metadata: Any) -> float | None:
    """Seconds of the RetryInfo that a server sent with an error; None without one.

    It is a detail of the google.rpc.Status in `grpc-status-details-bin` (googleapis, google/rpc/error_details.proto).
    """
    data = next((value for key, value in metadata or () if key == "grpc-status-details-bin"), None)
    if data is None:
        return None
    info = RetryInfo()
    try:
        found = any(detail.Unpack(info) for detail in Status.FromString(data).details)
    except DecodeError:
        return None
    return max(info.retry_delay.seconds + info.retry_delay.nanos / 1e9, 0.0) if found else None
