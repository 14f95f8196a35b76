"""The stand-in driver in a test: built once, loaded afresh for each test so that its counts start at nothing."""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import json
import re
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "native" / "standin"

SUCCESS, INVALID_VALUE, NOT_INITIALIZED, DEINITIALIZED = 0, 1, 3, 4
INVALID_IMAGE, INVALID_CONTEXT, INVALID_HANDLE, ILLEGAL_STATE = 200, 201, 400, 401
NOT_FOUND, NOT_READY, LAUNCH_FAILED = 500, 600, 719
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 900, 901


class Entry(NamedTuple):
    """A row of entry_points.inc."""

    exported: str
    base: str
    since: int
    flags: frozenset[str]


def entries() -> list[Entry]:
    """All entry points, in the order of the table."""
    rows = re.findall(r"^ENTRY\((\w+), (\w+), (\d+), (.*)\)$", (SOURCES / "entry_points.inc").read_text(), re.MULTILINE)
    return [Entry(name, base, int(since), frozenset(flags.split(" | "))) for name, base, since, flags in rows]


def builder() -> ModuleType:
    """The module that compiles the driver."""
    spec = importlib.util.spec_from_file_location("build_standin", SOURCES / "build_standin.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def built() -> Path:
    """The path of libcuda.so.1, compiled at the first call."""
    folder = Path(tempfile.mkdtemp(prefix="standin-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path: Path = builder().build_standin(folder)
    return path


def image(*names: str) -> bytes:
    """A module image with these kernels."""
    return "".join(f".visible .entry {name}() {{ ret; }}\n" for name in names).encode()


class Driver:
    """A driver of its own: another copy of the file is another library, with its own state."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(shutil.copy(built(), folder / "libcuda.so.1"))
        self.library = ctypes.CDLL(str(self.path))
        self.library.standin_clock_ns.restype = ctypes.c_uint64
        self.library.standin_ledger.restype = ctypes.c_size_t
        self.library.standin_stream_busy_until.restype = ctypes.c_uint64

    def call(self, name: str, *arguments: Any) -> int:
        """The result of an entry point; integers go as 64 bits."""
        wide = [ctypes.c_uint64(each) if isinstance(each, int) else each for each in arguments]
        return int(self.library[name](*wide))

    def ok(self, name: str, *arguments: Any) -> None:
        """Call an entry point that must succeed."""
        result = self.call(name, *arguments)
        assert result == SUCCESS, f"{name} returned {result}"

    def make(self, name: str, *arguments: Any) -> int:
        """The handle that an entry point puts into its first argument."""
        handle = ctypes.c_uint64()
        self.ok(name, ctypes.byref(handle), *arguments)
        return handle.value

    def make_last(self, name: str, *arguments: Any) -> int:
        """The handle that an entry point puts into its last argument."""
        handle = ctypes.c_uint64()
        self.ok(name, *arguments, ctypes.byref(handle))
        return handle.value

    def start(self) -> Driver:
        """Initialise, with the first device's context current."""
        self.ok("cuInit", 0)
        self.ok("cuCtxSetCurrent", self.make("cuDevicePrimaryCtxRetain", 0))
        return self

    def kernel(self, name: str, time_ns: int = 1000) -> int:
        """A function of that name in a module of its own."""
        self.library.standin_set_kernel_time(name.encode(), ctypes.c_uint64(time_ns))
        return self.make("cuModuleGetFunction", self.make("cuModuleLoadData", image(name)), name.encode())

    def launch(self, function: int, stream: int = 0, entry: str = "cuLaunchKernel") -> int:
        """The result of a launch of one small block."""
        return self.call(entry, function, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0)

    def now(self) -> int:
        """The driver's clock."""
        return int(self.library.standin_clock_ns())

    def busy_until(self, stream: int = 0) -> int:
        """When the stream will have done all its work."""
        return int(self.library.standin_stream_busy_until(ctypes.c_uint64(stream)))

    def ledger(self) -> dict[str, Any]:
        """What the driver has counted."""
        text = ctypes.create_string_buffer(self.library.standin_ledger(None, ctypes.c_size_t(0)) + 1)
        self.library.standin_ledger(text, ctypes.c_size_t(len(text)))
        counts: dict[str, Any] = json.loads(text.value)
        return counts
