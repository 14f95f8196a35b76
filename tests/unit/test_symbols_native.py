"""Native names: the symbol that holds an address or the file with an offset, never a guess."""

import ctypes
import mmap
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from otelprof.batch import FrameKind
from otelprof.processes.table import Process, Processes
from otelprof.symbols import native
from otelprof.symbols.demangle import readable
from otelprof.symbols.elf import SYMBOL, SymbolTable
from otelprof.symbols.native import JIT, UNKNOWN, NativeNames


@pytest.fixture(scope="module")
def process() -> Process:
    """This process, as a target."""
    table = Processes()
    table.look(os.getpid())
    found = table.by_pid(os.getpid())
    assert found is not None
    return found


def address_of(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value


def names(process, *addresses, returns=False):
    return NativeNames().names(process, np.array(addresses, np.uint64), returns)


def test_an_address_in_a_function_has_its_name(process):
    start = address_of("PyList_Append")
    first, inside = names(process, start, start + 3)
    assert first.name == inside.name == "PyList_Append"
    assert (first.kind, first.address, first.system_name) == (FrameKind.NATIVE, start, "")
    assert first.mapping.start <= start < first.mapping.limit
    assert first.mapping.build_id == "" or len(first.mapping.build_id) == 40


def test_a_return_address_belongs_to_the_call_before_it(process):
    """A call may be the last instruction of its function: what it returns to is then another one's first."""
    start = address_of("PyList_Append")
    (at,) = names(process, start, returns=True)
    assert at.name != "PyList_Append"
    leaf, caller = names(process, start, start + 1, returns=np.array([False, True]))
    assert leaf.name == caller.name == "PyList_Append"


def test_an_address_outside_of_every_symbol_shows_file_and_offset(process):
    start = address_of("PyList_Append")
    region = process.maps.find(start)
    first = process.maps.files[region.file_key][0]
    (frame,) = names(process, first.start + 0x40)
    assert frame.name in {f"{Path(region.path).name}{offset}" for offset in ("+0x40", "+0x400040")}  # the latter: not PIE


def test_code_without_a_file_is_jit_and_nothing_is_unknown(process):
    area = mmap.mmap(
        -1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    holder = ctypes.c_char.from_buffer(area)
    address = ctypes.addressof(holder)
    process.refresh_maps()
    assert names(process, address, 0x10, 2**63) == [JIT, UNKNOWN, UNKNOWN]
    del holder
    area.close()


def loaded(library: Path) -> int:
    """The address of a function of the library, which is made by need and loaded into this process."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc")
    if not library.exists():
        command = ["cc", "-shared", "-fPIC", "-Wl,--build-id", "-x", "c", "-o", library, "-"]
        subprocess.run(command, input="int otelprof_test_function(int a) { return a * 3; }", text=True, check=True)
    return ctypes.cast(ctypes.CDLL(str(library)).otelprof_test_function, ctypes.c_void_p).value


def test_mappings_that_are_new_are_seen(process, tmp_path):
    assert process.maps
    process.forget(native._Refreshed)
    (frame,) = names(process, loaded(tmp_path / "new.so"))
    assert frame.name == "otelprof_test_function"
    assert frame.mapping.file == str(tmp_path / "new.so")


def test_one_table_serves_all_copies_of_a_file(process, tmp_path):
    first = loaded(tmp_path / "first.so")
    shutil.copy(tmp_path / "first.so", tmp_path / "second.so")
    second = loaded(tmp_path / "second.so")
    process.refresh_maps()
    reader = NativeNames()
    frames = reader.names(process, np.array([first, second], np.uint64))
    assert [frame.name for frame in frames] == ["otelprof_test_function"] * 2
    assert {frame.mapping.file for frame in frames} == {str(tmp_path / "first.so"), str(tmp_path / "second.so")}
    assert len(reader) == 1


def test_a_removed_library_keeps_its_names(process, tmp_path):
    address = loaded(tmp_path / "gone.so")
    (tmp_path / "gone.so").unlink()
    process.refresh_maps()
    assert names(process, address)[0].name == "otelprof_test_function"


def functions(*rows: tuple[int, int]) -> native.Functions:
    """Functions from (address, size), all of them global."""
    table = np.zeros(len(rows), SYMBOL)
    table["value"], table["size"] = zip(*rows, strict=True)
    table["info"], table["shndx"] = 0x12, 1
    return native._functions(SymbolTable(table, 0, 0))


def test_a_symbol_that_does_not_hold_the_address_is_not_taken():
    table = functions((100, 10), (120, 10), (300, 50), (310, 5))
    wanted = np.array([99, 100, 109, 110, 125, 130, 312, 320, 349, 350, 2**64 - 1], np.uint64)
    starts = [int(table.start[row]) if row >= 0 else None for row in table.find(wanted)]
    assert starts == [None, 100, 100, None, 120, None, 310, 300, 300, None, None]


def test_symbols_without_a_size_and_undefined_ones_are_left_out():
    rows = np.zeros(3, SYMBOL)
    rows["value"], rows["size"], rows["info"], rows["shndx"] = [10, 20, 30], [0, 5, 5], 0x12, [1, 0, 1]
    assert native._functions(SymbolTable(rows, 0, 0)).start.tolist() == [30]


@pytest.mark.parametrize(
    ("mangled", "shown"),
    [
        ("_ZN2at6native12_GLOBAL__N_13fooIfEEvRKNS_6TensorE", "at::native::(anonymous namespace)::foo<float>"),
        ("_ZNSt6vectorIiSaIiEE9push_backEOi", "std::vector<int, std::allocator<int>>::push_back"),
        ("_ZNKSt8functionIFvvEEclEv", "std::function<void ()>::operator()"),
        ("_ZlsRSoRK3Foo", "operator<<"),
        ("_ZN3FoocvbEv", "Foo::operator bool"),
        ("_ZN1AptEv", "A::operator->"),
        ("_ZNK3Foo3barEv", "Foo::bar"),
        ("_ZN4tiny6Device6launchEPN6driver9CUfunc_stENS_5ShapeE.isra.0", "tiny::Device::launch"),
        ("_ZTV3Foo", "vtable for Foo"),
        ("_Z", "_Z"),
        ("main", "main"),
        ("i", "i"),
    ],
)
def test_mangled_names_become_readable(mangled, shown):
    pytest.importorskip("pycxxfilt", reason="needs the demangler pycxxfilt")
    assert readable(mangled) == shown
