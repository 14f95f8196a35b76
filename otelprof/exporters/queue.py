"""The queue of a sender: the only place where data waits, and only as bytes. In memory here, on disk in disk_queue."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from otelprof.otlp.encode import Encoded


class Queue(Protocol):
    """Encoded requests in order, bounded by their bytes; the oldest go when it is full. Its user serialises the calls."""

    lost: list[Encoded]
    """Requests that got lost on their own, without their data; whoever counts losses empties it."""

    def __len__(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Bytes that wait."""

    @property
    def kept(self) -> int:
        """Requests that survive the process."""

    def put(self, request: Encoded) -> list[Encoded]:
        """Add a request; those that had to go for it."""

    def take(self) -> Encoded | None:
        """The oldest request; None when it got lost."""

    def done(self) -> None:
        """The request that was taken last is settled."""

    def keeps_current(self) -> bool:
        """True when the request under way survives the process."""

    def close(self) -> list[Encoded]:
        """End; the requests that don't survive."""


class ByteQueue:
    """Encoded requests in order, bounded by their bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._requests: deque[Encoded] = deque()
        self._bytes = 0
        self.lost: list[Encoded] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def bytes(self) -> int:
        """Bytes that wait."""
        return self._bytes

    @property
    def kept(self) -> int:
        """Nothing survives the process."""
        return 0

    def put(self, request: Encoded) -> list[Encoded]:
        """Add a request; those that had to go for it."""
        self._requests.append(request)
        self._bytes += len(request.data)
        dropped = []
        while self._bytes > self._limit:
            dropped.append(self.take())
        return dropped

    def take(self) -> Encoded:
        """The oldest request."""
        request = self._requests.popleft()
        self._bytes -= len(request.data)
        return request

    def done(self) -> None:
        """Nothing is left of it."""

    def keeps_current(self) -> bool:
        """Nothing survives the process."""
        return False

    def close(self) -> list[Encoded]:
        """All that waits: it is lost."""
        return [self.take() for _ in range(len(self))]
