"""Settings of the exporter `otlp_grpc`."""

from __future__ import annotations

from dataclasses import dataclass

from otelprof.config.settings import setting
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

    @property
    def address(self) -> Address:
        """Where to."""
        return address(self.endpoint, PORT, self.tls.insecure)
