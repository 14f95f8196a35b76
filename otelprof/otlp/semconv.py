"""The one table of the names that we send: profile types, frame types, attributes, scope and schema.

They will move upstream (most of them have no OpenTelemetry convention yet); then they move here and nowhere else.
Sources: OpenTelemetry semantic conventions 1.44.0 for what exists; our own words for GPUs.
"""

from __future__ import annotations

from otelprof import __version__
from otelprof.batch import FrameKind, ProfileType

SCOPE_NAME = "otelprof"
SCOPE_VERSION = __version__
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

SERVICE_NAME = "service.name"
SERVICE_NAMESPACE = "service.namespace"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE_ID = "service.instance.id"
PROCESS_PID = "process.pid"
PROCESS_CREATION_TIME = "process.creation.time"
PROCESS_EXECUTABLE_NAME = "process.executable.name"
PROCESS_EXECUTABLE_PATH = "process.executable.path"
PROCESS_COMMAND = "process.command"
PROCESS_RUNTIME_NAME = "process.runtime.name"
PROCESS_RUNTIME_VERSION = "process.runtime.version"
HOST_NAME = "host.name"
HOST_ID = "host.id"
HOST_ARCH = "host.arch"
OS_TYPE = "os.type"
CONTAINER_ID = "container.id"
K8S_NODE_NAME = "k8s.node.name"
K8S_CLUSTER_NAME = "k8s.cluster.name"
GPU_UUID = "gpu.uuid"
GPU_MODEL = "gpu.model"
PROCESS_ENVIRONMENT = "process.environment_variable."  # and the variable's name
RANK = "otelprof.rank"  # of a process of a distributed job
LOCAL_RANK = "otelprof.local_rank"  # on its machine
WORLD_SIZE = "otelprof.world_size"

THREAD_NAME = "thread.name"
THREAD_ID = "thread.id"
CUDA_DEVICE = "cuda.device"
CUDA_STREAM = "cuda.stream"
CUDA_GRID = "cuda.grid"  # x,y,z
CUDA_BLOCK = "cuda.block"  # x,y,z
CUDA_SHARED_BYTES = "cuda.shared_bytes"  # dynamic shared memory of a block

FRAME_TYPE = "profile.frame.type"
BUILD_ID_GNU = "process.executable.build_id.gnu"
BUILD_ID_HTLHASH = "process.executable.build_id.htlhash"

PYROSCOPE_PROFILE_ID = "pyroscope.profile.id"
OTELPROF_PROFILE_ID = "otelprof.profile_id"
OTELPROF_STACK_ID = "otelprof.stack_id"

FRAME_TYPES: dict[FrameKind, str] = {
    FrameKind.CPYTHON: "cpython",
    FrameKind.NATIVE: "native",
    FrameKind.KERNEL: "kernel",
    FrameKind.CUDA: "cuda",
}
"""Values of `profile.frame.type`; marks have none."""

FRAME_KINDS: dict[str, FrameKind] = {name: kind for kind, name in FRAME_TYPES.items()}

LABELS: dict[FrameKind, str] = {FrameKind.KERNEL: "[kernel] ", FrameKind.CUDA: "[cuda] "}
"""What stands before a frame's name in folded text, flame graphs and the terminal."""

PYROSCOPE_ATTRIBUTES = frozenset(
    {
        SERVICE_NAME,
        SERVICE_NAMESPACE,
        SERVICE_VERSION,
        PROCESS_EXECUTABLE_NAME,
        PROCESS_RUNTIME_NAME,
        PROCESS_RUNTIME_VERSION,
        HOST_NAME,
        THREAD_NAME,
        "deployment.environment.name",
        "k8s.cluster.name",
        "k8s.namespace.name",
        "k8s.deployment.name",
        "k8s.node.name",
        "k8s.container.name",
        "gpu.uuid",
        "gpu.model",
    }
)
"""What `dialect: pyroscope` keeps: Pyroscope makes a label of each attribute, and a series of each set of labels."""


def cpu(hertz: float = 99) -> ProfileType:
    """Samples of the CPU clock at `hertz`; the period is the time between two, nanoseconds (10,101,010 at 99)."""
    return ProfileType("samples", "count", "cpu", "nanoseconds", round(1_000_000_000 / hertz))


def _gpu(name: str, unit: str) -> ProfileType:
    return ProfileType(name, unit, "gpu", unit)


CPU = cpu()
OFF_CPU = ProfileType("off_cpu", "nanoseconds", "off_cpu", "nanoseconds")
GPU_KERNEL_TIME = _gpu("gpu_kernel_time", "nanoseconds")  # exact
GPU_TIME_BOUND = _gpu("gpu_time_bound", "nanoseconds")  # launch to the next completed synchronisation
GPU_KERNEL_LAUNCHES = _gpu("gpu_kernel_launches", "count")  # calls of the driver, failed ones too; a replay is 1
GPU_LAUNCH_TIME = _gpu("gpu_launch_time", "nanoseconds")  # of the CPU
GPU_GRAPH_KERNELS = _gpu("gpu_graph_kernels", "count")  # inside replays
GPU_MEMCPY = _gpu("gpu_memcpy", "bytes")
GPU_MEMSET = _gpu("gpu_memset", "bytes")
GPU_MEMCPY_TIME = _gpu("gpu_memcpy_time", "nanoseconds")
GPU_SYNC = _gpu("gpu_sync", "nanoseconds")  # waits for the GPU
GPU_IDLE = _gpu("gpu_idle", "nanoseconds")  # by the CPU stack that ran meanwhile
GPU_MEMORY_RESERVED = _gpu("gpu_memory_reserved", "bytes")

LAST_VALUE = frozenset({GPU_MEMORY_RESERVED.type})
"""Sample types that hold a state, so that over time the last value stands and nothing is added."""


def pyroscope_id(kind: ProfileType) -> str:
    """The id that Pyroscope gives a profile type (pkg/ingester/otlp/convert.go at v2.2.1).

    CPU samples become time (value times period) under Pyroscope's own name; the rest is named after its period.
    """
    if (kind.type, kind.unit, kind.period_type, kind.period_unit) == ("samples", "count", "cpu", "nanoseconds"):
        return "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
    name = kind.period_type or kind.type
    return f"{name}:{kind.type}:{kind.unit}:{kind.period_type}:{kind.period_unit}"
