"""Settings of the exporter `otlp_http`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otelprof.component import Signal
from otelprof.config.settings import setting
from otelprof.exporters.environment import completed
from otelprof.exporters.settings import Sending, address

PORT = 4318
"""OTLP/HTTP's port; the bundled backend is at 4040."""

PATHS = {Signal.PROFILES: "/v1development/profiles", Signal.TRACES: "/v1/traces"}
"""Paths of the signals (opentelemetry-proto v1.10.0)."""

STABLE = "/v1/profiles"
"""Where profiles move when they are stable; taken when an endpoint names it."""


@dataclass(frozen=True, slots=True)
class Settings(Sending):
    """Where to and how."""

    endpoint: str = setting(
        "http://localhost:4318",
        "`http://host:port` or `https://host:port`; a path before OTLP's is kept",
        check=lambda endpoint: address(endpoint, PORT, insecure=True),
    )

    @staticmethod
    def completed(given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, and for absent settings what OTEL_EXPORTER_OTLP_* say."""
        return completed(given, PORT)

    def url(self, signal: Signal) -> str:
        """Where a signal goes."""
        where = address(self.endpoint, PORT, self.tls.insecure)
        whole = where.path.rstrip("/")
        base = whole
        for path in (*PATHS.values(), STABLE):
            base = base.removesuffix(path)
        path = STABLE if signal is Signal.PROFILES and whole.endswith(STABLE) else PATHS[signal]
        return f"{'https' if where.secure else 'http'}://{where.target}{base}{path}"
