"""Pyroscope's query services as Connect unary calls over HTTP POST, protobuf and JSON: what Grafana calls.

Protocol: https://connectrpc.com/docs/protocol (unary requests). The service's paths, messages and habits of Pyroscope
3fe6a457. Answers of the methods are built here; what they say comes from query.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from otelprof.backend import exchange
from otelprof.backend.flame import FlameGraph
from otelprof.backend.messages import new
from otelprof.backend.query import Querier, Question, Side
from otelprof.backend.series import Range
from otelprof.errors import MalformedInput

QUERIER = "/querier.v1.QuerierService/"
SERVICES = {
    QUERIER: (
        "ProfileTypes", "LabelNames", "LabelValues", "Series", "SelectMergeStacktraces", "SelectMergeSpanProfile",
        "SelectMergeProfile", "SelectSeries", "Diff", "GetProfileStats", "AnalyzeQuery",
    ),
    "/settings.v1.SettingsService/": ("Get",),
    "/capabilities.v1.FeatureFlagsService/": ("GetFeatureFlags",),
}  # fmt: skip
"""The paths of the services, and which of their methods are served."""

_FLAMEGRAPH = 1  # ProfileFormat
JSON, PROTO = "application/json", "application/proto"

Answer = Callable[[Querier, Any], Any]


def call(querier: Querier, method: str, data: bytes, is_json: bool) -> bytes:
    """One call: the request's bytes to the answer's. MalformedInput for what isn't a request; KeyError: no such method."""
    answer = METHODS[method](querier, _read(new(f"{method}Request"), data, is_json))
    if is_json:
        return json_format.MessageToJson(answer, indent=None).encode()
    return bytes(answer.SerializeToString())


def _read(message: Any, data: bytes, is_json: bool) -> Any:
    try:
        if is_json:
            if not (data or b"{").lstrip().startswith(b"{"):
                raise MalformedInput("not a request: a JSON object is needed")
            return json_format.Parse(data or b"{}", message, ignore_unknown_fields=True)
        message.ParseFromString(data)
    except (json_format.ParseError, DecodeError, ValueError, RecursionError) as error:
        raise MalformedInput(f"not a request: {str(error)[:200]}") from None
    return message


def _pair(name: str, value: str) -> Any:
    pair = new("LabelPair")
    pair.name, pair.value = name, value
    return pair


def _question(request: Any) -> Question:
    """What a request asks; selectors of links and profiles as far as the message has them."""
    chosen = {field.name for field, _ in request.ListFields()}
    fields = (("profiles", "profile_id_selector"), ("traces", "trace_id_selector"), ("spans", "span_selector"))
    more = {name: getattr(request, field) for name, field in fields if field in chosen}
    return Question(request.profile_typeID, request.label_selector, request.start, request.end, **more)


def _path(request: Any) -> list[str]:
    """The call site at the root that stacks have to begin with."""
    return [site.name for site in request.stack_trace_selector.call_site]


def _range(request: Any) -> Range:
    return Range(request.start, request.end)


def _profile_types(querier: Querier, request: Any) -> Any:
    answer = new("ProfileTypesResponse")
    for type_id in querier.index.types(_range(request)):
        name, kind, unit, period_type, period_unit = type_id.split(":")
        answer.profile_types.add(
            ID=type_id, name=name, sample_type=kind, sample_unit=unit, period_type=period_type, period_unit=period_unit
        )
    return answer


def _label_names(querier: Querier, request: Any) -> Any:
    return new("LabelNamesResponse", names=querier.index.names(request.matchers, _range(request)))


def _label_values(querier: Querier, request: Any) -> Any:
    return new("LabelValuesResponse", names=querier.index.values(request.name, request.matchers, _range(request)))


def _series(querier: Querier, request: Any) -> Any:
    answer = new("SeriesResponse")
    for labels in querier.series(request.matchers, request.label_names, _range(request)):
        answer.labels_set.add(labels=[_pair(name, value) for name, value in labels])
    return answer


def _merge_stacktraces(querier: Querier, request: Any) -> Any:
    if request.format > _FLAMEGRAPH:
        raise MalformedInput("only the format FLAMEGRAPH is served here; for pprof call SelectMergeProfile")
    flame = querier.flame(_question(request), request.max_nodes, _path(request))
    return new("SelectMergeStacktracesResponse", flamegraph=_flame_message(flame))


def _merge_profile(querier: Querier, request: Any) -> Any:
    return exchange.pprof_message(querier, _question(request), _path(request))


def _diff(querier: Querier, request: Any) -> Any:
    left, right = (Side(_question(one), _path(one)) for one in (request.left, request.right))
    flame = querier.diff(left, right, max(request.left.max_nodes, request.right.max_nodes))
    ticks = dict(zip(("leftTicks", "rightTicks"), flame.totals, strict=True))
    return new("DiffResponse", flamegraph=new("FlameGraphDiff", **_shared(flame), **ticks))


def _merge_span_profile(querier: Querier, request: Any) -> Any:
    flame = querier.flame(_question(request), request.max_nodes)
    return new("SelectMergeSpanProfileResponse", flamegraph=_flame_message(flame))


def _flame_message(flame: FlameGraph) -> Any:
    """The graph; None when it is empty, which Grafana shows as `no data`."""
    if not flame.levels:
        return None
    return new("FlameGraph", **_shared(flame))


def _shared(flame: FlameGraph) -> dict[str, Any]:
    """The fields that graphs of one side and of two have in common."""
    levels = [new("Level", values=level.tolist()) for level in flame.levels]
    return {"names": [name.text for name in flame.names], "levels": levels, "total": flame.total, "max_self": flame.max_self}


def _select_series(querier: Querier, request: Any) -> Any:
    answer = new("SelectSeriesResponse")
    chosen = Side(_question(request), _path(request))
    for line in querier.lines(chosen, request.step or 15, request.group_by, request.limit):
        points = [new("Point", value=value, timestamp=at) for at, value in line.points]
        answer.series.add(labels=[_pair(name, value) for name, value in line.labels], points=points)
    return answer


def _profile_stats(querier: Querier, _request: Any) -> Any:
    first, last = querier.index.times()
    return new("GetProfileStatsResponse", data_ingested=last > 0, oldest_profile_time=first, newest_profile_time=last)


def _analyze(querier: Querier, request: Any) -> Any:
    """How much a query would read; the index knows the series of it, and nothing is stored twice."""
    found = len(querier.index.any_of([request.query], _range(request)))
    scope = new("QueryScope", component_type="store", component_count=1, series_count=found)
    return new("AnalyzeQueryResponse", query_scopes=[scope], query_impact=new("QueryImpact", total_queried_series=found))


METHODS: dict[str, Answer] = {
    "ProfileTypes": _profile_types,
    "LabelNames": _label_names,
    "LabelValues": _label_values,
    "Series": _series,
    "SelectMergeStacktraces": _merge_stacktraces,
    "SelectMergeSpanProfile": _merge_span_profile,
    "SelectSeries": _select_series,
    "SelectMergeProfile": _merge_profile,
    "Diff": _diff,
    "GetProfileStats": _profile_stats,
    "AnalyzeQuery": _analyze,
    "Get": lambda _querier, _request: new("GetResponse"),
    "GetFeatureFlags": lambda _querier, _request: new("GetFeatureFlagsResponse"),
}
