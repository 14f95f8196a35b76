"""How the pipeline makes the receiver `ebpf`."""

from __future__ import annotations

from otelprof.component import Build, Component, Factory, Kind, Stability
from otelprof.receivers.ebpf.config import Settings


def _create(build: Build) -> Component:
    # Here, so that listing the components doesn't load libbpf.
    from otelprof.receivers.ebpf.receiver import EbpfReceiver  # noqa: PLC0415

    return EbpfReceiver(build)


FACTORY = Factory(
    type="ebpf",
    kind=Kind.RECEIVER,
    stability=Stability.ALPHA,
    settings=Settings,
    create=_create,
    summary="samples Python and native stacks, and watches CUDA driver calls, from the kernel",
)
