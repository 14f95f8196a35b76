"""The processor itself: takes batches with launches and GPU activity, hands on batches with samples and spans.

Launches count at once. Activity is joined to its launch by process and correlation id, whichever comes first, within one
window of the data's own time; what waits when the window closes, or at shutdown, goes out unjoined. Launches and activity
don't go further: each event stands in one table only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import cast

import numpy as np

from otelprof.batch import SAMPLES, SPANS, Batch, CallKind, Interner, Table
from otelprof.component import Build, Consumer, Host
from otelprof.counters import STITCH_UNJOINED, STITCH_WAITING, Counters
from otelprof.processors.cuda_stitch import samples
from otelprof.processors.cuda_stitch.config import Settings
from otelprof.processors.cuda_stitch.keys import Keys, Mask, activity_identity, first_of_each, join_keys
from otelprof.processors.cuda_stitch.spans import SpanMaker
from otelprof.processors.cuda_stitch.window import Part, Places, Rows, Seen, Window

Clock = Callable[[], int]
"""CLOCK_MONOTONIC nanoseconds."""


class _Output:
    """The rows that leave with one batch, all in its interner."""

    def __init__(self, batch: tuple[Interner, int], spans: SpanMaker, window: int) -> None:
        """For rows in an interner and with times of a clock offset; `window` in nanoseconds."""
        self.interner, self.clock_offset = batch
        self._window = window
        self.samples: list[Table] = []
        self.spans: list[Table] = []
        self._make_spans = spans

    def launches(self, rows: Table) -> None:
        """Calls of the driver."""
        self.samples += samples.launch_samples(self.interner, rows)
        self.spans.append(self._make_spans.launches(self.interner, rows))

    def joined(self, launches: Rows, activity: Rows) -> None:
        """Activity with the launch of each row beside it."""
        calls, ran = (samples.moved(rows, self.interner, self.clock_offset) for rows in (launches, activity))
        self.samples += samples.joined_samples(self.interner, calls, ran)
        self.spans.append(self._make_spans.kernels(self.interner, calls, ran))

    def unjoined(self, activity: Rows) -> None:
        """Activity whose launch nobody saw."""
        ran = samples.moved(activity, self.interner, self.clock_offset)
        calls = samples.unknown_launches(self.interner, ran)
        self.samples += samples.joined_samples(self.interner, calls, ran)

    def batch(self, start: int, end: int, more: Batch | None = None) -> Batch:
        """A batch of all rows, and those that `more` had before."""
        found, spans = list(self.samples), list(self.spans)
        start, end = self._interval(start, end)
        if more is not None:
            found.insert(0, more.samples)
            spans.insert(0, more.spans)
        return Batch(
            self.interner, start, end,
            samples=_joined(found, SAMPLES), spans=_joined(spans, SPANS), clock_offset=self.clock_offset,
        )  # fmt: skip

    def _interval(self, start: int, end: int) -> tuple[int, int]:
        """[start, end) widened to the rows' own times, which late joins set back; by a window at most."""
        times = [table["time"][table["time"] != 0] for table in self.samples]
        first = min((int(column.min()) for column in times if len(column)), default=start)
        last = max((int(column.max()) for column in times if len(column)), default=end - 1)
        return min(start, max(first, start - self._window)), max(end, min(last + 1, end + self._window))


def _joined(tables: list[Table], dtype: np.dtype[np.void]) -> Table:
    filled = [table for table in tables if len(table)]
    if len(filled) == 1:
        return filled[0]
    return np.concatenate(filled) if filled else np.zeros(0, dtype)


class CudaStitch:
    """See the module's text; `clock` is for tests."""

    def __init__(self, build: Build, clock: Clock = time.monotonic_ns) -> None:
        settings: Settings = build.settings
        self._next = cast(Consumer, build.consumer)
        self._spans = SpanMaker(settings)
        self._window = int(settings.window * 1e9)
        self._launches, self._activity = Window(settings.waiting_limit), Window(settings.waiting_limit)
        self._seen = Seen(2 * settings.waiting_limit)
        self._clock, self._last_read = clock, 0
        self._now = 0  # Unix nanoseconds, of the data
        self._counters = Counters()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, host: Host) -> None:
        """Begin to let go of what waits too long, also when no batch comes."""
        self._counters = host.counters
        self._counters.set(STITCH_WAITING, 0)
        self._last_read = self._clock()
        self._thread = threading.Thread(target=self._run, name="cuda_stitch", daemon=True)
        self._thread.start()

    def consume(self, batch: Batch) -> None:
        """Hand on `batch` with launches and activity turned into samples and spans."""
        with self._lock:
            out = self._stitch(batch)
        self._next.consume(out)

    def expire(self) -> None:
        """Hand on what has waited too long."""
        with self._lock:
            self._advance(0)
            out = self._given_up(self._now)
        self._hand_on(out)

    def shutdown(self, deadline: float) -> None:
        """Hand on all that waits, unjoined."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            out = self._given_up(2**63 - 1)
        self._hand_on(out)

    def _run(self) -> None:
        while not self._stopping.wait(self._window / 6e9):
            self.expire()

    def _hand_on(self, batch: Batch) -> None:
        if not batch.is_empty:
            self._next.consume(batch)

    def _advance(self, unix_time: int) -> None:
        """Move the time of the data to `unix_time`, or by what has passed since the last look: whichever is later."""
        read = self._clock()
        self._now = max(self._now + read - self._last_read, unix_time)
        self._last_read = read

    def _stitch(self, batch: Batch) -> Batch:
        self._advance(batch.end + batch.clock_offset)
        out = _Output((batch.interner, batch.clock_offset), self._spans, self._window)
        self._expire_into(out, self._now)
        if len(batch.launches):
            self._take_launches(Rows(batch.interner, batch.clock_offset, batch.launches), out)
        if len(batch.activity):
            self._take_activity(Rows(batch.interner, batch.clock_offset, batch.activity), out)
        self._overflow_into(out)
        self._count_waiting()
        return out.batch(batch.start, batch.end, batch)

    def _take_launches(self, rows: Rows, out: _Output) -> None:
        """Count the launches, and join the activity that was here before them."""
        waits = rows.table["correlation"] >= 0
        keys = join_keys(rows.interner, rows.table[waits])
        new = first_of_each(keys) & ~self._launches.holds(keys)
        self._count("duplicate", len(keys) - int(np.count_nonzero(new)))
        fresh = ~waits
        fresh[waits] = new
        out.launches(rows.table[fresh])
        known = rows.take(waits).take(new)
        part = self._launches.add(self._now + self._window, keys[new], known, _runs_on_gpu(known.table))
        if part is not None:
            self._meet(part, out)

    def _meet(self, launches: Part, out: _Output) -> None:
        """Join the activity that came before its launch."""
        for early in self._activity.parts:
            found, at = launches.find(early.keys)
            found_waiting = early.waits[found]
            self._join(launches, at[found_waiting], early.rows.take(found & early.waits), out)
            early.waits[found] = False

    def _take_activity(self, rows: Rows, out: _Output) -> None:
        """Join the activity whose launch is known; the rest waits."""
        keys = join_keys(rows.interner, rows.table)
        fresh = self._unseen(keys, rows.table)
        rows, keys = rows.take(fresh), keys[fresh]
        self._count("bad_times", int(np.count_nonzero(~samples.times_possible(rows.table))))
        left = np.ones(len(keys), np.bool_)
        for part in reversed(self._launches.parts):
            found, at = part.find(keys)
            self._join(part, at[left[found]], rows.take(found & left), out)
            left &= ~found
        late, unknown = rows.take(left), rows.table["correlation"][left] < 0
        out.unjoined(late.take(unknown))
        self._count("no_correlation", int(np.count_nonzero(unknown)))
        self._activity.add(self._now + self._window, keys[left][~unknown], late.take(~unknown), ~unknown[~unknown])

    def _unseen(self, keys: Keys, activity: Table) -> Mask:
        """False for a record that came before; one with impossible times doesn't hide a good one."""
        identity = activity_identity(keys, activity) ^ np.where(samples.times_possible(activity), 0, 1).astype(np.uint64)
        fresh = first_of_each(identity) & ~self._seen.holds(identity)
        self._seen.add(self._now + self._window, identity[fresh])
        self._count("duplicate", len(keys) - int(np.count_nonzero(fresh)))
        return fresh

    @staticmethod
    def _join(part: Part, at: Places, activity: Rows, out: _Output) -> None:
        """Activity rows with their launches at the places `at` of `part`."""
        if len(at):
            part.waits[at] = False
            out.joined(part.rows.take(at), activity)

    def _given_up(self, now: int) -> Batch:
        """A batch, with an interner of its own, of what has waited too long at `now`."""
        out = _Output((Interner(), 0), self._spans, self._window)
        self._expire_into(out, now)
        self._count_waiting()
        return out.batch(self._now, self._now + 1)

    def _expire_into(self, out: _Output, now: int) -> None:
        self._seen.expire(now)
        for part in self._launches.expired(now):
            self._count("no_activity", int(np.count_nonzero(part.waits)))
        for part in self._activity.expired(now):
            self._let_go(part, "no_launch", out)

    def _overflow_into(self, out: _Output) -> None:
        for part in self._launches.overflow():
            self._count("table_full", int(np.count_nonzero(part.waits)))
        for part in self._activity.overflow():
            self._let_go(part, "table_full", out)

    def _let_go(self, part: Part, reason: str, out: _Output) -> None:
        self._count(reason, int(np.count_nonzero(part.waits)))
        out.unjoined(part.rows.take(part.waits))

    def _count(self, reason: str, number: int) -> None:
        if number:
            self._counters.add(STITCH_UNJOINED, number, reason)

    def _count_waiting(self) -> None:
        self._counters.set(STITCH_WAITING, self._launches.waiting + self._activity.waiting)


def _runs_on_gpu(launches: Table) -> Mask:
    """Calls that leave activity on the GPU; a wait leaves none."""
    waits: Mask = launches["kind"] != CallKind.SYNC
    return waits
