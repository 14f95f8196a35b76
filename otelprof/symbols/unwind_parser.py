"""Has unwind tables made by a short-lived process without privileges.

Hostile files, the peak of memory and the work of parsing stay out of the agent.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otelprof.errors import MalformedInput
from otelprof.symbols.unwind import ROW, ROW_LIMIT, RULE_LIMIT
from otelprof.symbols.unwind_child import DONE, EMPTY, MAGIC, REFUSED, RESULT

TIME_LIMIT = 600.0
"""Seconds that a batch of files may take; its processor time has a limit of its own, which a busy machine doesn't touch."""
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}


@dataclass
class Parsed:
    """What came of one file: a table that is still in its memory file, nothing, or a refusal. Close it after use."""

    base: int = 0
    rows: int = 0
    rules: npt.NDArray[np.uint64] | None = None
    """Words of the rules; None: there is no table."""
    refusal: str = ""
    file: int = -1

    def read_rows(self, first: int, into: npt.NDArray[np.void]) -> None:
        """Rows from number `first` on, straight into an array of ROW."""
        view = memoryview(into.view(np.uint8).data)
        if os.preadv(self.file, [view], RESULT.itemsize + first * ROW.itemsize) != len(view):
            raise MalformedInput("the parsing process wrote too little")

    def close(self) -> None:
        """Give the memory file back; safe twice."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)


def parse(files: Sequence[int]) -> Iterator[Parsed | None]:
    """The tables of open files, in order, each as soon as it is there; None for those that the process didn't come to.

    The files stay open. When the process ends early, by a limit or by a fault, the file that it was at is refused.
    """
    results = [os.memfd_create("otelprof-unwind", os.MFD_CLOEXEC) for _ in files]
    waiting, refused = list(reversed(results)), False
    try:
        for reason in _run(files, results):
            result = waiting.pop()
            found = read_result(result) if not reason else None
            if reason and not refused:
                refused = True
                found = Parsed(refusal=f"the process that parses it {reason}")
            if found is None or found.rules is None:
                os.close(result)
            yield found
    finally:
        for result in waiting:
            os.close(result)


def _run(files: Sequence[int], results: Sequence[int]) -> Iterator[str]:
    """For each file, once it is done: nothing; after the process has ended early, how."""
    jobs = [f"{file}:{result}" for file, result in zip(files, results, strict=True)]
    command = [sys.executable, "-I", "-m", "otelprof.symbols.unwind_child", *jobs]
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        child = subprocess.Popen(
            command, stdin=nothing, stdout=pipe, stderr=nothing, env=_ENVIRONMENT, pass_fds=[*files, *results]
        )
    except OSError as error:
        yield from [f"couldn't be started: {error.strerror}"] * len(files)
        return
    with child:
        yield from _results(child, len(files))


def _results(child: subprocess.Popen[bytes], count: int) -> Iterator[str]:
    """The process writes a byte for each file that it has done."""
    pipe = child.stdout.fileno() if child.stdout is not None else -1
    end = time.monotonic() + TIME_LIMIT
    done, reason = 0, ""
    while done < count and not reason:
        ready = select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]
        if not ready:
            child.kill()
            reason = f"took longer than {TIME_LIMIT:.0f} s"
        elif os.read(pipe, 1):
            done += 1
            yield ""
        else:
            reason = f"ended with status {child.wait()}"
    yield from [reason] * (count - done)


def read_result(result: int) -> Parsed | None:
    """The result in an open file, which belongs to it when it is a table; None when there is none."""
    head = np.zeros(1, RESULT)
    if os.preadv(result, [memoryview(head.view(np.uint8).data)], 0) != RESULT.itemsize or head["magic"][0] != MAGIC:
        return None
    status, rows, rules = int(head["status"][0]), int(head["rows"][0]), int(head["rules"][0])
    if status == EMPTY:
        return Parsed()
    if status == REFUSED:
        return Parsed(refusal=os.pread(result, min(rows, 1000), RESULT.itemsize).decode("utf-8", "replace"))
    if status != DONE or not 0 < rows <= ROW_LIMIT + RULE_LIMIT or not 0 < rules <= RULE_LIMIT:
        return Parsed(refusal="the parsing process wrote what can't be")
    words = np.frombuffer(os.pread(result, 8 * rules, RESULT.itemsize + rows * ROW.itemsize), "<u8")
    if len(words) != rules:
        return Parsed(refusal="the parsing process wrote too little")
    return Parsed(int(head["base"][0]), rows, words, file=result)
