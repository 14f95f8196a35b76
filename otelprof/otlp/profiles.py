"""Samples of a batch as OTLP profiles: rows of one identity summed, one profile for each resource and type.

The encoding is the one that every known reader takes: one value a sample and no times, inline strings, all tables with
their zero row, a period always, one ResourceProfiles for each resource. What differs by reader is in `Options`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import pairwise

import numpy as np
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.profiles.v1development import profiles_pb2 as pb
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage

from otelprof.batch import Attributes, Batch, Interner, Link, ProfileType, Resource, mark
from otelprof.component import Signal
from otelprof.otlp import semconv, wire
from otelprof.otlp.dictionary import KEY_LIMIT, Dictionary, Selection, any_value, dictionary_of
from otelprof.otlp.request import MAX_BYTES, Dialect, Encoded, Options, split_to_size
from otelprof.otlp.wire import Array
from otelprof.text import clean

MAX_SAMPLES = 15_999
"""Samples of one profile; Pyroscope refuses more than 16,000 (pkg/validation at v2.2.1)."""

if pb.Sample.DESCRIPTOR.fields_by_name["values"].number != 4:  # pragma: no cover
    # v1.9.0 and older number the fields of Sample differently and would be read as nonsense without an error.
    raise ImportError("opentelemetry-proto is too old: install opentelemetry-proto>=1.43,<2")


@dataclass(frozen=True, slots=True)
class _Samples:
    """Columns of equal length, sorted by resource and type; no two rows are equal in all but the value."""

    resource: Array  # of _Source.resources
    type: Array  # of the interner
    stack: Array  # of the dictionary
    attributes: Array  # of the dictionary: an attribute set
    link: Array  # of the interner
    value: Array

    def __len__(self) -> int:
        return len(self.value)

    def part(self, first: int, stop: int) -> _Samples:
        """Rows [first, stop)."""
        return _Samples(**{column.name: getattr(self, column.name)[first:stop] for column in fields(self)})


@dataclass(frozen=True, slots=True)
class _Source:
    """What the columns point to."""

    batch: Batch
    dictionary: Dictionary
    resources: list[bytes]  # serialised


def encode_profiles(batch: Batch, options: Options | None = None) -> list[Encoded]:
    """The samples of `batch` as requests that each keep the limits; none when there are no samples.

    A sample that doesn't fit alone keeps its value and gets the stack `[truncated]`.
    """
    dictionary = dictionary_of(batch.interner)
    rows = batch.samples[batch.samples["type"] > 0]
    if not len(rows):
        return []
    with dictionary.lock:
        source, samples = _aggregated(batch, rows, dictionary, options or Options())
        return split_to_size(len(samples), lambda first, stop: _encoded(source, samples.part(first, stop)))


def kept(attributes: Attributes, options: Options) -> Attributes:
    """The attributes that the dialect lets through, each key once."""
    by_key = {clean(key, KEY_LIMIT): value for key, value in attributes if key}
    if options.dialect is Dialect.PYROSCOPE:
        by_key = {key: value for key, value in by_key.items() if key in semconv.PYROSCOPE_ATTRIBUTES}
    return tuple(by_key.items())


def resource_message(resource: Resource, options: Options) -> bytes:
    """A serialised Resource."""
    pairs = [KeyValue(key=key, value=any_value(value)) for key, value in kept(resource.attributes, options)]
    return ResourceMessage(attributes=pairs).SerializeToString()


@cache
def scope_message() -> bytes:
    """The serialised InstrumentationScope of all that we send."""
    return InstrumentationScope(name=semconv.SCOPE_NAME, version=semconv.SCOPE_VERSION).SerializeToString()


def distinct(*columns: Array) -> tuple[Array, Array]:
    """Which rows are the first of their kind, sorted by the columns, and for each row the index of its kind in these."""
    key = np.zeros(len(columns[0]), np.int64)
    size = 1
    for column in columns:
        width = int(column.max(initial=0)) + 1
        if size * width >= 1 << 62:
            key = np.unique(key, return_inverse=True)[1]
            size = len(key)
        key, size = key * width + column, size * width
    _, first, kind = np.unique(key, return_index=True, return_inverse=True)
    return first, kind


def _aggregated(batch: Batch, rows: Array, dictionary: Dictionary, options: Options) -> tuple[_Source, _Samples]:
    """The rows by identity, in columns."""
    resources, resource = _resources(batch, rows, options)
    stack = dictionary.stack_rows(batch.interner, rows["stack"].astype(np.int64))
    columns = resource, rows["type"], stack, _attributes(batch, rows, dictionary, options), _links(batch, rows)
    first, kind = distinct(*columns)
    order = np.argsort(kind, kind="stable")
    counts = np.bincount(kind)
    value = np.add.reduceat(rows["value"][order], np.cumsum(counts) - counts)
    return _Source(batch, dictionary, resources), _Samples(*[*(column[first] for column in columns), value])


def _resources(batch: Batch, rows: Array, options: Options) -> tuple[list[bytes], Array]:
    """Serialised resources, each once, and the index of each row's."""
    ids, kind = np.unique(rows["resource"], return_inverse=True)
    messages = [resource_message(batch.interner.resources[number], options) for number in ids.tolist()]
    index = {message: number for number, message in enumerate(dict.fromkeys(messages))}
    return list(index), np.array([index[message] for message in messages])[kind]


def _attributes(batch: Batch, rows: Array, dictionary: Dictionary, options: Options) -> Array:
    """The attribute set of each row."""
    resources = rows["resource"] if options.service_name_on_samples else np.zeros(len(rows), np.int64)
    columns = resources, rows["thread"], rows["attributes"]
    first, kind = distinct(*columns)
    keys = zip(*(column[first].tolist() for column in columns), strict=True)
    sets = [
        dictionary.sample_attributes((options, *key), partial(_sample_attributes, batch.interner, options, *key))
        for key in keys
    ]
    return np.array(sets, np.int64)[kind]


def _sample_attributes(interner: Interner, options: Options, resource: int, thread_id: int, attributes: int) -> Attributes:
    """What a sample with these ids of the interner carries."""
    thread, service = interner.threads[thread_id], interner.resources[resource].get(semconv.SERVICE_NAME)
    extra = ((semconv.THREAD_NAME, thread.name), (semconv.THREAD_ID, thread.id), (semconv.SERVICE_NAME, service))
    return kept((*interner.attributes[attributes], *((key, value) for key, value in extra if value)), options)


def _links(batch: Batch, rows: Array) -> Array:
    """The link of each row, 0 where it isn't a whole one: readers refuse the request otherwise."""
    ids, kind = np.unique(rows["link"], return_inverse=True)
    return np.array([number if _is_whole(batch.interner.links[number]) else 0 for number in ids.tolist()])[kind]


def _is_whole(link: Link | None) -> bool:
    return link is not None and len(link.trace_id) == 16 and len(link.span_id) == 8 and any(link.trace_id) and any(link.span_id)


def _encoded(source: _Source, samples: _Samples) -> Encoded:
    """One request; a single sample that is too large is sent without its stack."""
    request = _request(source, samples)
    if len(samples) > 1 or len(request.data) <= MAX_BYTES:
        return request
    return _request(source, replace(samples, stack=np.array([source.dictionary.stack_of_frames([mark("truncated")])])))


def _request(source: _Source, samples: _Samples) -> Encoded:
    types = [_type_of(source, number) for number in np.unique(samples.type).tolist()]
    words = [source.dictionary.string(word) for kind in types for word in _words(kind)]
    links = np.unique(np.append(samples.link, 0))
    selection = Selection(source.dictionary, samples.stack, samples.attributes, words)
    messages = wire.message(
        2,
        wire.integer(1, selection.stack(samples.stack)),
        wire.packed(2, selection.attributes()),
        wire.integer(3, np.searchsorted(links, samples.link)),
        wire.message(4, wire.varints(samples.value)),
    )
    profiles = [
        (int(samples.resource[first]), _profile(source, selection, int(samples.type[first])) + messages.bytes(first, stop))
        for first, stop in _profile_ranges(samples)
    ]
    whole = [link for number in links.tolist() if (link := source.batch.interner.links[number])]
    data = b"".join(_resource_profiles(source, profiles)) + wire.field(2, selection.encode(whole))
    return Encoded(Signal.PROFILES, data, len(profiles), len(samples))


def _profile_ranges(samples: _Samples) -> Iterator[tuple[int, int]]:
    """Rows [first, stop) of each profile."""
    new = (np.diff(samples.resource, prepend=-1) != 0) | (np.diff(samples.type.astype(np.int64), prepend=-1) != 0)
    edges = [*np.flatnonzero(new).tolist(), len(samples)]
    for start, end in pairwise(edges):
        yield from ((first, min(first + MAX_SAMPLES, end)) for first in range(start, end, MAX_SAMPLES))


def _type_of(source: _Source, number: int) -> ProfileType:
    kind = source.batch.interner.types[number]
    if kind is None:
        raise ValueError(f"profile type {number} of the interner is none")
    return kind


def _words(kind: ProfileType) -> tuple[str, str, str, str]:
    return kind.type, kind.unit, kind.period_type, kind.period_unit


def _profile(source: _Source, selection: Selection, number: int) -> bytes:
    """A serialised Profile without its samples, of type `number`."""
    kind, batch = _type_of(source, number), source.batch
    type_, unit, period_type, period_unit = (selection.string(source.dictionary.string(word)) for word in _words(kind))
    return pb.Profile(
        sample_type=pb.ValueType(type_strindex=type_, unit_strindex=unit),
        time_unix_nano=batch.start + batch.clock_offset,
        duration_nano=max(batch.end - batch.start, 1),
        period_type=pb.ValueType(type_strindex=period_type, unit_strindex=period_unit),
        period=max(kind.period, 1),
        profile_id=uuid.uuid4().bytes,
    ).SerializeToString()


def _resource_profiles(source: _Source, profiles: list[tuple[int, bytes]]) -> Iterator[bytes]:
    """Field 1 of the request for each resource, which come in order."""
    by_resource: dict[int, list[bytes]] = {}
    for number, profile in profiles:
        by_resource.setdefault(number, []).append(wire.field(2, profile))
    for number, mine in by_resource.items():
        schema = wire.field(3, semconv.SCHEMA_URL.encode())
        scope = wire.field(1, scope_message()) + b"".join(mine) + schema
        yield wire.field(1, wire.field(1, source.resources[number]) + wire.field(2, scope) + schema)
