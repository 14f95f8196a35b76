"""Stacks by the ids that the kernel gives them: chunks in, stacks of the interner out.

A chunk is decoded when it arrives (its process may be gone a moment later), and once. Bounded: when the table is full, or
a new interner is begun, what is only a cache is dropped; a chunk that was dropped is asked for again by `forget`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from otelprof.batch import Frame, Interner, Table, mark

Decode = Callable[[int, Table], Sequence[Frame | None]]
"""Frames of a process (incarnation, records of the wire's `struct frame`); None: not a frame to show."""

TRUNCATED = mark("truncated")
STOPPED = mark("unwinding stopped")
NO_PYTHON = mark("no Python frames")
UNKNOWN = mark("unknown")

DEPTH_LIMIT = 64  # chunks of one stack; the kernel cuts at 16


@dataclass(frozen=True, slots=True)
class _Chunk:
    parent: int
    process: int
    frames: tuple[Frame, ...]  # root first


class StackTable:
    """Chunks that were seen, and the stacks made of them.

    `decode` turns frame records into frames. `forget` is called with ids that the kernel must send again if they recur.
    """

    LIMIT = 200_000

    def __init__(self, decode: Decode, forget: Callable[[Iterable[int]], None]) -> None:
        self._decode = decode
        self._forget = forget
        self._chunks: dict[int, _Chunk] = {}
        self._stacks: dict[tuple[int, Frame | None], int] = {}
        self._interner = Interner()

    @property
    def interner(self) -> Interner:
        """The interner of the current generation; a new one replaces it when it is full."""
        return self._interner

    def __len__(self) -> int:
        return len(self._chunks)

    def new_generation_if_full(self) -> None:
        """Start a new interner when the current one is full: call it between two batches only."""
        if self._interner.full:
            self._interner = Interner()
            self._stacks.clear()

    def add(self, chunks: Table) -> None:
        """Decode chunks (struct stack_chunk) that have just arrived, process by process."""
        if len(self._chunks) + len(chunks) > self.LIMIT:
            known = set(self._chunks)
            self._drop(known)
            self._forget(known)
        for process in np.unique(chunks["process"]):
            self._add_of(int(process), chunks[chunks["process"] == process])

    def _add_of(self, process: int, chunks: Table) -> None:
        counts = chunks["count"].astype(int)
        valid = np.arange(chunks["frames"].shape[1]) < counts[:, None]
        frames = self._decode(process, chunks["frames"][valid])
        ends = np.cumsum(counts)
        for chunk, start, end in zip(chunks, ends - counts, ends, strict=True):
            shown = tuple(frame for frame in reversed(frames[start:end]) if frame is not None)
            self._chunks[int(chunk["id"])] = _Chunk(int(chunk["parent"]), process, shown)

    def ended(self, process: int) -> None:
        """The process is gone and its last samples are in a batch: its chunks are of no use any more."""
        self._drop({number for number, chunk in self._chunks.items() if chunk.process == process})

    def _drop(self, ids: set[int]) -> None:
        for number in ids:
            del self._chunks[number]
        for key in [key for key in self._stacks if key[0] in ids]:
            del self._stacks[key]

    def stack(self, leaf: int, root_mark: Frame | None = None) -> int:
        """The interner's id of the stack whose leaf chunk is `leaf`; `root_mark` stands in front of what is missing."""
        key = (leaf, root_mark)
        found = self._stacks.get(key)
        if found is None:
            found = self._interner.stack(self._assemble(leaf, root_mark))
            if leaf in self._chunks:
                self._stacks[key] = found
        return found

    def marked(self, *frames: Frame) -> int:
        """The interner's id of a stack of marks and loose frames."""
        return self._interner.stack(frames)

    def _assemble(self, leaf: int, root_mark: Frame | None) -> list[Frame]:
        parts: list[tuple[Frame, ...]] = []
        number = leaf
        for _ in range(DEPTH_LIMIT):
            chunk = self._chunks.get(number)
            if chunk is None:
                parts.append((UNKNOWN,))
                break
            parts.append(chunk.frames)
            number = chunk.parent
            if not number:
                break
        if root_mark is not None:
            parts.append((root_mark,))
        frames = [frame for part in reversed(parts) for frame in part]
        return frames or [NO_PYTHON]
