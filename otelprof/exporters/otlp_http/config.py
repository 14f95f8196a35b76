"""Settings of the exporter `otlp_http`."""

from __future__ import annotations

from dataclasses import dataclass

from otelprof.component import Signal
from otelprof.config.settings import setting
from otelprof.exporters.settings import Sending, address

PORT = 4318
"""OTLP/HTTP's port; the bundled backend is at 4040."""

PATHS = {Signal.PROFILES: "/v1development/profiles", Signal.TRACES: "/v1/traces"}
"""Paths of the signals (opentelemetry-proto v1.10.0); profiles move to /v1/profiles when they are stable."""


@dataclass(frozen=True, slots=True)
class Settings(Sending):
    """Where to and how."""

    endpoint: str = setting(
        "http://localhost:4318",
        "`http://host:port` or `https://host:port`; a path before OTLP's is kept",
        check=lambda endpoint: address(endpoint, PORT, insecure=True),
    )

    def url(self, signal: Signal) -> str:
        """Where a signal goes."""
        where = address(self.endpoint, PORT, self.tls.insecure)
        base = where.path.rstrip("/")
        for path in PATHS.values():
            base = base.removesuffix(path)
        return f"{'https' if where.secure else 'http'}://{where.target}{base}{PATHS[signal]}"
