"""The index of all series, in memory: which profile types, labels and values there are, and when they were seen.

Questions about labels never touch samples. The store keeps the same series, from which the index is filled at the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from otelprof.backend.selector import Matcher, label_name, parse_selector, select
from otelprof.backend.store import Seen
from otelprof.otlp.content import Keys
from otelprof.otlp.decode import series_of
from otelprof.otlp.decoded import Series

MAX_SERIES = 100_000
OVERFLOW = ("overflow", "true")

_PARTS = ("__name__", "__type__", "__unit__", "__period_type__", "__period_unit__")


def all_labels(series: Series) -> dict[str, str]:
    """The labels with Pyroscope's own about the type (`__profile_type__` and its parts) and the service."""
    found = dict(series.labels)
    found["__profile_type__"] = series.type
    found["__service_name__"] = series.service
    found.update((name, part) for name, part in zip(_PARTS, series.type.split(":"), strict=False) if part)
    return found


@dataclass(frozen=True, slots=True)
class Range:
    """Unix milliseconds [start, end]; an end of 0 is no limit."""

    start: int = 0
    end: int = 0

    def meets(self, seen: Seen) -> bool:
        """True when the series was seen in it; times of samples are whole seconds."""
        return seen.last >= self.start - self.start % 1000 and (self.end <= 0 or seen.first <= self.end)


@dataclass(slots=True)
class SeriesIndex:
    """All series by key. Writers come one at a time; readers work on a copy of the list."""

    limit: int = MAX_SERIES
    _seen: dict[int, Seen] = field(default_factory=dict)
    _labels: dict[int, dict[str, str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._seen)

    def admit(self, series: Series) -> Series:
        """The series to store samples under: itself, or the one for overflow when there are too many."""
        if series.key in self._seen or len(self._seen) < self.limit:
            return series
        return series_of(series.type, (OVERFLOW, ("service_name", series.service)))

    def add(self, seen: Seen) -> None:
        """Take in a series, or more of its time."""
        known = self._seen.get(seen.series.key)
        if known is None:
            self._labels[seen.series.key] = all_labels(seen.series)
            self._seen[seen.series.key] = seen
        else:
            known.first, known.last = min(known.first, seen.first), max(known.last, seen.last)

    def forget(self, before: int) -> None:
        """Drop series that weren't seen since `before` (Unix milliseconds)."""
        for key in [key for key, seen in list(self._seen.items()) if seen.last < before]:
            del self._seen[key], self._labels[key]

    def matching(self, matchers: Sequence[Matcher], within: Range) -> Iterator[tuple[Seen, dict[str, str]]]:
        """Series in a range that fulfil all conditions, with all their labels."""
        for key, seen in list(self._seen.items()):
            labels = self._labels.get(key, {})
            if within.meets(seen) and select(matchers, labels):
                yield seen, labels

    def any_of(self, selectors: Iterable[str], within: Range) -> list[tuple[Seen, dict[str, str]]]:
        """Series that one of the selectors selects; all of the range without selectors."""
        parsed = [parse_selector(text) for text in selectors] or [()]
        found = {seen.series.key: (seen, labels) for one in parsed for seen, labels in self.matching(one, within)}
        return list(found.values())

    def keys(self, type_id: str, selector: str, within: Range) -> Keys | None:
        """Keys of the selected series of a type; None when those are all."""
        matchers = parse_selector(selector)
        if not matchers:
            return None
        chosen = (Matcher("__profile_type__", "=", type_id), *matchers)
        return np.array([seen.series.key for seen, _ in self.matching(chosen, within)], np.uint64)

    def keys_of(self, selector: str, within: Range) -> Keys | None:
        """Keys of the selected series of all types; None when those are all."""
        matchers = parse_selector(selector)
        return np.array([seen.series.key for seen, _ in self.matching(matchers, within)], np.uint64) if matchers else None

    def labels_of(self, key: int) -> dict[str, str]:
        """All labels of a series, none when it is unknown."""
        return self._labels.get(key, {})

    def types(self, within: Range) -> list[str]:
        """Ids of the profile types seen in a range."""
        return sorted({seen.series.type for seen, _ in self.matching((), within)})

    def names(self, selectors: Iterable[str], within: Range) -> list[str]:
        """Names of labels."""
        return sorted({name for _, labels in self.any_of(selectors, within) for name in labels})

    def values(self, name: str, selectors: Iterable[str], within: Range) -> list[str]:
        """Values of one label."""
        name = label_name(name)
        return sorted({labels[name] for _, labels in self.any_of(selectors, within) if labels.get(name)})

    def times(self) -> tuple[int, int]:
        """First and last Unix millisecond with a sample; (0, 0) when there are none."""
        seen = list(self._seen.values())
        return min((one.first for one in seen), default=0), max((one.last for one in seen), default=0)
