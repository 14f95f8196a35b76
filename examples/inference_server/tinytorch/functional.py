"""The operators: each launches its kernel from the function that bears its name and notes it in the ledger."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any, Sequence

from ledger import LEDGER
from tinytorch.library import Library, check, driver_ledger


class Tensor:
    """A value on the GPU. Only its shape lives here: (sequences, columns)."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows = rows
        self.columns = columns


class Device:
    """The GPU in use; opened once, before the first operator."""

    library: Library

    @classmethod
    def open(cls, dispatcher: Path) -> None:
        """Load the dispatcher and, through it, the driver. Raises DriverError."""
        cls.library = Library(dispatcher)


def device_name() -> str:
    """What the ready line calls this device."""
    return "stand-in"


def device_ledger() -> dict[str, Any] | None:
    """The driver's own counts."""
    return driver_ledger()


def open_device(dispatcher: Path) -> None:
    """Make the operators usable."""
    Device.open(dispatcher)


def launched(kernel: str, result: int) -> None:
    """Note what the calling operator has launched; a launch that failed was a call of the driver too."""
    LEDGER.note_launches(kernel, result if result > 0 else 1, sys._getframe(1))
    check(result)


def called(name: str, result: int) -> None:
    """Note another call of the driver by the calling operator."""
    LEDGER.note_call(name, sys._getframe(1))
    check(result)


def embedding(tokens: Sequence[int], columns: int) -> Tensor:
    """Token ids to the GPU and to vectors."""
    data = b"".join(token.to_bytes(4, "little") for token in tokens)
    called("cuMemcpyHtoDAsync_v2", Device.library.upload(data, len(data)))
    launched("embedding_kernel", Device.library.embedding(len(tokens), columns))
    return Tensor(len(tokens), columns)


def layer_norm(hidden: Tensor) -> Tensor:
    """Normalise each row."""
    launched("layer_norm_kernel", Device.library.layer_norm(hidden.rows, hidden.columns))
    return hidden


def linear(hidden: Tensor, columns: int) -> Tensor:
    """Multiply by a weight matrix."""
    launched("gemm_kernel", Device.library.gemm(hidden.rows, columns))
    return Tensor(hidden.rows, columns)


def gelu(hidden: Tensor) -> Tensor:
    """The activation between the two matrices of an MLP."""
    launched("gelu_kernel", Device.library.gelu(hidden.rows, hidden.columns))
    return hidden


def add(hidden: Tensor, residual: Tensor) -> Tensor:
    """The residual connection."""
    launched("add_kernel", Device.library.add(hidden.rows, residual.columns))
    return residual


def scaled_dot_product_attention(projected: Tensor, columns: int) -> Tensor:
    """Attention over queries, keys and values, which lie side by side in `projected`."""
    launched("cudnn_flash_attn_kernel", Device.library.flash_attention(projected.rows, columns))
    return Tensor(projected.rows, columns)


def softmax(logits: Tensor) -> Tensor:
    """Logits to probabilities."""
    launched("softmax_kernel", Device.library.softmax(logits.rows, logits.columns))
    return logits


def argmax(probabilities: Tensor) -> Tensor:
    """The likeliest token of each row."""
    launched("argmax_kernel", Device.library.argmax(probabilities.rows, probabilities.columns))
    return Tensor(probabilities.rows, 1)


def copy_element(hidden: Tensor) -> None:
    """Copy one small piece of a tensor."""
    launched("elementwise_copy_kernel", Device.library.copy(1, hidden.columns))


def item(tokens: Tensor, row: int) -> int:
    """One number from the GPU to Python: a copy, then a wait for all that was launched before it."""
    value = ctypes.c_uint32()
    called("cuMemcpyDtoHAsync_v2", Device.library.download(ctypes.byref(value), 4 * row, 4))
    called("cuStreamSynchronize", Device.library.synchronize())
    return value.value
