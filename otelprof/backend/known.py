"""Stacks and frames that queries met before, as sorted columns: a live graph asks the store only for what is new."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from otelprof.otlp.content import Keys
from otelprof.otlp.decoded import Frames, Stacks
from otelprof.otlp.tables import selected
from otelprof.otlp.wire import Ragged

MAX_FRAMES_OF_STACKS = 8_000_000  # 8 bytes each
MAX_FRAMES = 200_000

_NONE = np.zeros(0, np.uint64)


class KnownStacks:
    """Stacks by key; `load` asks the store for those that aren't known."""

    def __init__(self, load: Callable[[Keys], Stacks], limit: int = MAX_FRAMES_OF_STACKS) -> None:
        self._load, self._limit = load, limit
        self._lock = threading.Lock()
        self._keys, self._rows = _NONE, Ragged(_NONE, np.zeros(0, np.int64))

    def get(self, keys: Keys) -> Stacks:
        """Those that there are."""
        with self._lock:
            missing = keys[~_contains(self._keys, keys)]
            if len(missing):
                self._add(self._load(missing), keys)
            rows = np.flatnonzero(_contains(np.sort(keys), self._keys))
            found = self._rows.take(rows)
            return Stacks(self._keys[rows], found.lengths, found.data)

    def _add(self, new: Stacks, wanted: Keys) -> None:
        if len(self._rows.data) + len(new.frames) > self._limit:  # only what this query needs stays
            stay = np.flatnonzero(_contains(np.sort(wanted), self._keys))
            self._keys, self._rows = self._keys[stay], self._rows.take(stay)
        keys = np.concatenate([self._keys, new.keys])
        lengths = np.concatenate([self._rows.lengths, new.lengths])
        order = np.argsort(keys)
        self._rows = Ragged(np.concatenate([self._rows.data, new.frames]), lengths).take(order)
        self._keys = keys[order]


class KnownFrames:
    """Frames by key; `load` asks the store for those that aren't known."""

    def __init__(self, load: Callable[[Keys], Frames], limit: int = MAX_FRAMES) -> None:
        self._load, self._limit = load, limit
        self._lock = threading.Lock()
        self._frames: Frames | None = None

    def get(self, keys: Keys) -> Frames:
        """Those that there are."""
        with self._lock:
            known = self._frames
            missing = keys if known is None else keys[~_contains(known.keys, keys)]
            if known is None or len(missing):
                joined = self._joined(known, self._load(missing))
                if len(joined) < len(keys) and known is not None:  # some were given up to stay within the limit
                    joined = self._joined(None, self._load(keys))
                known = self._frames = joined
            return selected(known, np.flatnonzero(_contains(np.sort(keys), known.keys)))

    def _joined(self, known: Frames | None, new: Frames) -> Frames:
        if known is not None and len(known) + len(new) <= self._limit:
            texts = [[*old, *more] for old, more in zip(known.texts, new.texts, strict=True)]
            pairs = ((known.lines, new.lines), (known.starts, new.starts), (known.addresses, new.addresses))
            new = Frames.of(np.concatenate([known.keys, new.keys]), texts, [np.concatenate(pair) for pair in pairs])
        return selected(new, np.argsort(new.keys))


def _contains(ordered: Keys, keys: Keys) -> npt.NDArray[np.bool_]:
    """Which of `keys` are in `ordered`."""
    if not len(ordered):
        return np.zeros(len(keys), bool)
    at = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    found: npt.NDArray[np.bool_] = ordered[at] == keys
    return found
