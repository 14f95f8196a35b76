"""Settings of the receiver `ebpf`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from otelprof.config.settings import setting
from otelprof.config.units import Duration, Percent


@dataclass(frozen=True, slots=True)
class Targets:
    """Which processes are profiled."""

    python: bool = setting(True, "decode the Python stacks of interpreters; off: native frames only")
    include: tuple[str, ...] = setting((), "only executables whose name matches one of these shell patterns; empty: all")
    exclude: tuple[str, ...] = setting((), "never executables whose name matches one of these shell patterns")
    pids: tuple[int, ...] = setting((), "only these processes, without their children; empty: the whole node")
    follow: bool = setting(False, "with `pids`: their descendants too")


DRIVER_PLACES = (
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/local/cuda/compat/libcuda.so.1",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
)
"""Where NVIDIA's installers, Debian, Fedora, the GPU operator and WSL put the driver's library."""


@dataclass(frozen=True, slots=True)
class Cuda:
    """What is watched of the CUDA driver."""

    enabled: bool = setting(True, "set probes on every libcuda that a process maps")
    graphs: bool = setting(
        True, "follow captures of CUDA graphs, so that the kernels of replays are counted and have their stacks"
    )
    graph_stacks: Literal["capture", "replay"] = setting(
        "capture", "where the kernels of a replay hang: under the stacks that captured them, or under the one that replays"
    )
    time_bounds: bool = setting(
        True, "bound the time of kernels by waits that have ended: gpu_time_bound, never called GPU time"
    )
    memory: bool = setting(True, "follow the driver's allocations: gpu_memory_reserved, segments that are held, by stack")
    libraries: tuple[str, ...] = setting(
        DRIVER_PLACES, "driver libraries that are probed before a process maps them, so that the names of its kernels are known"
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the receiver `ebpf`."""

    sampling_frequency: int = setting(99, "samples a second on each CPU", minimum=1, maximum=4000)
    report_interval: Duration = setting(Duration(5.0), "how often a batch leaves; the first leaves after 1s", minimum=0.05)
    max_overhead: Percent = setting(Percent(0.01), "share of a CPU that the agent may take; not yet enforced")
    targets: Targets = setting(Targets(), "which processes are profiled")
    native_frames: bool = setting(True, "native frames too, by unwind tables; off: only of processes without Python")
    trace_context: tuple[Literal["thread_context", "opentelemetry_python", "obi"], ...] = setting(
        ("thread_context", "opentelemetry_python", "obi"),
        "where the current span is read from; now opentelemetry_python only",
    )
    cuda: Cuda = setting(Cuda(), "what is watched of the CUDA driver")
    loader: Literal["auto", "libbpf", "bcc"] = setting("auto", "what loads the BPF programs")
