"""`otelprof ps`: each process, what can be profiled of it, and why not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from otelprof.cli.messages import json_result, result, table
from otelprof.errors import OtelprofError, TargetError
from otelprof.otlp import semconv
from otelprof.processes.identity import Facts, read_facts, read_stat
from otelprof.processes.maps import Maps, read_maps
from otelprof.processes.resource import process_resource
from otelprof.processors.resource_detection.detectors import from_environment
from otelprof.targets.python import Recogniser, Recognition, Verdict

_DRIVER = re.compile(r"/libcuda\.so")
_PROCESS_LIMIT = 65_536
_RIGHTS = "run as root, or give CAP_SYS_PTRACE"
_OTHER_PYTHON = "native frames are recorded; run it on a supported CPython for Python frames"
_HIDDEN = "the kernel hides it from root too"


@dataclass(frozen=True, slots=True)
class Row:
    """One process (INTERFACE: Refusals). `frames`: python, native or none; `tier`: T0 where a CUDA driver is mapped."""

    pid: int
    service: str
    version: str = ""
    build: str = ""
    frames: str = "native"
    tier: str = ""
    reason: str = ""
    action: str = ""


def processes() -> Iterator[Row]:
    """All processes but kernel threads and zombies, by PID; those that end meanwhile are left out."""
    recogniser = Recogniser()
    pids = sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    for pid in pids[:_PROCESS_LIMIT]:
        try:
            stat = read_stat(pid)
            if not stat.kernel_thread and not stat.is_zombie:
                yield _row(read_facts(pid), recogniser)
        except TargetError:
            continue


def _row(facts: Facts, recogniser: Recogniser) -> Row:
    service = _service(facts)
    try:
        maps = read_maps(facts.pid)
        found = recogniser.recognise(facts.pid, maps=maps)
    except OtelprofError as error:
        read_stat(facts.pid)  # raises when it has ended meanwhile
        return Row(facts.pid, service, frames="none", reason=str(error), action=_RIGHTS if os.geteuid() else _HIDDEN)
    return _seen(facts.pid, service, maps, found)


def _seen(pid: int, service: str, maps: Maps, found: Recognition) -> Row:
    tier = "T0" if any(_DRIVER.search(region.path) for regions in maps.files.values() for region in regions[:1]) else ""
    if found.target is not None:
        return Row(pid, service, found.target.version, " ".join(found.target.build), "python", tier)
    if found.verdict is Verdict.NOT_PYTHON:
        return Row(pid, service, tier=tier)
    action = "look again in a moment" if found.verdict is Verdict.NOT_YET else _OTHER_PYTHON
    return Row(pid, service, tier=tier, reason=found.reason, action=action)


def _service(facts: Facts) -> str:
    said, _ = from_environment(dict(process_resource(facts).attributes))
    return str(said.get(semconv.SERVICE_NAME) or facts.service or facts.comm)


@click.command("ps", short_help="what can be profiled of each process, and why not")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, with all processes.")
@click.option("--all", "everything", is_flag=True, help="Processes without Python and CUDA too.")
def command(as_json: bool, everything: bool) -> None:
    """List processes: the service's name, the Python in it, which frames and which CUDA tier are seen, and why not.

    \b
    Examples:
      sudo otelprof ps
      sudo otelprof ps --json
    """  # noqa: D301  click's mark for lines that stay as they are
    rows = list(processes())
    if as_json:
        return json_result([asdict(row) for row in rows])
    shown = [row for row in rows if everything or row.frames != "native" or row.tier or row.reason]
    head = ("PID", "SERVICE", "PYTHON", "BUILD", "FRAMES", "CUDA", "NOTE")
    lines = (
        (
            str(row.pid),
            row.service,
            row.version,
            row.build,
            row.frames,
            row.tier,
            "; ".join(filter(None, (row.reason, row.action))),
        )
        for row in shown
    )
    return result(table([head, *lines]))
