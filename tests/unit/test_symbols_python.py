"""Code objects are read out of live programs: names as they are, cut cleanly, and never a freed one's."""

import json
import time

import numpy as np
import pytest

from otelprof.batch import FrameKind
from otelprof.processes.memory import Memory
from otelprof.symbols import python
from otelprof.symbols.python import UNKNOWN, CodeReader
from otelprof.text import NAME_LIMIT
from tests.unit.python_programs import RECORD, default, recognise, running, said, supported

# Makes a function of each name and tells where its code objects are; then does what it is told, line by line.
NAMED = """
import json, sys
def base():
    pass
def named(name):
    kinds = {"co_name": name}
    if sys.version_info >= (3, 11):
        kinds["co_qualname"] = name
    return base.__code__.replace(co_filename="/srv/" + name + ".py", **kinds)
codes = [named(name) for name in json.loads(sys.stdin.readline())]
print(json.dumps([[id(code), code.co_firstlineno] for code in codes]), flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""

WIDE = ["calculé", "größe_messen", "быстро_считать", "計算する", "𐌰𐌱𐌲", "𠮷野家", "Класс.метод"]
BREAKING = [
    "semi;colon", "tab\tname", "new\nline", "nul\0name", "esc\x1b[31mred", "zero\u200dwidth", "bom\ufeffname", "", "  blanks  ",
    "e\u0301 combining", "\u2028line sep", "//path//",
]  # fmt: skip
LONG = ["n" * length for length in (1, 63, 255, 256, 1023, 4095, 4096)]
LONGER = ["n" * 4097, "あ" * 2000, "𐌰" * 65535, "n" * 4090 + "あああ"]


class Named:
    """A program with functions of given names, and a reader of it."""

    def __init__(self, child, names):
        print(json.dumps(names), file=child.stdin, flush=True)
        self.child = child
        self.codes = said(child)
        self.target = recognise(child.pid)
        self.memory = Memory(child.pid)
        self.reader = CodeReader(self.memory, self.target.cpython)

    def records(self, offset=0):
        return np.array([(address, offset, first) for address, first in self.codes], RECORD)

    def names(self):
        return [frame.name for frame in self.reader.frames(self.records())]

    def ask(self, expression):
        print(expression, file=self.child.stdin, flush=True)
        return said(self.child)


@pytest.fixture
def named(request):
    """Starts the program for a list of names."""
    opened = []

    def start(names, interpreter=None):
        context = running(interpreter or default(), NAMED)
        opened.append(context)
        return Named(context.__enter__(), names)

    yield start
    for context in opened:
        context.__exit__(None, None, None)


@pytest.fixture(params=supported(), ids=str)
def interpreter(request):
    return request.param


def test_names_of_all_widths_arrive_as_they_are(named, interpreter):
    names = WIDE + BREAKING + LONG
    program = named(names, interpreter)
    frames = program.reader.frames(program.records())
    assert [frame.name for frame in frames] == names
    assert [frame.file for frame in frames[:-2]] == [f"/srv/{name}.py" for name in names[:-2]]
    assert {(frame.kind, frame.start_line) for frame in frames} == {(FrameKind.CPYTHON, 3)}


def test_longer_names_are_cut_between_letters_and_marked(named, interpreter):
    for seen, name in zip(named(LONGER, interpreter).names(), LONGER, strict=True):
        assert seen.endswith("…")
        assert name.startswith(seen[:-1])
        assert NAME_LIMIT - 4 < len(seen.encode()) <= NAME_LIMIT


def test_lone_surrogates_become_replacement_characters(named, interpreter):
    assert named(["a\ud800b", "\udfff計", "\ud83d𐌰"], interpreter).names() == ["a\ufffdb", "\ufffd計", "\ufffd𐌰"]


def test_a_code_object_with_another_first_line_is_unknown(named):
    program = named(["one"])
    records = program.records()
    records["check"] += 1
    assert program.reader.frames(records) == [UNKNOWN]


def test_what_the_kernel_could_not_check_is_taken(named):
    program = named(["one"])
    records = program.records()
    records["check"] = python.CHECK_UNREADABLE
    assert [frame.name for frame in program.reader.frames(records)] == ["one"]


@pytest.mark.parametrize(
    ("place", "frames"),
    [("id(None)", [None]), ("id(sys.modules)", [UNKNOWN]), ("0x1000", [UNKNOWN]), ("2**63", [UNKNOWN])],
    ids=["None runs no Python", "another object", "unmapped", "no address"],
)
def test_what_is_no_code_object_shows_no_name(named, place, frames):
    program = named(["one"])
    records = program.records()
    records["address"] = program.ask(place)
    assert program.reader.frames(records) == frames


def test_an_instruction_outside_of_the_code_shows_a_line_all_the_same(named, interpreter):
    program = named(["one"], interpreter)
    for offset in (0, 0xFFFFFFFF, 0xFFFFFFFE, 0x7FFFFFFF):
        (frame,) = program.reader.frames(program.records(offset))
        assert (frame.name, frame.start_line) == ("one", 3)
        assert frame.line in (3, 4)


def test_an_empty_line_table_gives_the_first_line(named):
    program = named(["one"])
    table = "co_linetable" if program.target.layout.version_minor >= 10 else "co_lnotab"
    records = program.records()
    records["address"] = program.ask(f"codes.append(codes[0].replace({table}=b'')) or id(codes[-1])")
    assert program.reader.frames(records)[0].line == 3


def test_what_was_read_once_stays_known_after_the_program_has_ended(named):
    program = named(["one", "two"])
    assert program.names() == ["one", "two"]
    program.child.kill()
    program.child.wait()
    assert program.names() == ["one", "two"]
    assert CodeReader(program.memory, program.target.cpython).frames(program.records()) == [UNKNOWN, UNKNOWN]


class Fading:
    """A memory whose process ends before its read number `left`."""

    def __init__(self, memory, left):
        self._memory, self._left = memory, left

    def read_many(self, spans):
        self._left -= 1
        return self._memory.read_many(spans) if self._left >= 0 else [None] * len(spans)

    def pointer(self, address):
        return self._memory.pointer(address)


@pytest.mark.parametrize("left", range(7))
def test_a_program_that_ends_while_it_is_read_leaves_whole_names_or_none(named, left):
    program = named(["one", "", "n" * 1000])
    reader = CodeReader(Fading(program.memory, left), program.target.cpython)
    seen = [frame.name for frame in reader.frames(program.records())]
    assert seen in (["[unknown]"] * 3, ["one", "", "[unknown]"], ["one", "", "n" * 1000])
    assert (seen == ["[unknown]"] * 3) == (left < 4)


def test_a_forked_childs_reader_knows_what_its_parents_knew(named):
    program = named(["one", "two"])
    known = program.reader.frames(program.records()[:1])
    child = program.reader.forked(None)
    assert child.frames(program.records()) == [*known, UNKNOWN]
    assert [frame.name for frame in program.reader.forked(program.memory).frames(program.records())] == ["one", "two"]
    assert len(program.reader) == 1


def test_many_code_objects_take_few_system_calls(named):
    program = named([f"function_{number}" for number in range(python.BATCH * 4)])
    before = program.memory.calls
    assert len(set(program.names())) == python.BATCH * 4
    assert program.memory.calls - before <= 4 * 8
    before = program.memory.calls
    program.names()
    assert program.memory.calls == before


def test_the_cache_forgets_the_oldest(named, monkeypatch):
    monkeypatch.setattr(python, "CACHE_BYTES", 20_000)
    program = named([f"function_{number}" for number in range(200)])
    for start in range(0, 200, 10):
        frames = program.reader.frames(program.records()[start : start + 10])
        assert [frame.name for frame in frames] == [f"function_{number}" for number in range(start, start + 10)]
    assert 0 < len(program.reader) < 60


def test_reading_a_program_that_runs_on_never_fails():
    """Code objects come and go while they are read: every answer is a name that was there, or a mark."""
    code = """
import json, sys
def make(n):
    scope = {}
    exec("\\n" * (n % 7) + "def churn_%d(): pass" % n, scope)
    return scope["churn_%d" % n].__code__
keep = [make(n) for n in range(50)]
print(json.dumps([[id(code), code.co_firstlineno] for code in keep]), flush=True)
n = 50
while True:
    keep[n % 50] = make(n)
    n += 1
"""
    with running(default(), code) as child:
        codes = said(child)
        target = recognise(child.pid)
        memory = Memory(child.pid)
        records = np.array([(address, 0, first) for address, first in codes], RECORD)
        seen = set()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            seen |= {frame and frame.name.split("_")[0] for frame in CodeReader(memory, target.cpython).frames(records)}
    assert seen <= {"churn", "[unknown]", "make", "<module>", "", None}
