"""Memory of another process: exact bytes or none, and never those of a program that came after."""

import ctypes
import os
import subprocess

import pytest

from otelprof.errors import TargetError
from otelprof.processes.identity import read_stat
from otelprof.processes.maps import open_region, read_maps, region_identity
from otelprof.processes.memory import Memory
from tests.unit.python_programs import default, running, said

# Fills a buffer, tells where it is and where a page is that can't be read, and becomes another program when told.
HOLDER = """
import ctypes, json, mmap, os, sys
data = bytes(range(256)) * 64
buffer = ctypes.create_string_buffer(data, len(data))
area = mmap.mmap(-1, 3 * 4096)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
area[:] = b"x" * len(area)
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + 4096), 4096, 0) == 0
munmap = ctypes.CDLL(None).munmap
munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
munmap(start + 4096, 4096)
print(json.dumps([ctypes.addressof(buffer), start]), flush=True)
sys.stdin.readline()
os.execv(sys.executable, [sys.executable, "-c", "print(1, flush=True); input()"])
"""
DATA = bytes(range(256)) * 64


@pytest.fixture
def holder():
    """The program, its memory, the addresses of its buffer and of three pages whose middle one is gone."""
    with running(default(), HOLDER) as child:
        buffer, pages = said(child)
        memory = Memory(child.pid)
        yield child, memory, buffer, pages
        memory.close()


def test_bytes_are_read_as_they_are(holder):
    _, memory, buffer, _ = holder
    assert memory.read(buffer + 3, 700) == DATA[3:703]
    assert memory.pointer(buffer) == int.from_bytes(DATA[:8], "little")


def test_many_reads_answer_each_for_itself(holder):
    _, memory, buffer, pages = holder
    gone = pages + 4096
    spans = [
        (buffer, 16),
        (gone, 8),
        (buffer + 16, 4),
        (0, 8),
        (pages + 4090, 8),
        (pages + 8192, 3),
        (2**63, 8),
        (buffer, 0),
        (gone, 1),
    ]
    assert memory.read_many(spans) == [DATA[:16], None, DATA[16:20], None, None, b"xxx", None, None, None]


def test_three_thousand_reads_take_three_system_calls_and_a_look(holder):
    _, memory, buffer, _ = holder
    memory.read(buffer, 1)
    before = memory.calls
    spans = [(buffer + number, 5) for number in range(3000)]
    assert memory.read_many(spans) == [DATA[number : number + 5] for number in range(3000)]
    assert memory.calls - before == 3 + 1


@pytest.mark.parametrize(("address", "size"), [(0, 8), (-8, 8), (2**47, 1), (2**64, 8), (4096, 8), (1 << 40, 1 << 40)])
def test_what_cannot_be_read_is_none_and_an_error_where_it_must_be(holder, address, size):
    memory = holder[1]
    assert memory.peek(address, size) is None
    assert memory.pointer(address) == 0
    with pytest.raises(TargetError, match="can't be read"):
        memory.read(address, size)


def test_after_exec_nothing_is_read_any_more(holder):
    child, memory, buffer, _ = holder
    assert memory.read(buffer, 1)
    print(file=child.stdin, flush=True)
    assert said(child) == 1
    somewhere = next(region.start for region in read_maps(child.pid).regions)
    assert memory.read_many([(somewhere, 16), (buffer, 16)]) == [None, None]
    assert memory.peek(somewhere, 16) is None
    assert not memory.alive
    assert Memory(child.pid).peek(somewhere, 4) is not None


def test_a_process_that_has_ended_is_a_target_error():
    with subprocess.Popen(["true"]) as child:
        pass
    with pytest.raises(TargetError, match="has ended"):
        Memory(child.pid)


def test_mappings_have_the_files_that_the_dynamic_linker_opened():
    maps = read_maps(os.getpid())
    address = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    region = maps.find(address)
    assert region.executable
    assert region.is_file
    assert region in maps.files[region.file_key]
    assert maps.find(0x1000) is None
    assert region_identity(os.getpid(), region)[1] == region.inode


def test_a_removed_file_is_still_opened_by_its_mapping(tmp_path):
    (tmp_path / "new\nline").write_bytes(b"z" * 5000)
    code = "import mmap, os, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); os.unlink(sys.argv[1])\n"
    code += "print(1, flush=True); input()"
    with running(default(), code, str(tmp_path / "new\nline")) as child:
        said(child)
        region = next(r for r in read_maps(child.pid).regions if "new\nline" in r.path)
        file = open_region(child.pid, region)
        assert os.read(file, 3) == b"zzz"
        os.close(file)
        assert region.path == str(tmp_path / "new\nline")
    with pytest.raises(TargetError):
        open_region(child.pid, region)


def test_a_kernel_thread_has_no_mappings():
    try:
        assert read_stat(2).kernel_thread
    except (TargetError, AssertionError):
        pytest.skip("needs the host's PID namespace: process 2 is no kernel thread here")
    assert read_maps(2).regions == ()
