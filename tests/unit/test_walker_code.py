"""What the kernel reads of code objects (bpf/python_code.h): live ones as they are, and hostile memory within its room."""

import ctypes
import json
from random import Random

import numpy as np
import pytest

from otelprof.ebpf.layout import wire
from otelprof.processes.memory import Memory
from otelprof.symbols.python import UNKNOWN, CodeReader
from otelprof.targets.cpython_layouts import TABLE
from otelprof.targets.python import kernel_layout
from otelprof.targets.thread_state import PointerPath
from otelprof.text import CUT
from tests.unit.python_programs import recognise, running, said, supported
from tests.unit.walkers import build_walkers

READ = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)
NAMES = ["plain", "größe", "вычислить", "計算する", "𐌰𐌱𐌲", "semi;colon\n", "", "n" * 128]
LONG = ["n" * 129, "あ" * 300, "𐌰" * 65535]
PROGRAM = """
import json, sys
def base(a):
    b = a
    return (
        b +
        1
    )
def named(name):
    kinds = {"co_name": name}
    if hasattr(base.__code__, "co_qualname"):
        kinds["co_qualname"] = name
    return base.__code__.replace(co_filename="/srv/%d.py" % len(name), **kinds)
codes = [named(name) for name in json.loads(sys.stdin.readline())]
long_table = compile("def long():\\n" + "    x = 1\\n" * 2000, "/srv/long.py", "exec").co_consts[0]
print(json.dumps([[id(code), code.co_firstlineno] for code in [*codes, long_table]]), flush=True)
input()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_walkers(tmp_path_factory.mktemp("walkers"))


def read_code(library, layout, read, address, check):
    """The record (struct python_code) of a code object, by `read(to, size, from)`."""
    callback = READ(read)
    ctypes.c_void_p.in_dll(library, "host_read").value = ctypes.cast(callback, ctypes.c_void_p).value
    record = ctypes.create_string_buffer(b"\xaa" * wire().dtype("python_code").itemsize, wire().dtype("python_code").itemsize)
    known = layout.to_record(wire().dtype("python_layout")).tobytes()
    library.read_python_code(record, known, ctypes.c_uint64(address))
    found = np.frombuffer(record.raw, wire().dtype("python_code"), 1).copy()
    found["check"] = check
    return found


def frame(address, check, offset=0):
    record = np.zeros(1, wire().dtype("frame"))
    record["address"], record["offset"], record["check"] = address, offset, check
    return record


@pytest.fixture(params=supported(), ids=str)
def seen(request, library):
    """(layout, what the kernel would send of each code object, [address, first line] of each, what a live reader shows)."""
    with running(request.param, PROGRAM) as child:
        print(json.dumps([*NAMES, *LONG]), file=child.stdin, flush=True)
        places = said(child)
        target, memory = recognise(child.pid), Memory(child.pid)

        def read(to, size, address):
            found = memory.peek(address, size)
            if found is None:
                return 1
            ctypes.memmove(to, found, size)
            return 0

        records = [read_code(library, target.layout, read, *place) for place in places]
        offset = target.cpython.code_bytecode + 8 if target.cpython.code_bytecode else 2
        live = CodeReader(memory, target.cpython)
        shown = [live.frames(frame(*place, offset))[0] for place in places]
        yield target.cpython, records, places, shown, offset


def test_names_files_and_lines_are_those_that_a_live_reader_shows(seen):
    layout, records, places, shown, offset = seen
    reader = CodeReader(None, layout)
    reader.capture(np.concatenate(records))
    found = [reader.frames(frame(*place, offset))[0] for place in places]

    assert [one.name for one in found[: len(NAMES)]] == NAMES
    assert found[: len(NAMES)] == shown[: len(NAMES)]
    for name, one in zip(LONG, found[len(NAMES) :], strict=False):
        assert one.name.endswith(CUT)
        assert name.startswith(one.name[:-1])
        assert len(one.name) > 30


def test_a_line_table_without_room_leaves_the_line_of_the_definition(seen):
    layout, records, places, _, offset = seen
    reader = CodeReader(None, layout)
    reader.capture(records[-1])
    (one,) = reader.frames(frame(*places[-1], offset + 2000))

    assert int(records[-1]["lines_size"][0]) > wire()["LIMIT_CODE_LINES"]
    assert (one.line, one.start_line) == (places[-1][1], places[-1][1])


def test_without_a_capture_a_process_that_is_gone_has_no_names(seen):
    layout, _, places, _, offset = seen
    assert CodeReader(None, layout).frames(frame(*places[0], offset)) == [UNKNOWN]


def anything(random):
    """Memory that holds small numbers, which look like lengths and pointers, or noise, or can't be read."""

    def read(to, size, _):
        assert size <= wire()["LIMIT_CODE_LINES"]
        if random.random() < 0.1:
            return 1
        small = random.randrange(1 << 12).to_bytes(8, "little") + bytes(size)
        ctypes.memmove(to, small[:size] if random.random() < 0.7 else random.randbytes(size), size)
        return 0

    return read


@pytest.mark.parametrize("key", TABLE, ids=str)
def test_hostile_memory_never_leaves_the_record_or_makes_a_name_that_is_not_text(library, key):
    layout = kernel_layout(TABLE[key], PointerPath((0,)))
    for seed in range(300):
        random = Random(seed)
        record = read_code(library, layout, anything(random), random.getrandbits(64), random.getrandbits(31))
        reader = CodeReader(None, TABLE[key])
        reader.capture(record)
        (found,) = reader.frames(frame(record["address"][0], record["check"][0], random.getrandbits(31)))
        assert set(record["name"]["kind"]) | set(record["file"]["kind"]) <= {0, 1, 2, 4}
        assert found.name.encode()
