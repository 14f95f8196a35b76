"""What careful readers refuse in an OTLP profiles request, as named violations.

The rules are those of three readers, as they stand in their sources:
profcheck   open-telemetry/sig-profiling, profcheck, August 2026, with its checks of duplicates and orphans
parca       parca-dev/parca v0.28.0, pkg/normalizer/otel.go
pyroscope   grafana/pyroscope v2.2.1, pkg/ingester/otlp and pkg/validation
A request without violations is taken by all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.profiles.v1development import profiles_pb2 as pb

from otelprof.errors import MalformedInput

TABLES = (
    "mapping_table",
    "location_table",
    "function_table",
    "link_table",
    "string_table",
    "attribute_table",
    "stack_table",
)
_VALUELESS = b"\x12\x00"  # the zero attribute as the Collector writes it, with an AnyValue that holds nothing
MAX_PROFILE_SAMPLES = 16_000
MAX_LABELS = 30
MAX_LABEL_NAME, MAX_LABEL_VALUE = 1024, 2048
MAX_DEPTH = 1000


@dataclass(frozen=True, slots=True)
class Violation:
    """One breach: `rule` is `READER/NAME`, `path` says where in the request, `text` what is wrong."""

    rule: str
    path: str
    text: str


@dataclass(frozen=True)
class Request:
    """A request with what most rules ask of it."""

    message: ExportProfilesServiceRequest

    @property
    def dictionary(self) -> pb.ProfilesDictionary:
        """The tables that all profiles share."""
        return self.message.dictionary

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Rows of each table."""
        return {name: len(getattr(self.dictionary, name)) for name in TABLES}

    @cached_property
    def profiles(self) -> list[tuple[str, pb.Profile]]:
        """All profiles with their paths."""
        return [
            (f"resource_profiles[{r}].scope_profiles[{s}].profiles[{p}]", profile)
            for r, group in enumerate(self.message.resource_profiles)
            for s, scope in enumerate(group.scope_profiles)
            for p, profile in enumerate(scope.profiles)
        ]

    def key(self, attribute: int) -> str:
        """The key of a row of attribute_table."""
        return self.dictionary.string_table[self.dictionary.attribute_table[attribute].key_strindex]


Rule = Callable[[Request], Iterable[Violation]]


def parse(data: bytes) -> ExportProfilesServiceRequest:
    """The request in `data`; MalformedInput when it isn't one."""
    try:
        return ExportProfilesServiceRequest.FromString(data)
    except Exception as error:
        raise MalformedInput(f"not an OTLP profiles request: {error}") from None


def check(request: ExportProfilesServiceRequest | bytes) -> list[Violation]:
    """All violations of all readers. With an index outside its table only the rules that need no table are tried."""
    view = Request(parse(request) if isinstance(request, bytes) else request)
    found = [violation for rule in _TABLE_RULES for violation in rule(view)]
    if found:
        return found
    return [violation for rules in (PROFCHECK, PARCA, PYROSCOPE) for rule in rules for violation in rule(view)]


def _zero_rows(request: Request) -> Iterator[Violation]:
    """Row 0 of each table is there and empty."""
    for name in TABLES:
        table = getattr(request.dictionary, name)
        if not len(table):
            yield Violation("profcheck/zero", name, "is empty; row 0 must be the zero value")
        elif (table[0] if name == "string_table" else table[0].SerializeToString()) not in ("", b"", _VALUELESS):
            yield Violation("profcheck/zero", f"{name}[0]", "is not the zero value")


def _indexes(request: Request) -> Iterator[Violation]:
    """Every index points into its table."""
    for path, table, index in references(request):
        if not 0 <= index < request.sizes[table]:
            yield Violation("profcheck/index", path, f"{index} is outside {table} of {request.sizes[table]} rows")


def references(request: Request) -> Iterator[tuple[str, str, int]]:
    """(path, table, index) of every reference in the request."""
    yield from _table_references(request.dictionary)
    for path, profile in request.profiles:
        for name in ("sample_type", "period_type"):
            kind = getattr(profile, name)
            yield f"{path}.{name}", "string_table", kind.type_strindex
            yield f"{path}.{name}", "string_table", kind.unit_strindex
        yield from ((path, "attribute_table", index) for index in profile.attribute_indices)
        for number, sample in enumerate(profile.samples):
            here = f"{path}.samples[{number}]"
            yield here, "stack_table", sample.stack_index
            yield here, "link_table", sample.link_index
            yield from ((here, "attribute_table", index) for index in sample.attribute_indices)


def _table_references(tables: pb.ProfilesDictionary) -> Iterator[tuple[str, str, int]]:
    for number, mapping in enumerate(tables.mapping_table):
        yield f"mapping_table[{number}]", "string_table", mapping.filename_strindex
    for number, place in enumerate(tables.location_table):
        yield f"location_table[{number}]", "mapping_table", place.mapping_index
        yield from ((f"location_table[{number}]", "function_table", line.function_index) for line in place.lines)
    for number, function in enumerate(tables.function_table):
        for index in (function.name_strindex, function.system_name_strindex, function.filename_strindex):
            yield f"function_table[{number}]", "string_table", index
    for number, attribute in enumerate(tables.attribute_table):
        yield f"attribute_table[{number}]", "string_table", attribute.key_strindex
        yield f"attribute_table[{number}]", "string_table", attribute.unit_strindex
    for number, stack in enumerate(tables.stack_table):
        yield from ((f"stack_table[{number}]", "location_table", index) for index in stack.location_indices)
    for name in ("mapping_table", "location_table"):
        for number, row in enumerate(getattr(tables, name)):
            yield from ((f"{name}[{number}]", "attribute_table", index) for index in row.attribute_indices)


def _presence(request: Request) -> Iterator[Violation]:
    """There is a resource, a scope and a profile."""
    if not request.message.resource_profiles:
        yield Violation("profcheck/presence", "resource_profiles", "is empty")
    for r, group in enumerate(request.message.resource_profiles):
        if not group.scope_profiles:
            yield Violation("profcheck/presence", f"resource_profiles[{r}]", "has no scope_profiles")
        for s, scope in enumerate(group.scope_profiles):
            if not scope.profiles:
                yield Violation("profcheck/presence", f"resource_profiles[{r}].scope_profiles[{s}]", "has no profiles")


def _duplicates(request: Request) -> Iterator[Violation]:
    """No table holds a row twice."""
    for name in TABLES:
        seen: dict[object, int] = {}
        for number, row in enumerate(getattr(request.dictionary, name)):
            first = seen.setdefault(row if isinstance(row, str) else row.SerializeToString(deterministic=True), number)
            if first != number:
                yield Violation("profcheck/duplicate", f"{name}[{number}]", f"repeats row {first}")


def _orphans(request: Request) -> Iterator[Violation]:
    """No row but the zero one is unused."""
    used: dict[str, set[int]] = {name: {0} for name in TABLES}
    for _, table, index in references(request):
        used[table].add(index)
    for name in TABLES:
        yield from (
            Violation("profcheck/orphan", f"{name}[{number}]", "is not used")
            for number in range(request.sizes[name])
            if number not in used[name]
        )


def _numbers(request: Request) -> Iterator[Violation]:
    """Bounds of mappings and signs of lines."""
    for number, mapping in enumerate(request.dictionary.mapping_table):
        start, limit = mapping.memory_start, mapping.memory_limit
        if (start or limit) and start >= limit:
            yield Violation("profcheck/mapping", f"mapping_table[{number}]", f"starts at {start} and ends at {limit}")
    for number, place in enumerate(request.dictionary.location_table):
        if any(line.line < 0 or line.column < 0 for line in place.lines):
            yield Violation("profcheck/line", f"location_table[{number}]", "has a negative line or column")
    for number, function in enumerate(request.dictionary.function_table):
        if function.start_line < 0:
            yield Violation("profcheck/line", f"function_table[{number}]", "starts on a negative line")


def _functions(request: Request) -> Iterator[Violation]:
    """Functions have a name of some sort."""
    for number, function in enumerate(request.dictionary.function_table):
        if number and not (function.name_strindex or function.system_name_strindex or function.filename_strindex):
            yield Violation("profcheck/function", f"function_table[{number}]", "has no name")


def _attribute_keys(request: Request) -> Iterator[Violation]:
    """No list of attributes names a key twice, or points to the zero row."""
    for path, indexes in _attribute_lists(request):
        keys = [request.key(index) for index in indexes]
        if len(set(keys)) != len(keys) or "" in keys:
            yield Violation("profcheck/keys", path, f"has a repeated or empty key among {keys}")


def _attribute_lists(request: Request) -> Iterator[tuple[str, Sequence[int]]]:
    for name in ("mapping_table", "location_table"):
        for number, row in enumerate(getattr(request.dictionary, name)):
            yield f"{name}[{number}]", row.attribute_indices
    for path, profile in request.profiles:
        yield path, profile.attribute_indices
        yield from ((f"{path}.samples[{n}]", sample.attribute_indices) for n, sample in enumerate(profile.samples))


def _links(request: Request) -> Iterator[Violation]:
    """Ids have their sizes and aren't all zero."""
    for number, link in enumerate(request.dictionary.link_table):
        whole = len(link.trace_id) == 16 and len(link.span_id) == 8 and any(link.trace_id) and any(link.span_id)
        if number and not whole:
            yield Violation("profcheck/link", f"link_table[{number}]", "needs 16 and 8 bytes that are not all zero")


def _shapes(request: Request) -> Iterator[Violation]:
    """All samples of a profile have one shape, and times lie inside the profile's."""
    for path, profile in request.profiles:
        shapes = {(len(sample.values) > 0, len(sample.timestamps_unix_nano) > 0) for sample in profile.samples}
        if (False, False) in shapes or len(shapes) > 1:
            yield Violation("profcheck/shape", path, "has samples of several shapes, or without values and times")
        end = profile.time_unix_nano + profile.duration_nano
        for number, sample in enumerate(profile.samples):
            times = sample.timestamps_unix_nano
            if any(not profile.time_unix_nano <= when < end for when in times):
                yield Violation("profcheck/window", f"{path}.samples[{number}]", "has a time outside the profile's")
            if times and sample.values and len(times) != len(sample.values):
                yield Violation("profcheck/shape", f"{path}.samples[{number}]", "has values and times of different number")


def _identities(request: Request) -> Iterator[Violation]:
    """No two samples of a profile are equal in stack, attributes and link."""
    for path, profile in request.profiles:
        seen = [(sample.stack_index, frozenset(sample.attribute_indices), sample.link_index) for sample in profile.samples]
        if len(set(seen)) != len(seen):
            yield Violation("profcheck/identity", path, f"{len(seen) - len(set(seen))} samples repeat another's identity")


def _resources(request: Request) -> Iterator[Violation]:
    """Resource and scope are set; attributes have inline keys, once each, and inline values."""
    for r, group in enumerate(request.message.resource_profiles):
        path = f"resource_profiles[{r}]"
        if not group.HasField("resource"):
            yield Violation("parca/resource", path, "has no resource")
        yield from _inline(f"{path}.resource", group.resource.attributes)
        for s, scope in enumerate(group.scope_profiles):
            if not scope.HasField("scope") or not scope.scope.name:
                yield Violation("parca/scope", f"{path}.scope_profiles[{s}]", "has no scope with a name")
            yield from _inline(f"{path}.scope_profiles[{s}].scope", scope.scope.attributes)


def _inline(path: str, attributes: Iterable[KeyValue]) -> Iterator[Violation]:
    keys = [pair.key for pair in attributes]
    if "" in keys or len(set(keys)) != len(keys):
        yield Violation("parca/keys", path, f"has an empty or repeated key among {keys}")
    if any(pair.value.WhichOneof("value") in (None, "string_value_strindex") for pair in attributes):
        yield Violation("parca/value", path, "has an attribute without an inline value")


def _complete(request: Request) -> Iterator[Violation]:
    """Each profile has types, samples and an id."""
    for path, profile in request.profiles:
        if not profile.HasField("period_type"):
            yield Violation("parca/period_type", path, "has no period_type")
        if not profile.HasField("sample_type") or not profile.sample_type.type_strindex:
            yield Violation("parca/sample_type", path, "has no sample_type")
        if not profile.samples:
            yield Violation("parca/samples", path, "has no samples")
        if len(profile.profile_id) != 16 or not any(profile.profile_id):
            yield Violation("parca/profile_id", path, "needs an id of 16 bytes that are not all zero")


def _attribute_values(request: Request) -> Iterator[Violation]:
    """Attributes of the dictionary have a value."""
    for number, attribute in enumerate(request.dictionary.attribute_table):
        if number and attribute.value.WhichOneof("value") is None:
            yield Violation("parca/value", f"attribute_table[{number}]", "has no value")


def _one_value(request: Request) -> Iterator[Violation]:
    """One value a sample or only times, since a period is set."""
    for path, profile in request.profiles:
        if any(len(sample.values) > 1 for sample in profile.samples):
            yield Violation("pyroscope/values", path, "has a sample with more than one value")


def _metric_name(request: Request) -> Iterator[Violation]:
    """A profile becomes a metric that is named by its period type."""
    strings = request.dictionary.string_table
    for path, profile in request.profiles:
        if not strings[profile.period_type.type_strindex] or profile.period < 1:
            yield Violation("pyroscope/name", path, "has no period, so it gets no name")
        if "-" in strings[profile.sample_type.type_strindex]:
            yield Violation("pyroscope/name", path, "has a dash in its sample type")


def _limits(request: Request) -> Iterator[Violation]:
    """Samples of a profile, depth of a stack, number and length of labels."""
    for number, stack in enumerate(request.dictionary.stack_table):
        if len(stack.location_indices) > MAX_DEPTH:
            yield Violation("pyroscope/depth", f"stack_table[{number}]", f"has {len(stack.location_indices)} frames")
    for path, profile in request.profiles:
        if len(profile.samples) > MAX_PROFILE_SAMPLES:
            yield Violation("pyroscope/samples", path, f"has {len(profile.samples)} samples")
    for r, group in enumerate(request.message.resource_profiles):
        yield from _label_limits(f"resource_profiles[{r}]", group)


def _label_limits(path: str, group: pb.ResourceProfiles) -> Iterator[Violation]:
    own = group.resource.attributes
    profiles = (profile for scope in group.scope_profiles for profile in scope.profiles)
    most = max((len(sample.attribute_indices) for profile in profiles for sample in profile.samples), default=0)
    if len(own) + most > MAX_LABELS:
        yield Violation("pyroscope/labels", path, f"has series of {len(own) + most} labels")
    for pair in own:
        if len(pair.key.encode()) > MAX_LABEL_NAME or len(pair.value.string_value.encode()) > MAX_LABEL_VALUE:
            yield Violation("pyroscope/label", f"{path}.resource", f"the name or value of {pair.key[:40]} is too long")


def _stacks(request: Request) -> Iterator[Violation]:
    """Each sample has a stack, and each of its locations shows a function's name."""
    tables = request.dictionary
    for number, place in enumerate(tables.location_table):
        names = [tables.function_table[line.function_index].name_strindex for line in place.lines]
        if number and not all(names or [0]):
            yield Violation("pyroscope/symbol", f"location_table[{number}]", "shows no function's name")
    for path, profile in request.profiles:
        if any(not tables.stack_table[sample.stack_index].location_indices for sample in profile.samples):
            yield Violation("pyroscope/stack", path, "has a sample without a stack")


def _times(request: Request) -> Iterator[Violation]:
    """Time and duration are set; Pyroscope puts in its own otherwise."""
    for path, profile in request.profiles:
        if not profile.time_unix_nano or not profile.duration_nano:
            yield Violation("pyroscope/time", path, "has no time or no duration")


_TABLE_RULES: tuple[Rule, ...] = (_zero_rows, _indexes)
PROFCHECK: tuple[Rule, ...] = (
    _presence,
    _duplicates,
    _orphans,
    _numbers,
    _functions,
    _attribute_keys,
    _links,
    _shapes,
    _identities,
)
PARCA: tuple[Rule, ...] = (_resources, _complete, _attribute_values)
PYROSCOPE: tuple[Rule, ...] = (_one_value, _metric_name, _limits, _stacks, _times)
