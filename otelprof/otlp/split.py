"""A request that a server found too large, as two.

The queue holds serialised requests only, so a half is made from the bytes: what its samples use is copied row by row into
a new dictionary. That is slow (a tenth of a second for a full request) and rare.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.profiles.v1development import profiles_pb2 as pb

from otelprof.component import Signal
from otelprof.otlp.request import Encoded

_T = TypeVar("_T")


_Placed = tuple[pb.ResourceProfiles, pb.ScopeProfiles, pb.Profile]


def halves(request: Encoded) -> list[Encoded]:
    """Two requests with all that is in `request`; none when it has one sample or span only."""
    if request.signal is Signal.TRACES:
        return _halves_of_spans(request)
    message = ExportProfilesServiceRequest.FromString(request.data)
    profiles = [(g, s, profile) for g in message.resource_profiles for s in g.scope_profiles for profile in s.profiles]
    if len(profiles) == 1:
        group, scope, profile = profiles[0]
        parts = [[(group, scope, _with_samples(profile, samples))] for samples in _cut(profile.samples)]
        return [_with_profiles(message.dictionary, part) for part in parts]
    return [_with_profiles(message.dictionary, part) for part in _cut(profiles)]


def _cut(items: Sequence[_T]) -> list[Sequence[_T]]:
    """Two parts, or none of a single item."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else []


def _with_samples(profile: pb.Profile, samples: Sequence[pb.Sample]) -> pb.Profile:
    """The profile with a part of its samples, under another id: a reader keeps each id once."""
    part = pb.Profile()
    part.CopyFrom(profile)
    del part.samples[:]
    part.samples.extend(samples)
    part.profile_id = uuid.uuid4().bytes
    return part


def _with_profiles(dictionary: pb.ProfilesDictionary, profiles: Sequence[_Placed]) -> Encoded:
    """A request with these profiles under their own resources and scopes."""
    copier, made = _Copier(dictionary), ExportProfilesServiceRequest()
    for group, scope, profile in profiles:
        if not made.resource_profiles or made.resource_profiles[-1].resource != group.resource:
            target = made.resource_profiles.add(resource=group.resource, schema_url=group.schema_url)
            target.scope_profiles.add(scope=scope.scope, schema_url=scope.schema_url)
        made.resource_profiles[-1].scope_profiles[-1].profiles.append(copier.profile(profile))
    made.dictionary.CopyFrom(copier.made)
    samples = sum(len(profile.samples) for _, _, profile in profiles)
    return Encoded(Signal.PROFILES, made.SerializeToString(), len(profiles), samples)


class _Copier:
    """Copies profiles into `made`, a dictionary that gets the rows that they use, each at its first use."""

    def __init__(self, source: pb.ProfilesDictionary) -> None:
        self._source = source
        self._numbers: dict[tuple[str, int], int] = {}
        self.made = pb.ProfilesDictionary(string_table=[""])
        for name in ("mapping", "location", "function", "link", "attribute", "stack"):
            getattr(self.made, f"{name}_table").add()

    def profile(self, profile: pb.Profile) -> pb.Profile:
        """A copy that points into `made`."""
        copy = pb.Profile()
        copy.CopyFrom(profile)
        for kind in (copy.sample_type, copy.period_type):
            kind.type_strindex, kind.unit_strindex = self._string(kind.type_strindex), self._string(kind.unit_strindex)
        copy.attribute_indices[:] = map(self._attribute, copy.attribute_indices)
        for sample in copy.samples:
            sample.stack_index = self._row("stack", sample.stack_index, self._stack)
            sample.link_index = self._row("link", sample.link_index, self._nothing)
            sample.attribute_indices[:] = map(self._attribute, sample.attribute_indices)
        return copy

    def _row(self, table: str, number: int, translate: Callable[..., None]) -> int:
        """The number in `made` of a row, copied and translated at first use."""
        if number == 0:
            return 0
        found = self._numbers.get((table, number))
        if found is None:
            rows = getattr(self.made, f"{table}_table")
            found = self._numbers[table, number] = len(rows)
            rows.add().CopyFrom(getattr(self._source, f"{table}_table")[number])
            translate(rows[found])
        return found

    def _string(self, number: int) -> int:
        if number == 0:
            return 0
        found = self._numbers.setdefault(("string", number), len(self.made.string_table))
        if found == len(self.made.string_table):
            self.made.string_table.append(self._source.string_table[number])
        return found

    def _attribute(self, number: int) -> int:
        return self._row("attribute", number, self._attribute_row)

    def _attribute_row(self, row: pb.KeyValueAndUnit) -> None:
        row.key_strindex, row.unit_strindex = self._string(row.key_strindex), self._string(row.unit_strindex)

    def _stack(self, row: pb.Stack) -> None:
        row.location_indices[:] = [self._row("location", number, self._location) for number in row.location_indices]

    def _location(self, row: pb.Location) -> None:
        row.mapping_index = self._row("mapping", row.mapping_index, self._mapping)
        row.attribute_indices[:] = map(self._attribute, row.attribute_indices)
        for line in row.lines:
            line.function_index = self._row("function", line.function_index, self._function)

    def _mapping(self, row: pb.Mapping) -> None:
        row.filename_strindex = self._string(row.filename_strindex)
        row.attribute_indices[:] = map(self._attribute, row.attribute_indices)

    def _function(self, row: pb.Function) -> None:
        for name in ("name_strindex", "system_name_strindex", "filename_strindex"):
            setattr(row, name, self._string(getattr(row, name)))

    def _nothing(self, row: pb.Link) -> None:
        """A link points nowhere else."""


def _halves_of_spans(request: Encoded) -> list[Encoded]:
    message = ExportTraceServiceRequest.FromString(request.data)
    spans = [(group, scope, span) for group in message.resource_spans for scope in group.scope_spans for span in scope.spans]
    found = []
    for part in _cut(spans):
        made = ExportTraceServiceRequest()
        for group, scope, span in part:
            if not made.resource_spans or made.resource_spans[-1].resource != group.resource:
                target = made.resource_spans.add(resource=group.resource, schema_url=group.schema_url)
                target.scope_spans.add(scope=scope.scope, schema_url=scope.schema_url)
            made.resource_spans[-1].scope_spans[-1].spans.append(span)
        found.append(Encoded(Signal.TRACES, made.SerializeToString(), len(part)))
    return found
