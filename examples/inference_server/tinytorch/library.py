"""Loads the dispatcher and tells it which kernels there are.

Launches keep the GIL, as PyTorch's do; the wait for the GPU gives it up.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any, Callable

KERNEL_TIMES_NS = {
    "embedding_kernel": 6_000,
    "layer_norm_kernel": 5_000,
    "gemm_kernel": 100_000,
    "cudnn_flash_attn_kernel": 180_000,
    "gelu_kernel": 8_000,
    "add_kernel": 4_000,
    "softmax_kernel": 7_000,
    "argmax_kernel": 5_000,
    "elementwise_copy_kernel": 1_500,
}


class DriverError(RuntimeError):
    """A call of the CUDA driver failed; the text has its number."""


def module_image() -> bytes:
    """The kernels as PTX with empty bodies; the stand-in driver takes each kernel's time from its line."""
    lines = [".version 7.0", ".target sm_70", ".address_size 64"]
    lines += [f".visible .entry {name}() {{ ret; }} // time_ns={ns}" for name, ns in KERNEL_TIMES_NS.items()]
    return ("\n".join(lines) + "\n").encode()


def operator(native: ctypes.PyDLL, name: str) -> Callable[[int, int], int]:
    """The operator `name`: takes rows and columns, launches its kernel, returns how many launches that took."""
    function = native[f"tiny_{name}"]
    function.argtypes = [ctypes.c_uint, ctypes.c_uint]
    return function


class Library:
    """The dispatcher, open on the first GPU. Each function returns a count of launches or minus the driver's error."""

    def __init__(self, path: Path) -> None:
        native = ctypes.PyDLL(str(path))
        self.embedding = operator(native, "embedding")
        self.layer_norm = operator(native, "layer_norm")
        self.gemm = operator(native, "gemm")
        self.gelu = operator(native, "gelu")
        self.add = operator(native, "add")
        self.flash_attention = operator(native, "flash_attention")
        self.softmax = operator(native, "softmax")
        self.argmax = operator(native, "argmax")
        self.copy = operator(native, "copy")
        self.upload = native.tiny_upload
        self.upload.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self.download = native.tiny_download
        self.download.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self.synchronize = ctypes.CDLL(str(path)).tiny_synchronize
        check(native.tiny_open(module_image()))


def check(result: int) -> int:
    """Give back what a function of the library returned; raise DriverError when it is an error."""
    if result < 0:
        raise DriverError(f"CUDA driver error {-result}")
    return result


def driver_ledger() -> dict[str, Any] | None:
    """The stand-in driver's own counts, or None when the driver keeps none."""
    driver = ctypes.CDLL("libcuda.so.1")
    if not hasattr(driver, "standin_ledger"):
        return None
    driver.standin_ledger.restype = ctypes.c_size_t
    driver.standin_ledger.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    size = driver.standin_ledger(None, 0) + 4096
    text = ctypes.create_string_buffer(size)
    driver.standin_ledger(text, size)
    counts: dict[str, Any] = json.loads(text.value)
    return counts
