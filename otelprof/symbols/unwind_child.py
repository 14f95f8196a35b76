"""The process that parses strangers' call frame information: started for a few files, without privileges, gone at once.

    python -m otelprof.symbols.unwind_child FILE:RESULT …

Each argument names two descriptors that it was started with: an open file and a memory file for the result (`RESULT`, then
the rows, then the rules' words; a refusal has a line of text instead). It gives up its rights before it reads a byte.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

import numpy as np

from otelprof.errors import MalformedInput
from otelprof.symbols.elf import Elf, FileSource
from otelprof.symbols.unwind import UnwindTable, unwind_table

RESULT = np.dtype([("magic", "<u4"), ("status", "<u4"), ("base", "<u8"), ("rows", "<u8"), ("rules", "<u8")])
"""Head of a result; of a refusal `rows` is the length of its text."""
MAGIC = 0x6E777574
DONE, EMPTY, REFUSED = 1, 2, 3

_NOBODY = 65_534
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS, linux/prctl.h
_LIMITS = {
    resource.RLIMIT_AS: 2 << 30,
    resource.RLIMIT_CPU: 120,
    resource.RLIMIT_FSIZE: 128 << 20,
    resource.RLIMIT_NPROC: 0,
    resource.RLIMIT_CORE: 0,
}


def give_up_rights() -> None:
    """No other identity, no new rights, little memory and time; low priority."""
    os.nice(5)
    for what, limit in _LIMITS.items():
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (limit, limit) if hard in (resource.RLIM_INFINITY, -1) or hard > limit else (hard, hard))
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def answer(file: int, result: int) -> None:
    """Parse one file and write what came out."""
    try:
        table = unwind_table(Elf(FileSource(file)))
    except (MalformedInput, MemoryError) as error:
        text = str(error).encode()[:1000] or b"too little memory"
        _write(result, _head(REFUSED, 0, len(text), 0), text)
        return
    if table is None:
        _write(result, _head(EMPTY, 0, 0, 0))
    else:
        _write_table(result, table)


def _write_table(result: int, table: UnwindTable) -> None:
    head = _head(DONE, table.base, len(table.rows), len(table.rules))
    _write(result, head, table.rows.tobytes(), table.rules.tobytes())


def _head(status: int, base: int, rows: int, rules: int) -> bytes:
    return np.array([(MAGIC, status, base, rows, rules)], RESULT).tobytes()


def _write(result: int, *parts: bytes) -> None:
    """The head last, so that a result that has one is whole."""
    at = len(parts[0])
    for part in parts[1:]:
        view = memoryview(part)
        while view:
            written = os.pwrite(result, view, at)
            at, view = at + written, view[written:]
    os.pwrite(result, parts[0], 0)


def main(arguments: list[str]) -> None:
    """Answer all jobs in order."""
    give_up_rights()
    for argument in arguments:
        file, result = argument.split(":")
        answer(int(file), int(result))
        os.write(1, b".")  # so that the agent needn't wait for the others


if __name__ == "__main__":
    main(sys.argv[1:])
