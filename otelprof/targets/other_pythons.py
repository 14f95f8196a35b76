"""Interpreters that are recognised in order to be refused by name: PyPy, GraalPy, CPython before 3.7's `_PyRuntime`.

Told by what their files export, like those that are supported: PyPy by its translator's entry points (rpython's
`rpython_startup_code`, pypy's `pypy_main_startup`, pypy/goal/targetpypystandalone.py), GraalPy by those of native images
beside its own name, old CPython by its evaluation function without `_PyRuntime` (new in 3.7, Include/internal/pystate.h).
"""

from __future__ import annotations

import re

from otelprof.symbols.elf import Elf
from otelprof.targets.cpython_layouts import NEWEST, OLDEST

_STRINGS_LIMIT = 1 << 24
_OLD_VERSION = re.compile(rb"(?<![\d.])(2\.7\.\d{1,2}|3\.[0-6]\.\d{1,2})\+?\0")
SUPPORTED = f"CPython 3.{OLDEST} to 3.{NEWEST} are"


def refused_python(elf: Elf) -> str:
    """Why the interpreter in a file can't be read, in one line; empty when there is none, or none that is known."""
    if _exports(elf, "rpython_startup_code", "pypy_main_startup"):
        return f"PyPy isn't supported: {SUPPORTED}"
    if _exports(elf, "graal_create_isolate") and "python" in elf.soname:
        return f"GraalPy isn't supported: {SUPPORTED}"
    if _exports(elf, "PyEval_EvalFrameEx") and not _exports(elf, "_PyRuntime"):
        return f"CPython {_old_version(elf)} isn't supported: 3.{OLDEST} to 3.{NEWEST} are"
    return ""


def _exports(elf: Elf, *names: str) -> bool:
    return any(elf.find_exported(name) is not None for name in names)


def _old_version(elf: Elf) -> str:
    """The version string among the constants, where there is just one."""
    number = elf.section_names.get(".rodata")
    found = set(_OLD_VERSION.findall(elf.section_data(number, _STRINGS_LIMIT))) if number is not None else set()
    return found.pop().decode() if len(found) == 1 else "2 or 3.0 to 3.6"
