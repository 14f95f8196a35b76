"""Loads our BPF objects with libbpf and makes their maps of the same name one and the same.

The first object that is loaded creates a shared map; later ones get its descriptor before they load. Nothing is pinned:
maps, programs and links live by this process's descriptors, so they vanish with it, however it ends.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

from otelprof.ebpf.libbpf import OpenOptions, libbpf
from otelprof.ebpf.object import read_object
from otelprof.ebpf.refusals import refused


class _ProgramInfo(ctypes.Structure):
    """struct bpf_prog_info as far as it is read; include/uapi/linux/bpf.h (verified_insns: 5.16 and newer)."""

    _fields_ = [
        ("before", ctypes.c_uint8 * 192),
        ("run_time_ns", ctypes.c_uint64),
        ("run_count", ctypes.c_uint64),
        ("recursion_misses", ctypes.c_uint64),
        ("verified_instructions", ctypes.c_uint32),
        ("after", ctypes.c_uint8 * 12),
    ]


class BpfObject:
    """One loaded object: handles of its programs, descriptors of its maps, by name."""

    def __init__(self, name: str, handle: int) -> None:
        self.name = name
        self.handle = handle
        self.programs = {_name("bpf_program__name", p): p for p in libbpf().walk("bpf_object__next_program", handle)}

    @property
    def maps(self) -> dict[str, int]:
        """Descriptors of the maps, those of the compiler's own sections left out."""
        found = libbpf().walk("bpf_object__next_map", self.handle)
        named = {_name("bpf_map__name", m): int(libbpf().call("bpf_map__fd", m)) for m in found}
        return {name: fd for name, fd in named.items() if "." not in name}

    def close(self) -> None:
        """Drop the descriptors."""
        libbpf().call("bpf_object__close", self.handle)


class Loader:
    """Loads objects. `sizes` overrides a map's number of entries (rings: bytes, a power of two and of pages)."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._objects: list[BpfObject] = []
        self.maps: dict[str, int] = {}

    @property
    def line(self) -> str:
        """Which loader this is and why, for the start of the log."""
        return f"loader: libbpf {libbpf().version} (the kernel has BTF)"

    def load(self, name: str, attach_type: int = 0) -> BpfObject:
        """Open, share maps, load and verify; Unsupported with one line when the kernel refuses.

        `attach_type` (enum bpf_attach_type) is how all programs of the object will be attached, where that must be said.
        """
        image = read_object(name)
        options = OpenOptions(ctypes.sizeof(OpenOptions), name.encode())
        libbpf().log.clear()
        try:
            handle = libbpf().call("bpf_object__open_mem", image, len(image), ctypes.byref(options))
            self._prepare(handle)
            for program in libbpf().walk("bpf_object__next_program", handle) if attach_type else ():
                libbpf().call("bpf_program__set_expected_attach_type", program, attach_type)
            libbpf().call("bpf_object__load", handle)
        except OSError as error:
            raise refused("bpf(BPF_PROG_LOAD)", error, f"loading {name}: {_complaint()}") from error
        loaded = BpfObject(name, handle)
        self._objects.append(loaded)
        self.maps.update({key: fd for key, fd in loaded.maps.items() if key not in self.maps})
        return loaded

    def close(self) -> None:
        """Drop all objects, the last first."""
        while self._objects:
            self._objects.pop().close()
        self.maps.clear()

    def _prepare(self, handle: int) -> None:
        for one in libbpf().walk("bpf_object__next_map", handle):
            name = _name("bpf_map__name", one)
            if name in self.maps:
                libbpf().call("bpf_map__reuse_fd", one, self.maps[name])
            elif name in self._sizes:
                libbpf().call("bpf_map__set_max_entries", one, self._sizes[name])


def _name(call: str, handle: int) -> str:
    return bytes(libbpf().call(call, handle)).decode()


def _complaint() -> str:
    """The line of libbpf's log that tells most: what the verifier said before its statistics, or the last line."""
    lines = [line for line in libbpf().log if line and not line.startswith(("libbpf:", "--", "processed"))]
    return lines[-1] if lines else next(reversed(libbpf().log), "libbpf gave no reason")


@dataclass(frozen=True, slots=True)
class ProgramStatistics:
    """What the kernel counts of a program: runs and their nanoseconds while the sysctl kernel.bpf_stats_enabled is 1."""

    run_seconds: float
    run_count: int
    verified_instructions: int
    """Instructions that the verifier walked through; 0 before 5.16."""


def statistics(loaded: BpfObject) -> dict[str, ProgramStatistics]:
    """The statistics of an object's programs, by name."""
    return {name: _statistics(int(libbpf().call("bpf_program__fd", handle))) for name, handle in loaded.programs.items()}


def _statistics(fd: int) -> ProgramStatistics:
    info = _ProgramInfo()
    length = ctypes.c_uint32(ctypes.sizeof(info))
    libbpf().call("bpf_obj_get_info_by_fd", fd, ctypes.byref(info), ctypes.byref(length))
    return ProgramStatistics(info.run_time_ns / 1e9, info.run_count, info.verified_instructions)
