"""Profiles in other formats: downloads of what a query selects, and Pyroscope's POST /ingest.

What comes in takes the same way as everything else: it is written as OTLP and decoded with all its checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from otelprof.backend.query import MAX_TIME, Querier, Question
from otelprof.backend.times import nanoseconds
from otelprof.batch import SAMPLES, Batch, Frame, FrameKind, Interner, ProfileType, Resource
from otelprof.errors import MalformedInput
from otelprof.formats import folded, pprof, speedscope
from otelprof.otlp import semconv
from otelprof.otlp.decoded import Frames
from otelprof.otlp.profiles import encode_profiles

MAX_BAD_LINES = 20  # that an answer names
DEFAULT_RATE, MAX_RATE = 100, 1_000_000  # Hz


@dataclass(frozen=True, slots=True)
class Download:
    """A file for the browser."""

    data: bytes
    media_type: str
    file_name: str


_WRITERS: dict[str, tuple[Callable[[Batch, str], bytes], str, str]] = {
    "pprof": (lambda batch, _: pprof.write(batch), "application/octet-stream", "pb.gz"),
    "folded": (lambda batch, kind: folded.write(batch, kind=kind), "text/plain; charset=utf-8", "folded"),
    "speedscope": (lambda batch, _: speedscope.write(batch), "application/json", "speedscope.json"),
}


def export(querier: Querier, question: Question, form: str) -> Download:
    """What a question selects, as a file. MalformedInput: no such format."""
    if form not in _WRITERS:
        raise MalformedInput(f"format is one of {', '.join(_WRITERS)}, not {form[:40]!r}")
    write, media_type, ending = _WRITERS[form]
    kind = _type_of(question.type)
    return Download(write(_batch(querier, question, kind), kind.type), media_type, f"{kind.type}.{ending}")


def pprof_message(querier: Querier, question: Question, path: Sequence[str] = ()) -> Any:
    """What a question selects, of stacks that begin with `path`, as pprof's message."""
    return pprof.message(_batch(querier, question, _type_of(question.type), path))


def _type_of(type_id: str) -> ProfileType:
    """The profile type that an id of Pyroscope's form names; CPU time is nanoseconds, as it is stored."""
    parts = type_id.split(":")
    if len(parts) != 5:
        raise MalformedInput(f"type is a profile type id with five parts, not {type_id[:100]!r}")
    return ProfileType(parts[1], parts[2], parts[3] or parts[1], parts[4] or parts[2])


def _batch(querier: Querier, question: Question, kind: ProfileType, path: Sequence[str] = ()) -> Batch:
    stacks, values = querier.stacks(question, path)
    interner = Interner()
    made = dict(zip(*_made(querier.store.frames(np.unique(stacks.frames))), strict=True))
    ids = {key: interner.frames.id(frame) for key, frame in made.items()}
    unknown = interner.frames.id(Frame("[unknown]", FrameKind.MARK))
    numbers = [ids.get(key, unknown) for key in stacks.frames.tolist()]
    rows = np.zeros(len(stacks), SAMPLES)
    spans = np.column_stack([np.cumsum(stacks.lengths) - stacks.lengths, np.cumsum(stacks.lengths)]).tolist()
    rows["stack"] = [interner.stacks.id(tuple(numbers[first:end])) for first, end in spans]
    start = min(max(question.start, 0), MAX_TIME) * 1_000_000
    rows["value"], rows["time"] = values, start
    rows["type"], rows["resource"] = interner.types.id(kind), interner.resources.id(Resource(()))
    end = min(question.end, MAX_TIME) * 1_000_000 if question.end > 0 else time.time_ns()
    return Batch(interner, start, max(end, start + 1), samples=rows[rows["value"] > 0], clock_offset=0)


def _made(frames: Frames) -> tuple[list[int], list[Frame]]:
    """Keys and frames."""
    columns = zip(
        frames.names, frames.kinds, frames.files, frames.lines.tolist(), frames.starts.tolist(), frames.systems, strict=True
    )
    return frames.keys.tolist(), [
        Frame(name, _kind(kind, name), file, max(line, 0), max(start, 0), system)
        for name, kind, file, line, start, system in columns
    ]


def _kind(kind: str, name: str) -> FrameKind:
    is_mark = not kind and name.startswith("[")
    return FrameKind.MARK if is_mark else semconv.FRAME_KINDS.get(kind, FrameKind.NATIVE)


@dataclass(frozen=True, slots=True)
class Ingested:
    """OTLP requests made of an upload, and what was wrong with single lines of it."""

    requests: list[bytes]
    bad_lines: list[str]


def ingest(parameters: Mapping[str, str], data: bytes) -> Ingested:
    """An upload of POST /ingest?name=&format=folded|pprof&from=&until=&sampleRate= as OTLP requests."""
    resource = _resource(parameters.get("name", ""))
    start, end = _times(parameters)
    form = parameters.get("format", "") or "folded"
    if form == "pprof":
        return _encoded(pprof.read(data, resource, start, end), [])
    if form not in ("folded", "collapsed", "lines"):
        raise MalformedInput(f"format is folded or pprof, not {form[:40]!r}")
    text = data.decode("utf-8-sig", "replace").encode()
    kind = ProfileType("samples", "count", "cpu", "nanoseconds", 1_000_000_000 // _rate(parameters))
    try:
        return _encoded(folded.read(text, kind, resource, start, end), [])
    except MalformedInput:
        good, bad = _sorted_out(text)
    return _encoded(folded.read(good, kind, resource, start, end), bad)


def _encoded(batch: Batch, bad_lines: list[str]) -> Ingested:
    return Ingested([request.data for request in encode_profiles(batch)], bad_lines)


def _sorted_out(text: bytes) -> tuple[bytes, list[str]]:
    """The lines that are good, and a word on each of the first that aren't."""
    good, bad = [], []
    for number, line in enumerate(text.split(b"\n"), 1):
        try:
            folded.read(line)
            good.append(line)
        except MalformedInput as error:
            bad.append(f"line {number}: {str(error).removeprefix('line 1: ')}")
    more = [f"and {len(bad) - MAX_BAD_LINES} more"] if len(bad) > MAX_BAD_LINES else []
    return b"\n".join(good), [*bad[:MAX_BAD_LINES], *more]


def _resource(name: str) -> Resource:
    """Service and labels of a name in Pyroscope's form: `service{key=value,…}`."""
    service, brace, rest = name.partition("{")
    pairs = [pair.partition("=") for pair in rest.rstrip("}").split(",")] if brace else []
    labels = {key.strip(): value.strip().strip('"') for key, _, value in pairs[:32] if key.strip()}
    return Resource(tuple(sorted({**labels, semconv.SERVICE_NAME: service.strip() or "unknown_service"}.items())))


def _times(parameters: Mapping[str, str]) -> tuple[int, int]:
    """[from, until) as Unix nanoseconds; now where they aren't given."""
    end = nanoseconds(parameters.get("until", "")) or time.time_ns()
    start = nanoseconds(parameters.get("from", "")) or end - 10**9
    return start, max(end, start + 1)


def _rate(parameters: Mapping[str, str]) -> int:
    text = parameters.get("sampleRate", "") or str(DEFAULT_RATE)
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 0 < int(text) <= MAX_RATE):
        raise MalformedInput(f"sampleRate is a number of samples a second, not {text[:40]!r}")
    return int(text)
