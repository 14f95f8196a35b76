"""speedscope's file format, both ways: https://www.speedscope.app/file-format-schema.json.

Written as `sampled` profiles, one for each type and process; read as `sampled` and `evented` ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from otelprof import __version__
from otelprof.batch import Batch, Frame, FrameKind, Ids, ProfileType, Resource
from otelprof.errors import MalformedInput
from otelprof.formats.merge import UNKNOWN, UNNAMED, BatchBuilder, labelled, unlabelled
from otelprof.otlp import semconv
from otelprof.text import clean

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
MAX_DEPTH = 8192
_UNITS = {"nanoseconds": 1, "microseconds": 1_000, "milliseconds": 1_000_000, "seconds": 1_000_000_000}


def write(batch: Batch, name: str = "otelprof") -> bytes:
    """All samples of the batch as one JSON document."""
    interner, frames = batch.interner, Ids[Frame | None](None)
    groups: dict[tuple[int, int], tuple[list[list[int]], list[int]]] = {}
    for row in batch.samples[batch.samples["value"] > 0]:
        samples, weights = groups.setdefault((int(row["type"]), int(row["resource"])), ([], []))
        samples.append([number - 1 for number in frames.ids(interner.frames_of(int(row["stack"])) or UNKNOWN)])
        weights.append(int(row["value"]))
    profiles = [_profile(batch, *key, *groups[key]) for key in sorted(groups)]
    document = {
        "$schema": SCHEMA,
        "name": name,
        "exporter": f"otelprof@{__version__}",
        "shared": {"frames": [_frame(frame) for number in range(1, len(frames)) if (frame := frames[number])]},
        "profiles": profiles,
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _profile(batch: Batch, type_id: int, resource_id: int, samples: list[list[int]], weights: list[int]) -> dict[str, Any]:
    kind, resource = batch.interner.types[type_id], batch.interner.resources[resource_id]
    type_name, unit = (kind.type, kind.unit) if kind else ("samples", "count")
    service, pid = resource.get(semconv.SERVICE_NAME), resource.get(semconv.PROCESS_PID)
    return {
        "type": "sampled",
        "name": clean(" ".join(str(part) for part in (type_name, service, pid) if part)),
        "unit": unit if unit in (*_UNITS, "bytes") else "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _frame(frame: Frame) -> dict[str, Any]:
    place = {"file": clean(frame.file)} if frame.file else {}
    line = {"line": frame.line} if frame.line > 0 else {}
    return {"name": clean(labelled(frame)) or UNNAMED, **place, **line}


def read(data: bytes, resource: Resource | None = None, start: int = 0, end: int = 1) -> Batch:
    """All profiles of the document as samples in [start, end), Unix nanoseconds; MalformedInput when it isn't one.

    Times become nanoseconds; a profile without a unit is one of CPU samples.
    """
    builder = BatchBuilder(resource or Resource(()))
    try:
        document = json.loads(data)
        frames = [_read_frame(frame) for frame in document["shared"]["frames"]]
        for profile in document["profiles"]:
            kind, factor = _kind(str(profile.get("unit", "none")))
            for stack, weight in _STACKS[profile["type"]](profile):
                builder.add([frames[_index(number)] for number in stack], round(weight * factor), kind)
        return builder.batch(start, end)
    except (ValueError, RecursionError) as error:
        raise MalformedInput(f"not a speedscope file: {str(error)[:200]}") from None
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise MalformedInput(f"not a speedscope file: {type(error).__name__} at {str(error)[:100]}") from None


def _index(number: int) -> int:
    if number < 0:
        raise IndexError(number)
    return number


def _read_frame(frame: Mapping[str, Any]) -> Frame:
    file, line = str(frame.get("file") or ""), int(frame.get("line") or 0)
    name = str(frame["name"])
    name, kind = unlabelled("" if name == UNNAMED else name, FrameKind.CPYTHON if file.endswith(".py") else FrameKind.NATIVE)
    return Frame(name, kind, file, max(line, 0))


def _kind(unit: str) -> tuple[ProfileType, int]:
    """The profile type for a unit, and what a weight is multiplied with."""
    if unit in _UNITS:
        return ProfileType("wall", "nanoseconds", "wall", "nanoseconds"), _UNITS[unit]
    return (ProfileType("alloc", "bytes", "alloc", "bytes"), 1) if unit == "bytes" else (semconv.CPU, 1)


def _sampled(profile: Mapping[str, Any]) -> Iterator[tuple[list[int], float]]:
    yield from zip(profile["samples"], profile["weights"], strict=True)


def _evented(profile: Mapping[str, Any]) -> Iterator[tuple[list[int], float]]:
    """The time between two events belongs to the stack that is open."""
    stack: list[int] = []
    last = profile["startValue"]
    for event in profile["events"]:
        if stack and event["at"] > last:
            yield list(stack), event["at"] - last
        last = event["at"]
        if event["type"] == "O":
            stack.append(event["frame"])
        elif not stack or stack.pop() != event["frame"]:
            raise ValueError(f"a frame is closed that isn't the open one, at {last}")
        if len(stack) > MAX_DEPTH:
            raise ValueError(f"stacks are deeper than {MAX_DEPTH}")


_STACKS = {"sampled": _sampled, "evented": _evented}
