"""What profiles cost on their way: written as OTLP, read, stored and merged into a flame graph, each beside a floor.

Stacks are made up: a call tree with 40 calls of equal odds at each node would share too little and a single path too much, so
each stack goes on from an earlier one at a random depth. 100,000 of them have about 40 frames and 16,000 functions.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest

from benchmarks.figures import Figure
from otelprof.backend.api import graph, json_response
from otelprof.backend.chdb_engine import ChdbEngine
from otelprof.backend.clickhouse import ClickHouseStore
from otelprof.backend.query import Querier, Question
from otelprof.backend.series import SeriesIndex
from otelprof.backend.store import Block, Seen, Selection
from otelprof.batch import SAMPLES, Batch, Frame, FrameKind, Interner, Resource
from otelprof.otlp import semconv
from otelprof.otlp.decode import decode_profiles
from otelprof.otlp.encode import encode_profiles

CPU = semconv.pyroscope_id(semconv.CPU)
ROUNDS = 5
FUNCTIONS, STACKS = 16_000, 100_000
PER_REQUEST = 2_000  # samples
NODES = 16_384


def stacks(count: int, rng: random.Random) -> list[tuple[int, ...]]:
    """Stacks as numbers of functions, root first."""
    made: list[tuple[int, ...]] = [(0,)]
    while len(made) < count:
        before = made[rng.randrange(len(made))]
        kept = before[: rng.randint(min(20, len(before)), len(before))]
        made.append((*kept, *(int(FUNCTIONS * rng.random() ** 3) for _ in range(rng.randint(1, 12))))[:80])
    return made


class Sender:
    """Makes requests as an agent does: one interner for all of its batches."""

    def __init__(self, service: str) -> None:
        self.rng = random.Random(service)
        self.interner = Interner()
        names = [f"module_{i % 997}.Class{i % 83}.function_{i}" for i in range(FUNCTIONS)]
        files = [f"/usr/lib/python3/site-packages/package_{i % 211}/module_{i % 997}.py" for i in range(FUNCTIONS)]
        frames = [
            Frame(n, FrameKind.CPYTHON, f, 1 + i % 900, 1 + i % 900) for i, (n, f) in enumerate(zip(names, files, strict=True))
        ]
        self.frames = self.interner.frames.ids(frames)
        self.resource = self.interner.resources.id(Resource((("host.name", "node"), ("service.name", service))))
        self.type = self.interner.types.id(semconv.CPU)

    def batch(self, made: list[tuple[int, ...]]) -> Batch:
        """One sample of each of the stacks, now."""
        rows = np.zeros(len(made), SAMPLES)
        rows["stack"] = [self.interner.stacks.id(tuple(self.frames[i] for i in stack)) for stack in made]
        start = time.time_ns() - 10**9
        rows["time"] = start + np.arange(len(made)) * 1000
        rows["type"], rows["resource"], rows["value"] = self.type, self.resource, 1
        return Batch(self.interner, start, start + 10**9, samples=rows, clock_offset=0)


def seconds(work: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """The median of the times that some work takes."""
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return statistics.median(taken)


def rate(samples: int, took: float) -> str:
    """Samples a second."""
    return f"{samples / took:,.0f} samples/s"


def wire() -> list[Figure]:
    """A request of 2,000 stacks written and read, beside what protobuf itself takes for its bytes."""
    sender = Sender("wire")
    batch = sender.batch(stacks(PER_REQUEST, sender.rng))
    (encoded,) = encode_profiles(batch)
    message = ExportProfilesServiceRequest.FromString(encoded.data)
    write, floor_write = seconds(lambda: encode_profiles(batch)), seconds(message.SerializeToString)
    read, floor_read = seconds(lambda: decode_profiles(encoded.data)), seconds(lambda: message.FromString(encoded.data))
    bytes_each = len(encoded.data) / PER_REQUEST
    return [
        Figure(
            f"OTLP written, {PER_REQUEST} stacks, {bytes_each:.0f} B a sample", rate(PER_REQUEST, write),
            f"{1e3 * floor_write:.1f} ms: protobuf alone", f"{write / floor_write:.1f}",
        ),
        Figure(
            "the same read to columns", rate(PER_REQUEST, read), f"{1e3 * floor_read:.1f} ms: protobuf alone",
            f"{read / floor_read:.1f}",
        ),
    ]  # fmt: skip


def store(folder: Path) -> list[Figure]:
    """Requests from bytes into chdb, then flame graphs of 10,000 and 100,000 stacks."""
    kept, index = ClickHouseStore(ChdbEngine(folder)), SeriesIndex()
    try:
        figures = []
        for service, count in (("small", STACKS // 10), ("large", STACKS)):
            figures += ingest(kept, index, service, count)
            figures += flame(Querier(kept, index), service, count)
        return figures
    finally:
        kept.close()


def ingest(kept: ClickHouseStore, index: SeriesIndex, service: str, count: int) -> list[Figure]:
    """All stacks once, in requests of 2,000, ten of them stored at a time."""
    sender = Sender(service)
    made = stacks(count, sender.rng)
    requests = [
        request.data
        for first in range(0, count, PER_REQUEST)
        for request in encode_profiles(sender.batch(made[first : first + PER_REQUEST]))
    ]
    decoding = storing = 0.0
    for first in range(0, len(requests), 10):
        begun = time.process_time()
        decoded = [decode_profiles(data) for data in requests[first : first + 10]]
        middle = time.process_time()
        kept.insert(Block(decoded))
        decoding, storing = decoding + middle - begun, storing + time.process_time() - middle
        for profiles in decoded:
            for series in profiles.series:
                index.add(Seen(series, int(profiles.samples["time"].min()), int(profiles.samples["time"].max())))
    took = decoding + storing
    return [
        Figure(
            f"ingest of {count:,} samples with new stacks, bytes to stored", rate(count, took),
            f"{rate(count, storing)}: the store alone", f"{took / storing:.1f}",
        )
    ]  # fmt: skip


def flame(querier: Querier, service: str, count: int) -> list[Figure]:
    """The flame graph of one service as the page gets it, beside the sums in the store alone."""
    question = Question(CPU, f'{{service_name="{service}"}}')
    keys = querier.index.keys(CPU, question.selector, question.range)
    chosen = Selection(CPU, 0, 9_000_000_000_000, keys)

    def whole() -> bytes:
        return bytes(json_response(graph(querier.flame(question, NODES), "nanoseconds")).body)

    first = seconds(whole, 1)
    again, sums = seconds(whole), seconds(lambda: querier.store.sums(chosen))
    shown = sum(len(level) // 4 for level in querier.flame(question, NODES).levels)
    return [
        Figure(
            f"flame graph of {count:,} stacks, {shown:,} bars", f"{1e3 * again:.0f} ms (first {1e3 * first:.0f})",
            f"{1e3 * sums:.0f} ms: the sums alone", f"{again / sums:.1f}",
        )
    ]  # fmt: skip


def measure() -> list[Figure]:
    """Writing and reading, then the store."""
    with tempfile.TemporaryDirectory() as folder:
        return [*wire(), *store(Path(folder))]
