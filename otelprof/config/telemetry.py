"""Settings under `service.telemetry`: what the agent says about itself, and where.

`metrics.address` is our shorthand; the Collector's `readers` form is understood too
(https://opentelemetry.io/docs/collector/internal-telemetry/).
"""

from __future__ import annotations

from dataclasses import dataclass
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
class Reader:
    """One entry of service.telemetry.metrics.readers."""

    pull: Pull = setting(Pull(), "a reader that is asked for metrics")


@dataclass(frozen=True, slots=True)
class Metrics:
    """service.telemetry.metrics."""

    level: Literal["none", "basic", "normal", "detailed"] = setting("normal", "`none` serves no page; the others are alike")
    address: str = setting(
        "127.0.0.1:4042", "where /metrics, /healthz and /readyz are served; port 0 picks a free one", check=split_address
    )
    readers: tuple[Reader, ...] = setting((), "the Collector's form of the same: the first pull reader's host and port")

    @property
    def listen(self) -> tuple[str, int] | None:
        """Host and port to serve on, or None."""
        if self.level == "none":
            return None
        if self.readers:
            page = self.readers[0].pull.exporter.prometheus
            return page.host, page.port
        return split_address(self.address)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """service.telemetry."""

    logs: Logs = setting(Logs(), "messages on standard error")
    metrics: Metrics = setting(Metrics(), "the page with the agent's own counters")
