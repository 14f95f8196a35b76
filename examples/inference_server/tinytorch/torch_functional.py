"""The same operators on a real GPU with PyTorch. What PyTorch launches for each is its own affair: the ledger counts
calls of operators here, not kernels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Sequence

import torch
from torch.nn import functional as torch_functional

from ledger import LEDGER

HEAD = 64  # columns of one attention head
_weights: dict[tuple[int, int], torch.Tensor] = {}


def device_name() -> str:
    """What the ready line calls this device."""
    return str(torch.cuda.get_device_name())


def device_ledger() -> dict[str, Any] | None:
    """A real driver keeps no counts."""
    return None


def open_device(dispatcher: Path) -> None:
    """Make the operators usable; the dispatcher isn't needed."""
    torch.cuda.init()
    torch.set_grad_enabled(False)


def weight(rows: int, columns: int) -> torch.Tensor:
    """One matrix of each shape, made at first use."""
    if (rows, columns) not in _weights:
        _weights[rows, columns] = torch.randn(rows, columns, device="cuda", dtype=torch.float16) / rows
    return _weights[rows, columns]


def embedding(tokens: Sequence[int], columns: int) -> torch.Tensor:
    """Token ids to the GPU and to vectors."""
    LEDGER.note_call("embedding", sys._getframe())
    return torch_functional.embedding(torch.tensor(tokens).cuda() % 1024, weight(1024, columns))


def layer_norm(hidden: torch.Tensor) -> torch.Tensor:
    """Normalise each row."""
    LEDGER.note_call("layer_norm", sys._getframe())
    return torch_functional.layer_norm(hidden, hidden.shape[-1:])


def linear(hidden: torch.Tensor, columns: int) -> torch.Tensor:
    """Multiply by a weight matrix."""
    LEDGER.note_call("linear", sys._getframe())
    return torch_functional.linear(hidden, weight(columns, hidden.shape[-1]))


def gelu(hidden: torch.Tensor) -> torch.Tensor:
    """The activation between the two matrices of an MLP."""
    LEDGER.note_call("gelu", sys._getframe())
    return torch_functional.gelu(hidden)


def add(hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """The residual connection."""
    LEDGER.note_call("add", sys._getframe())
    return hidden + residual


def scaled_dot_product_attention(projected: torch.Tensor, columns: int) -> torch.Tensor:
    """Attention over queries, keys and values, which lie side by side in `projected`."""
    rows = projected.shape[0]
    query, key, value = (part.view(1, rows, -1, HEAD).transpose(1, 2) for part in projected.split(columns, dim=-1))
    LEDGER.note_call("scaled_dot_product_attention", sys._getframe())
    attended = torch_functional.scaled_dot_product_attention(query, key, value)
    return attended.transpose(1, 2).reshape(rows, columns)


def softmax(logits: torch.Tensor) -> torch.Tensor:
    """Logits to probabilities."""
    LEDGER.note_call("softmax", sys._getframe())
    return torch_functional.softmax(logits, dim=-1)


def argmax(probabilities: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row."""
    LEDGER.note_call("argmax", sys._getframe())
    return probabilities.argmax(dim=-1)


def copy_element(hidden: torch.Tensor) -> None:
    """Copy one small piece of a tensor."""
    LEDGER.note_call("copy_element", sys._getframe())
    hidden[:1, :1].clone()


def item(tokens: torch.Tensor, row: int) -> int:
    """One number from the GPU to Python: a copy and a wait for all that was launched before it."""
    LEDGER.note_call("item", sys._getframe())
    return int(tokens[row].item())
