"""The CUDA probes on a driver of our own: exact counts, arguments, names, durations, losses."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from otelprof.ebpf.layout import wire
from otelprof.ebpf.session import Session, SessionSettings
from tests.kernel.conftest import Collected, file_offset, interpreters, python_target

pytestmark = [pytest.mark.kernel]
HERE = Path(__file__).parent
ENTRIES = {
    "cuLaunchKernel": "CUDA_LAUNCH_KERNEL",
    "cuLaunchKernelEx": "CUDA_LAUNCH_KERNEL_EX",
    "cuLaunchCooperativeKernel": "CUDA_LAUNCH_COOPERATIVE",
    "cuGraphLaunch": "CUDA_GRAPH_LAUNCH",
    "cuMemcpyAsync": "CUDA_MEMCPY_ASYNC",
    "cuMemcpyHtoDAsync_v2": "CUDA_MEMCPY_HTOD_ASYNC",
    "cuStreamSynchronize": "CUDA_STREAM_SYNCHRONIZE",
    "cuCtxSynchronize": "CUDA_CONTEXT_SYNCHRONIZE",
    "cuModuleGetFunction": "CUDA_MODULE_GET_FUNCTION",
    "cuLibraryGetKernel": "CUDA_LIBRARY_GET_KERNEL",
    "cuKernelGetFunction": "CUDA_KERNEL_GET_FUNCTION",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The driver and the program that calls it."""
    folder = tmp_path_factory.mktemp("driver")
    library, program = folder / "libdriver.so", folder / "caller"
    flags = ["-O1", "-fcf-protection=none", "-Wall", "-Wno-unused-parameter"]
    subprocess.run(["cc", *flags, "-shared", "-fPIC", "-o", library, HERE / "driver.c"], check=True)
    subprocess.run(["cc", *flags, "-pthread", "-o", program, HERE / "caller.c", library, f"-Wl,-rpath,{folder}"], check=True)
    return library, program


def entry_offsets(library):
    """(file offset, enum cuda_entry) of each entry point: the linker puts code at the same place in file and memory here."""
    headers = subprocess.run(["readelf", "-lW", library], capture_output=True, text=True, check=True).stdout
    code = next(line.split() for line in headers.splitlines() if " R E " in line)
    shift = int(code[1], 16) - int(code[2], 16)
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    found = [line.split() for line in symbols.splitlines()]
    return [(int(address, 16) + shift, wire()[ENTRIES[name]]) for address, _, name in found if name in ENTRIES]


@pytest.fixture
def probed(session, built):
    """A session that watches the driver in every process that is a target."""
    session.attach_cuda(str(built[0]), entry_offsets(built[0]))
    return session


def a_target(session, run, built, process=5, flags=0):
    """The calling program as a target without Python."""
    running = run(str(built[1]))
    running.line()
    session.set_target(running.pid, wire().record("target", {"process": process, "flags": flags}))
    return running


def told(running, command):
    """The program's answer to a command."""
    running.say(command)
    return running.line()


def test_each_entry_point_reports_its_arguments(probed, run, built):
    running = a_target(probed, run, built)
    told(running, "each")
    calls = Collected(probed).more().calls
    fields = ["entry", "function", "grid", "block", "shared_bytes", "stream", "bytes"]
    rows = [tuple(call[name].tolist() for name in fields) for call in calls]

    assert rows == [
        (wire()["CUDA_LAUNCH_KERNEL"], 0x10, [1, 2, 3], [4, 5, 6], 7, 8, 0),
        (wire()["CUDA_LAUNCH_KERNEL_EX"], 0x20, [11, 12, 13], [14, 15, 16], 17, 18, 0),
        (wire()["CUDA_LAUNCH_COOPERATIVE"], 0x30, [21, 22, 23], [24, 25, 26], 27, 28, 0),
        (wire()["CUDA_GRAPH_LAUNCH"], 0x40, [0, 0, 0], [0, 0, 0], 0, 41, 0),
        (wire()["CUDA_MEMCPY_ASYNC"], 0, [0, 0, 0], [0, 0, 0], 0, 52, 51),
        (wire()["CUDA_MEMCPY_HTOD_ASYNC"], 0, [0, 0, 0], [0, 0, 0], 0, 62, 61),
        (wire()["CUDA_CONTEXT_SYNCHRONIZE"], 0, [0, 0, 0], [0, 0, 0], 0, 0, 0),
    ]
    assert set(calls["origin"]["process"]) == {5}
    assert {file_offset(running.pid, int(caller))[0] for caller in calls["caller"]} == {str(built[1])}


def test_every_launch_of_every_thread_and_child_is_counted_once(probed, run, built):
    running = a_target(probed, run, built, flags=wire()["TARGET_FOLLOW"])
    told(running, "threads 4 500")
    told(running, "children 3 400")
    collected = Collected(probed).more()
    calls = collected.calls
    processes, times = np.unique(calls["origin"]["process"], return_counts=True)

    assert len(calls) == 4 * 500 + 3 * 400 == collected.last.counts["COUNT_LAUNCHES_SEEN"]
    assert dict(zip(processes.tolist(), times.tolist(), strict=True)).pop(5) == 2000
    assert sorted(times.tolist()) == [400, 400, 400, 2000]
    assert all(process & wire()["INCARNATION_FORKED"] for process in processes if process != 5)
    assert len(np.unique(calls["dispatch"])) == len(calls)
    assert len(np.unique(calls["dispatch"] >> np.uint64(48))) == 1


def test_children_that_are_not_followed_make_no_records(probed, run, built):
    running = a_target(probed, run, built)
    told(running, "children 2 100")
    told(running, "threads 1 10")

    assert len(Collected(probed).more().calls) == 10


def test_unknown_processes_are_reported_where_the_whole_node_is_watched(run, built):
    session = Session.open(SessionSettings(node=True))
    try:
        session.attach_cuda(str(built[0]), entry_offsets(built[0]))
        running = run(str(built[1]))
        running.line()
        told(running, "threads 2 10")
        origins = Collected(session).more().of("calls", running.pid)["origin"]

        assert len(origins) == 20
        assert set(origins["process"]) == {0}
    finally:
        session.close()


def test_a_full_ring_is_counted_by_process_and_entry(run, built):
    """Seen + lost = truth, for launches and copies apart."""
    session = Session.open(SessionSettings(node=False, calls=4096))
    try:
        session.attach_cuda(str(built[0]), entry_offsets(built[0]))
        running = a_target(session, run, built, process=6)
        told(running, "copies 300")
        told(running, "threads 2 500")
        collected = Collected(session).more()
        lost = {int(row["entry"]): int(row["count"]) for row in collected.last.losses}
        entries, times = np.unique(collected.calls["entry"], return_counts=True)
        seen = dict(zip(entries.tolist(), times.tolist(), strict=True))

        for entry, truth in ((wire()["CUDA_MEMCPY_ASYNC"], 300), (wire()["CUDA_LAUNCH_KERNEL"], 1000)):
            assert seen.get(entry, 0) + lost[entry] == truth
        assert set(collected.last.losses["process"]) == {6}
        assert set(collected.last.losses["pid"]) == {running.pid}
        assert collected.last.counts["COUNT_LAUNCHES_SEEN"] == 1000
        assert collected.last.counts["COUNT_CALLS_SEEN"] == 300
    finally:
        session.close()


def names_of(collected):
    """(name, handle, source) of the names so far."""
    return [(row["name"].decode(), int(row["handle"]), int(row["source"])) for row in collected.names]


def test_a_name_is_known_at_the_next_call_and_then_at_the_return_site(probed, run, built):
    running = a_target(probed, run, built)
    collected = Collected(probed)
    first = told(running, "lookup gemm")["handle"]
    assert names_of(collected.more()) == []
    told(running, "launch")
    assert names_of(collected.more()) == [("gemm", first, wire()["NAME_AT_NEXT_CALL"])]

    site = file_offset(running.pid, int(collected.calls[0]["caller"]))
    probed.attach_return(*site)
    second = told(running, "lookup softmax")["handle"]
    assert names_of(collected.more())[1:] == [("softmax", second, wire()["NAME_AT_RETURN"])]


def test_a_failed_look_up_names_nothing(probed, run, built):
    """Neither with its return site known nor without it, though a handle of before stands in the place."""
    running = a_target(probed, run, built)
    collected = Collected(probed)
    told(running, "lookup gemm")
    told(running, "launch")
    for _ in range(2):
        assert told(running, "lookup missing_kernel")["result"] == 500
        told(running, "launch")
        assert [name for name, _, _ in names_of(collected.more())] == ["gemm"]
        probed.attach_return(*file_offset(running.pid, int(collected.calls[0]["caller"])))


def test_a_handle_whose_place_is_gone_gets_no_name(probed, run, built):
    running = a_target(probed, run, built)
    told(running, "deep gemm")
    told(running, "launch")

    assert names_of(Collected(probed).more()) == []


def test_a_handle_in_a_place_that_others_use_is_never_certain(probed, run, built):
    """The stack has grown again over the place: whatever is read there is marked, or nothing is said."""
    running = a_target(probed, run, built)
    told(running, "local gemm")
    told(running, "launch")

    assert {source for _, _, source in names_of(Collected(probed).more())} <= {wire()["NAME_AT_NEXT_CALL"]}


def test_kernels_of_libraries_lend_their_names_to_functions(probed, run, built):
    running = a_target(probed, run, built)
    kernel = told(running, "kernel attention")["handle"]
    function = told(running, f"function {kernel}")["handle"]
    told(running, "launch")
    names = Collected(probed).more().names

    assert [(row["name"], row["handle"], row["object"]) for row in names] == [
        (b"attention", kernel, 0),
        (b"", function, kernel),
    ]


def test_long_names_are_cut(probed, run, built):
    running = a_target(probed, run, built)
    told(running, "lookup " + "k" * 3000)
    told(running, "launch")
    (row,) = Collected(probed).more().names

    assert (row["length"], row["name"]) == (wire()["LIMIT_KERNEL_NAME"] - 1, b"k" * 1023)


def test_waits_have_durations_once_their_return_site_is_known(probed, run, built):
    running = a_target(probed, run, built)
    collected = Collected(probed)
    told(running, "wait 1000")
    assert len(collected.more().returns) == 0
    site = probed.attach_return(*file_offset(running.pid, int(collected.calls[0]["caller"])))
    told(running, "wait 2000")
    told(running, "wait 3000")
    calls, returns = collected.more().calls, collected.returns

    assert returns["dispatch"].tolist() == calls["dispatch"][1:].tolist()
    assert returns["begin"].tolist() == calls["origin"]["time"][1:].tolist()
    assert all(returns["time"] - returns["begin"] >= np.array([2_000_000, 3_000_000], np.uint64))
    assert set(returns["result"]) == {0}

    site.close()
    told(running, "wait 10")
    assert len(collected.more().returns) == 2


def test_probes_go_away_when_they_are_closed(session, run, built):
    probes = session.attach_cuda(str(built[0]), entry_offsets(built[0]))
    running = a_target(session, run, built)
    told(running, "threads 1 5")
    probes.close()
    told(running, "threads 1 5")

    assert len(Collected(session).more().calls) == 5


def test_a_file_can_be_named_by_a_descriptor(session, run, built):
    with open(built[0], "rb") as file:
        session.attach_cuda(file.fileno(), entry_offsets(built[0]))
    running = a_target(session, run, built)
    told(running, "threads 1 5")

    assert len(Collected(session).more().calls) == 5


CALLS_FROM_PYTHON = """
import ctypes, json, sys
driver = ctypes.CDLL(sys.argv[1])
handle = ctypes.c_void_p()
def attention(): driver.cuLaunchKernel(ctypes.c_void_p(1), 1, 1, 1, 1, 1, 1, 0, None, None, None)
def forward(): attention()
print(json.dumps([id(attention.__code__), id(forward.__code__)]), flush=True)
for line in sys.stdin:
    for _ in range(int(line)): forward()
    print("[]", flush=True)
"""


@pytest.mark.parametrize("interpreter", interpreters())
def test_a_launch_has_its_python_stack(probed, run, built, interpreter):
    """attention ← forward ← <module>, once for a thousand launches."""
    running = run(interpreter, "-c", CALLS_FROM_PYTHON, str(built[0]))
    codes = running.line()
    probed.set_target(running.pid, python_target(running.pid, 8))
    told(running, "1000")
    collected = Collected(probed).more()
    stacks = {int(stack) for stack in collected.calls["origin"]["python"]}

    assert len(collected.calls) == 1000
    assert len(stacks) == len(collected.chunks) == 1
    assert [address for address, _, _ in collected.stack(stacks.pop())[:2]] == codes
    assert set(collected.calls["origin"]["python_state"]) == {wire()["PYTHON_COMPLETE"]}


def test_stacks_of_launches_survive_the_sampler(probed, run, built):
    """Ticks interrupt the probes' programs: working memory is never shared."""
    running = run(interpreters()[-1], "-c", CALLS_FROM_PYTHON, str(built[0]))
    codes = running.line()
    probed.set_target(running.pid, python_target(running.pid, 8))
    probed.attach_sampler(4000)
    told(running, "20000")
    collected = Collected(probed).more()
    stacks = {int(stack) for stack in collected.calls["origin"]["python"]}

    assert len(collected.calls) == 20000
    assert len(collected.of("samples", running.pid)) > 100
    assert [[address for address, _, _ in collected.stack(stack)[:2]] for stack in stacks] == [codes]
