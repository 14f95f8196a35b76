"""Settings of the exporter `pyroscope`.

Pyroscope 1.20 and later takes OTLP at its one port (pkg/api/api.go at v2.2.1), and its own push API would lose what only OTLP
carries: links to spans and several profile types in a request. So this is OTLP with the dialect as a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from otelprof.component import Signal
from otelprof.config.settings import setting
from otelprof.exporters.settings import Sending, address

PORT = 4040
"""Pyroscope's port for everything."""

PATH = "/v1development/profiles"


@dataclass(frozen=True, slots=True)
class Settings(Sending):
    """Where to and how."""

    endpoint: str = setting(
        "http://localhost:4040",
        "Pyroscope's URL; a path in it is kept",
        check=lambda endpoint: address(endpoint, PORT, insecure=True),
    )
    dialect: Literal["default", "pyroscope"] = setting("pyroscope", "pyroscope drops ids and all attributes but a list")

    def url(self, signal: Signal) -> str:
        """Where profiles go; there is nothing else that Pyroscope takes."""
        where = address(self.endpoint, PORT, self.tls.insecure)
        base = where.path.rstrip("/").removesuffix(PATH)
        return f"{'https' if where.secure else 'http'}://{where.target}{base}{PATH}"
