"""How the pipeline makes the extension `file_storage`."""

from __future__ import annotations

from otelprof.component import Build, Component, Factory, Kind, Stability
from otelprof.extensions.file_storage.config import Settings
from otelprof.extensions.file_storage.extension import FileStorage


def _create(build: Build) -> Component:
    return FileStorage(build)


FACTORY = Factory(
    type="file_storage",
    kind=Kind.EXTENSION,
    stability=Stability.ALPHA,
    settings=Settings,
    create=_create,
    summary="a directory in which exporters keep what waits, so that it survives the agent's end",
)
