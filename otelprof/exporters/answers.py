"""What one try to send came to, in words that both transports share.

Rules: opentelemetry-proto v1.10.0 docs/specification.md, "Failures" and "OTLP/HTTP Throttling".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Protocol

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otelprof.component import Signal
from otelprof.otlp.request import Encoded
from otelprof.text import printable

NO_ANSWER = "no answer in time (the setting is timeout)"
TEXT_LIMIT = 300
"""Bytes of a server's own words that we repeat."""


class Verdict(Enum):
    """What follows from an answer."""

    ACCEPTED = auto()
    RETRY = auto()  # the same request again, later
    TOO_LARGE = auto()  # in two halves, or never
    UNSUPPORTED = auto()  # the service isn't there: given up, and the next is tried much later
    DENIED = auto()  # given up, and the next is tried later: it isn't about this request
    REFUSED = auto()  # given up: this request is at fault


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: `cause` is for people, `reason` for the counters; `wait` seconds that the server asked for, if it did."""

    verdict: Verdict
    reason: str = ""
    cause: str = ""
    wait: float | None = None
    rejected: int = 0


class Transport(Protocol):
    """A way to a server."""

    endpoint: str

    def open(self) -> None:
        """Read certificates and get ready; OtelprofError when the settings can't work."""

    def send(self, request: Encoded, seconds: float) -> Answer:
        """One try, at most `seconds` long. Never raises for what a server or the network does."""

    def close(self) -> None:
        """Give up what is under way and release all; from any thread."""


def accepted(signal: Signal, body: bytes) -> Answer:
    """The answer in the body of a success, which may be a partial one."""
    try:
        if signal is Signal.PROFILES:
            profiles = ExportProfilesServiceResponse.FromString(body).partial_success
            return _partial(profiles.rejected_profiles, profiles.error_message)
        spans = ExportTraceServiceResponse.FromString(body).partial_success
        return _partial(spans.rejected_spans, spans.error_message)
    except DecodeError:
        return Answer(Verdict.ACCEPTED, cause="the answer isn't one of OTLP: is this an OTLP server?")


def _partial(count: int, message: str) -> Answer:
    words = words_of(message)
    cause = f"refused a part: {words}" if count else f"warns: {words}" if words else ""
    return Answer(Verdict.ACCEPTED, cause=cause, rejected=max(count, 0))


def retry_after(value: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Seconds of a Retry-After header, given as a number or a date (RFC 9110, 10.2.3); None for none or nonsense."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    try:  # which takes much that isn't a date, such as -5
        return max(parsedate_to_datetime(text).timestamp() - now(), 0.0) if text.endswith("GMT") else None
    except (ValueError, TypeError, OverflowError):
        return None


def words_of(text: str) -> str:
    """A server's own words for one line."""
    return " ".join(printable(text, TEXT_LIMIT).split())


CONNECTION_CAUSES: tuple[tuple[str, str], ...] = (
    ("certificate_verify_failed", "its certificate isn't trusted or isn't for this name: set tls.ca_file, or the right name"),
    ("hostname mismatch", "its certificate isn't for this name"),
    ("certificate required", "it wants a client's certificate: set tls.cert_file and tls.key_file"),
    ("eof occurred in violation", "it closed the connection: does it want a client's certificate (tls.cert_file)?"),
    ("wrong_version_number", "it speaks plain text, not TLS: set tls.insecure: true, or write http://"),
    ("record layer failure", "it speaks plain text, not TLS: set tls.insecure: true, or write http://"),
    ("http1", "it speaks HTTP/1, not gRPC: name the gRPC port, or use otlp_http"),
    ("http/1", "it speaks HTTP/1, not gRPC: name the gRPC port, or use otlp_http"),
    ("failed parsing http/2", "it doesn't speak gRPC (HTTP/1?): name the gRPC port, or use otlp_http"),
    ("handshake", "the TLS handshake failed: does it speak TLS?"),
    ("connection refused", "nobody listens there"),
    ("dns resolution failed", "the name isn't known"),
    ("domain name not found", "the name isn't known"),
    ("failed to resolve", "the name isn't known"),
    ("connection reset", "the connection was closed at once: does it want TLS (https://)?"),
    ("connection aborted", "the connection was closed at once: does it want TLS (https://)?"),
    ("socket closed", "the connection was closed at once: does it want TLS (https://)?"),
    ("network is unreachable", "the network is unreachable"),
    ("no route to host", "no route to the host"),
)
"""What libraries say about a connection that failed, in lower case, and what it means."""


def connection_cause(text: str) -> str:
    """Why a connection failed, for people."""
    lower = text.lower()
    return next((meaning for sign, meaning in CONNECTION_CAUSES if sign in lower), words_of(text))
