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
    HANDLE = "the handle or address that it gave"
    RESULT = "whether it worked"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One driver function in all its exported forms; its first form names it where people read it.

    `entry` is the enumerator of `enum cuda_entry`, `kind` what the call does (None: nothing that makes a row by itself, such
    as a look-up or a capture).
    """

    entry: str
    exports: tuple[str, ...]
    kind: CallKind | None
    returns: Returns = Returns.NOTHING

    @property
    def name(self) -> str:
        """The function's name as the driver exports it."""
        return self.exports[0]


def _per_thread(*names: str) -> tuple[str, ...]:
    return *names, *(f"{name}_ptsz" for name in names)


def _waiting(name: str) -> tuple[str, str]:
    """The forms of a call that is over when it returns."""
    return name, f"{name}_ptds"


ENTRY_POINTS = (
    EntryPoint("CUDA_LAUNCH_KERNEL", _per_thread("cuLaunchKernel"), CallKind.KERNEL),
    EntryPoint("CUDA_LAUNCH_KERNEL_EX", _per_thread("cuLaunchKernelEx"), CallKind.KERNEL),
    EntryPoint("CUDA_LAUNCH_COOPERATIVE", _per_thread("cuLaunchCooperativeKernel"), CallKind.KERNEL),
    EntryPoint("CUDA_GRAPH_LAUNCH", _per_thread("cuGraphLaunch"), CallKind.GRAPH),
    EntryPoint("CUDA_MEMCPY_ASYNC", _per_thread("cuMemcpyAsync"), CallKind.MEMCPY),
    EntryPoint("CUDA_MEMCPY_HTOD_ASYNC", _per_thread("cuMemcpyHtoDAsync_v2"), CallKind.MEMCPY),
    EntryPoint("CUDA_MEMCPY_DTOH_ASYNC", _per_thread("cuMemcpyDtoHAsync_v2"), CallKind.MEMCPY),
    EntryPoint("CUDA_MEMCPY_DTOD_ASYNC", _per_thread("cuMemcpyDtoDAsync_v2"), CallKind.MEMCPY),
    EntryPoint("CUDA_MEMCPY", _waiting("cuMemcpy"), CallKind.MEMCPY),
    EntryPoint("CUDA_MEMCPY_HTOD", _waiting("cuMemcpyHtoD_v2"), CallKind.MEMCPY),
    EntryPoint("CUDA_MEMCPY_DTOH", _waiting("cuMemcpyDtoH_v2"), CallKind.MEMCPY),
    EntryPoint("CUDA_MEMCPY_DTOD", _waiting("cuMemcpyDtoD_v2"), CallKind.MEMCPY),
    EntryPoint("CUDA_MEMSET_D8", _waiting("cuMemsetD8_v2"), CallKind.MEMSET),
    EntryPoint("CUDA_MEMSET_D16", _waiting("cuMemsetD16_v2"), CallKind.MEMSET),
    EntryPoint("CUDA_MEMSET_D32", _waiting("cuMemsetD32_v2"), CallKind.MEMSET),
    EntryPoint("CUDA_MEMSET_D8_ASYNC", _per_thread("cuMemsetD8Async"), CallKind.MEMSET),
    EntryPoint("CUDA_MEMSET_D16_ASYNC", _per_thread("cuMemsetD16Async"), CallKind.MEMSET),
    EntryPoint("CUDA_MEMSET_D32_ASYNC", _per_thread("cuMemsetD32Async"), CallKind.MEMSET),
    EntryPoint("CUDA_STREAM_SYNCHRONIZE", _per_thread("cuStreamSynchronize"), CallKind.SYNC, Returns.TIME),
    EntryPoint(
        "CUDA_CONTEXT_SYNCHRONIZE", ("cuCtxSynchronize", "cuCtxSynchronize_v2"), CallKind.SYNC, Returns.TIME
    ),  # _v2, 13.0: the context is an argument
    EntryPoint("CUDA_EVENT_SYNCHRONIZE", ("cuEventSynchronize",), CallKind.SYNC, Returns.TIME),
    EntryPoint("CUDA_MODULE_GET_FUNCTION", ("cuModuleGetFunction",), None, Returns.NAME),
    EntryPoint("CUDA_LIBRARY_GET_KERNEL", ("cuLibraryGetKernel",), None, Returns.NAME),
    EntryPoint("CUDA_KERNEL_GET_FUNCTION", ("cuKernelGetFunction",), None, Returns.NAME),
    EntryPoint("CUDA_BEGIN_CAPTURE", _per_thread("cuStreamBeginCapture_v2", "cuStreamBeginCapture"), None, Returns.RESULT),
    EntryPoint("CUDA_BEGIN_CAPTURE_TO_GRAPH", _per_thread("cuStreamBeginCaptureToGraph"), None, Returns.RESULT),  # 12.3
    EntryPoint("CUDA_END_CAPTURE", _per_thread("cuStreamEndCapture"), None, Returns.HANDLE),
    EntryPoint("CUDA_GRAPH_CREATE", ("cuGraphCreate",), None, Returns.HANDLE),
    EntryPoint(
        "CUDA_GRAPH_INSTANTIATE",
        (
            "cuGraphInstantiateWithFlags",
            "cuGraphInstantiate",
            "cuGraphInstantiate_v2",
            "cuGraphInstantiateWithParams",
            "cuGraphInstantiateWithParams_ptsz",
        ),
        None,
        Returns.HANDLE,
    ),
    EntryPoint("CUDA_GRAPH_CLONE", ("cuGraphClone",), None, Returns.HANDLE),
    EntryPoint("CUDA_GRAPH_EXEC_UPDATE", ("cuGraphExecUpdate", "cuGraphExecUpdate_v2"), None, Returns.RESULT),
    EntryPoint("CUDA_GRAPH_EXEC_DESTROY", ("cuGraphExecDestroy",), None),
    EntryPoint("CUDA_GRAPH_DESTROY", ("cuGraphDestroy",), None),
    EntryPoint("CUDA_GRAPH_ADD_KERNEL", ("cuGraphAddKernelNode", "cuGraphAddKernelNode_v2"), None),
    EntryPoint("CUDA_GRAPH_ADD_CHILD", ("cuGraphAddChildGraphNode",), None),
    EntryPoint("CUDA_EVENT_RECORD", _per_thread("cuEventRecord", "cuEventRecordWithFlags"), None),
    EntryPoint("CUDA_STREAM_WAIT_EVENT", _per_thread("cuStreamWaitEvent"), None),
    EntryPoint("CUDA_MEM_ALLOC", ("cuMemAlloc_v2", "cuMemAllocManaged"), None, Returns.HANDLE),
    EntryPoint("CUDA_MEM_ALLOC_ASYNC", _per_thread("cuMemAllocAsync", "cuMemAllocFromPoolAsync"), None, Returns.HANDLE),
    EntryPoint("CUDA_MEM_CREATE", ("cuMemCreate",), None, Returns.HANDLE),
    EntryPoint("CUDA_MEM_FREE", ("cuMemFree_v2",), None),
    EntryPoint("CUDA_MEM_FREE_ASYNC", _per_thread("cuMemFreeAsync"), None),
    EntryPoint("CUDA_MEM_RELEASE", ("cuMemRelease",), None),
)

RUNTIME_ENTRY_POINTS = (
    EntryPoint("CUDA_RUNTIME_LAUNCH", _per_thread("cudaLaunchKernel", "cudaLaunchCooperativeKernel"), None),
    EntryPoint("CUDA_RUNTIME_LAUNCH_EX", _per_thread("cudaLaunchKernelExC"), None),
)
"""The CUDA runtime's launches, by which host functions are known; probed only while kernels have no names."""

BY_ENTRY = {point.entry: point for point in ENTRY_POINTS}
"""Entry points by the enumerator's name."""

MARKS = ("cuLaunchKernel", "cuInit")
"""Exports by which a driver library is known; every driver since 4.0 has both."""
