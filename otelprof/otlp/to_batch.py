"""A profiles request as a Batch: what the receiver `otlp` hands on, so that it leaves an exporter with the same counts.

Where decode.py makes the columns of a store (labels as texts, values times their period), this keeps what a pipeline needs:
resources, threads, links, mappings and types as they came. Not kept: profile ids (exporters give new ones), scopes, original
payloads, attributes of profiles, arrays in attributes, and frame types that we have no word for (their names stay).
Layout: opentelemetry-proto v1.10.0, opentelemetry/proto/profiles/v1development/profiles.proto.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Profile

from otelprof.batch import (
    SAMPLES,
    AttributeValue,
    Batch,
    Frame,
    FrameKind,
    Interner,
    Mapping,
    ProfileType,
    Resource,
    Thread,
)
from otelprof.errors import TooLarge
from otelprof.otlp import semconv
from otelprof.otlp.decode import columns, count_refused, parse, profiles_of, values_of
from otelprof.otlp.decoded import Refusals
from otelprof.otlp.tables import MAX_DEPTH, TRUNCATED, UNKNOWN, Dictionary, Flags, Ints, any_in_rows, checked, ragged
from otelprof.text import clean

MAX_ROWS = 1_000_000
"""Samples or timestamps of a request."""
MAX_ATTRIBUTES = 64
_MODULE_KEYS = (semconv.BUILD_ID_GNU, semconv.BUILD_ID_HTLHASH)


@dataclass(frozen=True, slots=True)
class Received:
    """A request as a batch, and what of it wasn't taken."""

    batch: Batch
    refused: Refusals


class Requests:
    """Makes batches of requests, for one thread. Many share an interner, so that exporters meet the same stacks again."""

    def __init__(self) -> None:
        self._interner = Interner()

    def received(self, data: bytes, is_json: bool = False) -> Received:
        """The batch of one request; MalformedInput or TooLarge when nothing of it can be used."""
        if self._interner.full:
            self._interner = Interner()
        return _Request(parse(data, is_json, ExportProfilesServiceRequest()), self._interner).received()


class _Request:
    """One request on its way to rows."""

    def __init__(self, request: ExportProfilesServiceRequest, interner: Interner) -> None:
        self._interner = interner
        self._tables = Dictionary(request.dictionary)
        self._message = request.dictionary
        pairs = list(profiles_of(request))
        self._profiles = [profile for _, profile in pairs]
        self._resources = [self._resource(resource) for resource, _ in pairs]
        self._samples = columns(self._profiles)
        self._frames: dict[int, tuple[int, ...]] = {}

    def received(self) -> Received:
        """The rows of all good samples."""
        refused = Refusals()
        samples = self._samples
        kinds = [self._type(profile) for profile in self._profiles]
        good = self._good(refused, np.array([kind is None for kind in kinds], bool))
        owner, timed = self._owners(good)
        rows = np.zeros(len(owner), SAMPLES)
        of = samples.profile[owner]
        rows["time"] = self._times(good, owner, timed)
        rows["value"] = values_of(samples, good, owner, timed)
        rows["type"] = np.array([self._interner.types.id(kind) for kind in kinds], np.uint32)[of]
        rows["resource"] = np.array(self._resources, np.uint32)[of]
        rows["stack"] = self._mapped(samples.stack, owner, self._stack)
        rows["link"] = self._mapped(samples.link, owner, self._link)
        rows["thread"], rows["attributes"] = self._attributes(owner)
        lost = len(np.setdiff1d(samples.profile, of))
        return Received(self._batch(rows), Refusals(refused.samples, lost))

    def _batch(self, rows: Any) -> Batch:
        """Times stay Unix times, with a clock offset of 0."""
        now = time.time_ns()
        starts = [profile.time_unix_nano or now for profile in self._profiles]
        ends = [start + profile.duration_nano for start, profile in zip(starts, self._profiles, strict=True)]
        start, end = min(starts, default=now), max(ends, default=now)
        return Batch(self._interner, min(start, 2**62), min(max(end, start + 1), 2**62), samples=rows, clock_offset=0)

    def _good(self, refused: Refusals, untyped: Flags) -> Flags:
        """Which samples are well formed; the others are counted in the same order as by decode."""
        samples, tables = self._samples, self._message
        locations, stacks = len(tables.location_table), len(tables.stack_table)
        lists = ragged([stack.location_indices for stack in tables.stack_table] or [()])
        bad_stack = any_in_rows(checked(lists.data, locations)[1], lists.lengths)
        stack, outside = checked(samples.stack, stacks)
        bad_attribute = any_in_rows(
            checked(samples.attributes.data, len(tables.attribute_table))[1], samples.attributes.lengths
        )
        broken = outside | bad_stack[stack] | checked(samples.link, len(tables.link_table))[1] | bad_attribute
        values, times = samples.values.lengths, samples.times.lengths
        good = np.ones(len(stack), bool)
        for reason, flags in (
            ("bad_type", untyped[samples.profile]),
            ("index", broken),
            ("no_value", (values == 0) & (times == 0)),
            ("lengths_differ", (values > 0) & (times > 0) & (values != times)),
        ):
            count_refused(refused.samples, reason, good & flags)
            good &= ~flags
        return good

    def _owners(self, good: Flags) -> tuple[Ints, Flags]:
        """For each row (one for each time, else one for each sample) its sample, and whether it has a time of its own."""
        times = self._samples.times.lengths
        counts = np.where(good, np.maximum(times, 1), 0)
        if int(counts.sum()) > MAX_ROWS:
            raise TooLarge(f"the request has more than {MAX_ROWS} samples; send smaller requests")
        owner = np.repeat(np.arange(len(counts)), counts)
        return owner, times[owner] > 0

    def _times(self, good: Flags, owner: Ints, timed: Flags) -> Ints:
        now = time.time_ns()
        starts = np.array([min(profile.time_unix_nano or now, 2**62) for profile in self._profiles], np.int64)
        found: Ints = starts[self._samples.profile[owner]] if len(owner) else np.zeros(0, np.int64)
        found[timed] = np.minimum(self._samples.times.take(np.flatnonzero(good)).data, 2**62).astype(np.int64)
        return found

    def _mapped(self, indices: Ints, owner: Ints, make: Any) -> Ints:
        """What each row's index stands for in the interner, made once for each index."""
        used, inverse = np.unique(indices[owner], return_inverse=True)
        return np.array([make(number) for number in used.tolist()], np.int64)[inverse]

    def _type(self, profile: Profile) -> ProfileType | None:
        names = (profile.sample_type.type_strindex, profile.sample_type.unit_strindex)
        what, unit = map(self._tables.string, names)
        period = profile.period_type
        period_type, period_unit = map(self._tables.string, (period.type_strindex, period.unit_strindex))
        return ProfileType(what, unit, period_type, period_unit, max(profile.period, 0)) if what and unit else None

    def _resource(self, resource: Any) -> int:
        pairs = {self._tables.key(pair): self._value(pair.value) for pair in resource.attributes[:MAX_ATTRIBUTES]}
        kept = sorted((clean(key), value) for key, value in pairs.items() if key and value is not None)
        return self._interner.resources.id(Resource(tuple(kept)))

    def _value(self, value: AnyValue) -> AttributeValue | None:
        kind = value.WhichOneof("value")
        if kind in ("int_value", "bool_value", "double_value"):
            found: AttributeValue = getattr(value, kind)
            return found
        text = self._tables.text(value) if kind in ("string_value", "string_value_strindex") else None
        return None if text is None else clean(text)

    def _link(self, number: int) -> int:
        if not 0 < number < len(self._message.link_table):
            return 0
        link = self._message.link_table[number]
        whole = len(link.trace_id) == 16 and len(link.span_id) == 8
        return self._interner.link(link.trace_id, link.span_id) if whole else 0

    def _attributes(self, owner: Ints) -> tuple[Ints, Ints]:
        """Ids of thread and of further attributes for each row, made once for each list of indices."""
        lists = self._samples.attributes
        ends, data = lists.ends.tolist(), lists.data.tolist()
        keys = [tuple(data[end - length : end]) for end, length in zip(ends, lists.lengths.tolist(), strict=True)]
        known = {key: self._attribute_ids(key) for key in {keys[number] for number in owner.tolist()}}
        found = np.array([known[keys[number]] for number in owner.tolist()], np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def _attribute_ids(self, indices: Sequence[int]) -> tuple[int, int]:
        pairs = self._pairs(indices)
        name, number = pairs.pop(semconv.THREAD_NAME, ""), pairs.pop(semconv.THREAD_ID, 0)
        thread = Thread(number if isinstance(number, int) else 0, str(name))
        return self._interner.threads.id(thread), self._interner.attributes.id(tuple(sorted(pairs.items())))

    def _pairs(self, indices: Iterable[int]) -> dict[str, AttributeValue]:
        table = self._message.attribute_table
        entries = (table[number] for number in indices if 0 < number < len(table))
        pairs = {clean(self._tables.string(entry.key_strindex)): self._value(entry.value) for entry in entries}
        return {key: value for key, value in pairs.items() if key and value is not None}

    # ---- stacks

    def _stack(self, number: int) -> int:
        """The id of a stack, root first; innermost MAX_DEPTH frames of a deeper one, under the mark."""
        table = self._message.stack_table
        places = table[number].location_indices if number < len(table) else ()
        frames: list[int] = []
        for place in places:  # leaf first
            frames += self._location(place)
            if len(frames) > MAX_DEPTH:
                frames[MAX_DEPTH:] = [self._interner.frames.id(Frame(TRUNCATED, FrameKind.MARK))]
                break
        return self._interner.stacks.id(tuple(reversed(frames)) or (self._interner.frames.id(Frame(UNKNOWN, FrameKind.MARK)),))

    def _location(self, number: int) -> tuple[int, ...]:
        """Ids of a location's frames, innermost first."""
        if number not in self._frames:
            self._frames[number] = tuple(self._interner.frames.id(frame) for frame in self._frames_of(number))
        return self._frames[number]

    def _frames_of(self, number: int) -> list[Frame]:
        place = self._message.location_table[number]
        attributes = self._pairs(place.attribute_indices)
        kind = semconv.FRAME_KINDS.get(str(attributes.get(semconv.FRAME_TYPE, "")), FrameKind.MARK)
        mapping = self._mapping(place.mapping_index)
        if not place.lines:
            return [Frame(_named(mapping, place.address), kind, mapping=mapping, address=place.address)]
        return [self._frame(line, kind, mapping, place.address) for line in place.lines[:MAX_DEPTH]]

    def _frame(self, line: Any, kind: FrameKind, mapping: Mapping | None, address: int) -> Frame:
        functions = self._message.function_table
        function = functions[line.function_index] if 0 <= line.function_index < len(functions) else functions.add()
        text = self._tables.string
        name, system = clean(text(function.name_strindex)), clean(text(function.system_name_strindex))
        return Frame(
            name or system or _named(mapping, address),
            kind,
            clean(text(function.filename_strindex)),
            max(line.line, 0),
            max(function.start_line, 0),
            "" if system == name else system,
            mapping,
            address,
        )

    def _mapping(self, number: int) -> Mapping | None:
        table = self._message.mapping_table
        if not 0 < number < len(table):
            return None
        entry = table[number]
        found = self._pairs(entry.attribute_indices)
        gnu, htlhash = (str(found.get(key, "")) for key in _MODULE_KEYS)
        file = clean(self._tables.string(entry.filename_strindex))
        return Mapping(file, gnu, entry.memory_start, entry.memory_limit, entry.file_offset, htlhash)


def _named(mapping: Mapping | None, address: int) -> str:
    """A frame without a symbol: `file+0x1234`, or what there is."""
    if mapping is None or not mapping.file:
        return f"{address:#x}" if address else UNKNOWN
    inside = (address - mapping.start + mapping.offset) % 2**64
    return f"{mapping.file.rsplit('/', 1)[-1]}+{inside:#x}"
