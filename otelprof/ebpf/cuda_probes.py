"""Probes on the CUDA driver's entry points and on the return sites of its callers.

Both are ordinary uprobes, by inode: one attachment meets every process that maps the file, now and later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from otelprof.ebpf.attach import Link, attach_all, close_all
from otelprof.ebpf.layout import wire
from otelprof.ebpf.loader import BpfObject
from otelprof.ebpf.maps import Table
from otelprof.ebpf.uprobes import attach_many, attach_one, can_attach_many
from otelprof.errors import Unsupported

PROGRAMS = {
    "CUDA_LAUNCH_KERNEL": "cuda_work",
    "CUDA_LAUNCH_KERNEL_EX": "cuda_work",
    "CUDA_LAUNCH_COOPERATIVE": "cuda_work",
    "CUDA_GRAPH_LAUNCH": "cuda_work",
    "CUDA_MEMCPY_ASYNC": "cuda_work",
    "CUDA_MEMCPY_HTOD_ASYNC": "cuda_work",
    "CUDA_MEMCPY_DTOH_ASYNC": "cuda_work",
    "CUDA_MEMCPY_DTOD_ASYNC": "cuda_work",
    "CUDA_STREAM_SYNCHRONIZE": "cuda_other",
    "CUDA_CONTEXT_SYNCHRONIZE": "cuda_other",
    "CUDA_MODULE_GET_FUNCTION": "cuda_other",
    "CUDA_LIBRARY_GET_KERNEL": "cuda_other",
    "CUDA_KERNEL_GET_FUNCTION": "cuda_other",
    "CUDA_BEGIN_CAPTURE": "cuda_other",
    "CUDA_BEGIN_CAPTURE_TO_GRAPH": "cuda_other",
    "CUDA_END_CAPTURE": "cuda_other",
    "CUDA_GRAPH_CREATE": "cuda_other",
    "CUDA_GRAPH_INSTANTIATE": "cuda_other",
    "CUDA_GRAPH_CLONE": "cuda_other",
    "CUDA_GRAPH_EXEC_UPDATE": "cuda_other",
    "CUDA_GRAPH_EXEC_DESTROY": "cuda_other",
    "CUDA_GRAPH_DESTROY": "cuda_other",
    "CUDA_GRAPH_ADD_KERNEL": "cuda_other",
    "CUDA_GRAPH_ADD_CHILD": "cuda_other",
    "CUDA_EVENT_RECORD": "cuda_other",
    "CUDA_STREAM_WAIT_EVENT": "cuda_other",
    "CUDA_EVENT_SYNCHRONIZE": "cuda_other",
    "CUDA_MEMCPY": "cuda_work",
    "CUDA_MEMCPY_HTOD": "cuda_work",
    "CUDA_MEMCPY_DTOH": "cuda_work",
    "CUDA_MEMCPY_DTOD": "cuda_work",
    "CUDA_MEMSET_D8": "cuda_other",
    "CUDA_MEMSET_D16": "cuda_other",
    "CUDA_MEMSET_D32": "cuda_other",
    "CUDA_MEMSET_D8_ASYNC": "cuda_other",
    "CUDA_MEMSET_D16_ASYNC": "cuda_other",
    "CUDA_MEMSET_D32_ASYNC": "cuda_other",
    "CUDA_MEM_ALLOC": "cuda_other",
    "CUDA_MEM_ALLOC_ASYNC": "cuda_other",
    "CUDA_MEM_CREATE": "cuda_other",
    "CUDA_MEM_FREE": "cuda_other",
    "CUDA_MEM_FREE_ASYNC": "cuda_other",
    "CUDA_MEM_RELEASE": "cuda_other",
    "CUDA_RUNTIME_LAUNCH": "cuda_runtime_launch",
    "CUDA_RUNTIME_LAUNCH_EX": "cuda_runtime_launch",
}
"""The program that knows an entry point's arguments, by enum cuda_entry; all are in bpf/cuda.bpf.c."""


class Probes:
    """Probes that come and go together; `close` takes them away."""

    def __init__(self, links: list[Link], forget: Callable[[Probes], object]) -> None:
        self.links = links
        self._forget = forget

    @property
    def descriptors(self) -> int:
        """How many descriptors they take: a single uprobe is an event and a link."""
        return len(self.links) * (1 if can_attach_many() else 2)

    def close(self) -> None:
        """Detach; safe twice."""
        if self.links:
            close_all(self.links)
            self.links.clear()
            self._forget(self)


class CudaProbes:
    """Sets probes with the programs of the object `cuda`; `sites` is the map `return_sites`."""

    SITES = 4096  # entries of `return_sites`

    def __init__(self, programs: BpfObject, sites: Table) -> None:
        self._programs = {wire()[entry]: programs.programs[name] for entry, name in PROGRAMS.items()}
        self._return = programs.programs["cuda_return"]
        self._sites = sites
        self._free = list(range(self.SITES, 0, -1))
        self._open: dict[Probes, int] = {}
        """All probes that are set, with the cookie of a return site, else 0."""

    def attach_entries(self, path: str | int, entries: Iterable[tuple[int, int]]) -> Probes:
        """Probe entry points of a driver's file: (file offset, enum cuda_entry). TargetError when the file is gone."""
        by_program: dict[int, list[tuple[int, int]]] = {}
        for offset, entry in entries:
            by_program.setdefault(self._programs[entry], []).append((offset, entry))
        return self._keep(self._attach(path, by_program), 0)

    def attach_return(self, path: str | int, offset: int) -> Probes:
        """Probe the instruction after a call into the driver, at a file offset. It counts for calls that begin from now on."""
        if not self._free:
            raise Unsupported(f"more than {self.SITES} return sites: durations and names of further callers stay unknown")
        cookie = self._free.pop()
        try:
            links = self._attach(path, {self._return: [(offset, cookie)]})
        except BaseException:
            self._free.append(cookie)
            raise
        self._sites.put(cookie, time.monotonic_ns())
        return self._keep(links, cookie)

    def close(self) -> None:
        """Detach all that is still there."""
        close_all(link for probes in self._open for link in probes.links)
        for probes in list(self._open):
            probes.close()

    def _attach(self, path: str | int, places: dict[int, list[tuple[int, int]]]) -> list[Link]:
        """Links of programs at their (offset, cookie)."""
        name = path if isinstance(path, str) else f"/proc/self/fd/{path}"
        if can_attach_many():
            return attach_all(lambda one: attach_many(one[0], name, one[1]), places.items())
        single = [(program, place) for program, found in places.items() for place in found]
        return attach_all(lambda one: attach_one(one[0], name, one[1]), single)

    def _keep(self, links: list[Link], cookie: int) -> Probes:
        probes = Probes(links, self._forget)
        self._open[probes] = cookie
        return probes

    def _forget(self, probes: Probes) -> None:
        cookie = self._open.pop(probes)
        if cookie:
            self._sites.delete(cookie)
            self._free.append(cookie)
