"""How the pipeline makes the exporter `otlp_grpc`."""

from __future__ import annotations

from otelprof.component import Build, Component, Factory, Kind, Stability
from otelprof.exporters.otlp_grpc.config import Settings
from otelprof.exporters.otlp_grpc.transport import GrpcTransport
from otelprof.exporters.sender import Sender
from otelprof.exporters.settings import policy


def _create(build: Build) -> Component:
    settings: Settings = build.settings
    return Sender(build, GrpcTransport(settings), settings.options, policy(settings))


FACTORY = Factory(
    type="otlp_grpc",
    kind=Kind.EXPORTER,
    stability=Stability.ALPHA,
    settings=Settings,
    create=_create,
    summary="sends profiles and traces to an OTLP receiver over gRPC",
)
