"""The stand-in driver's behaviour: states, hostile arguments, counts, names, memory, injection and failures."""

import ctypes
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.unit.standin_driver import (
    ILLEGAL_STATE,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_IMAGE,
    INVALID_VALUE,
    LAUNCH_FAILED,
    NOT_FOUND,
    NOT_INITIALIZED,
    SUCCESS,
    Driver,
    entries,
    image,
)

ROOT = Path(__file__).resolve().parents[2]
GARBAGE = 0xDEADBEEF000
USABLE_WITH_NULLS = {
    "cuInit", "cuCtxSetCurrent", "cuCtxPopCurrent_v2", "cuCtxSynchronize", "cuCtxSynchronize_v2", "cuMemFree_v2",
    "cuMemFreeAsync", "cuMemcpy", "cuMemcpyAsync", "cuStreamSynchronize", "cuStreamQuery", "cuGetErrorString",
    "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxSetFlags_v2", "cuStreamBeginCapture_v2",
}  # fmt: skip


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """A driver with the first device's context current."""
    return Driver(tmp_path).start()


def test_nothing_but_questions_about_the_driver_works_before_init(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    others = [entry for entry in entries() if entry.exported != "cuInit"]
    early = {entry.exported for entry in others if driver.call(entry.exported, *[0] * 11) != NOT_INITIALIZED}
    assert early == {entry.exported for entry in others if "ANY" in entry.flags}


def test_work_needs_a_current_context(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.ok("cuInit", 0)
    refused = {entry.exported for entry in entries() if driver.call(entry.exported, *[0] * 11) == INVALID_CONTEXT}
    assert {entry.exported for entry in entries() if "CTX" in entry.flags} <= refused


def test_every_entry_point_survives_nulls_and_counts_the_call_once(driver: Driver) -> None:
    for entry in entries():
        before = driver.ledger()["calls"].get(entry.exported, 0)
        context = driver.make("cuDevicePrimaryCtxRetain", 0)
        driver.ok("cuCtxSetCurrent", context)
        before += {"cuDevicePrimaryCtxRetain": 1, "cuCtxSetCurrent": 1}.get(entry.exported, 0)
        result = driver.call(entry.exported, *[0] * 11)
        assert driver.ledger()["calls"][entry.exported] == before + 1, entry.exported
        bare = entry.exported.removesuffix("_ptsz").removesuffix("_ptds")
        if bare not in USABLE_WITH_NULLS:
            assert result in (INVALID_VALUE, INVALID_HANDLE, INVALID_CONTEXT, ILLEGAL_STATE), entry.exported


@pytest.mark.parametrize(
    ("entry", "arguments"),
    [
        ("cuStreamSynchronize", [GARBAGE]),
        ("cuStreamQuery", [GARBAGE]),
        ("cuStreamDestroy_v2", [GARBAGE]),
        ("cuEventRecord", [GARBAGE, 0]),
        ("cuEventSynchronize", [GARBAGE]),
        ("cuModuleUnload", [GARBAGE]),
        ("cuLibraryUnload", [GARBAGE]),
        ("cuGraphLaunch", [GARBAGE, 0]),
        ("cuGraphDestroy", [GARBAGE]),
        ("cuGraphExecDestroy", [GARBAGE]),
        ("cuLaunchKernel", [GARBAGE, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]),
    ],
)
def test_a_handle_that_never_was_is_refused(driver: Driver, entry: str, arguments: list[int]) -> None:
    assert driver.call(entry, *arguments) == INVALID_HANDLE


def test_a_handle_that_has_gone_is_refused(driver: Driver) -> None:
    stream = driver.make("cuStreamCreate", 0)
    module = driver.make("cuModuleLoadData", image("gone"))
    function = driver.make("cuModuleGetFunction", module, b"gone")
    driver.ok("cuStreamDestroy_v2", stream)
    driver.ok("cuModuleUnload", module)
    assert driver.call("cuStreamSynchronize", stream) == INVALID_HANDLE
    assert driver.launch(function) == INVALID_HANDLE
    assert driver.call("cuStreamSynchronize", stream + 8) == INVALID_HANDLE


@pytest.mark.parametrize("shape", [(0, 1, 1, 1, 1, 1), (1, 1, 0, 1, 1, 1), (1, 1, 1, 1025, 1, 1), (1, 1, 1, 2**31, 2**31, 4)])
def test_an_impossible_grid_or_block_is_refused(driver: Driver, shape: tuple[int, ...]) -> None:
    function = driver.kernel("gemm")
    assert driver.call("cuLaunchKernel", function, *shape, 0, 0, 0, 0) == INVALID_VALUE
    assert driver.ledger()["kernels"]["gemm"]["failed"] == 1


def test_launch_ex_reads_the_stream_from_its_configuration(driver: Driver) -> None:
    class Config(ctypes.Structure):
        _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint)] + [
            (name, ctypes.c_void_p) for name in ("stream", "attributes", "count")
        ]

    stream, function = driver.make("cuStreamCreate", 1), driver.kernel("flash", 10**9)
    config = Config((1, 1, 1), (32, 1, 1), 0, stream, None, None)
    driver.ok("cuLaunchKernelEx", ctypes.byref(config), function, 0, 0)
    assert driver.busy_until(stream) > driver.now()
    assert driver.busy_until(0) < driver.now()


def test_counts_are_exact_when_many_threads_launch(driver: Driver) -> None:
    functions = {name: driver.kernel(name) for name in ("gemm", "gelu")}
    context = driver.make("cuDevicePrimaryCtxRetain", 0)

    def work(name: str, times: int) -> None:
        driver.ok("cuCtxSetCurrent", context)
        for _ in range(times):
            driver.launch(functions[name])

    threads = [threading.Thread(target=work, args=(name, 500 + n)) for n, name in enumerate(["gemm", "gelu", "gemm", "gelu"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger = driver.ledger()
    assert ledger["calls"]["cuLaunchKernel"] == 2006
    assert {name: row["launches"] for name, row in ledger["kernels"].items()} == {"gemm": 1002, "gelu": 1004}
    assert ledger["kernels"]["gemm"]["busy_ns"] == 1002 * 1000


def test_each_launch_entry_is_counted_apart(driver: Driver) -> None:
    function = driver.kernel("gemm")
    names = ["cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz"]
    for times, name in enumerate(names, start=1):
        for _ in range(times):
            assert driver.launch(function, entry=name) == SUCCESS
    calls = driver.ledger()["calls"]
    assert [calls[name] for name in names] == [1, 2, 3, 4]


# ---- names and times


def test_the_same_name_gives_the_same_function_and_an_unknown_one_none(driver: Driver) -> None:
    module = driver.make("cuModuleLoadData", image("a", "b"))
    first = driver.make("cuModuleGetFunction", module, b"a")
    out = ctypes.c_uint64()
    assert driver.make("cuModuleGetFunction", module, b"a") == first
    assert driver.make("cuModuleGetFunction", module, b"b") != first
    assert driver.call("cuModuleGetFunction", ctypes.byref(out), module, b"c") == NOT_FOUND


def test_a_librarys_kernel_and_its_function_bear_one_name(driver: Driver) -> None:
    library = driver.make("cuLibraryLoadData", image("conv2d"), 0, 0, 0, 0, 0, 0)
    kernel = driver.make("cuLibraryGetKernel", library, b"conv2d")
    function = driver.make("cuKernelGetFunction", kernel)
    kernel_name, function_name = ctypes.c_char_p(), ctypes.c_char_p()
    driver.ok("cuKernelGetName", ctypes.byref(kernel_name), kernel)
    driver.ok("cuFuncGetName", ctypes.byref(function_name), function)
    assert kernel != function
    assert kernel_name.value == function_name.value == b"conv2d"
    assert driver.launch(kernel) == driver.launch(function) == SUCCESS
    assert driver.ledger()["kernels"]["conv2d"]["launches"] == 2


def test_a_binary_image_has_every_name_and_a_text_without_kernels_is_no_image(driver: Driver) -> None:
    out = ctypes.c_uint64()
    binary = driver.make("cuModuleLoadData", b"\x7fELF\x02\x01\x01\x00")
    assert driver.make("cuModuleGetFunction", binary, b"anything")
    assert driver.call("cuModuleLoadData", ctypes.byref(out), b"no kernels here") == INVALID_IMAGE
    assert driver.call("cuModuleLoadData", ctypes.byref(out), b"") == INVALID_IMAGE


def test_a_set_time_beats_the_environment_which_beats_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_KERNEL_TIMES", "second=200,third=200,*=7")
    driver = Driver(tmp_path).start()
    driver.library.standin_set_kernel_time(b"third", ctypes.c_uint64(300))
    text = b".entry first() // time_ns=100\n.entry second() // time_ns=100\n.entry third() // time_ns=100\n"
    driver.make("cuModuleLoadData", text)
    times = {name: row["time_ns"] for name, row in driver.ledger()["kernels"].items()}
    assert times == {"first": 7, "second": 200, "third": 300}


def test_an_image_sets_its_kernels_times(driver: Driver) -> None:
    driver.make("cuModuleLoadData", b".entry a() // time_ns=123\n.entry b()\n.entry c() // time_ns=9\n")
    assert [row["time_ns"] for row in driver.ledger()["kernels"].values()] == [123, 10000, 9]


def test_the_ledger_is_json_whatever_a_kernel_is_called(driver: Driver) -> None:
    name = b'quote" back\\slash \x01 \xff \xc3\xa9'
    binary = driver.make("cuModuleLoadData", b"\x7fELF")
    driver.launch(driver.make("cuModuleGetFunction", binary, name))
    assert driver.ledger()["kernels"][name.decode("latin-1")]["launches"] == 1


def test_a_short_buffer_for_the_ledger_is_cut_and_not_overrun(driver: Driver) -> None:
    text = ctypes.create_string_buffer(b"x" * 20)
    length = driver.library.standin_ledger(text, ctypes.c_size_t(10))
    assert length > 20
    assert text.raw[9:] == b"\0" + b"x" * 10 + b"\0"


# ---- memory


def test_bytes_go_to_the_device_and_back(driver: Driver) -> None:
    first, second = driver.make("cuMemAlloc_v2", 1000), driver.make("cuMemAlloc_v2", 1000)
    back = ctypes.create_string_buffer(16)
    driver.ok("cuMemsetD8Async", second, ord("."), 16, 0)
    driver.ok("cuMemcpyHtoDAsync_v2", first, b"tensor", 6, 0)
    driver.ok("cuMemcpyDtoDAsync_v2", second, first, 6, 0)
    driver.ok("cuMemcpyDtoH_v2", back, second, 8)
    assert back.value == b"tensor.."
    bytes_moved = driver.ledger()["bytes"]
    assert bytes_moved == {"host_to_device": 6, "device_to_host": 8, "device_to_device": 6, "host_to_host": 0, "set": 16}


def test_a_copy_that_does_not_fit_is_refused(driver: Driver) -> None:
    memory = driver.make("cuMemAlloc_v2", 512)
    data = ctypes.create_string_buffer(2000)
    assert driver.call("cuMemcpyHtoD_v2", memory, data, 513) == INVALID_VALUE
    assert driver.call("cuMemcpyHtoD_v2", memory + 500, data, 13) == INVALID_VALUE
    assert driver.call("cuMemcpyHtoD_v2", memory, data, 2**64 - 1) == INVALID_VALUE
    assert driver.call("cuMemsetD32Async", memory, 0, 2**62, 0) == INVALID_VALUE
    driver.ok("cuMemFree_v2", memory)
    assert driver.call("cuMemcpyHtoD_v2", memory, data, 1) == INVALID_VALUE
    assert driver.call("cuMemFree_v2", memory) == INVALID_VALUE


def test_memory_that_was_freed_is_given_again(driver: Driver) -> None:
    first = driver.make("cuMemAlloc_v2", 4096)
    driver.ok("cuMemFree_v2", first)
    assert driver.make("cuMemAlloc_v2", 4096) == first
    assert driver.make("cuMemAlloc_v2", 4096) != first


# ---- injection library, failures, processes

INJECTION = """
#include <stdio.h>
#include <stdlib.h>
int InitializeInjection(void) {
    FILE *file = fopen(getenv("INJECTION_LOG"), "a");
    fputs("called\\n", file);
    return fclose(file) == 0;
}
"""


def test_init_loads_the_injection_library_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, library, log = tmp_path / "injection.c", tmp_path / "injection.so", tmp_path / "log"
    source.write_text(INJECTION)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("CUDA_INJECTION64_PATH", str(library))
    monkeypatch.setenv("INJECTION_LOG", str(log))
    driver = Driver(tmp_path).start()
    driver.ok("cuInit", 0)
    assert log.read_text() == "called\n"
    assert driver.ledger()["injection"] == "initialized"


def test_an_injection_library_that_is_missing_or_has_no_entry_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", str(tmp_path / "missing.so"))
    assert Driver(tmp_path).start().ledger()["injection"] == "not loaded"
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "libm.so.6")
    assert Driver(tmp_path / "other").start().ledger()["injection"] == "no InitializeInjection"


def test_failures_come_as_often_as_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_FAIL", "cuLaunchKernel:3:719,nonsense,cuMemAlloc_v2:1:2")
    driver = Driver(tmp_path).start()
    function = driver.kernel("gemm")
    assert [driver.launch(function) for _ in range(6)] == [0, 0, LAUNCH_FAILED, 0, 0, LAUNCH_FAILED]
    assert driver.call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 8) == 2
    ledger = driver.ledger()
    assert ledger["refused"] == {"cuLaunchKernel": 2, "cuMemAlloc_v2": 1}
    assert (ledger["kernels"]["gemm"]["launches"], ledger["kernels"]["gemm"]["failed"]) == (6, 2)
    assert ledger["kernels"]["gemm"]["busy_ns"] == 4 * 1000


def test_a_forked_child_goes_on_with_counts_of_its_own(tmp_path: Path) -> None:
    code = """
import json, os, sys
from pathlib import Path
from tests.unit.standin_driver import Driver
driver = Driver(Path(sys.argv[1])).start()
function = driver.kernel("gemm")
driver.launch(function)
child = os.fork()
for _ in range(2 if child else 5):
    driver.launch(function)
if child:
    os.waitpid(child, 0)
print(json.dumps(driver.ledger()["kernels"]["gemm"]["launches"]), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [6, 3]
