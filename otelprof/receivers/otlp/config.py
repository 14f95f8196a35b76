"""Settings of the receiver `otlp`, with the Collector's keys (receiver/otlpreceiver, config/confignet, config/configtls)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from otelprof.config.settings import setting
from otelprof.config.telemetry import split_address


@dataclass(frozen=True, slots=True)
class ServerTls:
    """How connections are secured; without a certificate they aren't."""

    cert_file: Path | None = setting(None, "the server's certificate, PEM; without it connections are plain text")
    key_file: Path | None = setting(None, "the key of the certificate, PEM")
    client_ca_file: Path | None = setting(None, "senders must show a certificate that one of these signed, PEM")

    def __post_init__(self) -> None:
        """A certificate and its key come together, and before those of senders."""
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file are needed together")
        if self.client_ca_file is not None and self.cert_file is None:
            raise ValueError("client_ca_file needs cert_file and key_file")


@dataclass(frozen=True, slots=True)
class Grpc:
    """OTLP/gRPC."""

    endpoint: str = setting("localhost:4317", "the address to listen on; port 0 picks a free one", check=split_address)
    tls: ServerTls = setting(ServerTls(), "how connections are secured")


@dataclass(frozen=True, slots=True)
class Http:
    """OTLP/HTTP, at /v1development/profiles and /v1/profiles."""

    endpoint: str = setting("localhost:4318", "the address to listen on; port 0 picks a free one", check=split_address)
    tls: ServerTls = setting(ServerTls(), "how connections are secured")


@dataclass(frozen=True, slots=True)
class Protocols:
    """What is served: what is named, and both when neither is (`protocols: {grpc: , http: }` too)."""

    grpc: Grpc | None = setting(None, "OTLP over gRPC")
    http: Http | None = setting(None, "OTLP over HTTP")

    @property
    def served(self) -> tuple[Grpc | None, Http | None]:
        """Settings of gRPC and HTTP, None where it isn't served."""
        return (self.grpc, self.http) if self.grpc or self.http else (Grpc(), Http())


@dataclass(frozen=True, slots=True)
class Settings:
    """Where to listen."""

    protocols: Protocols = setting(Protocols(), "what is served: what is named, and both when neither is")
