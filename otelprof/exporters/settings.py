"""Settings that the sending exporters share, with the Collector's keys (config/configgrpc, confighttp, configretry)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from otelprof.config.settings import setting
from otelprof.config.units import ByteSize, Duration
from otelprof.errors import OtelprofError
from otelprof.exporters.retry import Policy, Retry
from otelprof.otlp.encode import Dialect, Options

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HOST = re.compile(r"\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Tls:
    """How the connection is secured."""

    insecure: bool = setting(False, "plain text where the endpoint names no scheme; https:// is always TLS")
    ca_file: Path | None = setting(None, "certificates that are trusted instead of the system's, PEM")
    cert_file: Path | None = setting(None, "the agent's own certificate, PEM")
    key_file: Path | None = setting(None, "the key of the agent's certificate, PEM")

    def __post_init__(self) -> None:
        """A certificate and its key come together."""
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file are needed together")


@dataclass(frozen=True, slots=True)
class SendingQueue:
    """What waits while the receiver is away or slow."""

    queue_size: ByteSize = setting(ByteSize(32 << 20), "bytes that wait at most; then the oldest are dropped", minimum=1 << 20)
    sizer: Literal["bytes"] = setting("bytes", "what queue_size counts")
    storage: str = setting("", "the id of a file_storage extension: what waits is kept on disk and survives the agent's end")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to: host (IPv6 in brackets), port, the path of a URL, and whether it is TLS."""

    host: str
    port: int
    path: str
    secure: bool

    @property
    def target(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"


def address(endpoint: str, default_port: int, insecure: bool) -> Address:
    """The parts of `h`, `h:4317`, `http://h:4317` or `https://h/path`; ValueError says which form is wanted."""
    scheme, separator, rest = endpoint.strip().partition("://")
    if not separator:
        scheme, rest = "http" if insecure else "https", endpoint.strip()
    parts = urlsplit(f"//{rest}")
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
    try:
        port = parts.port if parts.port is not None else default_port
    except ValueError:
        port = 0
    if scheme not in ("http", "https") or not _HOST.fullmatch(host) or not port or parts.username or parts.query:
        raise ValueError(f"an endpoint such as host:{default_port}, http://host:{default_port} or https://host is needed")
    return Address(host, port, parts.path, scheme == "https")


def check_headers(headers: Mapping[str, str]) -> None:
    """ValueError for what can't be a header; the value is never shown, since it is mostly a secret."""
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise ValueError(f"{name[:60]!r} can't be sent: names are letters and dashes, values printable ASCII")


@dataclass(frozen=True, slots=True)
class Sending:
    """What both transports let a user choose; each adds its `endpoint`."""

    tls: Tls = setting(Tls(), "how the connection is secured")
    headers: dict[str, str] = setting({}, "headers of each request, such as authorization", check=check_headers)
    compression: Literal["gzip", "none"] = setting("gzip", "of each request")
    timeout: Duration = setting(Duration(10.0), "how long a try may take", minimum=0.1, maximum=3600)
    retry_on_failure: Retry = setting(Retry(), "when a request that failed is sent again")
    sending_queue: SendingQueue = setting(SendingQueue(), "what waits while the receiver is away")
    dialect: Literal["default", "pyroscope"] = setting("default", "pyroscope drops ids and all attributes but a list")
    service_name_on_samples: bool = setting(False, "repeat service.name on each sample, where resource attributes get lost")

    @property
    def extensions(self) -> Mapping[str, str]:
        """Ids of extensions that must run, by the setting that names them."""
        storage = self.sending_queue.storage
        return {"sending_queue.storage": storage} if storage else {}

    @property
    def options(self) -> Options:
        """How to encode."""
        return Options(Dialect(self.dialect), self.service_name_on_samples)


def policy(settings: Sending) -> Policy:
    """How patient the sender is."""
    queue = settings.sending_queue
    return Policy(settings.timeout, settings.retry_on_failure, queue.queue_size, queue.storage)


def read_file(path: Path | None, setting_name: str) -> bytes | None:
    """The content of a certificate or key; OtelprofError names the setting."""
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise OtelprofError(f"{setting_name}: {path} can't be read: {error.strerror}") from None
