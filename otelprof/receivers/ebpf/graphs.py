"""CUDA graphs: puts the launches of a capture under each replay, at the stacks where they were captured.

The kernel only reports calls; what belongs together is found here, in the order of time. Python looks at the rare calls
(captures, instantiations) one by one; launches and replays between two of those are taken together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from otelprof.batch import SAMPLES, CallKind, Frame, FrameKind, ProfileType, Table, mark
from otelprof.ebpf.layout import wire
from otelprof.otlp import semconv
from otelprof.receivers.ebpf.graph_content import TOO_LARGE, Graph, Node, ProcessGraphs
from otelprof.receivers.ebpf.rows import Rows
from otelprof.symbols.cuda import KernelNames

REPLAY = mark("graph replay")
"""The leaf of a replay's own stack, when its kernels are known."""
EVENTS_A_TURN = 20_000
"""Captures, instantiations and the like of one process that are followed in one reading of the rings."""
_ROWS_LIMIT = 200_000
_NODES_INTERNED = 65_536
_OWN_STREAM = np.uint64(1 << 63)  # a thread's own default stream, by its id
_CONTROLS = (
    "CUDA_BEGIN_CAPTURE", "CUDA_BEGIN_CAPTURE_TO_GRAPH", "CUDA_END_CAPTURE", "CUDA_GRAPH_CREATE", "CUDA_GRAPH_INSTANTIATE",
    "CUDA_GRAPH_CLONE", "CUDA_GRAPH_EXEC_UPDATE", "CUDA_GRAPH_EXEC_DESTROY", "CUDA_GRAPH_DESTROY", "CUDA_GRAPH_ADD_KERNEL",
    "CUDA_GRAPH_ADD_CHILD", "CUDA_EVENT_RECORD", "CUDA_STREAM_WAIT_EVENT",
)  # fmt: skip

Ids = npt.NDArray[np.uint32]


@dataclass(slots=True)
class _Followed:
    """A process: its graphs, and nodes that were made lately by what they are made of."""

    graphs: ProcessGraphs = field(default_factory=ProcessGraphs)
    nodes: dict[tuple[int, int, int, int, str], Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A graph's nodes as columns, in one interner: stack ids with the leaf, amounts, and which are copies."""

    generation: int
    stacks: Ids
    amounts: npt.NDArray[np.int64]
    copies: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where replays happened: ids of one interner; `stack` is 0 where kernels hang under the stacks of the capture."""

    graph: Graph
    resource: int
    thread: int
    link: int
    stack: int


def stream_keys(calls: Table) -> npt.NDArray[np.uint64]:
    """Streams by handle; a default stream that can be captured is the calling thread's own (0 and 2 with `_ptsz`)."""
    stream = calls["stream"]
    own = (stream == 0) | (stream == 2)  # CU_STREAM_PER_THREAD, cuda.h
    return np.where(own, calls["origin"]["tid"].astype(np.uint64) | _OWN_STREAM, stream)


def process_keys(records: Table, key_of: Callable[[int, int], int]) -> npt.NDArray[np.int64]:
    """`key_of` the incarnation and PID of each record; asked once for each different pair."""
    pairs = records["process"].astype(np.uint64) << np.uint64(32) | records["pid"]
    found, inverse = np.unique(pairs, return_inverse=True)
    keys = np.array([key_of(pair >> 32, pair & 0xFFFFFFFF) for pair in found.tolist()], np.int64)
    return keys[inverse.ravel()]


class Graphs:
    """The graphs of all processes.

    `key_of` gives one number for a process from a record's incarnation and PID, `under_replay` says that kernels hang under
    the replay's own stack instead of the capture's.
    """

    def __init__(
        self, rows: Rows, names: KernelNames, key_of: Callable[[int, int], int], kinds: npt.NDArray[np.uint8],
        entries: dict[int, str], under_replay: bool = False,
    ) -> None:  # fmt: skip
        self._rows, self._names, self._key_of = rows, names, key_of
        self._kinds, self._entries, self._under_replay = kinds, entries, under_replay
        self._controls = np.zeros(len(kinds), bool)
        self._controls[[wire()[name] for name in _CONTROLS]] = True
        self._numbers = {wire()[name]: name for name in _CONTROLS}
        self._processes: dict[int, _Followed] = {}
        self._early: list[Table] = []
        self._replays: dict[_Place, list[int]] = {}
        self._known: list[npt.NDArray[np.uint64]] = []
        self._captured: list[npt.NDArray[np.uint64]] = []
        self.overflows = 0
        """Turns in which a process captured more than is followed."""

    # --- processes ---------------------------------------------------------------------------------------------

    def of(self, process: int) -> ProcessGraphs:
        """The graphs of a process, by its key; made if there are none."""
        return self._processes.setdefault(process, _Followed()).graphs

    def all(self) -> dict[int, ProcessGraphs]:
        """The graphs of every process, by its key."""
        return {process: followed.graphs for process, followed in self._processes.items()}

    def leave(self, process: int) -> None:
        """It has ended."""
        self._processes.pop(process, None)

    # --- records -----------------------------------------------------------------------------------------------

    def take(self, calls: Table, returns: Table) -> None:
        """Note what a reading of the rings brought: `struct cuda_call` and `struct cuda_return`, all of them."""
        returns = np.concatenate([*self._early, returns[self._controls[returns["entry"]]]])
        self._early = []
        kinds = self._kinds[calls["entry"]]
        wanted = self._controls[calls["entry"]] | (kinds == CallKind.GRAPH)
        if self._capturing():
            wanted |= kinds != 0
        elif wanted.any():  # launches matter only where a capture begins now
            begun = np.unique(calls["origin"]["pid"][self._controls[calls["entry"]]])
            wanted |= (kinds != 0) & np.isin(calls["origin"]["pid"], begun)
        calls = calls[wanted]
        self._split(calls[np.argsort(calls["origin"]["time"], kind="stable")], returns)

    def _capturing(self) -> bool:
        return any(followed.graphs.streams for followed in self._processes.values())

    def _split(self, calls: Table, returns: Table) -> None:
        """Process by process."""
        ours, theirs = process_keys(calls["origin"], self._key_of), process_keys(returns, self._key_of)
        for process in np.union1d(ours, theirs).tolist():
            self._follow(process, calls[ours == process], returns[theirs == process])

    def _follow(self, process: int, calls: Table, returns: Table) -> None:
        followed = self._processes.setdefault(process, _Followed())
        control = self._controls[calls["entry"]]
        events = [(int(call["origin"]["time"]), call) for call in calls[control]]
        events += [(int(end["time"]), end) for end in returns]
        if len(events) > EVENTS_A_TURN:
            self.overflows += 1
            self._processes[process] = _Followed()
            return
        launches = calls[~control]
        cuts = np.searchsorted(launches["origin"]["time"], [time for time, _ in sorted(events, key=_moment)])
        done = 0
        for (_, event), cut in zip(sorted(events, key=_moment), cuts.tolist(), strict=True):
            self._between(followed, launches[done:cut])
            done = cut
            self._apply(followed, event)
        self._between(followed, launches[done:])

    def _apply(self, followed: _Followed, event: np.void) -> None:
        if "value" not in (event.dtype.names or ()):
            self._call(followed, event)
        elif not followed.graphs.returned(int(event["dispatch"]), int(event["result"]) == 0, int(event["value"])):
            self._hold(event)

    def _hold(self, end: np.void) -> None:
        """The call that it ends may come with the next reading; not later."""
        if not end["pad"] and len(self._early) < EVENTS_A_TURN:
            again = np.array([end])
            again["pad"] = 1
            self._early.append(again)

    def _call(self, followed: _Followed, call: np.void) -> None:
        graphs, name = followed.graphs, self._numbers[int(call["entry"])]
        dispatch, function, other = int(call["dispatch"]), int(call["function"]), int(call["object"])
        stream = int(stream_keys(np.array([call]))[0])
        if name == "CUDA_GRAPH_ADD_KERNEL":
            for node, _ in self._nodes(followed, np.array([call])):
                graphs.add_node(other, node)
            return
        actions: dict[str, Callable[[], None]] = {
            "CUDA_BEGIN_CAPTURE": lambda: graphs.begin(dispatch, stream),
            "CUDA_BEGIN_CAPTURE_TO_GRAPH": lambda: graphs.begin(dispatch, stream, other),
            "CUDA_END_CAPTURE": lambda: graphs.end(dispatch, stream),
            "CUDA_GRAPH_CREATE": lambda: graphs.create(dispatch),
            "CUDA_GRAPH_INSTANTIATE": lambda: graphs.instantiate(dispatch, other),
            "CUDA_GRAPH_CLONE": lambda: graphs.clone(dispatch, other),
            "CUDA_GRAPH_EXEC_UPDATE": lambda: graphs.update(dispatch, function, other),
            "CUDA_GRAPH_EXEC_DESTROY": lambda: graphs.destroy_executable(function),
            "CUDA_GRAPH_DESTROY": lambda: graphs.destroy(function),
            "CUDA_GRAPH_ADD_CHILD": lambda: graphs.add_child(other, function),
            "CUDA_EVENT_RECORD": lambda: graphs.record(other, stream),
            "CUDA_STREAM_WAIT_EVENT": lambda: graphs.wait(stream, other),
        }
        actions[name]()

    # --- launches between ---------------------------------------------------------------------------------------

    def _between(self, followed: _Followed, launches: Table) -> None:
        """Launches and replays, oldest first, while nothing else happened."""
        if not len(launches):
            return
        streams = followed.graphs.streams
        captured = np.isin(stream_keys(launches), np.array(streams, np.uint64)) if streams else np.zeros(len(launches), bool)
        if captured.any():
            self._capture(followed, launches[captured])
        replays = launches[~captured & (self._kinds[launches["entry"]] == CallKind.GRAPH)]
        for handle in np.unique(replays["function"]).tolist():
            graph = followed.graphs.executable(handle)
            if graph is not None:
                self._replay(graph, replays[replays["function"] == handle])

    def _capture(self, followed: _Followed, launches: Table) -> None:
        keys, kinds = stream_keys(launches), self._kinds[launches["entry"]]
        self._captured.append(launches["dispatch"].copy())
        for stream in np.unique(keys).tolist():
            graph = followed.graphs.capturing(stream)
            here = keys == stream
            children = launches[here & (kinds == CallKind.GRAPH)]
            for handle in children["function"].tolist():
                child = followed.graphs.executable(handle)
                if graph is not None and child is not None:
                    graph.include(child)
            self._known.append(children["dispatch"].copy())
            for node, amount in self._nodes(followed, launches[here & np.isin(kinds, (CallKind.KERNEL, CallKind.MEMCPY))]):
                if graph is not None:
                    graph.add(node, amount, amount if node.kind == CallKind.KERNEL else 0)

    def _nodes(self, followed: _Followed, calls: Table) -> list[tuple[Node, int]]:
        """Calls that are alike as one node, and how many they are, or how many bytes they copy."""
        if not len(calls):
            return []
        kinds = self._kinds[calls["entry"]]
        keys = np.zeros(len(calls), [("stack", "u4"), ("entry", "u2"), ("function", "u8")])
        keys["stack"], keys["entry"] = self._rows.launches(calls)["stack"], calls["entry"]
        keys["function"] = np.where(kinds == CallKind.MEMCPY, 0, calls["function"])
        found, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        amounts = np.bincount(inverse.ravel(), np.where(kinds == CallKind.MEMCPY, calls["bytes"], 1)).astype(np.int64)
        return [
            (self._node(followed, key, calls[at]["origin"]), amount)
            for key, at, amount in zip(found, first, amounts.tolist(), strict=True)
        ]

    def _node(self, followed: _Followed, key: np.void, origin: np.void) -> Node:
        stack, entry, function = int(key["stack"]), int(key["entry"]), int(key["function"])
        is_copy = self._kinds[entry] == CallKind.MEMCPY
        kind = CallKind.MEMCPY if is_copy else CallKind.KERNEL
        leaf = Frame(self._entries[entry], FrameKind.CUDA) if is_copy else self._names.frame(
            int(origin["process"]), int(origin["pid"]), function
        )  # fmt: skip
        known = (self._rows.interner.generation, stack, entry, function, leaf.name)
        if known not in followed.nodes:
            if len(followed.nodes) >= _NODES_INTERNED:
                followed.nodes.clear()
            owner = (int(origin["process"]), int(origin["pid"]))
            followed.nodes[known] = Node(self._rows.interner.frames_of(stack), leaf, kind, function, owner)
        return followed.nodes[known]

    # --- replays -----------------------------------------------------------------------------------------------

    def _replay(self, graph: Graph, calls: Table) -> None:
        self._known.append(calls["dispatch"].copy())
        rows = self._rows.launches(calls)
        places = np.zeros(len(rows), [(name, "u4") for name in ("resource", "thread", "link", "stack")])
        for name in ("resource", "thread", "link", *(("stack",) if self._under_replay else ())):
            places[name] = rows[name]
        found, inverse = np.unique(places, return_inverse=True)
        for number, times in enumerate(np.bincount(inverse.ravel()).tolist()):
            place = _Place(graph, *found[number].tolist())
            counted = self._replays.setdefault(place, [0, 0])
            counted[0] += times
            counted[1] = int(rows["time"][-1])

    def is_replay(self, dispatches: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which calls replay graphs whose kernels are known."""
        return np.isin(dispatches, np.concatenate([np.zeros(0, np.uint64), *self._known]))

    def is_captured(self, dispatches: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which calls put work into a graph instead of having it done."""
        return np.isin(dispatches, np.concatenate([np.zeros(0, np.uint64), *self._captured]))

    def samples(self) -> Table:
        """SAMPLES rows of the kernels and copies of all replays since the last time, and forget those."""
        replays, self._replays = self._replays, {}
        self._known, self._captured = [], []
        if sum(len(place.graph.nodes) for place in replays) > _ROWS_LIMIT:
            replays = _without_places(replays)
        tables = [self._expanded(place, times, last) for place, (times, last) in replays.items()]
        return np.concatenate([np.zeros(0, SAMPLES), *tables])

    def _expanded(self, place: _Place, times: int, last: int) -> Table:
        columns = self._columns(place.graph)
        table = np.zeros(len(columns.stacks), SAMPLES)
        table["time"], table["value"] = last, columns.amounts * times
        table["stack"] = columns.stacks if not place.stack else self._under(place, columns)
        table["resource"], table["thread"], table["link"] = place.resource, place.thread, place.link
        table["type"] = np.where(columns.copies, self._type(semconv.GPU_MEMCPY), self._type(semconv.GPU_GRAPH_KERNELS))
        return table

    def _type(self, kind: ProfileType) -> int:
        return self._rows.interner.types.id(kind)

    def _columns(self, graph: Graph) -> _Rows:
        interner = self._rows.interner
        cached: _Rows | None = graph.cache
        if cached is not None and cached.generation == interner.generation:
            return cached
        made = [(interner.stack((*node.stack, self._leaf(node))), amount, node.kind) for node, amount in graph.nodes.items()]
        if graph.surplus:
            made.append((interner.stack((TOO_LARGE,)), graph.surplus, CallKind.KERNEL))
        stacks, amounts, kinds = (np.array(column) for column in zip(*made, strict=True)) if made else (np.zeros(0),) * 3
        rows = _Rows(interner.generation, stacks.astype(np.uint32), amounts.astype(np.int64), kinds == CallKind.MEMCPY)
        graph.cache = rows if all(node.is_named for node in graph.nodes) else None
        return rows

    def _leaf(self, node: Node) -> Frame:
        """The kernel's frame; a name that came after the capture is as good."""
        return node.leaf if node.is_named else self._names.frame(*node.owner, node.function)

    def _under(self, place: _Place, columns: _Rows) -> Ids:
        """The same leaves under the replay's own stack."""
        interner = self._rows.interner
        own = (*interner.stacks[place.stack], interner.frames.id(REPLAY))
        return np.array([interner.stacks.id((*own, interner.stacks[int(stack)][-1])) for stack in columns.stacks], np.uint32)


def _moment(event: tuple[int, np.void]) -> int:
    return event[0]


def _without_places(replays: dict[_Place, list[int]]) -> dict[_Place, list[int]]:
    """Fewer rows: by graph and process only."""
    merged: dict[_Place, list[int]] = {}
    for place, (times, last) in replays.items():
        counted = merged.setdefault(_Place(place.graph, place.resource, 0, 0, 0), [0, 0])
        counted[0], counted[1] = counted[0] + times, max(counted[1], last)
    return merged
