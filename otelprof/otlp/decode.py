"""OTLP requests (protobuf or JSON bytes) to validated columns.

The samples of a whole request are handled as columns; Python runs per profile, per distinct label set and per dictionary
entry. A request that isn't what it should be is MalformedInput or TooLarge; samples that are bad in an otherwise good
request are dropped and counted by reason (decoded.REASONS).
Layout: opentelemetry-proto v1.10.0, opentelemetry/proto/profiles/v1development/profiles.proto.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Profile, ValueType

from otelprof.batch import ProfileType
from otelprof.errors import MalformedInput, TooLarge
from otelprof.otlp import semconv
from otelprof.otlp.content import Keys, combined, mixed, text_key
from otelprof.otlp.decoded import SAMPLES, Labels, Profiles, Refusals, Series, Table, column
from otelprof.otlp.json_mapping import parse_json
from otelprof.otlp.tables import Dictionary, Flags, Ints, attribute_keys, checked, ragged
from otelprof.otlp.wire import Ragged

MAX_ROWS = 4_000_000
MAX_LABELS = 32
MAX_VALUE = 2048  # characters of a label's value
INT64_MAX = 2**63 - 1

NOT_LABELS = frozenset(
    {
        semconv.THREAD_ID, semconv.PROCESS_PID, semconv.PROCESS_CREATION_TIME, semconv.PROCESS_COMMAND, semconv.CUDA_STREAM,
        semconv.PYROSCOPE_PROFILE_ID, semconv.OTELPROF_PROFILE_ID, semconv.OTELPROF_STACK_ID, semconv.SERVICE_INSTANCE_ID,
        "process.parent_pid", "process.vpid", "process.command_line", "process.command_args", "process.owner",
        "cuda.correlation_id", "cpu.logical_number", "trace_id", "span_id", "profile_id", "",
    }
)  # fmt: skip
"""Attributes that never become labels of a series: ids of threads, processes, launches, streams, and what is as many."""

_REVISION = (
    "the samples have the field numbers of an older revision of OTLP profiles (opentelemetry-proto before v1.10, "
    "Collector before v0.148), which would be read wrong; update the sender"
)

_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True, slots=True)
class Window:
    """The times that are taken: from `back` seconds ago until `ahead` seconds from now."""

    back: float = 3600
    ahead: float = 600
    now: Callable[[], float] = time.time

    def bounds(self) -> tuple[int, int]:
        """First and last Unix millisecond."""
        now = self.now()
        return int((now - self.back) * 1000), int((now + self.ahead) * 1000)


def parse(data: bytes, is_json: bool, message: _M) -> _M:
    """`data` read into `message`, which is returned."""
    if is_json:
        return parse_json(data, message)
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeError) as error:
        raise MalformedInput(f"not an OTLP message: {str(error)[:200]}") from None
    return message


def decode_profiles(data: bytes, is_json: bool = False, window: Window | None = None) -> Profiles:
    """A profiles request as columns. Raises MalformedInput (and TooLarge) when nothing of it can be used."""
    request = parse(data, is_json, ExportProfilesServiceRequest())
    return _Request(request, window or Window()).decoded()


@dataclass(slots=True)
class _Profiles:
    """The profiles of a request with what is the same for all samples of one."""

    profiles: list[Profile] = field(default_factory=list)
    labels: list[dict[str, str]] = field(default_factory=list)  # of the resource
    types: list[str] = field(default_factory=list)  # Pyroscope's id, "" when it can't be
    factors: list[int] = field(default_factory=list)  # what values are multiplied with


@dataclass(frozen=True, slots=True)
class Columns:
    """All samples of a request, in order: number of their profile, indices, and their values and times."""

    profile: Ints
    stack: Ints
    link: Ints
    attributes: Ragged
    values: Ragged
    times: Ragged


class _Request:
    """One request on its way from messages to columns."""

    def __init__(self, request: ExportProfilesServiceRequest, window: Window) -> None:
        self.tables = Dictionary(request.dictionary)
        self.window = window
        self.known = _Profiles()
        for resource, profile in profiles_of(request):
            self._add(resource, profile)
        self.samples = columns(self.known.profiles)

    def _add(self, resource: Any, profile: Profile) -> None:
        known = self.known
        known.profiles.append(profile)
        known.labels.append(self._labels((self.tables.key(a), self.tables.text(a.value)) for a in resource.attributes))
        kind = self._type(profile)
        known.types.append(semconv.pyroscope_id(kind) if _sound(kind) else "")
        known.factors.append(kind.period if known.types[-1].startswith("process_cpu:") else 1)

    def _type(self, profile: Profile) -> ProfileType:
        """The profile's type; a period of 0 is no period."""
        text, sample = self.tables.string, profile.sample_type
        period: ValueType = profile.period_type if profile.period > 0 else ValueType()
        names = (sample.type_strindex, sample.unit_strindex, period.type_strindex, period.unit_strindex)
        what, unit, period_type, period_unit = map(text, names)
        return ProfileType(what, unit, period_type, period_unit, profile.period)

    @staticmethod
    def _labels(pairs: Iterator[tuple[str, str | None]]) -> dict[str, str]:
        """Attributes as labels: names with underscores, texts only, ids left out."""
        kept = {key.replace(".", "_"): text[:MAX_VALUE] for key, text in pairs if text and key not in NOT_LABELS}
        return dict(sorted(kept.items())[:MAX_LABELS])

    def decoded(self) -> Profiles:
        """The columns. The order of the steps is the order in which samples are refused."""
        refused = Refusals()
        samples = self.samples
        stacks, bad_stacks = self.tables.stacks
        stack, outside = checked(samples.stack, len(stacks))
        link, no_link = checked(samples.link, len(self.tables.links))
        _, bad_attribute = checked(samples.attributes.data, len(self.tables.attributes))
        broken = outside | no_link | bad_stacks[stack] | _any(bad_attribute, samples.attributes)
        good = self._refuse(refused, broken)
        series, of_sample = self._series()
        rows, owner = self._rows(good, refused)
        rows["series"] = np.array([s.key for s in series], np.uint64)[of_sample[owner]]
        rows["stack"] = stacks.keys[stack[owner]]
        rows["trace_hi"], rows["trace_lo"], rows["span"] = self.tables.links[link[owner]].T
        self._identify(rows, samples.profile[owner])
        kept_stacks, frames = self.tables.used(np.unique(stack[owner]))
        present = [series[i] for i in np.unique(of_sample[owner]).tolist()]
        lost = self._lost_profiles(samples.profile[owner])
        return Profiles(_merged(rows), tuple(present), kept_stacks, frames, Refusals(refused.samples, lost))

    def _refuse(self, refused: Refusals, broken: Flags) -> Flags:
        """Which samples are well formed; the others are counted."""
        samples = self.samples
        values, times = samples.values.lengths, samples.times.lengths
        untyped = np.array([not kind for kind in self.known.types], bool)[samples.profile]
        reasons = {
            "bad_type": untyped,
            "index": broken,
            "no_value": (values == 0) & (times == 0),
            "lengths_differ": (values > 0) & (times > 0) & (values != times),
        }
        good = np.ones(len(values), bool)
        for reason, flags in reasons.items():
            count_refused(refused.samples, reason, good & flags)
            good &= ~flags
        return good

    def _rows(self, good: Flags, refused: Refusals) -> tuple[Table, Ints]:
        """Rows of the good samples (one per timestamp, else one per sample) inside the window, and whose they are."""
        samples, factors = self.samples, np.array(self.known.factors, np.int64)
        counts = np.where(good, np.maximum(samples.times.lengths, 1), 0)
        if int(counts.sum()) > MAX_ROWS:
            raise TooLarge(f"the request has more than {MAX_ROWS} timestamps; send smaller requests")
        owner = np.repeat(np.arange(len(counts)), counts)
        rows = np.zeros(len(owner), SAMPLES)
        timed = samples.times.lengths[owner] > 0
        starts = column((p.time_unix_nano for p in self.known.profiles), len(factors), np.uint64)
        rows["time"] = (starts // np.uint64(1_000_000)).astype(np.int64)[samples.profile[owner]]
        chosen = Ragged(samples.times.data, samples.times.lengths).take(np.flatnonzero(good))
        rows["time"][timed] = (chosen.data // np.uint64(1_000_000)).astype(np.int64)
        values, factor = values_of(samples, good, owner, timed), factors[samples.profile[owner]]
        rows["value"] = saturated(values, factor)
        rows["count"] = np.where(timed | (factor == 1), 1, np.clip(values, 0, 2**32 - 1))
        first, last = self.window.bounds()
        inside = (rows["time"] >= first) & (rows["time"] <= last)
        gone = np.zeros(len(counts), bool)
        gone[owner[~inside]] = True
        count_refused(refused.samples, "outside_window", gone)
        return rows[inside], owner[inside]

    def _series(self) -> tuple[list[Series], Ints]:
        """The distinct series of the request, and the number of each sample's."""
        attributes = self.tables.attributes
        pairs = [(key, text or "") for key, text in attributes] or [("", "")]
        labelled = np.array([bool(text) and key not in NOT_LABELS for key, text in attributes] or [False])
        index, _ = checked(self.samples.attributes.data, len(attributes))
        keys = np.where(labelled[index], mixed(attribute_keys(pairs)[index]), np.uint64(0))
        of_labels = combined(_sums(keys, self.samples.attributes), self.samples.profile)
        _, first, inverse = np.unique(of_labels, return_index=True, return_inverse=True)
        return [self._one_series(number) for number in first.tolist()], inverse

    def _one_series(self, number: int) -> Series:
        """The series of the sample with this number."""
        lists = self.samples.attributes
        index = lists.data[lists.starts[number] : lists.ends[number]].tolist()
        table, profile = self.tables.attributes, int(self.samples.profile[number])
        own = self._labels(table[i] for i in index if 0 <= i < len(table))
        labels = {**self.known.labels[profile], **own}
        labels.setdefault("service_name", _unknown_service(labels))
        named = tuple(sorted(labels.items())[:MAX_LABELS])
        return series_of(self.known.types[profile], named)

    def _identify(self, rows: Table, profile: Ints) -> None:
        """Set profile_id and the content key of each row's profile."""
        ids = b"".join(p.profile_id if len(p.profile_id) == 16 else bytes(16) for p in self.known.profiles)
        halves = np.frombuffer(ids, ">u8").astype(np.uint64).reshape(-1, 2)
        rows["profile_hi"], rows["profile_lo"] = halves[profile].T
        names = ("series", "stack", "time", "value", "span", "trace_lo")
        content = np.zeros(len(halves), np.uint64)
        np.add.at(content, profile, combined(*(rows[name] for name in names)))
        rows["content"] = mixed(content)[profile]

    def _lost_profiles(self, kept: Ints) -> int:
        """How many profiles had samples and lost them all."""
        return len(np.setdiff1d(self.samples.profile, kept))


def profiles_of(request: ExportProfilesServiceRequest) -> Iterator[tuple[Any, Profile]]:
    """All profiles, each with its resource."""
    for resource in request.resource_profiles:
        for scope in resource.scope_profiles:
            for profile in scope.profiles:
                yield resource.resource, profile


def columns(profiles: Sequence[Profile]) -> Columns:
    """The samples of all profiles, column by column."""
    counts = [len(profile.samples) for profile in profiles]
    rows = list(chain.from_iterable(profile.samples for profile in profiles))
    refuse_old_revisions(rows)
    times = [row.timestamps_unix_nano for row in rows]
    lengths = column(map(len, times), len(rows))
    return Columns(
        profile=np.repeat(np.arange(len(profiles)), np.array(counts, np.int64)),
        stack=column((row.stack_index for row in rows), len(rows)),
        link=column((row.link_index for row in rows), len(rows)),
        attributes=ragged([row.attribute_indices for row in rows]),
        values=ragged([row.values for row in rows]),
        times=Ragged(column(chain.from_iterable(times), int(lengths.sum()), np.uint64), lengths),
    )


def refuse_old_revisions(rows: Sequence[Any]) -> None:
    """Refuse a request whose samples are numbered as before v1.10: parsed as today's, they lose or swap their values.

    There, field 3 is a packed list (attributes) or field 4 a number (the link) where today field 3 is the link.
    """
    for row in rows[:8]:
        if any(unknown.field_number == 3 and unknown.wire_type == 2 for unknown in _unknown(row)):
            raise MalformedInput(_REVISION)
    if rows and all(row.attribute_indices and not row.values and not row.timestamps_unix_nano for row in rows[:64]):
        raise MalformedInput(_REVISION)


def _unknown(row: Message) -> Iterator[Any]:
    """The fields of a message that its schema doesn't know (a sequence without the protocol of one)."""
    fields: Any = UnknownFieldSet(row)
    return iter(fields)


def _sound(kind: ProfileType) -> bool:
    """May an id be made of the names? It has five parts with colons between them."""
    names = (kind.type, kind.unit, kind.period_type, kind.period_unit)
    return bool(kind.type and kind.unit) and all(":" not in name and len(name) <= 200 for name in names)


def _unknown_service(labels: dict[str, str]) -> str:
    program = labels.get("process_executable_name", "")
    return f"unknown_service:{program}" if program else "unknown_service"


def series_of(type_id: str, labels: Labels) -> Series:
    """The series with its content key."""
    text = "\0".join([type_id, *(part for pair in labels for part in pair)])
    return Series(text_key(text), type_id, labels)


def _any(flags: Flags, lists: Ragged) -> Flags:
    return _sums(flags.astype(np.uint64), lists) > 0


def _sums(elements: Keys, lists: Ragged) -> Keys:
    """The sum of each row, modulo 2^64."""
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(elements, dtype=np.uint64)])
    difference: Keys = sums[lists.ends] - sums[lists.starts]
    return difference


def count_refused(counter: Counter[str], reason: str, flags: Flags) -> None:
    """Count the samples that are flagged."""
    number = int(np.count_nonzero(flags))
    if number:
        counter[reason] += number


def values_of(samples: Columns, good: Flags, owner: Ints, timed: Flags) -> Ints:
    """The value of each row: that of its timestamp, 1 for a timestamp alone, else the sum of the sample's."""
    values = np.ones(len(owner), np.int64)
    paired = timed & (samples.values.lengths[owner] > 0)
    both = good & (samples.times.lengths > 0) & (samples.values.lengths > 0)
    values[paired] = samples.values.take(np.flatnonzero(both)).data
    plain = np.flatnonzero(good & (samples.times.lengths == 0))
    lists = samples.values.take(plain)
    values[~timed] = grouped_sums(np.repeat(np.arange(len(plain)), lists.lengths), lists.data, len(plain))
    return values


def saturated(values: Ints, factors: Ints) -> Ints:
    """The products, kept within int64; factors are at least 1."""
    limit = INT64_MAX // np.maximum(factors, 1)
    return np.where(np.abs(np.maximum(values, -INT64_MAX)) > limit, np.sign(values) * INT64_MAX, values * factors)


def grouped_sums(group: npt.NDArray[np.intp], values: Ints, groups: int) -> Ints:
    """The sum of the values of each group, kept within int64."""
    sums = np.zeros(groups, np.int64)
    np.add.at(sums, group, values)
    about = np.zeros(groups)
    np.add.at(about, group, values.astype(np.float64))
    return np.where(np.abs(about) > 9.2e18, np.sign(about).astype(np.int64) * INT64_MAX, sums)


def _merged(rows: Table) -> Table:
    """Rows of the same series, stack, link, profile and second as one; nothing to do where each sample is one row."""
    rows["time"] -= rows["time"] % 1000
    names = [name for name in SAMPLES.names or () if name not in ("value", "count")]
    _, first, inverse = np.unique(combined(*(rows[name] for name in names)), return_index=True, return_inverse=True)
    if len(first) == len(rows):
        return rows
    merged = rows[first]
    merged["value"] = grouped_sums(inverse, rows["value"], len(first))
    merged["count"] = np.minimum(grouped_sums(inverse, rows["count"].astype(np.int64), len(first)), 2**32 - 1)
    return merged
