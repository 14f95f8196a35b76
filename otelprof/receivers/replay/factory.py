"""How the pipeline makes the receiver `replay`."""

from __future__ import annotations

from otelprof.component import Build, Component, Factory, Kind, Stability
from otelprof.receivers.replay.config import Settings
from otelprof.receivers.replay.receiver import Replay


def _create(build: Build) -> Component:
    return Replay(build)


FACTORY = Factory(
    type="replay",
    kind=Kind.RECEIVER,
    stability=Stability.ALPHA,
    settings=Settings,
    create=_create,
    summary="reads a recorded session (JSON Lines); the agent ends with the file",
)
