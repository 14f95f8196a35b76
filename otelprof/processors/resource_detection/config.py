"""Settings of the processor `resource_detection`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from otelprof.config import setting

Detector = Literal["env", "process", "host", "container", "k8s", "gpu"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Which detectors add to a resource; what the receiver saw of a process is never overwritten."""

    detectors: tuple[Detector, ...] = setting(
        ("env", "process", "host", "container", "k8s", "gpu"),
        "env: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES of the process; process: a service name where env gives none; "
        "host: host.*; container: container.id; k8s: node and cluster of the agent; gpu: the model of a GPU",
    )
