"""Text to tokens by merging pairs of bytes, in pure Python."""

from __future__ import annotations

MERGES = 128


def tokenize(text: str) -> list[int]:
    """Planted fault: slow, and on the engine's only thread, so that the GPU idles meanwhile."""
    tokens = list(text.encode("utf-8", "replace"))[:1024]
    for merge in range(MERGES):
        pair = most_frequent_pair(tokens)
        if pair is None:
            break
        tokens = merge_pair(tokens, pair, 256 + merge)
    return tokens or [0]


def most_frequent_pair(tokens: list[int]) -> tuple[int, int] | None:
    """The neighbours that occur most often, if any do twice."""
    counts: dict[tuple[int, int], int] = {}
    for left, right in zip(tokens, tokens[1:]):
        counts[left, right] = counts.get((left, right), 0) + 1
    pair = max(counts, key=lambda each: counts[each], default=None)
    return pair if pair is not None and counts[pair] > 1 else None


def merge_pair(tokens: list[int], pair: tuple[int, int], merged: int) -> list[int]:
    """Put `merged` in place of each `pair`."""
    result = []
    position = 0
    while position < len(tokens):
        if tuple(tokens[position : position + 2]) == pair:
            result.append(merged)
            position += 2
        else:
            result.append(tokens[position])
            position += 1
    return result
