"""The parsing process: what it gives is what the parser gives, and what it can't read is refused with a reason."""

import os
import subprocess
import sys

import numpy as np
import pytest

from otelprof.symbols import unwind_parser
from otelprof.symbols.elf import Elf, FileSource
from otelprof.symbols.unwind import ROW, unwind_table
from otelprof.symbols.unwind_parser import parse

LIBC = "/lib/x86_64-linux-gnu/libc.so.6"


@pytest.fixture
def opened(tmp_path):
    """Opens files, or makes them of bytes; closed after the test."""
    files = []

    def open_(content):
        if isinstance(content, bytes):
            path = tmp_path / str(len(files))
            path.write_bytes(content)
            content = path
        files.append(os.open(content, os.O_RDONLY))
        return files[-1]

    yield open_
    for file in files:
        os.close(file)


def test_a_table_comes_back_whole(opened):
    (parsed,) = parse([opened(LIBC)])
    expected = unwind_table(Elf(FileSource(os.open(LIBC, os.O_RDONLY))))
    rows = np.zeros(parsed.rows, ROW)
    parsed.read_rows(0, rows)
    assert parsed.base == expected.base
    assert (rows == expected.rows).all()
    assert (parsed.rules == expected.rules).all()
    tail = np.zeros(5, ROW)
    parsed.read_rows(parsed.rows - 5, tail)
    assert (tail == rows[-5:]).all()
    parsed.close()


def test_each_file_has_its_own_answer(opened):
    """One that is no ELF file, one without tables, one whose tables are broken, and one that is well."""
    with open(LIBC, "rb") as file:
        libc = file.read()
    section = Elf(FileSource(os.open(LIBC, os.O_RDONLY))).section(".eh_frame")
    broken = bytearray(libc)
    broken[int(section["offset"]) : int(section["offset"]) + 4] = b"\xf0\xff\xff\xff"
    empty = libc[:64].replace(libc[0x38:0x3A], b"\0\0")[:64]
    answers = list(parse([opened(b"hello" * 100), opened(empty), opened(bytes(broken)), opened(LIBC)]))
    assert "not a 64-bit little-endian ELF file" in answers[0].refusal
    assert answers[1].rules is None
    assert "leads out of its section" in answers[2].refusal
    assert answers[3].rows > 1000
    answers[3].close()


def test_a_process_that_is_killed_refuses_the_file_that_it_was_at(opened, monkeypatch):
    """Nothing is answered: the first file is refused, the others may be asked for again."""
    monkeypatch.setattr(unwind_parser.sys, "executable", "/bin/false")
    first, second = parse([opened(LIBC), opened(LIBC)])
    assert "ended with status 1" in first.refusal
    assert second is None


def test_it_runs_as_nobody_without_new_rights(tmp_path):
    """Asked of the kernel after the rights were given up."""
    script = "from otelprof.symbols.unwind_child import give_up_rights as g; g(); print(open('/proc/self/status').read())"
    status = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert fields["NoNewPrivs"].strip() == "1"
    if not os.geteuid():
        assert set(fields["Uid"].split()) == {"65534"}
        assert int(fields["CapEff"], 16) == 0


def test_a_result_is_there_before_the_next_file_is_parsed(opened):
    """The small file needn't wait for the big one."""
    answers = parse([opened(LIBC), opened(sys.executable)])
    first = next(answers)
    assert first.rows > 1000
    first.close()
    answers.close()
