"""Settings under `service.telemetry`: what the agent says about itself, and where.

`metrics.address` is our shorthand; the Collector's `readers` form is understood too
(https://opentelemetry.io/docs/collector/internal-telemetry/).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from otelprof.config.settings import setting

Level = Literal["debug", "info", "warn", "error"]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[V6]:PORT`; ValueError for anything else. An empty host means all addresses."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535 or (":" in host and host[0] != "["):
        raise ValueError(f"HOST:PORT is needed, not {address[:60]!r}")
    return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class Logs:
    """service.telemetry.logs."""

    level: Level = setting("info", "the least important messages that are shown on standard error")


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A page that Prometheus reads."""

    host: str = setting("127.0.0.1", "the address to listen on")
    port: int = setting(4042, "the port to listen on; 0 picks a free one", minimum=0, maximum=65535)


@dataclass(frozen=True, slots=True)
class PullExporter:
    """The exporter of a pull reader."""

    prometheus: Prometheus = setting(Prometheus(), "a page for Prometheus")


@dataclass(frozen=True, slots=True)
class Pull:
    """A reader that is asked for metrics."""

    exporter: PullExporter = setting(PullExporter(), "how it is asked")


@dataclass(frozen=True, slots=True)
class Header:
    """One header of a push, as OpenTelemetry's declarative configuration writes it."""

    name: str = setting("", "its name")
    value: str = setting("", "its value")


@dataclass(frozen=True, slots=True)
class OtlpPush:
    """Where metrics go by OTLP."""

    protocol: Literal["grpc", "http/protobuf"] = setting("grpc", "how")
    endpoint: str = setting("http://localhost:4317", "where to; for http/protobuf the whole URL or the part before /v1/metrics")
    insecure: bool = setting(False, "plain text where the endpoint names no scheme")
    certificate: Path | None = setting(None, "certificates that are trusted instead of the system's, PEM")
    headers: tuple[Header, ...] = setting((), "headers of each request, as {name, value}")


@dataclass(frozen=True, slots=True)
class PushExporter:
    """The exporter of a periodic reader."""

    otlp: OtlpPush = setting(OtlpPush(), "metrics by OTLP")


@dataclass(frozen=True, slots=True)
class Periodic:
    """A reader that sends metrics on its own."""

    interval: int = setting(60_000, "milliseconds between two times", minimum=100, maximum=86_400_000)
    timeout: int = setting(30_000, "milliseconds that one may take", minimum=100, maximum=3_600_000)
    exporter: PushExporter = setting(PushExporter(), "where to")


@dataclass(frozen=True, slots=True)
class Reader:
    """One entry of service.telemetry.metrics.readers: one of the two."""

    pull: Pull | None = setting(None, "a reader that is asked for metrics")
    periodic: Periodic | None = setting(None, "a reader that sends metrics by OTLP")

    def __post_init__(self) -> None:
        """One of the two."""
        if (self.pull is None) == (self.periodic is None):
            raise ValueError("pull or periodic is needed, one of the two")


@dataclass(frozen=True, slots=True)
class Metrics:
    """service.telemetry.metrics."""

    level: Literal["none", "basic", "normal", "detailed"] = setting("normal", "`none` serves no page; the others are alike")
    address: str = setting(
        "127.0.0.1:4042", "where /metrics, /healthz and /readyz are served; port 0 picks a free one", check=split_address
    )
    readers: tuple[Reader, ...] = setting(
        (), "the Collector's form: the first pull reader's host and port stand for address; each periodic one sends by OTLP"
    )

    @property
    def listen(self) -> tuple[str, int] | None:
        """Host and port to serve on, or None."""
        if self.level == "none":
            return None
        for reader in self.readers:
            if reader.pull is not None:
                return reader.pull.exporter.prometheus.host, reader.pull.exporter.prometheus.port
        return split_address(self.address)

    @property
    def pushes(self) -> tuple[Periodic, ...]:
        """The readers that send on their own."""
        return () if self.level == "none" else tuple(reader.periodic for reader in self.readers if reader.periodic)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """service.telemetry."""

    logs: Logs = setting(Logs(), "messages on standard error")
    metrics: Metrics = setting(Metrics(), "the page with the agent's own counters")
