"""Finding OpenTelemetry in live interpreters from outside: at once, late, half there, not at all, in several interpreters."""

import json
import random
from dataclasses import replace

import pytest

from otelprof.processes.memory import Memory
from otelprof.targets.cpython_layouts import TABLE
from otelprof.targets.opentelemetry import SpanFinder, blank_layout
from otelprof.targets.python_objects import ENTRY_LIMIT, PythonObjects
from tests.unit.opentelemetry_sdk import environment, installed, interpreters, newest
from tests.unit.python_programs import recognise, running, said

SHELL = """
import json, sys
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    exec(json.loads(line), globals())
    print(json.dumps(globals().get("answer", "")), flush=True)
"""
ADDRESSES = """
from opentelemetry import context, trace
from opentelemetry.trace import propagation, span
import opentelemetry.sdk.trace as sdk
own = context._RUNTIME_CONTEXT._current_context
classes = [id(sdk._Span), id(sdk.Span), id(span.NonRecordingSpan)]
answer = [id(own), id(propagation._SPAN_KEY), id(span.SpanContext), id(int), classes]
"""


def last():
    return next(one for one in reversed(interpreters()) if not one.root)


class Shell:
    """A live program that does as it is told, and what is found in it."""

    def __init__(self, child):
        self.child = child
        assert said(child) == "ready"
        target = recognise(child.pid)
        self.memory = Memory(child.pid)
        self.finder = SpanFinder(self.memory, target.cpython, target.runtime)

    def does(self, code):
        self.child.stdin.write(json.dumps(code) + "\n")
        self.child.stdin.flush()
        return said(self.child)


@pytest.fixture
def shell(request):
    interpreter = getattr(request, "param", None) or last()
    with running(interpreter, SHELL, env=environment(interpreter)) as child:
        yield Shell(child)


@pytest.mark.parametrize("shell", interpreters(), ids=str, indirect=True)
def test_it_is_found_where_it_is_once_it_is_imported(shell):
    assert shell.finder.look() == []
    shell.does("from opentelemetry import trace")
    first = shell.finder.look()  # 1.20 has no runtime context yet
    variable, key, context_type, int_type, classes = shell.does(
        "from opentelemetry import context; context.get_current()" + ADDRESSES
    )
    (layout,) = shell.finder.look()

    assert first == [] or len(first[0].types) == 1
    assert (layout.variable, layout.span_key, layout.span_context_type, layout.int_type) == (
        variable,
        key,
        context_type,
        int_type,
    )
    assert [kind.type for kind in layout.types] == classes
    assert layout.interpreter == shell.finder.main
    assert shell.finder.look() == []


def test_a_look_at_a_process_that_imports_nothing_takes_a_few_reads(shell):
    shell.finder.look()
    before = shell.memory.calls
    for _ in range(10):
        assert shell.finder.look() == []
    assert shell.memory.calls - before <= 80


def test_modules_that_are_still_being_imported_are_waited_for(shell):
    """The names come without a change of sys.modules."""
    shell.does(
        "import sys\nfrom opentelemetry import context, trace\n"
        "runtime = context._RUNTIME_CONTEXT; context._RUNTIME_CONTEXT = None"
    )
    assert shell.finder.look() == []
    assert shell.finder.waits
    shell.does("context._RUNTIME_CONTEXT = runtime")
    assert len(shell.finder.look()) == 1
    assert not shell.finder.waits


def test_another_runtime_context_is_named_and_left_alone(shell):
    shell.does(
        "from opentelemetry import context\n"
        "class ElsewhereContext(type(context._RUNTIME_CONTEXT)): pass\n"
        "context._RUNTIME_CONTEXT = ElsewhereContext()\nimport opentelemetry.sdk.trace"
    )
    assert shell.finder.look() == []
    assert "ElsewhereContext" in shell.finder.reason
    assert "OTEL_PYTHON_CONTEXT" in shell.finder.reason


def test_a_forked_finder_knows_what_its_parents_knew(shell):
    shell.does("import opentelemetry.sdk.trace" + ADDRESSES)
    shell.finder.look()
    child = shell.finder.forked(shell.memory)
    calls = shell.memory.calls
    assert child.look() == []
    assert shell.memory.calls - calls <= 8


MODULES = {12: "_xxsubinterpreters", 13: "_interpreters"}
MORE = """
import {module} as interpreters
if hasattr(interpreters, "create"):
    try: number = interpreters.create("legacy")
    except TypeError: number = interpreters.create(isolated=False)
code = "import opentelemetry.sdk.trace; from opentelemetry import context; context.get_current()"
failed = interpreters.run_string(number, code)
answer = str(failed) if failed else ""
"""


@pytest.mark.parametrize("one", [one for one in interpreters() if one.version[1] in MODULES], ids=str)
def test_each_interpreter_of_a_process_has_its_own(one):
    with running(one, SHELL, env=environment(one)) as child:
        shell = Shell(child)
        failed = shell.does(MORE.format(module=MODULES[one.version[1]]))
        assert failed == ""
        (inner,) = shell.finder.look()
        assert inner.interpreter != shell.finder.main
        assert blank_layout(inner, shell.finder.main).types == ()
        shell.does("import opentelemetry.sdk.trace" + ADDRESSES)
        (outer,) = shell.finder.look()
        assert outer.interpreter == shell.finder.main
        assert outer.variable != inner.variable


def test_sys_modules_is_found_when_the_table_is_wrong_about_its_place(shell):
    shell.does("import opentelemetry.sdk.trace" + ADDRESSES)
    target = recognise(shell.child.pid)
    wrong = replace(target.cpython, interpreter_modules=target.cpython.interpreter_modules + 8)
    assert len(SpanFinder(shell.memory, wrong, target.runtime).look()) == 1


class Noise:
    """Memory that answers with numbers that may be addresses; `calls` counts."""

    def __init__(self, seed):
        self.random, self.calls = random.Random(seed), 0

    def peek(self, address, size):
        self.calls += 1
        assert size <= 1 << 22
        return None if self.random.random() < 0.1 else self.random.randbytes(size)

    def pointer(self, address):
        self.calls += 1
        return self.random.choice((0, self.random.getrandbits(46), self.random.getrandbits(16)))

    def read_many(self, spans):
        return [self.peek(*span) for span in spans]


@pytest.mark.parametrize("key", sorted(TABLE))
@pytest.mark.parametrize("seed", range(5))
def test_memory_that_means_nothing_gives_nothing(key, seed):
    memory = Noise(seed)
    finder = SpanFinder(memory, TABLE[key], 0x10000)
    assert finder.look() == []
    assert memory.calls < 20 * ENTRY_LIMIT


def test_dictionaries_of_any_size_are_read_in_bounds():
    class Huge(Noise):
        def peek(self, address, size):
            return b"\xff" * size

    assert PythonObjects(Huge(0), TABLE[13, False]).items(0x1000) == []
    assert PythonObjects(Huge(0), TABLE[8, False]).items(0x1000) == []


def test_the_releases_are_there():
    """A machine that can't install any says so by skipped tests; this one says which is missing."""
    found = installed(last(), newest(last()))
    if isinstance(found, str):
        pytest.skip(found)
    assert (found / "opentelemetry").is_dir()
