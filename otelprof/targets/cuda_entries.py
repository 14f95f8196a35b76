"""The one table of the CUDA driver's entry points that are probed.

Names, prototypes and variants: NVIDIA's cuda.h and cudaTypedefs.h 13.0 (PyPI nvidia-cuda-runtime). `_ptsz` and `_ptds` are
the same functions for code built with a default stream per thread. How the arguments are read stands in bpf/cuda.bpf.c, by
the same enumerators of `enum cuda_entry` (bpf/wire.h). A driver that lacks some of them is fine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from otelprof.batch import CallKind


class Returns(Enum):
    """What the call's return tells."""

    NOTHING = "nothing that is wanted"
    TIME = "when the wait was over"
    NAME = "the handle that belongs to a name"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One driver function in all its exported forms; its first form names it where people read it.

    `entry` is the enumerator of `enum cuda_entry`, `kind` what the call does (None: a look-up of a kernel by name).
    """

    entry: str
    exports: tuple[str, ...]
    kind: CallKind | None
    returns: Returns = Returns.NOTHING

    @property
    def name(self) -> str:
        """The function's name as the driver exports it."""
        return self.exports[0]


def _per_thread(name: str) -> tuple[str, str]:
    return name, f"{name}_ptsz"


ENTRY_POINTS = (
    EntryPoint("CUDA_LAUNCH_KERNEL", _per_thread("cuLaunchKernel"), CallKind.KERNEL),
    EntryPoint("CUDA_LAUNCH_KERNEL_EX", _per_thread("cuLaunchKernelEx"), CallKind.KERNEL),
    EntryPoint("CUDA_LAUNCH_COOPERATIVE", _per_thread("cuLaunchCooperativeKernel"), CallKind.KERNEL),
    EntryPoint("CUDA_GRAPH_LAUNCH", _per_thread("cuGraphLaunch"), CallKind.GRAPH),
    EntryPoint("CUDA_MEMCPY_ASYNC", _per_thread("cuMemcpyAsync"), CallKind.MEMCPY),
    EntryPoint("CUDA_MEMCPY_HTOD_ASYNC", _per_thread("cuMemcpyHtoDAsync_v2"), CallKind.MEMCPY),
    EntryPoint("CUDA_MEMCPY_DTOH_ASYNC", _per_thread("cuMemcpyDtoHAsync_v2"), CallKind.MEMCPY),
    EntryPoint("CUDA_MEMCPY_DTOD_ASYNC", _per_thread("cuMemcpyDtoDAsync_v2"), CallKind.MEMCPY),
    EntryPoint("CUDA_STREAM_SYNCHRONIZE", _per_thread("cuStreamSynchronize"), CallKind.SYNC, Returns.TIME),
    EntryPoint(
        "CUDA_CONTEXT_SYNCHRONIZE", ("cuCtxSynchronize", "cuCtxSynchronize_v2"), CallKind.SYNC, Returns.TIME
    ),  # _v2, 13.0: the context is an argument
    EntryPoint("CUDA_MODULE_GET_FUNCTION", ("cuModuleGetFunction",), None, Returns.NAME),
    EntryPoint("CUDA_LIBRARY_GET_KERNEL", ("cuLibraryGetKernel",), None, Returns.NAME),
    EntryPoint("CUDA_KERNEL_GET_FUNCTION", ("cuKernelGetFunction",), None, Returns.NAME),
)

BY_ENTRY = {point.entry: point for point in ENTRY_POINTS}
"""Entry points by the enumerator's name."""

MARKS = ("cuLaunchKernel", "cuInit")
"""Exports by which a driver library is known; every driver since 4.0 has both."""
