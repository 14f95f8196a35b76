"""What a decoded request is: columns under content keys, ready for a store or a receiver, no index of OTLP left in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from otelprof.otlp.content import Keys

Table = npt.NDArray[np.void]

SAMPLES = np.dtype(
    [
        ("time", "i8"),  # Unix milliseconds
        ("series", "u8"),  # Series.key
        ("stack", "u8"),  # Stacks.keys
        ("value", "i8"),  # in the unit of the series' type, times the period where the type asks for it
        ("count", "u4"),  # events in the row
        ("trace_hi", "u8"),  # of the span that it was taken in, big-endian halves; 0: none
        ("trace_lo", "u8"),
        ("span", "u8"),
        ("profile_hi", "u8"),  # profile_id, big-endian halves; 0: none
        ("profile_lo", "u8"),
        ("content", "u8"),  # key of all rows of its profile: with the id it tells a repeat
    ]
)

SPANS = np.dtype(
    [
        ("trace_hi", "u8"),
        ("trace_lo", "u8"),
        ("span", "u8"),
        ("parent", "u8"),  # 0: a root span
        ("start", "i8"),  # Unix nanoseconds
        ("duration", "i8"),  # nanoseconds
    ]
)

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """A profile type of one label set. `type` is Pyroscope's id, `labels` are sorted and have `service_name`."""

    key: int
    type: str
    labels: Labels

    @property
    def service(self) -> str:
        """The value of `service_name`."""
        return dict(self.labels).get("service_name", "")


@dataclass(frozen=True, slots=True)
class Frames:
    """Distinct frames: `keys` u8[n] and, for each, texts and numbers; names in OTLP's form (bare, with their kind).

    `kinds` are values of `profile.frame.type`, "" for marks and where the sender gave none; `lines` and `starts` i8[n].
    `addresses` (u8[n], relative to the file) stand only where a frame has no symbol.
    """

    keys: Keys
    kinds: list[str]
    names: list[str]
    systems: list[str]
    files: list[str]
    modules: list[str]
    build_ids: list[str]
    lines: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    addresses: Keys

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def texts(self) -> tuple[list[str], ...]:
        """The six columns of texts, in the order of the fields."""
        return self.kinds, self.names, self.systems, self.files, self.modules, self.build_ids

    @classmethod
    def of(cls, keys: Keys, texts: Sequence[Sequence[str]], numbers: Sequence[Any]) -> Frames:
        """From `texts` (six columns) and `numbers` (lines, starts, addresses)."""
        kinds, names, systems, files, modules, build_ids = map(list, texts)
        lines, starts = (np.asarray(part, np.int64) for part in numbers[:2])
        addresses = np.asarray(numbers[2], np.uint64)
        return cls(keys, kinds, names, systems, files, modules, build_ids, lines, starts, addresses)


@dataclass(frozen=True, slots=True)
class Stacks:
    """Distinct stacks: `keys` u8[m], `lengths` i8[m], `frames` the frame keys of all, root first, one after the other."""

    keys: Keys
    lengths: npt.NDArray[np.int64]
    frames: Keys

    def __len__(self) -> int:
        return len(self.keys)


REASONS = {
    "index": "an index points outside its table",
    "no_value": "neither values nor timestamps",
    "lengths_differ": "values and timestamps differ in number",
    "outside_window": "the time is outside the window that is taken",
    "bad_type": "the sample type has no name, or a name with a colon",
}
"""Why samples are refused: the counter's label and what the sender is told."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """What of a request wasn't taken: samples by reason (REASONS), and whole profiles."""

    samples: Counter[str] = field(default_factory=Counter)
    profiles: int = 0

    @property
    def text(self) -> str:
        """One line for `error_message`; "" when everything was taken."""
        return "; ".join(f"{count} samples dropped: {REASONS[reason]}" for reason, count in sorted(self.samples.items()))


@dataclass(frozen=True, slots=True)
class Profiles:
    """A decoded profiles request; only stacks and frames that its samples use are in it."""

    samples: Table
    series: tuple[Series, ...]
    stacks: Stacks
    frames: Frames
    refused: Refusals


@dataclass(frozen=True, slots=True)
class Spans:
    """A decoded traces request: `rows` (SPANS) and, parallel to it, names, services and attributes."""

    rows: Table
    names: list[str]
    services: list[str]
    attributes: list[dict[str, str]]
    refused: int = 0


def column(values: Any, count: int, dtype: Any = np.int64) -> npt.NDArray[Any]:
    """`count` values of an iterable as an array."""
    return np.fromiter(values, dtype, count)
