"""The stand-in's exports: their bytes, their unwind rows, and what cuGetProcAddress says about them."""

import ctypes
import re
import struct
import subprocess
from pathlib import Path

import pytest

from tests.unit.standin_driver import (
    DEINITIALIZED,
    INVALID_VALUE,
    NOT_FOUND,
    SOURCES,
    SUCCESS,
    Driver,
    Entry,
    built,
    entries,
)

OWN_EXPORTS = {"standin_set_kernel_time", "standin_clock_ns", "standin_stream_busy_until", "standin_ledger"}
PT_LOAD = 1


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """A driver that nobody has called yet."""
    return Driver(tmp_path)


def symbols() -> dict[str, tuple[int, int]]:
    """Address and size of each exported function."""
    listing = subprocess.run(["readelf", "-W", "--dyn-syms", built()], capture_output=True, text=True, check=True)
    rows = re.findall(r": ([0-9a-f]+) +(\d+) FUNC +GLOBAL +DEFAULT +\d+ (\w+)", listing.stdout)
    return {name: (int(address, 16), int(size)) for address, size, name in rows}


def code_at(address: int, length: int) -> bytes:
    """Bytes of the file that are loaded at an address (ELF-64 program headers)."""
    data = built().read_bytes()
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for index in range(count):
        kind, _flags, offset, begin, _physical, in_file = struct.unpack_from("<IIQQQQ", data, start + index * size)
        if kind == PT_LOAD and begin <= address < begin + in_file:
            return data[offset + address - begin :][:length]
    raise AssertionError(f"no code at {address:#x}")


def proc_address(driver: Driver, name: str, version: int, flags: int) -> tuple[int | None, int]:
    """Address and status that cuGetProcAddress_v2 gives."""
    address, status = ctypes.c_void_p(), ctypes.c_int(-1)
    driver.ok("cuGetProcAddress_v2", name.encode(), ctypes.byref(address), version, flags, ctypes.byref(status))
    return address.value, status.value


def exported(driver: Driver, entry: Entry) -> int | None:
    """Where an export is loaded."""
    return ctypes.cast(driver.library[entry.exported], ctypes.c_void_p).value


def test_exports_are_the_entry_points_and_the_four_functions_for_tests() -> None:
    assert set(symbols()) == {entry.exported for entry in entries()} | OWN_EXPORTS


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.exported)
def test_every_entry_point_is_a_trampoline_as_nvidia_makes_them(entry: Entry) -> None:
    address, size = symbols()[entry.exported]
    code = code_at(address, 30)
    assert size == 18
    assert code[:2] == b"\x81\x3d"  # cmpl $imm32, disp32(%rip)
    assert code[6:10] == struct.pack("<I", 0x321CBA00)
    assert code[10:12] == b"\x74\x0c"  # je +12
    assert code[12:14] == b"\xff\x25"  # jmp *disp32(%rip)
    assert code[24:30] == b"\xb8\x04\x00\x00\x00\xc3"  # mov $4, %eax; ret


def test_all_trampolines_compare_the_same_word() -> None:
    words = set()
    for entry in entries():
        address, _size = symbols()[entry.exported]
        words.add(address + 10 + struct.unpack("<i", code_at(address, 6)[2:])[0])
    assert len(words) == 1


def test_every_trampoline_has_an_unwind_row() -> None:
    frames = subprocess.run(["readelf", "-W", "--debug-dump=frames", built()], capture_output=True, text=True, check=True)
    rows = [(int(low, 16), int(high, 16)) for low, high in re.findall(r"pc=([0-9a-f]+)\.\.([0-9a-f]+)", frames.stdout)]
    for entry in entries():
        address, _size = symbols()[entry.exported]
        assert any(low <= address and address + 30 <= high for low, high in rows), entry.exported


def test_once_the_driver_is_shut_down_every_call_is_refused(driver: Driver) -> None:
    address = exported(driver, entries()[0])
    assert address is not None
    displacement = ctypes.c_int32.from_address(address + 2).value
    mark = ctypes.c_uint32.from_address(address + 10 + displacement)
    mark.value = 0x321CBA00
    try:
        assert {driver.call(entry.exported, *[0] * 11) for entry in entries()} == {DEINITIALIZED}
    finally:
        mark.value = 0
    assert driver.ledger()["calls"] == {}


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.exported)
def test_get_proc_address_gives_the_exported_address(driver: Driver, entry: Entry) -> None:
    flags = 2 if "PTDS" in entry.flags else 1
    assert proc_address(driver, entry.base, entry.since, flags) == (exported(driver, entry), 0)


def test_get_proc_address_gives_the_per_thread_variant_only_when_asked(driver: Driver) -> None:
    names = {entry.exported: exported(driver, entry) for entry in entries()}
    assert proc_address(driver, "cuLaunchKernel", 12000, 0)[0] == names["cuLaunchKernel"]
    assert proc_address(driver, "cuLaunchKernel", 12000, 2)[0] == names["cuLaunchKernel_ptsz"]
    assert proc_address(driver, "cuMemcpyHtoD", 12000, 2)[0] == names["cuMemcpyHtoD_v2_ptds"]
    assert proc_address(driver, "cuInit", 12000, 2)[0] == names["cuInit"]


def test_get_proc_address_chooses_the_variant_by_version(driver: Driver) -> None:
    names = {entry.exported: exported(driver, entry) for entry in entries()}
    assert proc_address(driver, "cuEventElapsedTime", 12000, 0)[0] == names["cuEventElapsedTime"]
    assert proc_address(driver, "cuEventElapsedTime", 12080, 0)[0] == names["cuEventElapsedTime_v2"]
    assert proc_address(driver, "cuLaunchKernel", 4000, 2)[0] == names["cuLaunchKernel"]
    assert proc_address(driver, "cuLaunchKernelEx", 11050, 0) == (None, 2)


def test_get_proc_address_refuses_what_it_does_not_know(driver: Driver) -> None:
    address = ctypes.c_void_p()
    assert proc_address(driver, "cuNoSuchThing", 12000, 0) == (None, 1)
    assert proc_address(driver, "cuMemAlloc_v2", 12000, 0) == (None, 1)
    assert driver.call("cuGetProcAddress", b"cuNoSuchThing", ctypes.byref(address), 12000, 0) == NOT_FOUND
    assert driver.call("cuGetProcAddress", b"cuInit", ctypes.byref(address), 12000, 0) == SUCCESS
    assert driver.call("cuGetProcAddress_v2", b"cuInit", ctypes.byref(address), 99000, 0, 0) == INVALID_VALUE
    assert driver.call("cuGetProcAddress_v2", b"cuInit", ctypes.byref(address), 12000, 3, 0) == INVALID_VALUE


def test_the_cmake_file_lists_every_source() -> None:
    listed = set(re.findall(r"\b\w+\.[cS]\b", (SOURCES / "CMakeLists.txt").read_text()))
    assert listed == {path.name for path in SOURCES.glob("*.[cS]")}


def test_the_readme_names_every_setting_and_function() -> None:
    used = {name for path in SOURCES.glob("*.c") for name in re.findall(r'"(STANDIN_\w+|CUDA_\w+_PATH)"', path.read_text())}
    assert used | OWN_EXPORTS == {
        name
        for name in re.findall(r"\b(STANDIN_[A-Z_]+|CUDA_\w+_PATH|standin_\w+)\b", (SOURCES / "README.md").read_text())
        if name != "build_standin"
    }
