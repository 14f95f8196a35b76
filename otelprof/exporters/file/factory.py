"""How the pipeline makes the exporter `file`."""

from __future__ import annotations

from otelprof.component import Build, Component, Factory, Kind, Stability
from otelprof.exporters.file.config import Settings
from otelprof.exporters.file.transport import FileTransport
from otelprof.exporters.retry import Policy
from otelprof.exporters.sender import Sender
from otelprof.otlp.encode import Options


def _create(build: Build) -> Component:
    return Sender(build, FileTransport(build.settings), Options(), Policy())


FACTORY = Factory(
    type="file",
    kind=Kind.EXPORTER,
    stability=Stability.ALPHA,
    settings=Settings,
    create=_create,
    summary="writes OTLP requests to files, as JSON lines or serialised",
)
