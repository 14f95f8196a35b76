"""How the pipeline makes the processor `resource_detection`."""

from __future__ import annotations

from otelprof.component import Build, Component, Factory, Kind, Stability
from otelprof.processors.resource_detection.config import Settings
from otelprof.processors.resource_detection.processor import ResourceDetection


def _create(build: Build) -> Component:
    return ResourceDetection(build)


FACTORY = Factory(
    type="resource_detection",
    kind=Kind.PROCESSOR,
    stability=Stability.ALPHA,
    settings=Settings,
    create=_create,
    summary="adds service, host, container, Kubernetes and GPU to each resource",
)
