"""Settings of the exporter `otlp_grpc`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otelprof.config.settings import setting
from otelprof.exporters.environment import completed
from otelprof.exporters.settings import Address, Sending, address

PORT = 4317
"""OTLP/gRPC's port; the bundled backend is at 4041."""


@dataclass(frozen=True, slots=True)
class Settings(Sending):
    """Where to and how."""

    endpoint: str = setting(
        "localhost:4317",
        "`host`, `host:port`, `http://host:port` or `https://host:port`",
        check=lambda endpoint: address(endpoint, PORT, insecure=True),
    )

    @staticmethod
    def completed(given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, and for absent settings what OTEL_EXPORTER_OTLP_* say."""
        return completed(given, PORT)

    @property
    def address(self) -> Address:
        """Where to."""
        return address(self.endpoint, PORT, self.tls.insecure)
