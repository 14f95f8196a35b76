"""Stacks by the ids that the kernel gives them: chunks in, stacks of the interner out.

A chunk is decoded when it arrives (its process may be gone a moment later), and once. A native stack says at which of its
frames Python frames stand: those frames are the interpreter's evaluation calls, and the Python frames take their places.
Bounded: when the table is full, or a new interner is begun, what is only a cache is dropped; a chunk that was dropped is
asked for again by `forget`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass

import numpy as np

from otelprof.batch import Frame, Interner, Table, mark
from otelprof.ebpf.layout import wire

Decode = Callable[[int, Table], Sequence[Frame | None]]
"""Frames of a process (incarnation, records of the wire's `struct frame`); None: not a frame to show."""

TRUNCATED = mark("truncated")
STOPPED = mark("unwinding stopped")
NO_PYTHON = mark("no Python frames")
UNKNOWN = mark("unknown")

DEPTH_LIMIT = 64  # chunks of one stack; the kernel cuts at 16


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Decoded frames, leaf first, and at each how many Python frames stand in its place (native chunks only)."""

    parent: int
    process: int
    frames: tuple[Frame | None, ...]
    python: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Walked:
    """What the kernel says of one stack: ids of its parts (0: none), and the marks of what is missing of them.

    `root_mark` stands where the Python stack's root end is missing, `native_mark` where the native walk stopped.
    """

    python: int
    root_mark: Frame | None = None
    native: int = 0
    native_mark: Frame | None = None


class StackTable:
    """Chunks that were seen, and the stacks made of them.

    `decode` turns frame records into frames, of Python and of native stacks. `forget` is called with ids that the kernel
    must send again if they recur.
    """

    LIMIT = 200_000

    def __init__(self, decode: Decode, forget: Callable[[Iterable[int]], None], native: Decode | None = None) -> None:
        self._decode = decode
        self._decode_native = native or decode
        self._forget = forget
        self._native_kind = wire()["STACK_NATIVE"]
        self._chunks: dict[int, _Chunk] = {}
        self._stacks: dict[Walked, int] = {}
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
        native = chunks["kind"] == self._native_kind
        for part, decode in ((chunks[~native], self._decode), (chunks[native], self._decode_native)):
            for process in np.unique(part["process"]):
                self._add_of(int(process), part[part["process"] == process], decode)

    def _add_of(self, process: int, chunks: Table, decode: Decode) -> None:
        counts = chunks["count"].astype(int)
        valid = np.arange(chunks["frames"].shape[1]) < counts[:, None]
        records = chunks["frames"][valid]
        frames = decode(process, records)
        places = records["check"].tolist() if decode is self._decode_native else []
        ends = np.cumsum(counts)
        for chunk, start, end in zip(chunks, (ends - counts).tolist(), ends.tolist(), strict=True):
            number, parent = int(chunk["id"]), int(chunk["parent"])
            self._chunks[number] = _Chunk(parent, process, tuple(frames[start:end]), tuple(places[start:end]))

    def ended(self, processes: Set[int]) -> None:
        """These are gone and their last samples are in a batch: their chunks are of no use any more."""
        self._drop({number for number, chunk in self._chunks.items() if chunk.process in processes})

    def _drop(self, ids: set[int]) -> None:
        if not ids:
            return
        for number in ids:
            del self._chunks[number]
        for key in [key for key in self._stacks if key.python in ids or key.native in ids]:
            del self._stacks[key]

    def stack(self, leaf: int, root_mark: Frame | None = None) -> int:
        """The interner's id of the Python stack whose leaf chunk is `leaf`; `root_mark` stands for what is missing of it."""
        return self.whole(Walked(leaf, root_mark))

    def whole(self, walked: Walked) -> int:
        """The interner's id of a stack of Python and native frames."""
        found = self._stacks.get(walked)
        if found is None:
            found = self._interner.stack(self._assemble(walked))
            if all(leaf in self._chunks for leaf in (walked.python, walked.native) if leaf):
                self._stacks[walked] = found
        return found

    def marked(self, *frames: Frame) -> int:
        """The interner's id of a stack of marks and loose frames."""
        return self._interner.stack(frames)

    def _assemble(self, walked: Walked) -> list[Frame]:
        """The frames, root first."""
        python = [frame for chunk in self._chain(walked.python) for frame in chunk.frames]
        frames = list(self._merge(self._chain(walked.native), python))
        if walked.native_mark is not None:
            frames.append(walked.native_mark)
        frames += python
        if walked.root_mark is not None:
            frames.append(walked.root_mark)
        return [frame for frame in reversed(frames) if frame is not None] or [NO_PYTHON]

    def _merge(self, native: Iterable[_Chunk], python: list[Frame | None]) -> Iterable[Frame | None]:
        """Native frames leaf first, Python frames in the places of those that run them; what has a place leaves `python`."""
        at = 0
        for chunk in native:
            for frame, count in zip(chunk.frames, chunk.python or (0,) * len(chunk.frames), strict=True):
                if count:
                    yield from python[at : at + count]
                    at += count
                else:
                    yield frame
        del python[:at]

    def _chain(self, leaf: int) -> Iterable[_Chunk]:
        """The chunks of a stack from its leaf to its root; one that isn't there is an unknown frame."""
        number = leaf
        for _ in range(DEPTH_LIMIT if number else 0):
            chunk = self._chunks.get(number, _MISSING)
            yield chunk
            number = chunk.parent
            if not number:
                return


_MISSING = _Chunk(0, 0, (UNKNOWN,))
