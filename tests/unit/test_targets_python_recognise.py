"""An interpreter is known by its content, and the path that is found leads to the frames of every thread."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from otelprof.ebpf.layout import wire
from otelprof.processes.maps import read_maps
from otelprof.processes.memory import Memory
from otelprof.symbols.elf import BytesSource, Elf
from otelprof.symbols.python import CodeReader
from otelprof.targets.cpython_layouts import TABLE, differences
from otelprof.targets.other_pythons import refused_python
from otelprof.targets.python import Flag, Recogniser, Verdict, interpreter_in, kernel_layout
from otelprof.targets.thread_state import PointerPath, glibc_key
from tests.unit.python_programs import (
    Interpreter,
    all_interpreters,
    recognise,
    running,
    said,
    sleeping,
    supported,
    thread_pointers,
    until,
    walk,
)

STACK = """
import json, sys, threading, time

class Model:
    def forward(self, layers):
        return [
            self.layer(n)
            for n in layers
        ]

    def layer(self, n):
        def inner():
            yield (
                wait()
            )
        return list(inner())

def wait():
    frame, found = sys._getframe(1), []
    while frame:
        code = frame.f_code
        found.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno, code.co_firstlineno])
        frame = frame.f_back
    print(json.dumps(found), flush=True)
    time.sleep(1000)

def in_c(_):
    Model().forward([1, 2])

if sys.argv[1:] == ["thread"]:
    threading.Thread(target=in_c, args=(0,), daemon=True).start()
    time.sleep(1000)
sorted([1], key=in_c)
"""


@pytest.fixture(params=supported(), ids=str)
def interpreter(request) -> Interpreter:
    return request.param


def frames(pid: int, index: int = 0) -> list[list[object]]:
    """What we read of a thread: [name, file, line, first line], leaf first."""
    target = recognise(pid)
    memory = Memory(pid)
    records = walk(memory, target.layout, thread_pointers(memory, target)[index])
    return [[f.name, f.file, f.line, f.start_line] for f in CodeReader(memory, target.cpython).frames(records) if f]


def test_names_files_and_lines_of_a_stack_are_those_that_the_program_tells(interpreter):
    with running(interpreter, STACK) as child:
        told = said(child)
        until(lambda: sleeping(child.pid), "the program to sleep")
        seen = frames(child.pid)
    assert seen[1:] == told
    assert seen[0][0] == "wait"


def test_a_thread_is_read_while_the_main_thread_sleeps(interpreter):
    with running(interpreter, STACK, "thread") as child:
        told = said(child)
        tasks = [int(task.name) for task in Path(f"/proc/{child.pid}/task").iterdir()]
        until(lambda: all(sleeping(child.pid, task) for task in tasks), "all threads to sleep")
        seen, main = frames(child.pid, 0), frames(child.pid, 1)
    assert seen[1:] == told
    assert [frame[0] for frame in main] == ["<module>"]


def test_the_version_is_the_programs_own(interpreter):
    with running(interpreter, STACK) as child:
        said(child)
        target = recognise(child.pid)
    assert target.version == ".".join(map(str, interpreter.version))
    assert target.layout.version_minor == interpreter.version[1]


def test_how_it_was_built_is_told(interpreter):
    code = "import sysconfig; print(int(sysconfig.get_config_var('Py_GIL_DISABLED') or 0), flush=True); input()"
    with running(interpreter, code) as child:
        free_threaded = bool(said(child))
        shared = any("libpython" in region.path for region in read_maps(child.pid).regions)
        build = recognise(child.pid).build
    assert ("shared" in build, "static" in build) == (shared, not shared)
    assert ("free-threaded" in build) == free_threaded
    assert ("debug" in build) == interpreter.path.endswith("d")


def test_a_forked_child_is_read_like_its_parent(interpreter):
    code = STACK.replace("sorted([1]", "import os\nif os.fork(): time.sleep(1000)\nsorted([1]")
    with running(interpreter, code) as child:
        told = said(child)
        (forked,) = map(int, Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split())
        try:
            until(lambda: sleeping(forked), "the child to sleep")
            assert frames(forked)[1:] == told
        finally:
            os.kill(forked, 9)


def test_a_busy_program_of_one_thread_is_recognised(interpreter):
    with running(interpreter, "print(1, flush=True)\nwhile True: pass") as child:
        said(child)
        target, memory = recognise(child.pid), Memory(child.pid)
        pointers = thread_pointers(memory, target)
        assert [target.layout.thread_state.follow(memory, pointer) != 0 for pointer in pointers] == [True]


def test_a_renamed_executable_is_still_python(interpreter, tmp_path):
    if interpreter.root:
        pytest.skip("needs the interpreter outside of another root")
    copy = tmp_path / "myapp"
    shutil.copy2(interpreter.file, copy)
    home = subprocess.run([interpreter.path, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True).stdout
    env = {**os.environ, "PYTHONHOME": home.strip(), "LD_LIBRARY_PATH": f"{home.strip()}/lib"}
    with running(Interpreter(str(copy), interpreter.version), STACK, env=env) as child:
        told = said(child)
        until(lambda: sleeping(child.pid), "the program to sleep")
        assert frames(child.pid)[1:] == told


def test_a_program_without_python_is_none():
    with subprocess.Popen(["sleep", "1000"]) as child:
        answer = Recogniser().recognise(child.pid)
        child.kill()
    assert (answer.verdict, answer.target) == (Verdict.NOT_PYTHON, None)


@pytest.mark.parametrize("version", [(2, 7), (3, 6), (3, 7)], ids=str)
def test_older_versions_are_refused_by_name(version):
    old = [one for one in all_interpreters() if one.version[:2] == version]
    if not old:
        pytest.skip(f"no CPython {version[0]}.{version[1]} here")
    with running(old[0], "import sys, time; sys.stdout.write('1\\n'); sys.stdout.flush(); time.sleep(100)") as child:
        said(child)
        answer = Recogniser().recognise(child.pid)
    assert answer.verdict is Verdict.UNSUPPORTED
    assert answer.reason == f"CPython {'.'.join(map(str, old[0].version))} isn't supported: 3.8 to 3.15 are"


OTHERS = {
    "int rpython_startup_code(void) { return 0; }": "PyPy isn't supported: CPython 3.8 to 3.15 are",
    "int graal_create_isolate(void) { return 0; }": "GraalPy isn't supported: CPython 3.8 to 3.15 are",
    "int PyEval_EvalFrameEx(void) { return 0; }": "CPython 2 or 3.0 to 3.6 isn't supported: 3.8 to 3.15 are",
    "int something_else(void) { return 0; }": "",
}


@pytest.mark.parametrize("source", OTHERS)
def test_other_implementations_are_known_by_what_they_export(source, tmp_path):
    """A library with the names that such an interpreter exports stands for it."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc")
    library = tmp_path / "libpythonvm.so"
    subprocess.run(
        ["cc", "-shared", "-Wl,-soname,libpythonvm.so", "-x", "c", "-o", library, "-"], input=source, text=True, check=True
    )
    assert refused_python(Elf(BytesSource(library.read_bytes()))) == OTHERS[source]


EMBED = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
int main(int argc, char **argv) {
    char line[8];
    pthread_key_t key;
    for (const char *more = argv[2]; *more; more++)
        pthread_key_create(&key, 0);
    puts("1"), fflush(stdout), fgets(line, 8, stdin);
    void *python = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    puts(python ? "2" : dlerror()), fflush(stdout), fgets(line, 8, stdin);
    ((void (*)(int))dlsym(python, "Py_InitializeEx"))(0);
    int (*run)(const char *) = (int (*)(const char *))dlsym(python, "PyRun_SimpleString");
    run("def embedded():\\n print(3, flush=True); input()\\nembedded()");
    return 0;
}
"""


def shared_libraries() -> list[tuple[str, str]]:
    """(libpython, home) of the interpreters that have one, outside of other roots."""
    found = []
    for one in supported():
        code = "import sys, sysconfig; print(*sysconfig.get_config_vars('LIBDIR', 'INSTSONAME'), sys.base_prefix)"
        folder, name, home = subprocess.run([*one.command, "-c", code], capture_output=True, text=True).stdout.split()
        if not one.root and ".so" in name and Path(folder, name).exists():
            found.append((f"{folder}/{name}", home))
    return found


def embedded(folder: Path, library: str, home: str, keys: int = 0):
    """A C program that has made `keys` pthread keys loads libpython and starts it: (verdicts before, target, frames)."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc")
    host = folder / "host"
    subprocess.run(["cc", "-w", "-x", "c", "-o", host, "-", "-ldl", "-lpthread"], check=True, input=EMBED, text=True)
    recogniser, verdicts = Recogniser(), []
    env, pipe = {**os.environ, "PYTHONHOME": home}, subprocess.PIPE
    with subprocess.Popen([host, library, "k" * keys], stdin=pipe, stdout=pipe, text=True, env=env) as child:
        for _ in range(2):
            said(child)
            verdicts.append(recogniser.recognise(child.pid).verdict)
            print(file=child.stdin, flush=True)
        said(child)
        until(lambda: sleeping(child.pid), "the program to wait")
        target, seen = recognise(child.pid), frames(child.pid)
        child.kill()
    return verdicts, target, seen


@pytest.mark.parametrize(("library", "home"), shared_libraries(), ids=lambda value: Path(value).name)
def test_an_interpreter_that_is_loaded_late_is_found_once_it_is_initialised(library, home, tmp_path):
    verdicts, target, seen = embedded(tmp_path, library, home)
    assert verdicts == [Verdict.NOT_PYTHON, Verdict.NOT_YET]
    assert "shared" in target.build
    assert [frame[0] for frame in seen] == ["embedded", "<module>"]


def test_a_pthread_key_beyond_the_first_block_takes_two_steps(tmp_path):
    if not shared_libraries():
        pytest.skip("no shared libpython here")
    _, target, seen = embedded(tmp_path, *shared_libraries()[0], keys=40)
    assert target.layout.thread_state.steps == 2
    assert [frame[0] for frame in seen] == ["embedded", "<module>"]


@pytest.mark.parametrize(("library", "home"), shared_libraries()[:1], ids=lambda value: Path(value).name)
def test_of_two_interpreters_in_a_process_the_one_that_runs_counts(library, home):
    other = Path(library).name.removeprefix("libpython").partition(".so")[0]
    one = next((one for one in supported() if not one.root and not str(one).startswith(other)), None)
    if one is None:
        pytest.skip(f"needs a second CPython besides that of {home}")
    code = f"import ctypes; ctypes.CDLL({library!r}); print(1, flush=True); input()"
    with running(one, code) as child:
        said(child)
        target = recognise(child.pid)
        assert sum("python3" in Path(path).name for path in {region.path for region in read_maps(child.pid).regions}) > 1
    assert target.version == ".".join(map(str, one.version))


def test_threads_of_subinterpreters_are_read():
    newer = [one for one in supported() if one.version >= (3, 13)]
    if not newer:
        pytest.skip("no CPython 3.13 or newer here")
    code = """
import _interpreters, threading, time
def runner():
    _interpreters.exec(_interpreters.create(), "def sub():\\n print(1, flush=True)\\n import time; time.sleep(1000)\\nsub()")
threading.Thread(target=runner, daemon=True).start()
time.sleep(1000)
"""
    with running(newer[-1], code) as child:
        said(child)
        target, memory = recognise(child.pid), Memory(child.pid)
        reader = CodeReader(memory, target.cpython)
        pointers = thread_pointers(memory, target)

        def seen() -> list[list[str]]:
            walked = [reader.frames(walk(memory, target.layout, pointer)) for pointer in pointers]
            return sorted([frame.name for frame in frames] for frames in walked if frames)

        until(lambda: any("sub" in names for names in seen()), "the subinterpreter's function")
        assert ["<module>"] in seen()
        assert any(names[:2] == ["sub", "<module>"] for names in seen())


def test_the_own_offsets_of_new_interpreters_agree_with_the_table(interpreter):
    if interpreter.version < (3, 13):
        pytest.skip("debug offsets are published from 3.13 on")
    with running(interpreter, "print(1, flush=True); input()") as child:
        said(child)
        own = recognise(child.pid).cpython
    assert differences(own, TABLE[own.minor, own.free_threaded]) == []


@pytest.mark.parametrize(("key", "offsets"), [(0, (0x318,)), (31, (0x508,)), (32, (0x518, 8)), (65, (0x520, 24))])
def test_glibc_keeps_its_first_keys_in_the_thread_itself(key, offsets):
    assert glibc_key(key) == PointerPath(offsets)


def test_a_file_without_the_symbol_is_known_by_its_section(interpreter):
    """Newer interpreters have a section for `_PyRuntime`, which stays when symbols are gone."""
    with running(interpreter, "print(1, flush=True); input()") as child:
        said(child)
        path = Path(f"/proc/{child.pid}/map_files") / "{0.start:x}-{0.end:x}".format(recognise(child.pid).mapping)
        data = path.read_bytes()
    whole, hidden = (
        interpreter_in(Elf(BytesSource(text))) for text in (data, data.replace(b"\0_PyRuntime\0", b"\0_PyXxxtime\0"))
    )
    if b".PyRuntime\0" not in data:
        assert hidden is None
    else:
        assert (hidden.runtime, hidden.minors) == (whole.runtime, whole.minors)


def test_a_layout_becomes_the_wires_record_field_by_field():
    layout = kernel_layout(TABLE[11, False], PointerPath((0x80, 8)))
    record = layout.to_record(wire().dtype("python_layout"))
    assert record["thread_state"]["steps"] == 2
    assert record["thread_state"]["offset"].tolist() == [0x80, 8, 0]
    assert record["frame"]["offset"].tolist() == [56, 8, 0]
    assert (record["version_minor"], record["frame_owner"], record["code_first_line"]) == (11, 68, 72)


def test_flags_are_the_wires():
    assert {f"PYTHON_{flag.name}": flag.value for flag in Flag} == wire().enum("python_flag")


@pytest.mark.parametrize("layout", TABLE.values(), ids=lambda layout: f"3.{layout.minor}{'t' * layout.free_threaded}")
def test_every_layout_fits_what_the_kernel_reads_of_a_frame(layout):
    places = [layout.frame_code + 8, layout.frame_previous + 8, layout.frame_instruction + 4, layout.frame_owner + 1]
    assert max(places) <= layout.frame_size <= 128
    assert np.array(layout.thread_frame).size in (1, 2)
