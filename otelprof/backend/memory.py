"""A store in memory: for tests, and where chdb isn't installed. It is gone with the process, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from otelprof.backend.store import LINKED, POINTS, WEIGHTS, Block, Seen, Selection, SpanSearch, Sums
from otelprof.otlp.content import Keys
from otelprof.otlp.decode import grouped_sums
from otelprof.otlp.decoded import SAMPLES, SPANS, Frames, Profiles, Spans, Stacks, Table, column

MAX_ROWS = 5_000_000  # 88 bytes each; beyond, the oldest go
MAX_SPANS = 200_000
_CHUNKS = 64

FrameRow = tuple[Any, ...]
SpanRow = tuple[Any, str, str, dict[str, str]]


class MemoryStore:
    """Samples as one growing table, everything else by key in dictionaries."""

    def __init__(self, title: str = "in memory", max_rows: int = MAX_ROWS) -> None:
        self._title = title
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self._chunks: list[Table] = []
        self._types: dict[int, str] = {}  # of series
        self._stacks: dict[int, Keys] = {}
        self._frames: dict[int, FrameRow] = {}
        self._spans: list[SpanRow] = []

    @property
    def title(self) -> str:
        """What it is."""
        return self._title

    def insert(self, block: Block) -> None:
        """Keep all of it."""
        with self._lock:
            for profiles in block.profiles:
                self._keep(profiles)
            for spans in block.spans:
                self._spans.extend(zip(spans.rows.tolist(), spans.names, spans.services, spans.attributes, strict=True))
            del self._spans[:-MAX_SPANS]
            if len(self._chunks) > _CHUNKS:
                self._compact()

    def _keep(self, profiles: Profiles) -> None:
        self._types.update((series.key, series.type) for series in profiles.series)
        stacks, frames = profiles.stacks, profiles.frames
        parts = np.split(stacks.frames, np.cumsum(stacks.lengths)[:-1]) if len(stacks) else []
        self._stacks.update(zip(stacks.keys.tolist(), parts, strict=True))
        self._frames.update(zip(frames.keys.tolist(), _rows(frames), strict=True))
        self._chunks.append(profiles.samples)

    def _compact(self) -> None:
        """One table again; without the oldest rows when there are too many, and without stacks that nothing uses."""
        rows = np.concatenate([np.zeros(0, SAMPLES), *self._chunks])
        if len(rows) > self._max_rows:
            rows = rows[np.argsort(rows["time"], kind="stable")[-self._max_rows // 2 :]]
            used = set(np.unique(rows["stack"]).tolist())
            self._stacks = {key: frames for key, frames in self._stacks.items() if key in used}
            kept = set(np.unique(np.concatenate(list(self._stacks.values()))).tolist())
            self._frames = {key: row for key, row in self._frames.items() if key in kept}
        self._chunks = [rows]

    def _selected(self, selection: Selection) -> Table:
        with self._lock:
            self._compact()
            rows, types = self._chunks[0], self._types
        wanted = {selection.type} if selection.type else set(WEIGHTS.values())
        of_type = [key for key, kind in list(types.items()) if kind in wanted]
        series = np.array(of_type, np.uint64) if selection.series is None else selection.series
        chosen = (rows["time"] >= selection.start - selection.start % 1000) & (rows["time"] <= selection.end)
        chosen &= np.isin(rows["series"], np.intersect1d(series, np.array(of_type, np.uint64)))
        if selection.traces:
            chosen &= np.any([(rows["trace_hi"] == hi) & (rows["trace_lo"] == lo) for hi, lo in selection.traces], axis=0)
        if selection.spans:
            chosen &= np.isin(rows["span"], np.array(selection.spans, np.uint64))
        if selection.profiles:
            ids = [(rows["profile_hi"] == hi) & (rows["profile_lo"] == lo) for hi, lo in selection.profiles]
            chosen &= np.any(ids, axis=0)
        if selection.stacks is not None:
            chosen &= np.isin(rows["stack"], selection.stacks)
        found: Table = rows[chosen]
        return found

    def sums(self, selection: Selection) -> Sums:
        """The value of each stack."""
        rows = self._selected(selection)
        if selection.last_value:
            rows = _last(rows, rows["series"], rows["stack"])
        keys, inverse = np.unique(rows["stack"], return_inverse=True)
        return Sums(keys, grouped_sums(inverse, rows["value"], len(keys)))

    def linked(self, selection: Selection, by_span: bool, order: str, limit: int) -> Table:
        """What traces or their spans weigh."""
        rows = self._selected(selection)
        rows = rows[rows["trace_lo"] != 0]
        names = ["trace_hi", "trace_lo", *(["span"] if by_span else [])]
        found, inverse = np.unique(rows[names], return_inverse=True)
        weighed = np.zeros(len(found), LINKED)
        for name in names:
            weighed[name] = found[name]
        kinds = np.array([self._types.get(key, "") for key in rows["series"].tolist()], object)
        for weight, type_id in WEIGHTS.items():
            weighed[weight] = grouped_sums(inverse, np.where(kinds == type_id, rows["value"], 0), len(found))
        chosen: Table = weighed[np.argsort(-weighed[order], kind="stable")[:limit]]
        return chosen

    def spans(self, search: SpanSearch) -> Spans:
        """Spans, each once."""
        with self._lock:
            rows = list(self._spans)
        found = list({row[0][:3]: row for row in rows if _searched(search, row)}.values())  # each once
        longest_first = search.kind == "root"
        found.sort(key=lambda row: (-row[0][5], row[0][:2]) if longest_first else (row[0][4], row[0][2]))
        return _spans_of(found[: search.limit])

    def roots(self, traces: Sequence[tuple[int, int]]) -> tuple[Spans, list[int]]:
        """The root span of each trace, and how many spans it has."""
        wanted, found = set(traces), dict[tuple[int, int], dict[int, SpanRow]]()
        with self._lock:
            rows = list(self._spans)
        for row in rows:
            if row[0][:2] in wanted:
                found.setdefault(row[0][:2], {})[row[0][2]] = row
        firsts = [min(spans.values(), key=lambda row: (row[0][3] != 0, row[0][4], row[0][2])) for spans in found.values()]
        return _spans_of(firsts), [len(spans) for spans in found.values()]

    def stacks(self, keys: Keys) -> Stacks:
        """Those that are known."""
        known = [key for key in keys.tolist() if key in self._stacks]
        parts = [self._stacks[key] for key in known]
        lengths = column(map(len, parts), len(parts))
        return Stacks(np.array(known, np.uint64), lengths, np.concatenate([np.zeros(0, np.uint64), *parts]))

    def frames(self, keys: Keys) -> Frames:
        """Those that are known."""
        known = [key for key in keys.tolist() if key in self._frames]
        columns = list(zip(*(self._frames[key] for key in known), strict=True)) or [()] * 9
        return Frames.of(np.array(known, np.uint64), columns[:6], columns[6:])

    def points(self, selection: Selection, step: int) -> Table:
        """The value of each series per step."""
        rows = self._selected(selection)
        bucket = rows["time"] - rows["time"] % step
        if selection.last_value:
            rows = _last(rows, bucket, rows["series"], rows["stack"])
            bucket = rows["time"] - rows["time"] % step
        pairs, inverse = np.unique(np.rec.fromarrays([rows["series"], bucket]), return_inverse=True)
        points = np.zeros(len(pairs), POINTS)
        points["series"], points["time"] = pairs["f0"], pairs["f1"]
        points["value"] = grouped_sums(inverse, rows["value"], len(pairs))
        return points

    def seen_series(self) -> Iterable[Seen]:
        """None: a new store is empty."""
        return ()

    def recent_profiles(self, since: int) -> Iterable[tuple[int, int, int]]:
        """None: a new store is empty."""
        return ()

    def make_room(self) -> str:
        """Nothing: it is bounded by rows."""
        return ""

    def close(self) -> None:
        """Nothing to let go of."""


def _spans_of(found: list[SpanRow]) -> Spans:
    return Spans(
        np.array([row for row, _, _, _ in found], SPANS),
        [name for _, name, _, _ in found],
        [service for _, _, service, _ in found],
        [attributes for _, _, _, attributes in found],
    )


def _searched(search: SpanSearch, row: SpanRow) -> bool:
    """True when a search means this span."""
    (trace_hi, trace_lo, _, parent, start, _), name, service, attributes = row
    is_gpu = "cuda.stream" in attributes and not name.startswith("launch ")
    return (
        search.start * 1_000_000 <= start <= search.end * 1_000_000
        and (not search.traces or (trace_hi, trace_lo) in search.traces)
        and (search.services is None or service in search.services)
        and {"": True, "root": parent == 0, "gpu": is_gpu}[search.kind]
    )


def _rows(frames: Frames) -> Iterable[FrameRow]:
    return zip(*frames.texts, frames.lines.tolist(), frames.starts.tolist(), frames.addresses.tolist(), strict=True)


def _last(rows: Table, *group: Any) -> Table:
    """The latest row of each group."""
    order = np.lexsort((rows["time"], *group))
    ordered = [part[order] for part in group]
    ends = np.ones(len(order), bool)
    ends[:-1] = np.any([part[1:] != part[:-1] for part in ordered], axis=0) if len(order) else False
    found: Table = rows[order][ends]
    return found
