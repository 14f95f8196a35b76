"""What was seen lately and may still meet its other half: parts of batches, each sorted by key, bounded in time and size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from otelprof.batch import Interner, Table
from otelprof.processors.cuda_stitch.keys import Keys, Mask

Places = npt.NDArray[np.intp]


@dataclass(slots=True)
class Rows:
    """Rows of one table with the interner that their ids belong to and the offset of their times to Unix time."""

    interner: Interner
    clock_offset: int
    table: Table

    def take(self, which: Mask | Places) -> Rows:
        """Some of the rows."""
        return Rows(self.interner, self.clock_offset, self.table[which])


@dataclass(slots=True)
class Part:
    """Rows that came together, by ascending key, and which of them still wait."""

    until: int
    """Unix nanoseconds after which nobody waits for them any more."""
    keys: Keys
    rows: Rows
    waits: Mask

    def find(self, keys: Keys) -> tuple[Mask, Places]:
        """Which of `keys` are here, and at which place (of the first, where a key stands here twice)."""
        at = np.searchsorted(self.keys, keys)
        inside = at < len(self.keys)
        found = np.zeros(len(keys), np.bool_)
        found[inside] = self.keys[at[inside]] == keys[inside]
        return found, at[found]


@dataclass(slots=True)
class Window:
    """Parts, oldest first; `limit` rows at most, whatever came last always stays."""

    limit: int
    parts: deque[Part] = field(default_factory=deque)
    size: int = 0

    def add(self, until: int, keys: Keys, rows: Rows, waits: Mask) -> Part | None:
        """Remember rows; what was made of them, or None for no rows."""
        if not len(keys):
            return None
        order = np.argsort(keys, kind="stable")
        part = Part(until, keys[order], rows.take(order), waits[order])
        self.parts.append(part)
        self.size += len(keys)
        return part

    def holds(self, keys: Keys) -> Mask:
        """Which of `keys` are in any part."""
        found = np.zeros(len(keys), np.bool_)
        for part in self.parts:
            found |= part.find(keys)[0]
        return found

    @property
    def waiting(self) -> int:
        """Rows that still wait."""
        return sum(int(np.count_nonzero(part.waits)) for part in self.parts)

    def expired(self, now: int) -> Iterator[Part]:
        """Take out the parts whose time is over at `now`, Unix nanoseconds."""
        while self.parts and self.parts[0].until <= now:
            yield self._pop()

    def overflow(self) -> Iterator[Part]:
        """Take out the oldest parts until the limit is kept."""
        while len(self.parts) > 1 and self.size > self.limit:
            yield self._pop()

    def _pop(self) -> Part:
        part = self.parts.popleft()
        self.size -= len(part.keys)
        return part


@dataclass(slots=True)
class Seen:
    """Numbers that were met lately, bounded in time and size."""

    limit: int
    parts: deque[tuple[int, Keys]] = field(default_factory=deque)
    size: int = 0

    def add(self, until: int, numbers: Keys) -> None:
        """Remember `numbers` until Unix time `until`, nanoseconds; the oldest go when there are too many."""
        self.parts.append((until, np.sort(numbers)))
        self.size += len(numbers)
        while len(self.parts) > 1 and self.size > self.limit:
            self._forget()

    def holds(self, numbers: Keys) -> Mask:
        """Which of `numbers` were met."""
        found = np.zeros(len(numbers), np.bool_)
        for _, known in self.parts:
            at = np.searchsorted(known, numbers)
            found |= (at < len(known)) & (known[np.minimum(at, len(known) - 1)] == numbers) if len(known) else False
        return found

    def expire(self, now: int) -> None:
        """Forget what is older than its time at `now`, Unix nanoseconds."""
        while self.parts and self.parts[0][0] <= now:
            self._forget()

    def _forget(self) -> None:
        self.size -= len(self.parts.popleft()[1])
