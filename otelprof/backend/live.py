"""Tells pages that something new was stored: server-sent events, at most one a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

PAUSE = 1.0  # seconds between two events
SILENCE = 15.0  # seconds until a comment keeps the connection open


class Live:
    """The time of the newest sample (Unix milliseconds), and whoever wants to know when it grows."""

    def __init__(self) -> None:
        self.last = 0
        self._version = 0
        self._news = asyncio.Event()
        self._ended = False

    def told(self) -> None:
        """Something was stored; wakes all that wait."""
        self._version += 1
        self._news.set()
        self._news = asyncio.Event()

    def end(self) -> None:
        """End all streams."""
        self._ended = True
        self.told()

    async def events(self) -> AsyncIterator[bytes]:
        """The stream of one page; it starts with the newest sample."""
        version = -1
        while not self._ended:
            if version != self._version:
                version = self._version
                yield f"event: data\ndata: {json.dumps({'last': self.last})}\n\n".encode()
                await self._changed(version, PAUSE, at_least=True)
            elif not await self._changed(version, SILENCE):
                yield b": still here\n\n"

    async def _changed(self, version: int, seconds: float, at_least: bool = False) -> bool:
        """Wait for news, no longer than `seconds` (`at_least`: exactly, unless all ends); whether there are any."""
        end = asyncio.get_running_loop().time() + seconds
        while not self._ended and (at_least or self._version == version):
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                break
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except TimeoutError:
                break
        return self._version != version
