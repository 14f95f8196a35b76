"""Requests are acknowledged after they are stored, together, once; what can't be stored stays with the sender."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from otelprof import counters
from otelprof.backend.ingest import Ingest
from otelprof.backend.live import Live
from otelprof.backend.memory import MemoryStore
from otelprof.backend.series import OVERFLOW, SeriesIndex
from otelprof.backend.store import Block, Selection, StoreFailed, StoreFull
from otelprof.counters import Counters
from otelprof.otlp.decode import Window, decode_profiles
from otelprof.otlp.decoded import Profiles
from otelprof.otlp.server import Busy
from tests.unit.otlp_requests import CPU, PERIOD, Builder, simple


class WatchedStore(MemoryStore):
    """Notes how many requests came at a time; `fail` is asked before each insert."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[int] = []
        self.fail: Callable[[Block], None] = lambda block: None

    def insert(self, block: Block) -> None:
        self.fail(block)
        self.blocks.append(len(block.profiles))
        super().insert(block)

    def total(self) -> int:
        return int(self.sums(Selection(CPU, 0, 2**62)).values.sum())


def running(
    test: Callable[[Ingest, WatchedStore], Coroutine[Any, Any, None]], index: SeriesIndex | None = None
) -> tuple[WatchedStore, Counters]:
    """Run `test` with a writer at work."""
    store, counted = WatchedStore(), Counters()

    async def body() -> None:
        ingest = Ingest(store, index if index is not None else SeriesIndex(), counted, Live())
        writer = asyncio.create_task(ingest.run())
        await test(ingest, store)
        writer.cancel()

    asyncio.run(body())
    return store, counted


def request(number: int) -> Profiles:
    """A request of its own."""
    builder = simple(f"service-{number}")
    builder.current.profile_id = bytes([number + 1]) * 16
    return decode_profiles(builder.data())


def test_requests_that_come_together_are_stored_together() -> None:
    async def body(ingest: Ingest, _: WatchedStore) -> None:
        await asyncio.gather(*(ingest.accept_profiles(request(number)) for number in range(20)))

    store, counted = running(body)
    assert len(store.blocks) < 5
    assert sum(store.blocks) == 20
    assert store.total() == 200 * PERIOD
    assert counted.get(counters.BACKEND_ACCEPTED) == 60


def test_a_repeat_is_acknowledged_and_stored_once_also_within_one_group() -> None:
    async def body(ingest: Ingest, _: WatchedStore) -> None:
        profiles = request(1)
        await asyncio.gather(*(ingest.accept_profiles(profiles) for _ in range(4)))
        await ingest.accept_profiles(profiles)

    store, _ = running(body)
    assert store.total() == 10 * PERIOD


def test_the_same_samples_under_another_id_or_without_one_are_stored_again() -> None:
    async def body(ingest: Ingest, _: WatchedStore) -> None:
        start = int(request(0).samples["time"][0])
        for number in (1, 2):
            builder = Builder(start=start * 10**6)
            builder.current.profile_id = bytes([number]) * 16
            builder.sample("main")
            await ingest.accept_profiles(decode_profiles(builder.data()))
        builder.current.profile_id = b""
        for _ in range(2):
            await ingest.accept_profiles(decode_profiles(builder.data()))

    assert running(body)[0].total() == 4 * PERIOD


def test_a_full_disk_is_a_busy_answer_with_a_delay_and_a_later_try_is_stored() -> None:
    async def body(ingest: Ingest, store: WatchedStore) -> None:
        def full(_: Block) -> None:
            raise StoreFull("the disk of /data is full")

        store.fail = full
        with pytest.raises(Busy, match="full") as caught:
            await ingest.accept_profiles(request(1))
        assert caught.value.delay >= 10
        store.fail = lambda block: None
        await ingest.accept_profiles(request(1))

    assert running(body)[0].total() == 10 * PERIOD


@pytest.mark.parametrize("error", [StoreFailed("no"), RuntimeError("a bug")])
def test_one_request_that_can_not_be_stored_takes_no_other_with_it(error: Exception) -> None:
    async def body(ingest: Ingest, store: WatchedStore) -> None:
        def poisoned(block: Block) -> None:
            if any(one.service == "service-3" for profiles in block.profiles for one in profiles.series):
                raise error

        store.fail = poisoned
        done = await asyncio.gather(*(ingest.accept_profiles(request(n)) for n in range(6)), return_exceptions=True)
        assert [type(one) for one in done] == [type(None)] * 3 + [Busy] + [type(None)] * 2

    assert running(body)[0].total() == 50 * PERIOD


def test_series_beyond_the_limit_go_to_one_for_overflow() -> None:
    async def body(ingest: Ingest, _: WatchedStore) -> None:
        for number in range(4):
            await ingest.accept_profiles(request(number))
        await ingest.accept_profiles(request(0))

    index = SeriesIndex(limit=2)
    store, _ = running(body, index)
    assert store.total() == 50 * PERIOD
    overflowing = [one.series for one in index._seen.values() if OVERFLOW in one.series.labels]
    assert sorted(one.service for one in overflowing) == ["service-2", "service-3"]


def test_a_sender_that_goes_away_costs_nothing() -> None:
    async def body(ingest: Ingest, _: WatchedStore) -> None:
        task = asyncio.create_task(ingest.accept_profiles(request(1)))
        await asyncio.sleep(0)
        task.cancel()
        await ingest.accept_profiles(request(2))
        await asyncio.wait_for(ingest.drain(), 5)

    assert running(body)[0].total() == 20 * PERIOD


def test_refused_samples_are_counted_by_reason() -> None:
    async def body(ingest: Ingest, _: WatchedStore) -> None:
        builder = simple()
        builder.sample("main", values=())
        await ingest.accept_profiles(decode_profiles(builder.data()))

    _, counted = running(body)
    assert counted.get(counters.BACKEND_REFUSED, "no_value") == 1


def test_the_oldest_rows_of_the_store_in_memory_go_first() -> None:
    store = MemoryStore(max_rows=1000)
    for number in range(70):
        builder = Builder(start=(1_000_000 + number) * 10**9)
        for row in range(20):
            builder.sample(f"f{number}", f"g{row}")
        store.insert(Block([decode_profiles(builder.data(), window=Window(back=10**10))]))
    rows = store._selected(Selection(CPU, 0, 2**62))
    assert 500 <= len(rows) <= 1000
    assert rows["time"].min() > 1_000_020 * 1000
    known = store.stacks(np.unique(rows["stack"]))
    assert len(known) == len(np.unique(rows["stack"]))
    assert len(store.frames(np.unique(known.frames))) == len(np.unique(known.frames))
