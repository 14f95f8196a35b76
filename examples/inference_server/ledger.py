"""The service's own account of what it asked of the GPU, to compare a profile with.

Exact: each launch is noted by the function that made it, right after it, under the whole Python stack it was made from.
"""

from __future__ import annotations

from collections import deque
from types import CodeType, FrameType
from typing import Any, Optional, Tuple

KEPT_REQUESTS = 32
Key = Tuple[Any, ...]  # the kernel or call, then the ids of the stack's code objects, leaf first


class Ledger:
    """Counts by (kernel or driver call, Python stack), and by request."""

    def __init__(self) -> None:
        self._launches: dict[Key, int] = {}
        self._calls: dict[Key, int] = {}
        self._codes: dict[int, CodeType] = {}  # holds them, so that an id stays theirs
        self._batches: dict[int, dict[str, int]] = {}
        self._last: deque[dict[str, Any]] = deque(maxlen=KEPT_REQUESTS)
        self.launches = 0
        self._completed = 0
        self._failed = 0

    def note_launches(self, kernel: str, launched: int, frame: FrameType) -> None:
        """`kernel` was launched so many times from the function of `frame`."""
        key = self._key(kernel, frame)
        self._launches[key] = self._launches.get(key, 0) + launched
        self.launches += launched

    def note_call(self, name: str, frame: FrameType) -> None:
        """`name` of the driver was called from the function of `frame`."""
        key = self._key(name, frame)
        self._calls[key] = self._calls.get(key, 0) + 1

    def note_batch(self, request_ids: list[int], launches: int, failed: bool) -> None:
        """These requests were served together, or failed together, with so many launches."""
        size = len(request_ids)
        row = self._batches.setdefault(size, {"batches": 0, "requests": 0, "launches": 0})
        row["batches"] += 1
        row["requests"] += size
        row["launches"] += launches
        self._failed += size if failed else 0
        self._completed += 0 if failed else size
        self._last.extend({"id": number, "batch_size": size, "launches": launches} for number in request_ids)

    def _key(self, name: str, leaf: FrameType) -> Key:
        key: list[Any] = [name]
        frame: Optional[FrameType] = leaf
        while frame is not None:
            code = frame.f_code
            key.append(id(code))
            self._codes[id(code)] = code
            frame = frame.f_back
        return tuple(key)

    def _path(self, key: Key) -> list[str]:
        codes = [self._codes[number] for number in reversed(key[1:])]
        return [getattr(code, "co_qualname", code.co_name) for code in codes]

    def as_json(self) -> dict[str, Any]:
        """All counts; a path is the whole Python stack, root first, in qualified names where Python has them."""
        kernels: dict[str, int] = {}
        for key, count in self._launches.items():
            kernels[key[0]] = kernels.get(key[0], 0) + count
        return {
            "launches": self.launches,
            "kernels": kernels,
            "paths": [{"kernel": key[0], "path": self._path(key), "launches": n} for key, n in self._launches.items()],
            "calls": [{"call": key[0], "path": self._path(key), "count": n} for key, n in self._calls.items()],
            "requests": {
                "completed": self._completed,
                "failed": self._failed,
                "by_batch_size": {str(size): row for size, row in sorted(self._batches.items())},
                "last": list(self._last),
            },
        }


LEDGER = Ledger()
