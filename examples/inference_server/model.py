"""A transformer's forward pass and the choice of the next tokens, over the operators of a device."""

from __future__ import annotations

from typing import Any, Sequence

LAYERS = 6
COLUMNS = 512
VOCABULARY = 1024
PADDED_BATCH = 5  # the batch size that the fused attention has no layout for


def model_forward(ops: Any, tokens: Sequence[int]) -> Any:
    """Logits of the next token of each sequence, from its last token."""
    hidden = ops.embedding(tokens, COLUMNS)
    if len(tokens) == PADDED_BATCH:
        pad_batch(ops, hidden, len(tokens))
    for _layer in range(LAYERS):
        hidden = attention(ops, hidden)
        hidden = mlp(ops, hidden)
    return ops.linear(ops.layer_norm(hidden), VOCABULARY)


def attention(ops: Any, hidden: Any) -> Any:
    """One attention block with its residual."""
    projected = ops.linear(ops.layer_norm(hidden), 3 * COLUMNS)
    attended = ops.scaled_dot_product_attention(projected, COLUMNS)
    return ops.add(ops.linear(attended, COLUMNS), hidden)


def mlp(ops: Any, hidden: Any) -> Any:
    """One MLP block with its residual."""
    wide = ops.gelu(ops.linear(ops.layer_norm(hidden), 4 * COLUMNS))
    return ops.add(ops.linear(wide, COLUMNS), hidden)


def pad_batch(ops: Any, hidden: Any, sequences: int) -> None:
    """Planted fault: at this one batch size every sequence is copied piece by piece, a storm of tiny kernels."""
    for _sequence in range(sequences):
        for _piece in range(32):
            ops.copy_element(hidden)


def sample_tokens(ops: Any, logits: Any, sequences: int) -> list[int]:
    """Planted fault: one copy and one wait for the GPU for each sequence, where one for all would do."""
    tokens = ops.argmax(ops.softmax(logits))
    chosen = []
    for row in range(sequences):
        chosen.append(ops.item(tokens, row))  # noqa: PERF401 - a comprehension is one more frame in old Pythons
    return chosen
