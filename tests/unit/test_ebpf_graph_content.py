"""What a process has captured: through captures, clones, children, updates and failures, and a journal's way and back."""

import json

import pytest

from otelprof.batch import CallKind, Frame, FrameKind
from otelprof.counters import Counters
from otelprof.receivers.ebpf import graph_content
from otelprof.receivers.ebpf.graph_content import NODES_LIMIT, Graph, Node, ProcessGraphs
from otelprof.receivers.ebpf.journal import decode, encode
from otelprof.symbols.cuda import KernelNames, kernel_frame

STREAM, OTHER, EVENT = 0x70, 0x71, 0x80
GRAPH, EXEC = 0x10, 0x20


def node(name: str) -> Node:
    return Node((Frame("forward", FrameKind.CPYTHON, "m.py", 3, 1),), Frame(name, FrameKind.CUDA), CallKind.KERNEL)


GEMM, SOFTMAX = node("gemm"), node("softmax")


def captured(graphs: ProcessGraphs, *nodes: Node, graph: int = GRAPH) -> None:
    """A capture of `nodes` that became `graph`."""
    graphs.begin(1, STREAM)
    for one in nodes:
        content = graphs.capturing(STREAM)
        assert content is not None
        content.add(one, 1)
    graphs.end(2, STREAM)
    assert graphs.returned(2, True, graph)


def instantiated(graphs: ProcessGraphs, graph: int = GRAPH, executable: int = EXEC) -> None:
    graphs.instantiate(3, graph)
    assert graphs.returned(3, True, executable)


def names(graph: Graph | None) -> dict[str, int]:
    assert graph is not None
    return {one.leaf.name: amount for one, amount in graph.nodes.items()}


def test_an_executable_has_what_was_captured() -> None:
    graphs = ProcessGraphs()
    captured(graphs, GEMM, SOFTMAX, GEMM)
    instantiated(graphs)
    assert names(graphs.executable(EXEC)) == {"gemm": 2, "softmax": 1}
    assert graphs.streams == ()


def test_a_stream_that_waits_for_an_event_of_the_capture_joins_it() -> None:
    graphs = ProcessGraphs()
    graphs.begin(1, STREAM)
    graphs.record(EVENT, STREAM)
    graphs.wait(OTHER, EVENT)
    assert graphs.capturing(OTHER) is graphs.capturing(STREAM) is not None
    graphs.end(2, OTHER)
    assert graphs.streams == (STREAM, OTHER), "only the stream that began can end"
    graphs.end(2, STREAM)
    assert graphs.streams == ()
    graphs.wait(OTHER, EVENT)
    assert graphs.streams == (), "the event belongs to a capture that is over"


def test_an_event_outside_of_captures_draws_nobody_in() -> None:
    graphs = ProcessGraphs()
    graphs.record(EVENT, OTHER)
    graphs.begin(1, STREAM)
    graphs.wait(OTHER, EVENT)
    assert graphs.streams == (STREAM,)


@pytest.mark.parametrize("what", ["begin", "end", "instantiate", "clone"])
def test_what_failed_leaves_nothing(what: str) -> None:
    graphs = ProcessGraphs()
    graphs.begin(1, STREAM)
    graphs.returned(1, what != "begin", 0)
    graphs.end(2, STREAM)
    graphs.returned(2, what != "end", GRAPH)
    graphs.clone(3, GRAPH)
    graphs.returned(3, what != "clone", GRAPH + 1)
    graphs.instantiate(4, GRAPH + 1)
    graphs.returned(4, what != "instantiate", EXEC)
    assert graphs.executable(EXEC) is None


def test_an_update_changes_the_executable_and_is_undone_when_it_failed() -> None:
    graphs = ProcessGraphs()
    captured(graphs, GEMM)
    instantiated(graphs)
    captured(graphs, SOFTMAX, graph=GRAPH + 1)
    graphs.update(5, EXEC, GRAPH + 1)
    assert names(graphs.executable(EXEC)) == {"softmax": 1}
    graphs.returned(5, False, 0)
    assert names(graphs.executable(EXEC)) == {"gemm": 1}


def test_a_handle_that_means_something_new_and_unseen_is_forgotten() -> None:
    """A driver gives addresses again: no replay may hang under an old capture."""
    graphs = ProcessGraphs()
    captured(graphs, GEMM)
    instantiated(graphs)
    instantiated(graphs, graph=0x999)
    assert graphs.executable(EXEC) is None
    instantiated(graphs)
    graphs.destroy_executable(EXEC)
    assert graphs.executable(EXEC) is None
    graphs.destroy(GRAPH)
    instantiated(graphs)
    assert graphs.executable(EXEC) is None


def test_children_and_clones_bring_their_kernels_and_executables_keep_what_they_had() -> None:
    graphs = ProcessGraphs()
    captured(graphs, GEMM, GEMM)
    graphs.create(6)
    graphs.returned(6, True, GRAPH + 1)
    graphs.add_child(GRAPH + 1, GRAPH)
    graphs.add_node(GRAPH + 1, SOFTMAX)
    instantiated(graphs, GRAPH + 1)
    graphs.clone(7, GRAPH + 1)
    graphs.returned(7, True, GRAPH + 2)
    graphs.add_node(GRAPH + 1, SOFTMAX)
    instantiated(graphs, GRAPH + 2, EXEC + 1)
    assert names(graphs.executable(EXEC)) == names(graphs.executable(EXEC + 1)) == {"gemm": 2, "softmax": 1}


def test_a_graph_whose_beginning_was_not_seen_gets_no_nodes() -> None:
    graphs = ProcessGraphs()
    graphs.add_node(GRAPH, GEMM)
    instantiated(graphs)
    assert graphs.executable(EXEC) is None


def test_a_capture_into_a_graph_adds_to_it() -> None:
    graphs = ProcessGraphs()
    captured(graphs, GEMM)
    graphs.begin(4, STREAM, GRAPH)
    content = graphs.capturing(STREAM)
    assert content is not None
    content.add(SOFTMAX, 1)
    graphs.end(5, STREAM)
    graphs.returned(5, True, GRAPH)
    instantiated(graphs)
    assert names(graphs.executable(EXEC)) == {"gemm": 1, "softmax": 1}


def test_a_return_before_its_call_is_told() -> None:
    assert not ProcessGraphs().returned(99, True, GRAPH)


def test_what_a_graph_has_no_room_for_keeps_its_number() -> None:
    graph = Graph()
    for number in range(NODES_LIMIT + 10):
        graph.add(node(f"k{number}"), 1)
    assert (len(graph.nodes), graph.surplus) == (NODES_LIMIT, 10)


def test_the_oldest_go_when_a_process_has_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_content, "HANDLES_LIMIT", 8)
    graphs = ProcessGraphs()
    for number in range(20):
        captured(graphs, GEMM, graph=GRAPH + number)
        instantiated(graphs, GRAPH + number, EXEC + number)
    kept, executables = graphs.known
    assert list(kept) == [GRAPH + number for number in range(12, 20)]
    assert list(executables) == [EXEC + number for number in range(12, 20)]


def test_nodes_of_all_graphs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_content, "ENTRIES_LIMIT", 1000)
    graphs = ProcessGraphs()
    for number in range(256):
        captured(graphs, *(node(f"k{one}") for one in range(100)), graph=GRAPH + number)
    assert len(graphs.known[0]) <= 10


def test_a_journal_brings_back_graphs_and_names() -> None:
    graphs, kernels = ProcessGraphs(), KernelNames(Counters())
    captured(graphs, GEMM, SOFTMAX, GEMM)
    instantiated(graphs)
    kernels.restore(5, [(0x1, kernel_frame(b"gemm"), 0, True), (0x2, None, 0x1, False)])
    document = json.loads(json.dumps(encode(kernels.known(5), graphs)))

    again, others = ProcessGraphs(), KernelNames(Counters())
    decode(document, (9, 77), others, again)
    found = again.executable(EXEC)
    assert names(found) == {"gemm": 2, "softmax": 1}
    assert found is not None
    assert {one.stack for one in found.nodes} == {GEMM.stack}
    assert again.known[0][GRAPH] is found, "shared as before"
    assert [others.frame(9, 77, handle).name for handle in (1, 2)] == ["gemm", "gemm"]
    assert not again.changed
    assert not others.changed
