"""The messages of pprof's profile.proto, made at import from this table.

Source: google/pprof, proto/profile.proto, package perftools.profiles. The format is small and frozen, so the table needs no
compiler in the build and no generated module in the tree. It lives in a descriptor pool of its own: other packages of a
process may bring their own perftools.profiles.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELDS = {
    "ValueType": "type:i64=1 unit:i64=2",
    "Label": "key:i64=1 str:i64=2 num:i64=3 num_unit:i64=4",
    "Sample": "location_id:*u64=1 value:*i64=2 label:*Label=3",
    "Mapping": "id:u64=1 memory_start:u64=2 memory_limit:u64=3 file_offset:u64=4 filename:i64=5 build_id:i64=6"
    " has_functions:bool=7 has_filenames:bool=8 has_line_numbers:bool=9 has_inline_frames:bool=10",
    "Line": "function_id:u64=1 line:i64=2 column:i64=3",
    "Location": "id:u64=1 mapping_id:u64=2 address:u64=3 line:*Line=4 is_folded:bool=5",
    "Function": "id:u64=1 name:i64=2 system_name:i64=3 filename:i64=4 start_line:i64=5",
    "Profile": "sample_type:*ValueType=1 sample:*Sample=2 mapping:*Mapping=3 location:*Location=4 function:*Function=5"
    " string_table:*str=6 drop_frames:i64=7 keep_frames:i64=8 time_nanos:i64=9 duration_nanos:i64=10"
    " period_type:ValueType=11 period:i64=12 comment:*i64=13 default_sample_type:i64=14 doc_url:i64=15",
}
"""`name:type=number`; `*` is repeated."""

_PACKAGE = "perftools.profiles"
_F = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"i64": _F.TYPE_INT64, "u64": _F.TYPE_UINT64, "bool": _F.TYPE_BOOL, "str": _F.TYPE_STRING}


def _field(text: str) -> descriptor_pb2.FieldDescriptorProto:
    name, _, rest = text.partition(":")
    kind, _, number = rest.partition("=")
    label = _F.LABEL_REPEATED if kind.startswith("*") else _F.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    if kind in _SCALARS:
        return _F(name=name, number=int(number), label=label, type=_SCALARS[kind])
    return _F(name=name, number=int(number), label=label, type=_F.TYPE_MESSAGE, type_name=f".{_PACKAGE}.{kind}")


def _profile_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        file.message_type.add(name=name, field=[_field(text) for text in fields.split()])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Profile"))


Profile = _profile_class()
"""The message class of a whole profile; the other messages are made by its `add` methods."""
