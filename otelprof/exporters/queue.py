"""The queue of a sender: the only place where data waits, and only as bytes."""

from __future__ import annotations

from collections import deque

from otelprof.otlp.encode import Encoded


class ByteQueue:
    """Encoded requests in order, bounded by their bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._requests: deque[Encoded] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def bytes(self) -> int:
        """Bytes that wait."""
        return self._bytes

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
