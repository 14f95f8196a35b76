"""What is seen only once, kept for the next agent: names of kernels and contents of graphs, by process.

Inference engines look their kernels up and capture their graphs once, when they start. An agent that comes later, or comes
again, would not know them. One file for each process in the state folder, written whole or not at all; its name and its
first fields say which life of which process on which boot it is of. A file that can't be read is as good as none.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otelprof.batch import Frame, FrameKind
from otelprof.errors import TargetError
from otelprof.processes.identity import read_stat
from otelprof.processes.table import Process
from otelprof.receivers.ebpf.graph_content import Graph, Node, ProcessGraphs
from otelprof.symbols.cuda import KernelNames
from otelprof.text import clean

log = logging.getLogger(__name__)

VERSION = 1
FILE_LIMIT = 32 << 20
FILES_LIMIT = 1024
PAUSE = 1.0
"""Seconds between two writes for the same process."""
_WRITES_A_TURN = 4
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_BROKEN = (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError)


@dataclass(slots=True)
class _Tables:
    """Frames and stacks by number, each once."""

    frames: dict[Frame, int] = field(default_factory=dict)
    stacks: dict[tuple[int, ...], int] = field(default_factory=dict)
    nodes: dict[Node, int] = field(default_factory=dict)
    graphs: dict[int, tuple[int, Graph]] = field(default_factory=dict)

    def frame(self, frame: Frame) -> int:
        return self.frames.setdefault(frame, len(self.frames))

    def node(self, node: Node) -> int:
        self.stacks.setdefault(tuple(self.frame(frame) for frame in node.stack), len(self.stacks))
        self.frame(node.leaf)
        return self.nodes.setdefault(node, len(self.nodes))

    def graph(self, graph: Graph) -> int:
        number, _ = self.graphs.setdefault(id(graph), (len(self.graphs), graph))
        return number

    def columns(self) -> dict[str, Any]:
        graphs = [
            [graph.surplus, [[self.node(n), amount] for n, amount in graph.nodes.items()]] for _, graph in self.graphs.values()
        ]
        nodes = [
            [self.stacks[tuple(self.frames[frame] for frame in n.stack)], self.frames[n.leaf], int(n.kind), n.function]
            for n in self.nodes
        ]
        frames = [[f.name, int(f.kind), f.file, f.line, f.start_line, f.system_name] for f in self.frames]
        return {"frames": frames, "stacks": [list(stack) for stack in self.stacks], "nodes": nodes, "graphs": graphs}


def encode(names: Iterable[tuple[int, Frame | None, int, bool]], graphs: ProcessGraphs | None) -> dict[str, Any]:
    """A JSON document of names and graphs of one process."""
    tables = _Tables()
    kept, executables = graphs.known if graphs else ({}, {})
    document: dict[str, Any] = {
        "names": [
            [handle, -1 if frame is None else tables.frame(frame), other, certain] for handle, frame, other, certain in names
        ],
        "by_handle": [[handle, tables.graph(graph)] for handle, graph in kept.items()],
        "executables": [[handle, tables.graph(graph)] for handle, graph in executables.items()],
    }
    return document | tables.columns()


def decode(document: dict[str, Any], owner: tuple[int, int], names: KernelNames, graphs: ProcessGraphs) -> None:
    """The opposite of `encode`, into `names` and `graphs`; any of ValueError, KeyError … for a document that isn't one."""
    frames = [_frame(*row) for row in document["frames"]]
    stacks = [tuple(frames[number] for number in stack) for stack in document["stacks"]]
    nodes = [
        Node(stacks[stack], frames[leaf], int(kind), int(function), owner) for stack, leaf, kind, function in document["nodes"]
    ]
    contents = [Graph({nodes[n]: int(amount) for n, amount in rows}, int(surplus)) for surplus, rows in document["graphs"]]
    found = [(int(h), None if f == -1 else frames[f], int(other), bool(sure)) for h, f, other, sure in document["names"]]
    by_handle = [(int(handle), contents[number]) for handle, number in document["by_handle"]]
    executables = [(int(handle), contents[number]) for handle, number in document["executables"]]
    names.restore(owner[0], found)
    graphs.restore(by_handle, executables)


def _frame(name: str, kind: int, file: str, line: int, start_line: int, system_name: str) -> Frame:
    return Frame(clean(name), FrameKind(kind), clean(file), int(line), int(start_line), clean(system_name))


class Journal:
    """The files; `folder` None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder / "cuda" if folder else None
        self._boot = _read_boot()
        self._written: dict[int, float] = {}
        if self._folder is not None:
            self._open(self._folder)

    def has(self, process: Process) -> bool:
        """True when there is something of this process."""
        path = self._path(process.pid)
        return path is not None and path.exists()

    def load(self, process: Process, names: KernelNames, graphs: ProcessGraphs) -> bool:
        """Take what an earlier agent kept of this process; False when there is nothing that can be used."""
        path = self._path(process.pid)
        if path is None:
            return False
        try:
            document = _read(path)
            if document["version"] != VERSION or document["boot"] != self._boot:
                return False
            decode(document, (process.incarnation, process.pid), names, graphs)
        except _BROKEN as error:
            log.warning("%s can't be read and is left out: %s", path, error)
            return False
        return True

    def save(
        self, processes: Iterable[Process], names: KernelNames, graphs: dict[int, ProcessGraphs], last: bool = False
    ) -> None:
        """Write what is new of these processes, a few at a time unless it is the last time."""
        now = time.monotonic()
        due = [p for p in processes if last or now - self._written.get(p.incarnation, -PAUSE) >= PAUSE]
        for process in due if last else due[:_WRITES_A_TURN]:
            self._written[process.incarnation] = now
            content = graphs.get(process.incarnation)
            self._write(process, encode(names.known(process.incarnation), content))
            names.changed.discard(process.incarnation)
            if content is not None:
                content.changed = False

    def leave(self, process: Process) -> None:
        """The process has ended: nobody will ask for it again."""
        self._written.pop(process.incarnation, None)
        for path in self._folder.glob(f"{process.pid}-*.json") if self._folder else ():
            if not _lives(path):
                path.unlink(missing_ok=True)

    def _open(self, folder: Path) -> None:
        """Make the folder; let go of files of processes that have ended, and of the oldest when there are too many."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            alive = [path for path in folder.iterdir() if _lives(path)]
            newest = sorted(alive, key=lambda found: found.stat().st_mtime)[-FILES_LIMIT:]
            for path in set(folder.iterdir()) - set(newest):
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("names of kernels and graphs aren't kept for the next start: %s", error)
            self._folder = None

    def _path(self, pid: int) -> Path | None:
        """The file of the program that the process runs now."""
        try:
            stat = read_stat(pid)
        except TargetError:
            return None
        return self._folder / f"{pid}-{stat.start_ticks}-{stat.image & (1 << 64) - 1:x}.json" if self._folder else None

    def _write(self, process: Process, document: dict[str, Any]) -> None:
        path = self._path(process.pid)
        data = json.dumps({"version": VERSION, "boot": self._boot, **document}, separators=(",", ":")).encode()
        if path is None or process.ended_at or len(data) > FILE_LIMIT:
            return
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            unfinished.write_bytes(data)
            unfinished.replace(path)
        except OSError as error:
            log.debug("%s: %s", path, error)
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        data = file.read(FILE_LIMIT + 1)
    if len(data) > FILE_LIMIT:
        raise ValueError("it is too large")
    document: dict[str, Any] = json.loads(data)
    return document


def _read_boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _lives(path: Path) -> bool:
    """True for a file of a process that still runs the same program."""
    try:
        pid, ticks, image = path.name.removesuffix(".json").split("-")
        stat = read_stat(int(pid))
        return (str(stat.start_ticks), f"{stat.image & (1 << 64) - 1:x}") == (ticks, image)
    except (ValueError, TargetError):
        return False
