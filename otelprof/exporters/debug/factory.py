"""How the pipeline makes the exporter `debug`."""

from __future__ import annotations

from otelprof.component import Build, Component, Factory, Kind, Stability
from otelprof.exporters.debug.config import Settings
from otelprof.exporters.debug.exporter import Debug


def _create(build: Build) -> Component:
    return Debug(build)


FACTORY = Factory(
    type="debug",
    kind=Kind.EXPORTER,
    stability=Stability.ALPHA,
    settings=Settings,
    create=_create,
    summary="says in the log what passes through the pipeline",
)
