"""`otelprof check-otlp`: what careful readers would refuse in files of OTLP profiles, one line a violation."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest

from otelprof.cli.messages import json_result, result, say
from otelprof.errors import MalformedInput
from otelprof.otlp.check import Violation, check, parse
from otelprof.otlp.decode import refuse_old_revisions
from otelprof.otlp.json_mapping import parse_json
from otelprof.text import printable

MAX_BYTES = 256 << 20
"""Bytes of a file that is looked at; what agents and Collectors rotate is smaller."""

MAX_SHOWN = 1000
"""Violations of one request that are shown; a broken table makes one for each row."""


@dataclass(frozen=True, slots=True)
class Found:
    """A violation and where it is: the file, and the line of a file of JSON lines (0: the file is one request)."""

    file: str
    line: int
    violation: Violation

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        parts = (place, self.violation.rule, self.violation.path, self.violation.text)
        return printable(": ".join(part for part in parts if part), 2000)


def check_file(name: str) -> Iterator[Found]:
    """All violations in a file, `-` for standard input; what can't be read is one as well."""
    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        yield Found(name, 0, Violation("file/unreadable", "", f"{error.strerror or error}; name a readable file"))
        return
    if len(data) > MAX_BYTES:
        yield Found(name, 0, Violation("file/size", "", f"has more than {MAX_BYTES >> 20} MiB; split it"))
        return
    for number, part in _requests(data):
        yield from (Found(name, number, violation) for violation in _violations(part))


def _requests(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The requests in a file with their lines: JSON documents, one a line, or all of it."""
    lines = data.splitlines()
    if not data.lstrip().startswith(b"{") or lines[0].strip() in (b"{", b""):  # serialised, or one document over many lines
        yield 0, data
        return
    yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _violations(data: bytes) -> Iterator[Violation]:
    try:
        request = _parsed(data)
        refuse_old_revisions([sample for profile in _profiles(request) for sample in profile.samples])
    except MalformedInput as error:
        yield Violation("otlp/malformed", "", str(error))
        return
    found = check(request)
    yield from islice(found, MAX_SHOWN)
    if len(found) > MAX_SHOWN:
        yield Violation("otlp/more", "", f"{len(found) - MAX_SHOWN} more violations")


def _parsed(data: bytes) -> ExportProfilesServiceRequest:
    if data.lstrip().startswith(b"{"):
        return parse_json(data, ExportProfilesServiceRequest())
    return parse(data)


def _profiles(request: ExportProfilesServiceRequest) -> Iterable[Any]:
    scopes = (scope for group in request.resource_profiles for scope in group.scope_profiles)
    return chain.from_iterable(scope.profiles for scope in scopes)


@click.command("check-otlp", short_help="check files of OTLP profiles")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(files: tuple[str, ...], as_json: bool) -> int:
    """Check OTLP profiles by the rules of profcheck, Parca and Pyroscope: one line a violation, exit status 1 with any.

    A FILE holds one serialised request (or ProfilesData), or OTLP/JSON documents, one a line; - reads standard input.

    \b
    Examples:
      otelprof check-otlp profiles.pb
      otelprof record --duration 5s --format otlp-json -o out.jsonl && otelprof check-otlp out.jsonl
      otelprof check-otlp --json *.pb
    """  # noqa: D301  click's mark for lines that stay as they are
    found = [violation for name in files for violation in check_file(name)]
    if as_json:
        json_result([{"file": f.file, "line": f.line, "rule": f.violation.rule, "path": f.violation.path,
                      "text": f.violation.text} for f in found])  # fmt: skip
    elif found:
        result("\n".join(map(str, found)))
    say(f"{len(found)} violations in {len(files)} files" if found else f"{len(files)} files: good")
    return 1 if found else 0
