"""What the handlers of HTTP requests work with, and the threads in which queries run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from otelprof.backend.guard import Tokens
from otelprof.backend.live import Live
from otelprof.backend.query import Querier
from otelprof.backend.traces import Traces
from otelprof.counters import Counters
from otelprof.otlp.server import Busy, Receiver

QUERY_THREADS = 4
MAX_QUERIES = 64  # waiting and running

_T = TypeVar("_T")


@dataclass
class Backend:
    """Everything that answers are made from."""

    querier: Querier
    receiver: Receiver
    live: Live
    counters: Counters
    tokens: Tokens
    local_only: bool = False  # names other than localhost are refused
    ready: bool = False
    queries: int = 0
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(QUERY_THREADS, "query"))

    @property
    def traces(self) -> Traces:
        """Answers about requests."""
        return Traces(self.querier.store, self.querier.index)

    async def ask(self, question: Callable[..., _T], *arguments: Any) -> _T:
        """Run a query in a thread; Busy when too many wait."""
        if self.queries >= MAX_QUERIES:
            raise Busy("too many queries at once; try again in a second")
        self.queries += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, question, *arguments)
        finally:
            self.queries -= 1
