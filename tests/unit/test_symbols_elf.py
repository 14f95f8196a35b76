"""ELF files: symbols where the dynamic linker finds them, and broken files refused without harm."""

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otelprof.errors import MalformedInput
from otelprof.processes.maps import read_maps
from otelprof.symbols.elf import HEADER, SEGMENT, SEGMENT_LOAD, BytesSource, Elf, FileSource, Source
from otelprof.symbols.native import functions_of
from otelprof.targets.python import interpreter_in

MAPS = read_maps(os.getpid())


def mapped(function: object) -> tuple[int, str, int]:
    """(run-time address, file, load bias) of a C function that is loaded here."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    region = MAPS.find(address)
    first = MAPS.files[region.file_key][0]
    elf = Elf(FileSource(os.open(region.path, os.O_RDONLY)))
    return address, region.path, elf.bias(first.start, first.offset)


def opened(path: str) -> Elf:
    return Elf(FileSource(os.open(path, os.O_RDONLY)))


@pytest.mark.parametrize(
    ("library", "name"),
    [
        (None, "getpid"),
        (None, "qsort"),
        (ctypes.pythonapi._name, "PyLong_FromLong"),
        (None, "PyObject_Call"),
        ("libm.so.6", "cosf"),
    ],
)
def test_a_symbol_is_where_the_dynamic_linker_puts_it(library, name):
    address, path, bias = mapped(getattr(ctypes.CDLL(library), name))
    elf = opened(path)
    symbol = elf.find_exported(name)
    if symbol.type == 10:  # STT_GNU_IFUNC: the linker calls it to learn the address
        pytest.skip(f"{name} is chosen at run time here")
    assert bias + symbol.value == address
    assert elf.find(name) == symbol
    assert elf.bias(MAPS.find(address).start, MAPS.find(address).offset) == bias


def test_a_symbol_that_is_not_there_is_not_found():
    elf = opened(mapped(ctypes.pythonapi.PyLong_FromLong)[1])
    for name in ("PyLong_FromLon", "PyLong_FromLongg", "", "printf_of_nobody"):
        assert elf.find(name) is None


def test_all_exported_functions_are_found_by_their_hash():
    elf = opened(mapped(ctypes.CDLL(None).getpid)[1])
    table = elf.symbols(".dynsym")
    rows = table.rows[(table.rows["shndx"] != 0) & ((table.rows["info"] & 15) == 2)][::97]
    names = [elf.symbol_name(table, int(start)).decode() for start in rows["name"]]
    found = [elf.find_exported(name) for name in names]
    assert len(names) > 10
    assert all(found)
    values = {
        name: {int(r["value"]) for r in table.rows if elf.symbol_name(table, int(r["name"])).decode() == name}
        for name in names[:3]
    }
    assert all(one.value in values[one.name] for one in found[:3])


def test_identity_comes_from_the_file():
    elf = opened(mapped(ctypes.CDLL(None).getpid)[1])
    assert elf.soname == "libc.so.6"
    assert len(elf.build_id) == 40
    assert int(elf.build_id, 16)
    assert elf.tls is not None


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x01\x01\x01" + bytes(60), bytes(4096)])
def test_what_is_no_elf_file_is_refused(data):
    with pytest.raises(MalformedInput):
        Elf(BytesSource(data))


def small_library() -> bytes:
    """The smallest extension module here that has symbols."""
    files = {region.path for region in MAPS.regions if region.is_file and ".so" in region.path}
    return min((Path(path).read_bytes() for path in files), key=len)


LIBRARY = small_library()
HEADERS = len(LIBRARY) - 4096  # section headers stand at the end


class Counting:
    """Bytes that say how much was read of them."""

    def __init__(self, data: bytes) -> None:
        self._source = BytesSource(data)
        self.size, self.read_bytes, self.reads = len(data), 0, 0

    def read(self, offset: int, size: int) -> bytes:
        found = self._source.read(offset, size)
        self.reads, self.read_bytes = self.reads + 1, self.read_bytes + len(found)
        return found


def use(source: Source) -> None:
    """Everything that is asked of a file; only MalformedInput may come out."""
    try:
        elf = Elf(source)
    except MalformedInput:
        return
    for ask in (
        lambda: elf.build_id,
        lambda: elf.soname,
        lambda: elf.tls,
        lambda: elf.section_names,
        lambda: elf.find("_PyRuntime"),
        lambda: elf.find_exported("malloc"),
        lambda: elf.bias(0x1000, 0),
        lambda: elf.address_of(4096),
        lambda: elf.read_address(4096, 64),
        lambda: interpreter_in(elf),
        lambda: functions_of(elf).find(np.array([0, 4096, 2**63], np.uint64)),
    ):
        try:
            ask()
        except MalformedInput:
            continue


places = st.integers(0, 511) | st.integers(HEADERS, len(LIBRARY) - 1) | st.integers(0, len(LIBRARY) - 1)
values = st.sampled_from([b"\0", b"\xff", b"\x80", b"\xff" * 8, b"\x7f" + b"\xff" * 3, b"\0" * 8]) | st.binary(
    min_size=1, max_size=8
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(places, values), min_size=1, max_size=12))
def test_a_file_with_any_bytes_changed_does_no_harm(changes):
    data = bytearray(LIBRARY)
    for place, value in changes:
        data[place : place + len(value)] = value
    source = Counting(bytes(data))
    use(source)
    assert source.read_bytes < 200 * len(LIBRARY) + (1 << 24)
    assert source.reads < 500_000


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(length=st.integers(0, len(LIBRARY)))
def test_a_file_cut_anywhere_does_no_harm(length):
    use(BytesSource(LIBRARY[:length]))


def test_a_file_that_shrinks_while_it_is_read_is_malformed(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(LIBRARY)
    elf = opened(str(path))
    assert elf.section_names
    os.truncate(path, 64)
    with pytest.raises(MalformedInput):
        elf.symbols(".dynsym")


def test_endless_chains_in_a_hash_table_end():
    """A chain without an end marker is followed only so far."""
    header = Elf(BytesSource(LIBRARY)).section(".gnu.hash")
    start, size = int(header["offset"]), int(header["size"])
    buckets = int.from_bytes(LIBRARY[start : start + 4], "little")
    bloom = int.from_bytes(LIBRARY[start + 8 : start + 12], "little")
    chains = start + 16 + 8 * bloom + 4 * buckets
    words = np.frombuffer(LIBRARY[chains : start + size], "<u4") & ~np.uint32(1)
    source = Counting(
        LIBRARY[: start + 16]
        + b"\xff" * (8 * bloom)
        + LIBRARY[start + 16 + 8 * bloom : chains]
        + words.tobytes()
        + LIBRARY[start + size :]
    )
    assert Elf(source).find_exported("no such symbol") is None
    assert source.reads < 100_000


def test_a_page_that_two_segments_share_is_mapped_as_the_second():
    """lld puts segments side by side in the file: code from 0x1268 on begins in the page in which the constants end."""
    loads = np.zeros(2, SEGMENT)
    loads["type"], loads["offset"], loads["vaddr"] = SEGMENT_LOAD, [0, 0x1268], [0, 0x2268]
    loads["filesz"] = loads["memsz"] = [0x1268, 0x500]
    head = np.zeros(1, HEADER)
    head["phoff"], head["phnum"] = head.dtype.itemsize, 2
    data = bytearray(head.tobytes() + loads.tobytes())
    data[:7] = b"\x7fELF\x02\x01\x01"
    elf = Elf(BytesSource(bytes(data)))

    assert elf.bias(0x7000_0000, 0x1000) == 0x7000_0000 - 0x2000
    assert elf.bias(0x7000_0000, 0) == 0x7000_0000
    assert elf.bias(0x7000_0000, 0x5000) is None
