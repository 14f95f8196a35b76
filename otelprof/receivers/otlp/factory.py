"""How the pipeline makes the receiver `otlp`."""

from __future__ import annotations

from otelprof.component import Build, Component, Factory, Kind, Stability
from otelprof.receivers.otlp.config import Settings
from otelprof.receivers.otlp.receiver import OtlpReceiver


def _create(build: Build) -> Component:
    return OtlpReceiver(build)


FACTORY = Factory(
    type="otlp",
    kind=Kind.RECEIVER,
    stability=Stability.ALPHA,
    settings=Settings,
    create=_create,
    summary="takes profiles of other agents, over gRPC and HTTP",
)
