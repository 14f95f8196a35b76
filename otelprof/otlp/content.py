"""Content hashes: 64-bit keys of strings, frames, stacks and label sets, the same in every process and on every machine.

Keys made of content need no central allocation, and the same data stored twice has the same keys. Columns are hashed as
columns. 64 bits suffice for telemetry (10^6 stacks collide with a chance of 3e-8); they are no defence against a sender
that wants to damage its own profiles.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # finaliser of SplitMix64


_SHORT, _MAX_KNOWN = 300, 100_000  # characters of a string that is remembered, and how many are


def mixed(values: npt.NDArray[np.generic]) -> Keys:
    """Each 64-bit value scrambled (the finaliser of SplitMix64); a bijection."""
    bits = values.astype(np.uint64) + _ODD
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX2
    return bits ^ (bits >> np.uint64(31))


def combined(*columns: npt.NDArray[np.generic]) -> Keys:
    """One key per row of the columns; the order of columns matters."""
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        key = mixed(key ^ mixed(column))
    return key


def text_keys(texts: Iterable[str]) -> Keys:
    """The key of each string: 8 bytes of BLAKE2b of its UTF-8, little-endian."""
    found = [_known.get(text) or _text_key(text) for text in texts]
    return np.array(found, np.uint64)


_known: dict[str, int] = {}  # senders repeat their strings with every request


def _text_key(text: str) -> int:
    key = int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little")
    if len(text) <= _SHORT:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[text] = key
    return key


def text_key(text: str) -> int:
    """The key of one string."""
    return int(text_keys([text])[0])


def sequence_keys(elements: Keys, lengths: npt.NDArray[np.int64]) -> Keys:
    """The key of each row of a ragged array of keys; position, element and length count."""
    ends = np.cumsum(lengths)
    starts = ends - lengths
    position = np.arange(len(elements)) - np.repeat(starts, lengths)
    spread = mixed(elements ^ mixed(position))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(spread, dtype=np.uint64)])
    return combined(sums[ends] - sums[starts], lengths)
