"""What one process has captured: which kernels, launched where, are in each of its CUDA graphs.

A capture collects the launches on a stream from cuStreamBeginCapture to cuStreamEndCapture, and on streams that join it by
waiting for one of its events. Ended, it is a graph; an instantiated one is found by its executable handle. Everything is
bounded: the oldest go first, and replays of what is gone count as of graphs that nobody saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from otelprof.batch import Frame, FrameKind, mark

NODES_LIMIT = 8192
"""Different nodes (stack and kernel) of one graph; what is beyond keeps its number under a mark."""
ENTRIES_LIMIT = 262_144
"""Nodes of all graphs of a process."""
HANDLES_LIMIT = 4096
"""Graphs, and executable graphs, of a process."""
_EVENTS_LIMIT = 4096
_STREAMS_LIMIT = 256
_WAITING_LIMIT = 1024
_COUNTED_EVERY = 64  # handles that are kept between two counts of the nodes
TOO_LARGE = mark("lost: graph too large")


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Calls of a capture that are alike: the CPU stack, root first, and what runs at each replay.

    `function` is the kernel's handle, by which a name may be found later; `kind` is a CallKind. Nodes are compared by
    identity: each is made once.
    """

    stack: tuple[Frame, ...]
    leaf: Frame
    kind: int
    function: int = 0
    owner: tuple[int, int] = (0, 0)
    """Incarnation number and PID, by which names are asked for."""

    @property
    def is_named(self) -> bool:
        """False while the kernel's name isn't known."""
        return not (self.leaf.kind is FrameKind.CUDA and self.leaf.name.startswith("kernel@"))


@dataclass(slots=True, eq=False)
class Graph:
    """How often each node is in a graph; for copies, how many bytes. `cache` is for who makes rows of it."""

    nodes: dict[Node, int] = field(default_factory=dict)
    surplus: int = 0
    """Launches that found no room."""
    cache: Any = None

    def add(self, node: Node, amount: int, launches: int = 1) -> None:
        """Note `amount` (launches or bytes) of a node."""
        if node in self.nodes or len(self.nodes) < NODES_LIMIT:
            self.nodes[node] = self.nodes.get(node, 0) + amount
        else:
            self.surplus += launches
        self.cache = None

    def include(self, other: Graph) -> None:
        """Note all that another graph has: it is a child of this one."""
        for node, amount in other.nodes.items():
            self.add(node, amount)
        self.surplus += other.surplus

    def copy(self) -> Graph:
        """Another graph of the same nodes."""
        return Graph(dict(self.nodes), self.surplus)


@dataclass(slots=True, eq=False)
class Capture:
    """A capture that goes on: where it goes, on which stream it was begun and must end."""

    stream: int
    graph: Graph


Settled = Callable[[bool, int], None]
"""What to do when a call has ended: whether it worked, and the handle that it gave."""


class ProcessGraphs:
    """The captures and graphs of one process. Streams, events, graphs and executables are the driver's handles."""

    def __init__(self) -> None:
        self.changed = False
        """Something that a journal keeps is different."""
        self._captures: dict[int, Capture] = {}
        self._events: dict[int, Capture] = {}
        self._graphs: dict[int, Graph] = {}
        self._executables: dict[int, Graph] = {}
        self._waiting: dict[int, Settled] = {}
        self._kept = 0

    # --- capture -----------------------------------------------------------------------------------------------

    @property
    def streams(self) -> tuple[int, ...]:
        """The streams that are captured."""
        return tuple(self._captures)

    def begin(self, dispatch: int, stream: int, graph: int = 0) -> None:
        """`cuStreamBeginCapture`; into `graph` when it is given. Undone when the call turns out to have failed."""
        into = self._writable(graph) if graph else Graph()
        capture = Capture(stream, into or Graph())
        _put(self._captures, stream, capture, _STREAMS_LIMIT)
        self._wait(dispatch, lambda worked, _: None if worked else self._drop(capture))

    def end(self, dispatch: int, stream: int) -> None:
        """`cuStreamEndCapture`: what was captured is the graph that the call gives."""
        capture = self._captures.get(stream)
        if capture is None or capture.stream != stream:
            return
        self._drop(capture)
        self._wait(dispatch, lambda worked, graph: self._keep_graph(graph, capture.graph) if worked else None)

    def record(self, event: int, stream: int) -> None:
        """`cuEventRecord`: who waits for the event joins the stream's capture."""
        capture = self._captures.get(stream)
        if capture is None:
            self._events.pop(event, None)
        else:
            _put(self._events, event, capture, _EVENTS_LIMIT)

    def wait(self, stream: int, event: int) -> None:
        """`cuStreamWaitEvent`."""
        capture = self._events.get(event)
        if capture is not None and stream not in self._captures:
            _put(self._captures, stream, capture, _STREAMS_LIMIT)

    def capturing(self, stream: int) -> Graph | None:
        """Where launches on a stream go while it is captured."""
        capture = self._captures.get(stream)
        return capture.graph if capture else None

    def _drop(self, capture: Capture) -> None:
        self._captures = {stream: found for stream, found in self._captures.items() if found is not capture}
        self._events = {event: found for event, found in self._events.items() if found is not capture}

    # --- graphs ------------------------------------------------------------------------------------------------

    def create(self, dispatch: int) -> None:
        """`cuGraphCreate`: an empty graph, to which nodes may be added."""
        self._wait(dispatch, lambda worked, graph: self._keep_graph(graph, Graph()) if worked else None)

    def clone(self, dispatch: int, graph: int) -> None:
        """`cuGraphClone`."""
        content = self._graphs.get(graph)
        self._wait(dispatch, lambda worked, clone: self._keep_graph(clone, content) if worked else None)

    def add_node(self, graph: int, node: Node) -> None:
        """`cuGraphAddKernelNode`; for a graph whose beginning was seen."""
        content = self._writable(graph)
        if content is not None:
            content.add(node, 1)

    def add_child(self, graph: int, child: int) -> None:
        """`cuGraphAddChildGraphNode`."""
        content, included = self._writable(graph), self._graphs.get(child)
        if content is not None and included is not None:
            content.include(included)

    def destroy(self, graph: int) -> None:
        """`cuGraphDestroy`: the handle may come to mean another graph."""
        self.changed |= self._graphs.pop(graph, None) is not None

    def _writable(self, graph: int) -> Graph | None:
        """The graph's content, for change: executables that were made of it keep what they had."""
        content = self._graphs.get(graph)
        if content is not None:
            content = self._graphs[graph] = content.copy()
            self.changed = True
        return content

    # --- executables -------------------------------------------------------------------------------------------

    def instantiate(self, dispatch: int, graph: int) -> None:
        """`cuGraphInstantiate`."""
        content = self._graphs.get(graph)
        self._wait(dispatch, lambda worked, made: self._keep_executable(made, content) if worked else None)

    def update(self, dispatch: int, executable: int, graph: int) -> None:
        """`cuGraphExecUpdate`; undone when the call turns out to have failed."""
        before = self._executables.get(executable)
        self._keep_executable(executable, self._graphs.get(graph))
        self._wait(dispatch, lambda worked, _: None if worked else self._keep_executable(executable, before))

    def destroy_executable(self, executable: int) -> None:
        """`cuGraphExecDestroy`."""
        self.changed |= self._executables.pop(executable, None) is not None

    def executable(self, handle: int) -> Graph | None:
        """What a replay of this handle runs; None when that wasn't seen."""
        return self._executables.get(handle)

    # --- what calls gave ---------------------------------------------------------------------------------------

    def returned(self, dispatch: int, worked: bool, value: int) -> bool:
        """A call has ended; False when the call itself hasn't been told of (yet)."""
        settle = self._waiting.pop(dispatch, None)
        if settle is not None:
            settle(worked, value)
        return settle is not None

    def _wait(self, dispatch: int, settle: Settled) -> None:
        _put(self._waiting, dispatch, settle, _WAITING_LIMIT)

    # --- keeping -----------------------------------------------------------------------------------------------

    @property
    def known(self) -> tuple[dict[int, Graph], dict[int, Graph]]:
        """Graphs and executables by handle."""
        return self._graphs, self._executables

    def restore(self, graphs: Iterable[tuple[int, Graph]], executables: Iterable[tuple[int, Graph]]) -> None:
        """Take what a journal kept."""
        for handle, graph in graphs:
            self._keep_graph(handle, graph)
        for handle, graph in executables:
            self._keep_executable(handle, graph)
        self.changed = False

    def _keep_graph(self, handle: int, graph: Graph | None) -> None:
        self._keep(self._graphs, handle, graph)

    def _keep_executable(self, handle: int, graph: Graph | None) -> None:
        self._keep(self._executables, handle, graph)

    def _keep(self, table: dict[int, Graph], handle: int, graph: Graph | None) -> None:
        """A handle means `graph` now; None: something that wasn't seen, so what it meant is forgotten."""
        self.changed |= table.pop(handle, None) is not None or graph is not None
        if graph is None or not handle:
            return
        _put(table, handle, graph, HANDLES_LIMIT)
        self._kept += 1
        while self._kept % _COUNTED_EVERY == 0 and sum(map(len, _contents(self._graphs, self._executables))) > ENTRIES_LIMIT:
            oldest = self._graphs or self._executables
            del oldest[next(iter(oldest))]


def _contents(*tables: dict[int, Graph]) -> Iterator[dict[Node, int]]:
    """The nodes of each different graph once."""
    seen = {id(graph): graph for table in tables for graph in table.values()}
    return (graph.nodes for graph in seen.values())


def _put(table: dict[int, Any], key: int, value: Any, limit: int) -> None:
    """Put as the newest; the oldest goes when there are too many."""
    table.pop(key, None)
    table[key] = value
    if len(table) > limit:
        del table[next(iter(table))]
