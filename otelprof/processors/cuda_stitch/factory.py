"""How the pipeline makes the processor `cuda_stitch`."""

from __future__ import annotations

from otelprof.component import Build, Component, Factory, Kind, Stability
from otelprof.processors.cuda_stitch.config import Settings
from otelprof.processors.cuda_stitch.processor import CudaStitch


def _create(build: Build) -> Component:
    return CudaStitch(build)


FACTORY = Factory(
    type="cuda_stitch",
    kind=Kind.PROCESSOR,
    stability=Stability.ALPHA,
    settings=Settings,
    create=_create,
    summary="joins GPU activity to the launches that caused it; makes GPU samples and spans",
)
