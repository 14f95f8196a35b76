"""The operators: each launches its kernel from the function that bears its name and notes it in the ledger."""

from __future__ import annotations

import ctypes
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


def embedding(tokens: Sequence[int], columns: int) -> Tensor:
    """Token ids to the GPU and to vectors."""
    data = b"".join(token.to_bytes(4, "little") for token in tokens)
    check(Device.library.upload(data, len(data)))
    LEDGER.note_call("cuMemcpyHtoDAsync_v2")
    LEDGER.note_launches("embedding_kernel", check(Device.library.embedding(len(tokens), columns)))
    return Tensor(len(tokens), columns)


def layer_norm(hidden: Tensor) -> Tensor:
    """Normalise each row."""
    LEDGER.note_launches("layer_norm_kernel", check(Device.library.layer_norm(hidden.rows, hidden.columns)))
    return hidden


def linear(hidden: Tensor, columns: int) -> Tensor:
    """Multiply by a weight matrix."""
    LEDGER.note_launches("gemm_kernel", check(Device.library.gemm(hidden.rows, columns)))
    return Tensor(hidden.rows, columns)


def gelu(hidden: Tensor) -> Tensor:
    """The activation between the two matrices of an MLP."""
    LEDGER.note_launches("gelu_kernel", check(Device.library.gelu(hidden.rows, hidden.columns)))
    return hidden


def add(hidden: Tensor, residual: Tensor) -> Tensor:
    """The residual connection."""
    LEDGER.note_launches("add_kernel", check(Device.library.add(hidden.rows, residual.columns)))
    return residual


def scaled_dot_product_attention(projected: Tensor, columns: int) -> Tensor:
    """Attention over queries, keys and values, which lie side by side in `projected`."""
    launched = check(Device.library.flash_attention(projected.rows, columns))
    LEDGER.note_launches("cudnn_flash_attn_kernel", launched)
    return Tensor(projected.rows, columns)


def softmax(logits: Tensor) -> Tensor:
    """Logits to probabilities."""
    LEDGER.note_launches("softmax_kernel", check(Device.library.softmax(logits.rows, logits.columns)))
    return logits


def argmax(probabilities: Tensor) -> Tensor:
    """The likeliest token of each row."""
    LEDGER.note_launches("argmax_kernel", check(Device.library.argmax(probabilities.rows, probabilities.columns)))
    return Tensor(probabilities.rows, 1)


def copy_element(hidden: Tensor) -> None:
    """Copy one small piece of a tensor."""
    LEDGER.note_launches("elementwise_copy_kernel", check(Device.library.copy(1, hidden.columns)))


def item(tokens: Tensor, row: int) -> int:
    """One number from the GPU to Python: a copy, then a wait for all that was launched before it."""
    value = ctypes.c_uint32()
    check(Device.library.download(ctypes.byref(value), 4 * row, 4))
    LEDGER.note_call("cuMemcpyDtoHAsync_v2")
    check(Device.library.synchronize())
    LEDGER.note_call("cuStreamSynchronize")
    return value.value
