"""The store in ClickHouse's dialect: samples, stacks, frames, series and spans as tables of an Engine.

The engine is chdb inside this process today; a server needs only another Engine. What rows mean is in sql.py.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from otelprof.backend import sql
from otelprof.backend.known import KnownFrames, KnownStacks
from otelprof.backend.store import LINKED, POINTS, WEIGHTS, Block, Seen, Selection, SpanSearch, Sums
from otelprof.otlp.content import Keys
from otelprof.otlp.decoded import SPANS, Frames, Profiles, Series, Spans, Stacks, Table

Parameter = str | int | Sequence[int] | Sequence[str] | Sequence[tuple[int, int]]

MAX_ANNOUNCED = 2_000_000
SERIES_PAUSE = 60_000  # milliseconds of a series' time until its row is written again


class Engine(Protocol):
    """Who runs the statements."""

    @property
    def title(self) -> str:
        """What it is and where."""

    @property
    def nearly_full(self) -> bool:
        """True when its disk has little room left."""

    def query(self, sql: str, parameters: Mapping[str, Parameter] | None = None) -> Any:
        """Rows as a pyarrow.Table."""

    def command(self, sql: str) -> None:
        """A statement without rows."""

    def insert(self, table: str, rows: Any) -> None:
        """Store rows; raises when one isn't stored."""

    def close(self) -> None:
        """Let go of everything."""


class _Announced:
    """Keys that were written today; the others have to be, so that their time to live goes on."""

    def __init__(self) -> None:
        self._day = dt.date.min
        self._keys: set[int] = set()

    def new(self, keys: Keys) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """Rows of the keys that have to be written, each key once."""
        today = dt.datetime.now(dt.UTC).date()
        if today != self._day or len(self._keys) > MAX_ANNOUNCED:
            self._day, self._keys = today, set()
        distinct, first = np.unique(keys, return_index=True)
        unknown = [key not in self._keys for key in distinct.tolist()]
        return np.sort(first[np.array(unknown, bool)])

    def add(self, keys: Keys) -> None:
        """These were written."""
        self._keys.update(keys.tolist())


class ClickHouseStore:
    """A Store over an Engine. What a row refers to is written before the row, so a crash leaves no row without a name."""

    def __init__(self, engine: Engine, retention_days: int = 7) -> None:
        self._engine = engine
        self._stacks, self._frames = _Announced(), _Announced()
        self._series: dict[int, Seen] = {}  # as they were last written
        self._known_stacks, self._known_frames = KnownStacks(self._load_stacks), KnownFrames(self._load_frames)
        for statement in (*sql.PREPARE, *sql.schema(retention_days)):
            engine.command(statement)

    @property
    def title(self) -> str:
        """What it is and where."""
        return self._engine.title

    def insert(self, block: Block) -> None:
        """Store all of it: names first, samples last."""
        profiles = [one for one in block.profiles if len(one.samples)]
        if profiles:
            samples = np.concatenate([one.samples for one in profiles])
            series = {one.key: one for part in profiles for one in part.series}
            self._insert_frames(profiles)
            self._insert_stacks(profiles)
            self._insert_series(series, samples)
        spans = [one for one in block.spans if len(one.rows)]
        if spans:
            self._engine.insert("spans", _span_rows(spans))
        if profiles:
            self._engine.insert("samples", _sample_rows(samples, series))

    def _insert_frames(self, profiles: list[Profiles]) -> None:
        keys = np.concatenate([one.frames.keys for one in profiles])
        rows = self._frames.new(keys)
        if len(rows):
            self._engine.insert("frames", _frame_rows([one.frames for one in profiles], rows))
            self._frames.add(keys[rows])

    def _insert_stacks(self, profiles: list[Profiles]) -> None:
        keys = np.concatenate([one.stacks.keys for one in profiles])
        rows = self._stacks.new(keys)
        if len(rows):
            lengths = np.concatenate([one.stacks.lengths for one in profiles])
            frames = np.concatenate([one.stacks.frames for one in profiles])
            lists = pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32()), pa.array(frames))
            columns = {"tenant": _constant(sql.TENANT, len(keys)), "stack_id": pa.array(keys), "frames": lists}
            self._engine.insert("stacks", _with_day(pa.table(columns).take(pa.array(rows))))
            self._stacks.add(keys[rows])

    def _insert_series(self, series: dict[int, Series], samples: Table) -> None:
        """Write series that are new or whose last row says too little about their time."""
        due: list[Seen] = []
        for key in np.unique(samples["series"]).tolist():
            times = samples["time"][samples["series"] == key]
            now, known = Seen(series[key], int(times.min()), int(times.max())), self._series.get(key)
            if known is None or now.first < known.first or now.last > known.last + SERIES_PAUSE:
                due.append(now)
        if due:
            self._engine.insert("series", _series_rows(due))
            self._series.update((seen.series.key, seen) for seen in due)

    def sums(self, selection: Selection) -> Sums:
        """The value of each stack."""
        found = self._engine.query(sql.sums(selection), self._parameters(selection))
        return Sums(_numbers(found, "stack_id", np.uint64), _numbers(found, "value", np.int64))

    def points(self, selection: Selection, step: int) -> Table:
        """The value of each series per step."""
        found = self._engine.query(sql.points(selection), {**self._parameters(selection), "step": step})
        points = np.zeros(found.num_rows, POINTS)
        for column, name in (("series", "series_id"), ("time", "t"), ("value", "value")):
            points[column] = _numbers(found, name, POINTS[column])
        return points

    def linked(self, selection: Selection, by_span: bool, order: str, limit: int) -> Table:
        """What traces or their spans weigh."""
        given = {**self._parameters(selection), **WEIGHTS, "limit": limit}
        found = self._engine.query(sql.linked(by_span, order, selection), given)
        rows = np.zeros(found.num_rows, LINKED)
        for column in LINKED.names or ():
            name = "span_id" if column == "span" else column
            if name in found.column_names:
                rows[column] = _numbers(found, name, LINKED[column])
        return rows

    def roots(self, traces: Sequence[tuple[int, int]]) -> tuple[Spans, list[int]]:
        """The root span of each trace, and how many spans it has."""
        found = self._engine.query(sql.ROOTS, _trace_parameters(traces)) if traces else pa.table({})
        names = {"span": "root", "parent": "above", "start": "began", "duration": "lasted"}
        spans = _found_spans(found, names, ("root_name", "root_service"))
        return spans, _numbers(found, "spans", np.int64).tolist()

    def spans(self, search: SpanSearch) -> Spans:
        """Spans, each once."""
        given: dict[str, Parameter] = {"start": search.start, "end": search.end, "limit": search.limit}
        given.update(_trace_parameters(search.traces))
        given["services"] = search.services or ()
        found = self._engine.query(sql.spans(search), given)
        return _found_spans(found, {"span": "span_id", "parent": "parent_id", "start": "began"}, ("name", "service"))

    def stacks(self, keys: Keys) -> Stacks:
        """Those that are known."""
        return self._known_stacks.get(keys)

    def frames(self, keys: Keys) -> Frames:
        """Those that are known."""
        return self._known_frames.get(keys)

    def _load_stacks(self, keys: Keys) -> Stacks:
        found = self._engine.query(sql.STACKS, {"keys": keys.tolist()})
        if not found.num_rows:
            return Stacks(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.uint64))
        lists = found.column("frames").combine_chunks()
        lengths = np.diff(lists.offsets.to_numpy()).astype(np.int64)
        return Stacks(_numbers(found, "stack_id", np.uint64), lengths, lists.flatten().to_numpy(zero_copy_only=False))

    def _load_frames(self, keys: Keys) -> Frames:
        found = self._engine.query(sql.FRAMES, {"keys": keys.tolist()})
        names = ("kind", "name", "system_name", "file", "module", "build_id")
        texts = [found.column(name).cast(pa.string()).to_pylist() if found.num_rows else [] for name in names]
        numbers = [_numbers(found, name, np.uint64) for name in ("line", "start_line", "address")]
        return Frames.of(_numbers(found, "frame_id", np.uint64), texts, numbers)

    def seen_series(self) -> Iterable[Seen]:
        """All series, with the times of their samples."""
        last = {row["series_id"]: row["last"] for row in self._engine.query(sql.LAST_SAMPLES).to_pylist()}
        for row in self._engine.query(sql.SEEN_SERIES).to_pylist():
            labels = tuple(sorted(dict(row["labels"]).items()))
            seen = Seen(Series(row["series_id"], row["type"], labels), row["first"], row["last"])
            self._series[seen.series.key] = seen
            yield Seen(seen.series, seen.first, max(seen.last, last.get(seen.series.key, 0)))

    def recent_profiles(self, since: int) -> Iterable[tuple[int, int, int]]:
        """Profiles with an id stored since then."""
        found = self._engine.query(sql.RECENT_PROFILES, {"since": since})
        columns = [_numbers(found, name, np.uint64).tolist() for name in ("profile_hi", "profile_lo", "content")]
        return list(zip(*columns, strict=True))

    def make_room(self) -> str:
        """Drop the oldest of several days when the engine's disk is nearly full."""
        if not self._engine.nearly_full:
            return ""
        found = self._engine.query(sql.DAYS)
        days = found.column("day").cast(pa.string()).to_pylist() if found.num_rows > 1 else []
        for table in ("samples", "spans") if days else ():
            self._engine.command(sql.drop_day(table, days[0]))
        return str(days[0]) if days else ""

    def close(self) -> None:
        """Let go of the engine."""
        self._engine.close()

    def _parameters(self, selection: Selection) -> dict[str, Parameter]:
        start = selection.start - selection.start % 1000
        given: dict[str, Parameter] = {"type": selection.type, "start": start, "end": min(selection.end, 9_000_000_000_000)}
        given["types"] = list(WEIGHTS.values())
        if selection.series is not None:
            keys = selection.series.tolist()
            given["series"] = keys
            given["services"] = sorted({self._series[key].series.service for key in keys if key in self._series})
        given.update(_trace_parameters(selection.traces))
        if selection.spans:
            given["spans"] = list(selection.spans)
        if selection.profiles:
            given["profiles"] = list(selection.profiles)
        if selection.stacks is not None:
            given["stacks"] = selection.stacks.tolist()
        return given


def _trace_parameters(traces: Sequence[tuple[int, int]]) -> dict[str, Parameter]:
    return {"traces": list(traces), "traces_lo": [lo for _, lo in traces]} if traces else {}


def _numbers(found: Any, name: str, dtype: Any) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """A column as numpy; empty when there are no rows (then there are no columns either)."""
    if not found.num_rows:
        return np.zeros(0, dtype)
    return np.asarray(found.column(name).to_numpy()).astype(dtype, copy=False)


def _found_spans(found: Any, names: Mapping[str, str], texts: tuple[str, str]) -> Spans:
    """Spans from rows whose columns have other `names` than SPANS; `texts` are those of name and service."""
    if not found.num_rows:
        return Spans(np.zeros(0, SPANS), [], [], [])
    rows = np.zeros(found.num_rows, SPANS)
    for column in SPANS.names or ():
        rows[column] = _numbers(found, names.get(column, column), SPANS[column])
    name, service = (found.column(text).cast(pa.string()).to_pylist() for text in texts)
    has_attributes = "attributes" in found.column_names
    pairs = found.column("attributes").to_pylist() if has_attributes else [()] * len(rows)
    return Spans(rows, name, service, [dict(one) for one in pairs])


def _constant(text: str, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def _named(numbers: Any, names: list[str]) -> Any:
    """The column of `names[numbers]`; ClickHouse refuses a dictionary that holds a name twice."""
    distinct, place = np.unique(np.array(names, object), return_inverse=True)
    indices = place[numbers].astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(distinct.tolist(), pa.string()))


def _with_day(rows: Any) -> Any:
    day = (dt.datetime.now(dt.UTC).date() - dt.date(1970, 1, 1)).days
    return rows.append_column("last_seen", pa.array(np.full(rows.num_rows, day, np.int32)).cast(pa.date32()))


def _sample_rows(samples: Table, series: dict[int, Series]) -> Any:
    keys, number = np.unique(samples["series"], return_inverse=True)
    known = [series[key] for key in keys.tolist()]
    columns = {
        "tenant": _constant(sql.TENANT, len(samples)),
        "ts": pa.array(samples["time"]).cast(pa.timestamp("ms", "UTC")),
        "service": _named(number, [one.service for one in known]),
        "type": _named(number, [one.type for one in known]),
    }
    names = {"series": "series_id", "stack": "stack_id", "span": "span_id"}
    plain = ("series", "stack", "value", "count", "trace_hi", "trace_lo", "span", "profile_hi", "profile_lo", "content")
    columns.update((names.get(name, name), pa.array(np.ascontiguousarray(samples[name]))) for name in plain)
    return pa.table(columns)


def _frame_rows(frames: list[Frames], rows: Any) -> Any:
    names = ("kind", "name", "system_name", "file", "module", "build_id")
    texts = [[text for one in frames for text in one.texts[i]] for i in range(len(names))]
    columns = {"frame_id": pa.array(np.concatenate([one.keys for one in frames]))}
    columns.update((name, pa.array(text, pa.string())) for name, text in zip(names, texts, strict=True))
    for name, parts in (("line", [one.lines for one in frames]), ("start_line", [one.starts for one in frames])):
        columns[name] = pa.array(np.clip(np.concatenate(parts), 0, 2**32 - 1).astype(np.uint32))
    columns["address"] = pa.array(np.concatenate([one.addresses for one in frames]))
    return _with_day(pa.table(columns).take(pa.array(rows)))


def _series_rows(seen: list[Seen]) -> Any:
    return pa.table(
        {
            "tenant": _constant(sql.TENANT, len(seen)),
            "series_id": pa.array([one.series.key for one in seen], pa.uint64()),
            "service": pa.array([one.series.service for one in seen]),
            "type": pa.array([one.series.type for one in seen]),
            "labels": pa.array([list(one.series.labels) for one in seen], pa.map_(pa.string(), pa.string())),
            "first_seen": pa.array([one.first for one in seen], pa.int64()).cast(pa.timestamp("ms", "UTC")),
            "last_seen": pa.array([one.last for one in seen], pa.int64()).cast(pa.timestamp("ms", "UTC")),
        }
    )


def _span_rows(spans: list[Spans]) -> Any:
    rows = np.concatenate([one.rows for one in spans])
    names = {"trace_hi": "trace_hi", "trace_lo": "trace_lo", "span_id": "span", "parent_id": "parent", "duration": "duration"}
    columns = {name: pa.array(np.ascontiguousarray(rows[field])) for name, field in names.items()}
    columns["tenant"] = _constant(sql.TENANT, len(rows))
    columns["service"] = pa.array([text for one in spans for text in one.services])
    columns["name"] = pa.array([text for one in spans for text in one.names])
    columns["start"] = pa.array(rows["start"]).cast(pa.timestamp("ns", "UTC"))
    attributes = [list(pairs.items()) for one in spans for pairs in one.attributes]
    columns["attributes"] = pa.array(attributes, pa.map_(pa.string(), pa.string()))
    return pa.table(columns)
