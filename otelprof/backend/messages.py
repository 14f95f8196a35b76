"""The messages of Pyroscope's query API, from a table: the same wire as querier/v1 and types/v1 without a generated file.

Names and numbers: grafana/pyroscope api/querier/v1/querier.proto, types/v1, settings/v1 and capabilities/v1 (the folder api is
Apache-2.0) at 3fe6a457. Only what we read or write stands here; other fields are ignored, as protobuf does. docs/decisions
says why a table and not protoc's output.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_QUERY = "profile_typeID 1 string, label_selector 2 string, start 3 int64, end 4 int64"

TABLE = {
    "LabelPair": "name 1 string, value 2 string",
    "Labels": "labels 1 LabelPair*",
    "ProfileTypesRequest": "start 1 int64, end 2 int64",
    "ProfileType": "ID 1 string, name 2 string, sample_type 4 string, sample_unit 5 string, period_type 6 string, "
    "period_unit 7 string",
    "ProfileTypesResponse": "profile_types 1 ProfileType*",
    "LabelNamesRequest": "matchers 1 string*, start 2 int64, end 3 int64",
    "LabelNamesResponse": "names 1 string*",
    "LabelValuesRequest": "name 1 string, matchers 2 string*, start 3 int64, end 4 int64",
    "LabelValuesResponse": "names 1 string*",
    "SeriesRequest": "matchers 1 string*, label_names 2 string*, start 3 int64, end 4 int64",
    "SeriesResponse": "labels_set 2 Labels*",
    "Location": "name 1 string",
    "StackTraceSelector": "call_site 1 Location*",
    "Level": "values 1 int64*",
    "FlameGraph": "names 1 string*, levels 2 Level*, total 3 int64, max_self 4 int64",
    "SelectMergeStacktracesRequest": f"{_QUERY}, max_nodes 5 int64, format 6 ProfileFormat, "
    "stack_trace_selector 7 StackTraceSelector, profile_id_selector 8 string*, trace_id_selector 10 string*, "
    "span_selector 11 string*",
    "SelectMergeStacktracesResponse": "flamegraph 1 FlameGraph",
    "SelectMergeSpanProfileRequest": "profile_typeID 1 string, label_selector 2 string, span_selector 3 string*, "
    "start 4 int64, end 5 int64, max_nodes 6 int64, format 7 ProfileFormat",
    "SelectMergeSpanProfileResponse": "flamegraph 1 FlameGraph",
    "SelectMergeProfileRequest": f"{_QUERY}, max_nodes 5 int64, stack_trace_selector 6 StackTraceSelector, "
    "profile_id_selector 7 string*, trace_id_selector 8 string*",
    "DiffRequest": "left 1 SelectMergeStacktracesRequest, right 2 SelectMergeStacktracesRequest",
    "FlameGraphDiff": "names 1 string*, levels 2 Level*, total 3 int64, max_self 4 int64, "
    "leftTicks 5 int64, rightTicks 6 int64",
    "DiffResponse": "flamegraph 1 FlameGraphDiff",
    "AnalyzeQueryRequest": "start 2 int64, end 3 int64, query 4 string",
    "QueryScope": "component_type 1 string, component_count 2 uint64, series_count 4 uint64",
    "QueryImpact": "total_queried_series 3 uint64, deduplication_needed 4 bool",
    "AnalyzeQueryResponse": "query_scopes 1 QueryScope*, query_impact 2 QueryImpact",
    "SelectSeriesRequest": f"{_QUERY}, group_by 5 string*, step 6 double, aggregation 7 Aggregation, "
    "stack_trace_selector 8 StackTraceSelector, limit 9 int64",
    "Point": "value 1 double, timestamp 2 int64",
    "Series": "labels 1 LabelPair*, points 2 Point*",
    "SelectSeriesResponse": "series 1 Series*",
    "GetRequest": "",  # of the settings
    "GetResponse": "settings 1 Setting*",
    "Setting": "name 1 string, value 2 string, modifiedAt 3 int64",
    "GetFeatureFlagsRequest": "",
    "GetFeatureFlagsResponse": "feature_flags 1 FeatureFlag*",
    "FeatureFlag": "name 1 string, enabled 2 bool",
    "GetProfileStatsRequest": "",
    "GetProfileStatsResponse": "data_ingested 1 bool, oldest_profile_time 2 int64, newest_profile_time 3 int64",
}
"""Each message's fields as `name number type`; a star makes them repeated."""

ENUMS = {
    "ProfileFormat": ("UNSPECIFIED", "FLAMEGRAPH", "TREE", "DOT", "PPROF"),
    "Aggregation": ("SUM", "AVERAGE"),
}
_ENUM_PREFIX = {"ProfileFormat": "PROFILE_FORMAT_", "Aggregation": "TIME_SERIES_AGGREGATION_TYPE_"}
_PACKAGE = "otelprof.querier"  # not on the wire: Connect carries the name of the method only
_SCALARS = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "bool": FieldDescriptorProto.TYPE_BOOL,
}


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="otelprof/querier.proto", package=_PACKAGE, syntax="proto3")
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=_ENUM_PREFIX[name] + value, number=number)
    for name, fields in TABLE.items():
        message = file.message_type.add(name=name)
        for text in filter(None, fields.split(", ")):
            _add_field(message, *text.split())
    return file


def _add_field(message: DescriptorProto, name: str, number: str, kind: str) -> None:
    bare = kind.rstrip("*")
    field = message.field.add(name=name, number=int(number))
    field.label = FieldDescriptorProto.LABEL_REPEATED if kind.endswith("*") else FieldDescriptorProto.LABEL_OPTIONAL
    if bare in _SCALARS:
        field.type = _SCALARS[bare]
    else:
        field.type = FieldDescriptorProto.TYPE_ENUM if bare in ENUMS else FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{bare}"


_POOL = DescriptorPool()
_POOL.Add(_file())
_CLASSES: dict[str, Any] = {name: GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in TABLE}


def new(message: str, **fields: Any) -> Any:
    """A message of the table."""
    return _CLASSES[message](**fields)
