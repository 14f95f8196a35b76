"""Values inside the lines of a session: frames, stacks, resources, links, checked numbers; from JSON and to it.

What a line leaves out is its default, and what it has more than we know is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otelprof.batch import Attributes, AttributeValue, Frame, FrameKind, Link, Resource
from otelprof.batch import Mapping as FileMapping
from otelprof.errors import MalformedInput
from otelprof.otlp.semconv import FRAME_KINDS, FRAME_TYPES, LABELS, PROCESS_PID

Json = Any
Record = Mapping[str, Json]

STACK_LIMIT = 8192
"""Frames of a stack; deeper ones are an error."""
I64 = 2**63 - 1
U64 = 2**64 - 1
U32 = 2**32 - 1

_MARK = "mark"


def integer(record: Record, key: str, default: int = 0, low: int = 0, high: int = I64) -> int:
    """The whole number at `key`, within [low, high]; MalformedInput for anything else."""
    value = record.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not (low <= value <= high or value == default):
        raise MalformedInput(f"{key} must be a whole number from {low} to {high}")
    return value


def text(record: Record, key: str) -> str:
    """The string at `key`, empty when it isn't there."""
    value = record.get(key, "")
    if not isinstance(value, str):
        raise MalformedInput(f"{key} must be a text")
    return value


def mapping(record: Record, key: str) -> Record:
    """The object at `key`, empty when it isn't there."""
    value = record.get(key)
    if value is not None and not isinstance(value, dict):
        raise MalformedInput(f"{key} must be an object")
    return value or {}


def three(record: Record, key: str) -> tuple[int, int, int]:
    """Three u32 at `key`, such as the size of a grid; zeros when they aren't there."""
    value = record.get(key, [0, 0, 0])
    if not isinstance(value, list) or len(value) != 3 or not all(type(part) is int and 0 <= part <= U32 for part in value):
        raise MalformedInput(f"{key} must be three whole numbers")
    return (value[0], value[1], value[2])


def octets(record: Record, key: str, size: int) -> bytes:
    """`size` bytes written in hex at `key`; zeros when they aren't there."""
    value = text(record, key)
    try:
        found = bytes.fromhex(value) if value else bytes(size)
    except ValueError:
        found = b""
    if len(found) != size:
        raise MalformedInput(f"{key} must be {2 * size} hex digits")
    return found


def attributes(record: Record, key: str) -> Attributes:
    """The attributes at `key`, sorted by name."""
    found = mapping(record, key)
    if not all(isinstance(value, str | int | float) for value in found.values()):
        raise MalformedInput(f"{key} may hold texts, numbers and truth values only")
    if not all(abs(value) <= I64 for value in found.values() if type(value) is int):
        raise MalformedInput(f"{key} holds a number beyond 64 bits")
    return tuple(sorted(found.items()))


def attributes_json(found: Attributes) -> dict[str, AttributeValue]:
    """The other way."""
    return dict(found)


def link_json(link: Link | None) -> dict[str, str]:
    """`trace_id` and `span_id`; nothing for no link."""
    return {} if link is None else {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()}


# --- frames ----------------------------------------------------------------------------------------------------


def bare_frame(name: str) -> Frame:
    """The frame that a name alone stands for: `[cuda] NAME` and `[kernel] NAME` say their kind, other brackets are marks."""
    for kind, label in LABELS.items():
        if name.startswith(label):
            return Frame(name.removeprefix(label), kind)
    return Frame(name, FrameKind.MARK if name.startswith("[") and name.endswith("]") else FrameKind.CPYTHON)


def frame(value: Json) -> Frame:
    """A frame from its name or its object; an unknown kind of frame is shown as a native one."""
    if isinstance(value, str):
        return bare_frame(value)
    if not isinstance(value, dict):
        raise MalformedInput("a frame must be a name or an object with a name")
    word = text(value, "kind")
    kind = FrameKind.MARK if word == _MARK else FRAME_KINDS.get(word, FrameKind.NATIVE)
    return Frame(
        text(value, "name"), kind if word else bare_frame(text(value, "name")).kind, text(value, "file"),
        integer(value, "line"), integer(value, "start_line"), text(value, "system_name"),
        _file_mapping(mapping(value, "mapping")), integer(value, "address", high=U64),
    )  # fmt: skip


def kernel_frame(value: Json) -> Frame | None:
    """A kernel from its name or the frame's object; None for no kernel."""
    if value in ("", None):
        return None
    return Frame(value, FrameKind.CUDA) if isinstance(value, str) else frame(value)


def stack(record: Record) -> tuple[Frame, ...]:
    """The frames at `stack`, root first."""
    value = record.get("stack", [])
    if not isinstance(value, list) or len(value) > STACK_LIMIT:
        raise MalformedInput(f"stack must be a list of at most {STACK_LIMIT} frames")
    return tuple(map(frame, value))


def frame_json(found: Frame) -> Json:
    """A frame as its name where that says it all, else as an object."""
    return found.name if bare_frame(found.name) == found else _frame_object(found)


def kernel_json(found: Frame) -> Json:
    """A kernel's frame as its name where that says it all, else as an object."""
    return found.name if found.name and found == Frame(found.name, FrameKind.CUDA) else _frame_object(found)


def _frame_object(found: Frame) -> dict[str, Json]:
    optional = {
        "file": found.file, "line": found.line, "start_line": found.start_line, "system_name": found.system_name,
        "address": found.address, "mapping": _mapping_json(found.mapping),
    }  # fmt: skip
    kind = FRAME_TYPES.get(found.kind, _MARK)
    return {"name": found.name, "kind": kind, **{key: value for key, value in optional.items() if value}}


def _file_mapping(value: Record) -> FileMapping | None:
    if not value:
        return None
    start, limit, offset = (integer(value, key, high=U64) for key in ("start", "limit", "offset"))
    return FileMapping(text(value, "file"), text(value, "build_id"), start, limit, offset, text(value, "htlhash"))


def _mapping_json(found: FileMapping | None) -> dict[str, Json]:
    keys = ("file", "build_id", "start", "limit", "offset", "htlhash")
    return {key: getattr(found, key) for key in keys} if found else {}


# --- resources -------------------------------------------------------------------------------------------------


class Resources:
    """Resources of processes by PID: a line of kind `process` says what belongs to a PID from there on."""

    LIMIT = 65_536

    def __init__(self) -> None:
        self._by_pid: dict[int, Resource] = {}

    def of(self, record: Record) -> Resource:
        """The resource of a line: its own, or its process's."""
        if "resource" in record:
            return Resource(attributes(record, "resource"))
        if "pid" not in record:
            return Resource(())
        pid = integer(record, "pid", high=U32)
        return self._by_pid.get(pid, _plain(pid))

    def learn(self, record: Record) -> None:
        """Take a line of kind `process`."""
        self._remember(integer(record, "pid", high=U32), Resource(attributes(record, "attributes")))

    def json(self, resource: Resource) -> tuple[Json | None, dict[str, Json]]:
        """A line of kind `process` that has to come first, or None, and the fields that name the resource in a line."""
        pid = resource.get(PROCESS_PID)
        if type(pid) is not int or not 0 <= pid <= U32:
            return None, {"resource": attributes_json(resource.attributes)} if resource.attributes else {}
        known = self._by_pid.get(pid, _plain(pid))
        self._remember(pid, resource)
        line = {"kind": "process", "pid": pid, "attributes": attributes_json(resource.attributes)}
        return line if known != resource else None, {"pid": pid}

    def _remember(self, pid: int, resource: Resource) -> None:
        if len(self._by_pid) >= self.LIMIT and pid not in self._by_pid:
            raise MalformedInput(f"more than {self.LIMIT} processes in one session")
        self._by_pid[pid] = resource


def _plain(pid: int) -> Resource:
    return Resource(((PROCESS_PID, pid),))
