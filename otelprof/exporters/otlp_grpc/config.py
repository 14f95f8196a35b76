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

    endpoint: str = setting("localhost:4317", "`host`, `host:port`, `http://host:port` or `https://host:port`")

    def __post_init__(self) -> None:
        """The endpoint has one of its forms."""
        _ = self.address

    @property
    def address(self) -> Address:
        """Where to."""
        try:
            return address(self.endpoint, PORT, self.tls.insecure)
        except ValueError as error:
            raise ValueError(f"endpoint: {error}") from None
