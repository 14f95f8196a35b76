"""How the pipeline makes the exporter `pyroscope`."""

from __future__ import annotations

from otelprof.component import Build, Component, Factory, Kind, Signal, Stability
from otelprof.exporters.otlp_http.transport import HttpTransport
from otelprof.exporters.pyroscope.config import Settings
from otelprof.exporters.sender import Sender
from otelprof.exporters.settings import policy


def _create(build: Build) -> Component:
    settings: Settings = build.settings
    return Sender(build, HttpTransport(settings), settings.options, policy(settings))


FACTORY = Factory(
    type="pyroscope",
    kind=Kind.EXPORTER,
    stability=Stability.ALPHA,
    settings=Settings,
    create=_create,
    summary="sends profiles to Grafana Pyroscope",
    signals=frozenset({Signal.PROFILES}),
)
