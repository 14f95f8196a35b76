"""Recognising a Python interpreter in a process, by content, and learning how the kernel walks its stacks.

A file holds an interpreter when it defines `_PyRuntime` (or has the section `.PyRuntime`), whatever its name is: a stripped
static executable, a shared libpython, a renamed copy. The version comes from the interpreter's own debug offsets (3.13 and
newer), from `Py_Version` (3.11 and newer), or from the version string, proven by the thread states that it leads to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import Enum

import numpy as np

from otelprof.errors import OtelprofError
from otelprof.processes.maps import Maps, Region, open_region, read_maps, region_identity
from otelprof.processes.memory import Memory
from otelprof.symbols.elf import TYPE_EXECUTABLE, Elf, FileSource
from otelprof.targets import thread_state
from otelprof.targets.cpython_layouts import COOKIE, DEBUG_OFFSETS_SIZE, NEWEST, OLDEST, TABLE, CPython, debug_offsets
from otelprof.targets.other_pythons import refused_python
from otelprof.targets.thread_state import PointerPath, Slot, TlsHints

EVALUATION = "_PyEval_EvalFrameDefault"
FILE_LIMIT = 16_384
"""Files whose verdict is remembered."""
_STRINGS_LIMIT = 1 << 24
# The linker lets a string end in another one, so PY_VERSION may be the tail of a path.
_VERSION_STRING = re.compile(rb"(?<![\d.])(3\.(\d{1,2})\.\d{1,2}(?:(?:a|b|rc)\d+)?\+?)\0")
_LIBRARY_STRING = re.compile(rb"python3\.(\d{1,2})\0")


class Flag(Enum):
    """enum python_flag of bpf/wire.h."""

    CODE_TAGGED = 1
    SHIM_FRAMES = 2
    ENTRY_FRAMES = 4
    LASTI_INDEX = 8
    FREE_THREADED = 16


@dataclass(frozen=True, slots=True)
class PythonLayout:
    """How the kernel walks the Python stacks of one process: field for field the wire's `python_layout`."""

    thread_state: PointerPath
    frame: PointerPath
    flags: int
    frame_size: int
    frame_code: int
    frame_previous: int
    frame_instruction: int
    frame_owner: int
    frame_tlbc_index: int
    code_first_line: int
    code_tlbc: int
    shim_owner: int
    version_minor: int
    thread_c_frame: int
    c_frame_previous: int
    code_name: int
    code_file: int
    code_lines: int
    object_size: int
    text_kind_shift: int
    text_ascii: int
    text_compact: int
    evaluation: tuple[tuple[int, int], ...] = ()
    """Address ranges [start, end) of the evaluation function, at most two; needed where nothing lies on the C stack."""

    def to_record(self, dtype: np.dtype[np.void]) -> np.void:
        """The same as one record of the wire's dtype, filled by field names; a field that it lacks is an error of numpy."""
        record: np.void = np.zeros(1, dtype)[0]
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, PointerPath):
                record[field.name]["steps"] = value.steps
                record[field.name]["offset"][: value.steps] = value.offset
            elif isinstance(value, tuple):
                for place, ends in enumerate(value):
                    record[field.name][place] = ends
            else:
                record[field.name] = value
        return record


def kernel_layout(layout: CPython, path: PointerPath) -> PythonLayout:
    """The wire's layout of a CPython build whose thread states are found by `path`."""
    return PythonLayout(
        thread_state=path,
        frame=PointerPath(layout.thread_frame),
        flags=sum(flag.value for flag in _flags(layout)),
        frame_size=layout.frame_size,
        frame_code=layout.frame_code,
        frame_previous=layout.frame_previous,
        frame_instruction=layout.frame_instruction,
        frame_owner=layout.frame_owner,
        frame_tlbc_index=layout.frame_tlbc_index,
        code_first_line=layout.code_first_line,
        code_tlbc=layout.code_tlbc,
        shim_owner=layout.shim_owner,
        version_minor=layout.minor,
        thread_c_frame=layout.thread_c_frame,
        c_frame_previous=layout.c_frame_previous,
        code_name=layout.code_name,
        code_file=layout.code_filename,
        code_lines=layout.code_lines,
        object_size=layout.header,
        text_kind_shift=layout.text_kind_shift,
        text_ascii=layout.text_ascii,
        text_compact=layout.text_compact,
    )


def _flags(layout: CPython) -> Iterator[Flag]:
    if layout.minor >= 14:
        yield Flag.CODE_TAGGED
    if layout.minor >= 12:
        yield Flag.SHIM_FRAMES
    if layout.minor == 11:
        yield Flag.ENTRY_FRAMES
    if layout.minor <= 10:
        yield Flag.LASTI_INDEX
    if layout.code_tlbc:
        yield Flag.FREE_THREADED


class Verdict(Enum):
    """What a look into a process gave."""

    PYTHON = "python"
    NOT_PYTHON = "not python"
    NOT_YET = "not yet"
    """There is an interpreter that isn't initialised: look again soon."""
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """An interpreter in a process and how to read it. `layout` is the kernel's part, `cpython` what user space needs.

    `runtime` is the address of `_PyRuntime`; `mapping` the first mapping of the file that holds the interpreter. With
    `sure` False another look, when the process has more threads, may find a better path to the thread state.
    """

    version: str
    layout: PythonLayout
    cpython: CPython
    runtime: int
    mapping: Region
    build: tuple[str, ...]
    """Words such as `shared`, `static`, `free-threaded`, `debug`, `musl`."""
    found_by: str
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Recognition:
    """The verdict on a process, the target when it is PYTHON, else why not in one line."""

    verdict: Verdict
    reason: str = ""
    target: PythonTarget | None = None


_NOT_PYTHON = Recognition(Verdict.NOT_PYTHON, "no Python interpreter is mapped")
_NOT_YET = Recognition(Verdict.NOT_YET, "the Python interpreter isn't initialised yet")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What a file that holds CPython says about itself; addresses as linked. `minors`: which versions it may be."""

    runtime: int
    executable: bool
    version: str
    minors: tuple[int, ...]
    debug: bool
    traces_references: bool
    tls: TlsHints
    evaluation: tuple[tuple[int, int], ...] = ()
    """[start, end) of the evaluation function and its cold part, of versions that need it for native stacks."""


class Recogniser:
    """Looks into processes; remembers for each file whether it holds an interpreter."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, ...], tuple[Elf, Interpreter] | str] = {}

    def recognise(self, pid: int, memory: Memory | None = None, maps: Maps | None = None) -> Recognition:
        """What `pid` is. TargetError when it ended or can't be looked into.

        A process may map several files with an interpreter (a static one and a libpython): the one that runs counts.
        """
        maps = read_maps(pid) if maps is None else maps
        answer = _NOT_PYTHON
        for regions in maps.files.values():
            found = self._interpreter_at(pid, regions)
            if isinstance(found, str):
                answer = Recognition(Verdict.UNSUPPORTED, found) if found and answer is _NOT_PYTHON else answer
                continue
            memory = memory or Memory(pid)
            seen = self._look(memory, regions, *found)
            if seen.verdict is Verdict.PYTHON:
                return seen
            answer = answer if answer.verdict is Verdict.NOT_YET else seen
        return answer

    def _look(self, memory: Memory, regions: list[Region], elf: Elf, interpreter: Interpreter) -> Recognition:
        bias = 0 if elf.type == TYPE_EXECUTABLE else elf.bias(regions[0].start, regions[0].offset)
        if bias is None:
            return Recognition(Verdict.UNSUPPORTED, "the interpreter is mapped in an unknown way")
        return look(memory, interpreter, interpreter.runtime + bias, regions[0])

    def _interpreter_at(self, pid: int, regions: list[Region]) -> tuple[Elf, Interpreter] | str:
        """The interpreter in a file, or why the one in it can't be read; an empty text when there is none."""
        if not any(region.executable for region in regions):
            return ""
        key = region_identity(pid, regions[0])
        if key is None:
            return ""
        if key not in self._files:
            if len(self._files) >= FILE_LIMIT:
                del self._files[next(iter(self._files))]
            self._files[key] = read_interpreter(pid, regions[0])
        return self._files[key]


def read_interpreter(pid: int, region: Region) -> tuple[Elf, Interpreter] | str:
    """The interpreter in the file mapped at `region`, or why it can't be read; empty when there is none, or no way to it."""
    try:
        elf = Elf(FileSource(open_region(pid, region)))
        found = interpreter_in(elf)
        return (elf, found) if found else refused_python(elf)
    except OtelprofError:
        return ""


def interpreter_in(elf: Elf) -> Interpreter | None:
    """What an ELF file says about the CPython in it; None when it holds none. MalformedInput on a broken file."""
    runtime = _runtime(elf)
    if runtime is None:
        return None
    version, minors = _version(elf)
    return Interpreter(
        runtime=runtime,
        executable=elf.type == TYPE_EXECUTABLE or not elf.soname,
        version=version,
        minors=minors,
        debug=elf.find_exported("_Py_NegativeRefcount") is not None,
        traces_references=elf.find_exported("_Py_PrintReferences") is not None,
        tls=_tls_hints(elf),
        evaluation=tuple(_evaluation(elf)) if min(minors, default=NEWEST) < 10 else (),
    )


def _evaluation(elf: Elf) -> Iterator[tuple[int, int]]:
    """Where the compiler put the evaluation function; the cold part has a name in .symtab only."""
    for symbol in (elf.find_exported(EVALUATION), elf.find(f"{EVALUATION}.cold")):
        if symbol is not None:
            yield symbol.value, symbol.value + symbol.size


def _runtime(elf: Elf) -> int | None:
    symbol = elf.find_exported("_PyRuntime")
    if symbol is not None:
        return symbol.value
    section = elf.section(".PyRuntime")
    if section is not None:
        return int(section["addr"])
    symbol = elf.find("_PyRuntime") if not elf.soname else None
    return symbol.value if symbol else None


def _version(elf: Elf) -> tuple[str, tuple[int, ...]]:
    """(version, minors it may be): one from `Py_Version`, else each that a version string in the constants names."""
    symbol = elf.find_exported("Py_Version")
    data = elf.read_address(symbol.value, 8) if symbol else b""
    if len(data) == 8:
        number = int.from_bytes(data, "little")
        return hex_version(number), (number >> 16 & 0xFF,)
    constants = _constants(elf)
    library = {int(minor) for minor in _LIBRARY_STRING.findall(constants)}
    found = {int(minor): version.decode() for version, minor in _VERSION_STRING.findall(constants) if int(minor) in library}
    return next(iter(found.values()), "") if len(found) == 1 else "", tuple(found)


def hex_version(number: int) -> str:
    """`3.13.0rc1` from PY_VERSION_HEX (Include/patchlevel.h)."""
    level, serial = number >> 4 & 15, number & 15
    suffix = {10: f"a{serial}", 11: f"b{serial}", 12: f"rc{serial}"}.get(level, "")
    return f"{number >> 24 & 255}.{number >> 16 & 255}.{number >> 8 & 255}{suffix}"


def _constants(elf: Elf) -> bytes:
    number = elf.section_names.get(".rodata")
    return b"" if number is None else elf.section_data(number, _STRINGS_LIMIT)


def _tls_hints(elf: Elf) -> TlsHints:
    segment = elf.tls
    if segment is None:
        return TlsHints()
    reader = elf.find_exported("PyGILState_GetThisThreadState")
    variable = elf.find("_Py_tss_gilstate") if ".symtab" in elf.section_names else None
    code = elf.read_address(reader.value, min(max(reader.size, 16), 48)) if reader else b""
    return TlsHints(int(segment["memsz"]), variable.value if variable else None, code)


# --- the process -------------------------------------------------------------------------------------------------


def look(memory: Memory, interpreter: Interpreter, runtime: int, mapping: Region) -> Recognition:
    """Prove the interpreter at `runtime` (address of `_PyRuntime`) and find its thread states."""
    if interpreter.traces_references:
        return Recognition(Verdict.UNSUPPORTED, "CPython built with Py_TRACE_REFS isn't supported")
    head = memory.peek(runtime, DEBUG_OFFSETS_SIZE)
    if head is None:
        return Recognition(Verdict.UNSUPPORTED, "the interpreter's state can't be read")
    if head.startswith(COOKIE):
        own = debug_offsets(head)
        if isinstance(own, str):
            return Recognition(Verdict.UNSUPPORTED, own)
        version = hex_version(int.from_bytes(head[8:16], "little"))
        return _target(memory, replace(interpreter, version=version), runtime, mapping, own)
    return _by_table(memory, interpreter, runtime, mapping)


def _by_table(memory: Memory, interpreter: Interpreter, runtime: int, mapping: Region) -> Recognition:
    layouts = [TABLE[minor, False] for minor in sorted(interpreter.minors) if (minor, False) in TABLE and minor < 13]
    if not layouts:
        named = interpreter.version or "of an unknown version"
        if interpreter.minors and max(interpreter.minors) >= 13:
            return _NOT_YET  # the cookie is written at build time from 3.13 on, but data pages may not be there yet
        return Recognition(Verdict.UNSUPPORTED, f"CPython {named} isn't supported: 3.{OLDEST} to 3.{NEWEST} are")
    answers = [_target(memory, interpreter, runtime, mapping, layout) for layout in layouts]
    return next((answer for answer in answers if answer.verdict is Verdict.PYTHON), answers[0])


def _target(memory: Memory, interpreter: Interpreter, runtime: int, mapping: Region, layout: CPython) -> Recognition:
    slot = _slot(memory, layout, runtime, interpreter.tls)
    if slot is None:
        return _NOT_YET
    moved = runtime - interpreter.runtime
    evaluation = tuple((start + moved, end + moved) for start, end in interpreter.evaluation)
    target = PythonTarget(
        version=interpreter.version or f"3.{layout.minor}",
        layout=replace(kernel_layout(layout, slot.path), evaluation=evaluation if layout.minor < 10 else ()),
        cpython=layout,
        runtime=runtime,
        mapping=mapping,
        build=tuple(_build(interpreter, layout, slot)),
        found_by=slot.how,
        sure=slot.sure,
    )
    return Recognition(Verdict.PYTHON, target=target)


def _slot(memory: Memory, layout: CPython, runtime: int, hints: TlsHints) -> Slot | None:
    threads = thread_state.threads_of(memory, layout, runtime)
    if not threads:
        return None
    if layout.runtime_tss_key:
        key = thread_state.key_of(memory, layout, runtime)
        found = None if key is None else thread_state.find_key_slot(memory, threads, key)
        if found is not None:
            return found
    return thread_state.scan(memory, threads, hints)


def _build(interpreter: Interpreter, layout: CPython, slot: Slot) -> Iterator[str]:
    yield "static" if interpreter.executable else "shared"
    if layout.free_threaded:
        yield "free-threaded"
    if interpreter.debug:
        yield "debug"
    if slot.libc != "glibc":
        yield slot.libc
