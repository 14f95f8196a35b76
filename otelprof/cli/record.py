"""`otelprof record`: record processes into a file."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from otelprof.agent import Agent, find_state_dir
from otelprof.cli.messages import finish, progress, say
from otelprof.cli.recording import FORMATS, Recording, RecordingSettings, sink_factory
from otelprof.cli.target import TargetCommand
from otelprof.cli.values import seconds
from otelprof.config import Configuration, Registry, load_values
from otelprof.counters import (
    EXPORT_FAILED,
    EXPORT_SENT,
    LAUNCHES_LOST,
    LAUNCHES_SEEN,
    SAMPLES_LOST,
    SAMPLES_SEEN,
    Counters,
)
from otelprof.errors import OtelprofError, TargetError, UsageError

log = logging.getLogger(__name__)

_SINK = "record"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the command line asks for."""

    pids: tuple[int, ...]
    argv: tuple[str, ...]
    duration: float | None
    output: str
    form: str
    native: bool
    lines: bool
    summary: Path | None


def configuration(pids: Sequence[int], follow: bool, native: bool, recording: Recording) -> Configuration:
    """The pipeline of a recording: everything of the targets, each second, into `recording`."""
    registry = Registry.installed(sink_factory(recording))
    targets = {"pids": list(pids), "follow": follow}
    processors = ["resource_detection"] if FORMATS[recording.form].raw else ["resource_detection", "cuda_stitch"]
    pipeline = {"receivers": ["ebpf"], "processors": processors, "exporters": [_SINK]}
    values: dict[str, Any] = {
        "receivers": {"ebpf": {"report_interval": "1s", "native_frames": native, "targets": targets}},
        "processors": {name: {"spans": "none"} if name == "cuda_stitch" else {} for name in processors},
        "exporters": {_SINK: {}},
        "service": {"telemetry": {"metrics": {"level": "none"}}, "pipelines": {"profiles": pipeline}},
    }
    return load_values(values, registry)


def record(wanted: _Wanted) -> int:
    """Run the recording; the exit status."""
    recording = Recording(RecordingSettings(wanted.form, wanted.output, wanted.lines))
    command = TargetCommand(wanted.argv, keep_stdout=wanted.output == "-") if wanted.argv else None
    pids = (command.pid,) if command is not None else wanted.pids
    try:
        agent = Agent(configuration(pids, command is not None, wanted.native, recording), find_state_dir())
        begun = time.monotonic()
        with progress(agent.counters) as on_second:
            agent.run(wanted.duration, lambda: _begin(command), on_second)
    finally:
        if command is not None:
            command.end()
    if command is not None and command.status:
        say(f"note: the command ended with status {command.status}")
    for note in recording.notes(pids):
        say(f"note: {note}")
    if wanted.summary is not None:
        _write_summary(wanted.summary, _summary(agent.counters, recording, time.monotonic() - begun))
    nothing = recording.error or (None if recording.rows else OtelprofError(_nothing(pids)))
    if nothing is not None:
        say(str(nothing))
    finish(agent.counters)
    return 1 if nothing is not None else 0


def _begin(command: TargetCommand | None) -> None:
    """Everything is attached: let the command run."""
    log.info("recording")
    if command is not None:
        command.go()


def _nothing(pids: Sequence[int]) -> str:
    where = f"process {', '.join(map(str, pids))}" if pids else "any process"
    return f"nothing was recorded: {where} used no CPU; record longer, or while it works"


def _summary(counters: Counters, recording: Recording, duration: float) -> dict[str, Any]:
    lost: dict[str, int] = {}
    for metric, labels, value in counters.read():
        if metric in (SAMPLES_LOST, LAUNCHES_LOST) and value:
            lost[labels[0]] = lost.get(labels[0], 0) + int(value)
    return {
        "duration_s": round(duration, 3),
        "samples": int(counters.get(SAMPLES_SEEN)),
        "launches": int(counters.get(LAUNCHES_SEEN)),
        "lost": lost,
        "sent": int(counters.get(EXPORT_SENT)),
        "unsent": int(counters.get(EXPORT_FAILED)),
        "processes": recording.processes,
        "output": recording.output,
    }


def _write_summary(path: Path, document: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        say(f"{path}: the summary can't be written: {error.strerror}")


def _check(wanted: _Wanted, stdout_open: bool) -> None:
    if wanted.pids and wanted.argv:
        raise UsageError("--pid and a command can't go together; use one of them")
    if wanted.output == "-" and not stdout_open:
        raise OtelprofError("standard output is closed: name a file with -o")
    if wanted.output == "-" and FORMATS[wanted.form].binary and sys.stdout.isatty():
        raise UsageError(f"{wanted.form} isn't for terminals: name a file with -o")
    for pid in wanted.pids:
        if not Path(f"/proc/{pid}").exists():
            raise TargetError(f"there is no process {pid}; `otelprof ps` lists those that can be recorded")


@click.command("record", short_help="record processes into a file")
@click.option("--pid", "-p", "pids", type=click.IntRange(1), multiple=True, metavar="PID", help="May be given more than once.")
@click.option(
    "--duration", "-d", callback=seconds, metavar="DURATION", help="Counted from the attach; else until the target's end."
)
@click.option("--format", "-f", "form", type=click.Choice(list(FORMATS)), default="pprof", show_default=True)
@click.option("--output", "-o", required=True, metavar="FILE", help="The file to write; - is standard output.")
@click.option("--lines", is_flag=True, help="Folded text with the file and line of each Python frame.")
@click.option("--native/--no-native", default=False, help="Native frames of Python processes too.")
@click.option("--summary", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Counts as JSON, into a file.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(**options: Any) -> int:
    """Record the CPU samples and CUDA launches of processes: of the given PIDs, of a command with all that it starts, or of
    the whole machine, until they end, the duration is over or Ctrl-C.

    \b
    Examples:
      sudo otelprof record --pid 1234 --duration 30s --format speedscope -o profile.speedscope.json
      sudo otelprof record --format folded --lines -o - -- python3 train.py --epochs 1
      sudo otelprof record --duration 10s -o node.pb.gz
    """  # noqa: D205, D301  click's mark for lines that stay as they are
    wanted = _Wanted(**options)
    _check(wanted, stdout_open=bool(click.get_current_context().obj))
    return record(wanted)
