"""Takes decoded requests into the store: repeats dropped, several requests stored in one go, acknowledged afterwards.

A small insert costs a column store as much as a large one, so requests that arrive within a few milliseconds, or while the
store is busy with others, are inserted together. The answer goes out when the store has them; a request is never
acknowledged and lost. A profile that comes again with the same profile_id and content (a retry) is stored once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from otelprof import counters
from otelprof.backend.live import Live
from otelprof.backend.series import SeriesIndex
from otelprof.backend.store import Block, Seen, Store, StoreFull
from otelprof.counters import Counters
from otelprof.errors import OtelprofError
from otelprof.otlp.decoded import Profiles, Spans, Table
from otelprof.otlp.server import Busy

GATHER = 0.003  # seconds to wait for more requests
MAX_WAITING_ROWS = 2_000_000
MAX_REMEMBERED = 1_000_000
FULL_DELAY, FAILED_DELAY = 30.0, 5.0  # seconds until a sender should try again

_log = logging.getLogger(__name__)

ProfileId: TypeAlias = tuple[int, int, int]  # profile_hi, profile_lo, content
_ID = ["profile_hi", "profile_lo", "content"]


class Repeats:
    """Profiles that were stored, by id and content; the oldest are forgotten first."""

    def __init__(self, known: Iterable[ProfileId] = (), limit: int = MAX_REMEMBERED) -> None:
        self._known: dict[ProfileId, None] = dict.fromkeys(known)
        self._limit = limit

    def add(self, ids: Iterable[ProfileId]) -> None:
        """Remember profiles."""
        self._known.update(dict.fromkeys(ids))
        for _ in range(len(self._known) - self._limit):
            del self._known[next(iter(self._known))]

    def without(self, profiles: Profiles, more: set[ProfileId]) -> Profiles:
        """The request without profiles that are known or in `more`; its own are added to `more`."""
        ids = profile_ids(profiles.samples)
        known = {one for one in ids if one in self._known or one in more}
        more.update(ids)
        if not known:
            return profiles
        again = np.isin(profiles.samples["content"], np.array([one[2] for one in known], np.uint64))
        again &= np.isin(profiles.samples["profile_lo"], np.array([one[1] for one in known], np.uint64))
        return replace(profiles, samples=profiles.samples[~again])


def profile_ids(rows: Table) -> list[ProfileId]:
    """The distinct profiles of rows that have an id."""
    with_id = rows[(rows["profile_hi"] != 0) | (rows["profile_lo"] != 0)]
    found: list[ProfileId] = np.unique(with_id[_ID]).tolist()
    return found


@dataclass(slots=True)
class _Waiting:
    """A request that waits to be stored."""

    done: asyncio.Future[None]
    profiles: Profiles | None = None
    spans: Spans | None = None


class Ingest:
    """The backend's Sink. `run` is its only writer; it goes on until it is cancelled."""

    def __init__(self, store: Store, index: SeriesIndex, counted: Counters, live: Live) -> None:
        self.store, self.index, self.counters, self.live = store, index, counted, live
        hour_ago = int(time.time() * 1000) - 2 * 3_600_000
        self._repeats = Repeats(store.recent_profiles(hour_ago))
        self._waiting: list[_Waiting] = []
        self._rows = 0
        self._wake = asyncio.Event()

    async def accept_profiles(self, profiles: Profiles) -> None:
        """Take the samples of a request; returns when they are stored."""
        for reason, count in profiles.refused.samples.items():
            self.counters.add(counters.BACKEND_REFUSED, count, reason)
        if not len(profiles.samples):
            return
        if self._rows + len(profiles.samples) > MAX_WAITING_ROWS:
            self.counters.add(counters.BACKEND_REFUSED, len(profiles.samples), "busy")
            raise Busy("the store can't keep up; try again in a second")
        await self._stored(_Waiting(asyncio.get_running_loop().create_future(), profiles=profiles))

    async def accept_spans(self, spans: Spans) -> None:
        """Take the spans of a request; returns when they are stored."""
        if len(spans.rows):
            await self._stored(_Waiting(asyncio.get_running_loop().create_future(), spans=spans))

    async def _stored(self, waiting: _Waiting) -> None:
        rows = len(waiting.profiles.samples) if waiting.profiles else 0
        self._rows += rows
        self._waiting.append(waiting)
        self._wake.set()
        try:
            await waiting.done
        finally:
            self._rows -= rows

    async def run(self) -> None:
        """Store what waits, all that is there at a time."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER)
            self._wake.clear()
            taken, self._waiting = self._waiting, []
            if taken:
                await self._commit(taken)

    async def drain(self) -> None:
        """Wait until nothing waits any more."""
        while self._waiting or self._rows:
            await asyncio.sleep(GATHER)

    async def _commit(self, taken: Sequence[_Waiting]) -> None:
        """Store requests together; where that fails for another reason than a full disk, each on its own."""
        error: OtelprofError | None = None
        try:
            await asyncio.to_thread(self._insert, taken)
        except StoreFull as full:
            _log.error("%s", full)
            error = Busy(str(full), FULL_DELAY)
        except Exception as failure:  # whatever it is, the writer goes on and the senders keep their data
            if len(taken) > 1:
                for one in taken:
                    await self._commit([one])
                return
            _log.error("storing failed: %s", failure if isinstance(failure, OtelprofError) else repr(failure))
            error = Busy("storing failed; the backend's log says why", FAILED_DELAY)
        self._answer(taken, error)
        if error is None:
            self.live.told()

    @staticmethod
    def _answer(taken: Sequence[_Waiting], error: Exception | None) -> None:
        for one in taken:
            if one.done.done():
                continue  # the sender went away
            if error:
                one.done.set_exception(error)
            else:
                one.done.set_result(None)

    def _insert(self, taken: Sequence[_Waiting]) -> None:
        """Store a group of requests; in the writer's thread."""
        new: set[ProfileId] = set()
        fresh = [self._repeats.without(one.profiles, new) for one in taken if one.profiles]
        admitted = [self._admitted(profiles) for profiles in fresh if len(profiles.samples)]
        spans = [one.spans for one in taken if one.spans]
        if admitted or spans:
            self.store.insert(Block(admitted, spans))
        self._repeats.add(new)
        self.counters.add(counters.BACKEND_ACCEPTED_SPANS, sum(len(one.rows) for one in spans))
        for profiles in admitted:
            self._note(profiles)

    def _admitted(self, profiles: Profiles) -> Profiles:
        """The request with series beyond the limit put under the one for overflow of their service and type."""
        moved = {series.key: self.index.admit(series) for series in profiles.series}
        if all(key == series.key for key, series in moved.items()):
            return profiles
        samples = profiles.samples.copy()
        for key, series in moved.items():
            samples["series"][profiles.samples["series"] == key] = series.key
        return replace(profiles, samples=samples, series=tuple(set(moved.values())))

    def _note(self, profiles: Profiles) -> None:
        """Count the stored samples and let the index know their series and times."""
        rows = profiles.samples
        self.counters.add(counters.BACKEND_ACCEPTED, len(rows))
        keys, inverse = np.unique(rows["series"], return_inverse=True)
        first, last = np.full(len(keys), 2**62), np.zeros(len(keys), np.int64)
        np.minimum.at(first, inverse, rows["time"])
        np.maximum.at(last, inverse, rows["time"])
        times = dict(zip(keys.tolist(), zip(first.tolist(), last.tolist(), strict=True), strict=True))
        for series in profiles.series:
            if series.key in times:
                self.index.add(Seen(series, *times[series.key]))
        self.live.last = max(self.live.last, int(rows["time"].max()))
