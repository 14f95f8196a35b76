"""Unwind tables: against readelf's own reading of real libraries, and on bytes of strangers."""

import os
import re
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelprof.errors import MalformedInput
from otelprof.symbols import cfi
from otelprof.symbols.cfi_lanes import Cfa, FramePointer, cfa_expression, register_offset
from otelprof.symbols.elf import BytesSource, Elf, FileSource
from otelprof.symbols.unwind import ROW, UnwindTable, unwind_table

FUNCTION = re.compile(r"^[0-9a-f]+ [0-9a-f]+ [0-9a-f]+ FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")
REGISTER = re.compile(r"\br\d+ \(\w+\)")
NAMES = ["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{n}" for n in range(8, 16))]  # in DWARF's order
ENTRY = re.compile(r"^([0-9a-f]+) [0-9a-f]+ [0-9a-f]+ CIE")


def libraries():
    """Real files of several compilers and languages."""
    wanted = ["/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "/usr/bin/python3.11"]
    wanted += [str(path) for path in (Path.home() / ".pyenv" / "versions").glob("3.1[12]*/lib/libpython3.1?.so.1.0")][:1]
    return [path for path in wanted if Path(path).exists()]


def opened(path):
    return Elf(FileSource(os.open(path, os.O_RDONLY)))


def said_by_readelf(path):
    """{address: (cfa, rbp, ra)} of every row that readelf gives, and the ranges of all functions."""
    command = ["readelf", "--wide", "--debug-dump=frames-interp", path]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # 1 after any warning
    rows, ranges, cies, columns, place, is_cie = {}, [], {}, [], None, False
    for line in output.splitlines():
        if found := FUNCTION.match(line):
            cie, low, high = (int(part, 16) for part in found.groups())
            ranges.append((low, high))
            place, is_cie = low, False
            if cie in cies:
                rows[low] = cies[cie]
        elif found := ENTRY.match(line):
            place, is_cie = int(found[1], 16), True
        elif line.lstrip().startswith("LOC"):
            columns = line.split()
        elif place is not None and re.match(r"^[0-9a-f]{16} ", line):
            cells = dict(zip(columns, REGISTER.sub("register", line).split(), strict=True))
            rule = (cells["CFA"], cells.get("rbp", "u"), cells.get("ra", "u"))
            if is_cie:
                cies[place] = rule
            else:
                rows[int(cells["LOC"], 16)] = rule
    return rows, ranges


def as_readelf(word):
    """(cfa, rbp) of a rule's word, in readelf's words; the CFA of an expression is `exp`."""
    kind, fp, fp_offset, offset = struct.unpack("<BBhi", struct.pack("<Q", word))
    names = {Cfa.RSP: "rsp", Cfa.RBP: "rbp", **{Cfa.LEAF_REGISTER + n: name for n, name in enumerate(NAMES)}}
    cfa = f"{names[kind]}{offset:+d}" if kind in names else "exp"
    return cfa, {FramePointer.SAME: "u", FramePointer.AT_CFA: f"c{fp_offset:+d}"}.get(fp, "exp")


@pytest.mark.parametrize("path", libraries(), ids=lambda path: Path(path).name)
def test_a_table_says_what_readelf_says(path):
    """Every row of every function: the same CFA, the same place of rbp; and nothing between functions."""
    rows, ranges = said_by_readelf(path)
    table = unwind_table(opened(path))
    wrong = []
    words = table.rules_at(np.array(list(rows), np.int64)).tolist()
    for (address, (cfa, rbp, ra)), word in zip(rows.items(), words, strict=True):
        kind = word & 0xFF
        if ra == "u":
            good = kind == Cfa.END
        elif ra != "c-8" and kind != Cfa.SIGNAL:
            good = word == 0
        elif kind in (Cfa.SIGNAL, Cfa.NONE):
            good = cfa == "exp"
        else:
            good = as_readelf(word) == (cfa, {"s": "u", "register": "exp"}.get(rbp, rbp))
        if not good:
            wrong.append((hex(address), as_readelf(word), cfa, rbp, ra))

    assert len(rows) > 1000
    assert wrong == []
    low, high = np.array(sorted(ranges), np.int64).T
    ends = high[np.append(low[1:], 1 << 62) > high + 16]
    assert not table.rules_at(ends).any()


@pytest.mark.parametrize("path", libraries(), ids=lambda path: Path(path).name)
def test_nearly_every_function_has_rules(path):
    """What is left without any is a handful of hand-written functions."""
    table = unwind_table(opened(path))
    functions = cfi.read_functions(cfi.find_section(opened(path)))

    assert np.count_nonzero(table.rules_at(functions.low) == 0) <= len(functions.low) / 500
    assert (np.diff(table.rows["address"].astype(np.int64)) > 0).all()
    assert table.rows.dtype == ROW
    assert table.rows["rule"].max() < len(table.rules)


def test_pieces_make_the_same_table(monkeypatch):
    """However many functions are run at once."""
    path = "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"
    whole = unwind_table(opened(path))
    monkeypatch.setattr("otelprof.symbols.unwind.PIECE", 700)
    pieces = unwind_table(opened(path))
    addresses = whole.rows["address"].astype(np.int64) + whole.base
    assert (pieces.rules_at(addresses) == whole.rules_at(addresses)).all()
    assert len(pieces.rows) <= len(whole.rows) * 1.05


def test_the_expressions_of_compilers_are_known():
    plt = bytes([0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22])
    assert cfa_expression(plt) == (Cfa.PLT, 11)
    assert cfa_expression(bytes([0x76, 0x78, 0x06])) == (Cfa.DEREF_RBP, -8)
    assert cfa_expression(bytes([0x77, 0xA0, 0x01, 0x06])) == (Cfa.DEREF_RSP, 160)
    assert cfa_expression(bytes([0x76, 0x78])) == (Cfa.NONE, 0)
    assert cfa_expression(b"") == (Cfa.NONE, 0)
    assert register_offset(bytes([0x76, 0]), 6) == 0
    assert register_offset(bytes([0x76, 0, 0]), 6) is None


def test_the_frame_of_a_signal_is_known():
    """glibc's __restore_rt: the interrupted registers are in the context on the stack."""
    elf = opened("/lib/x86_64-linux-gnu/libc.so.6")
    table = unwind_table(elf)
    words = [int(table.rules[row["rule"]]) for row in table.rows]
    assert words.count(int(Cfa.SIGNAL)) == 1


def test_threads_and_programs_end_where_there_is_no_caller():
    """`_start` and `clone` say that their return address is undefined."""
    table = unwind_table(opened("/lib/x86_64-linux-gnu/libc.so.6"))
    assert int(Cfa.END) in table.rules.tolist()


C_PROGRAM = "int deep(int n) { return n ? deep(n - 1) + n : 1; }\nint main(int c, char **v) { (void)v; return deep(c); }\n"


@pytest.mark.parametrize("flags", [[], ["-gz=zlib"], ["-gz=zlib-gnu"]], ids=["plain", "compressed", "compressed-gnu"])
def test_debug_frames_serve_where_there_is_nothing_else(tmp_path, flags):
    source, program = tmp_path / "deep.c", tmp_path / "deep.o"
    source.write_text(C_PROGRAM)
    off = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-g", "-O1"]
    made = subprocess.run(["gcc", *off, *flags, "-o", program, source], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"this gcc can't {flags}")
    strip = [f"--remove-section={name}" for name in (".eh_frame", ".eh_frame_hdr")]
    subprocess.run(["objcopy", *strip, program], check=True)
    elf = opened(program)
    assert ".eh_frame" not in elf.section_names
    table = unwind_table(elf)
    start = np.array([elf.find("deep").value])
    assert as_readelf(int(table.rules_at(start)[0])) == ("rsp+8", "u")


def test_a_file_without_section_headers_is_found_by_its_segment():
    path = "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"
    data = bytearray(Path(path).read_bytes())
    whole = unwind_table(Elf(BytesSource(bytes(data))))
    struct.pack_into("<Q", data, 0x28, 0)  # e_shoff
    struct.pack_into("<HH", data, 0x3C, 0, 0)  # e_shnum, e_shstrndx
    bare = Elf(BytesSource(bytes(data)))
    assert not bare.section_names
    assert len(unwind_table(bare).rows) == len(whole.rows)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The image of a small shared library, and where its `.eh_frame` is."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "deep.c").write_text(C_PROGRAM)
    subprocess.run(["gcc", "-O2", "-o", folder / "deep", folder / "deep.c"], check=True)
    data = (folder / "deep").read_bytes()
    header = Elf(BytesSource(data)).section(".eh_frame")
    return data, int(header["offset"]), int(header["size"])


@settings(max_examples=150, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=40))
def test_broken_tables_are_refused_or_read_but_never_worse(small, changes):
    """Any bytes changed anywhere in the section."""
    data, offset, size = small
    broken = bytearray(data)
    for place, value in changes:
        broken[offset + place % size] = value
    _read(bytes(broken))


@settings(max_examples=100, deadline=None)
@given(content=st.binary(min_size=1, max_size=600))
def test_any_bytes_are_refused_or_read_but_never_worse(small, content):
    """The section's bytes replaced by bytes of a stranger."""
    data, offset, size = small
    content = content[:size]
    _read(data[:offset] + content + data[offset + len(content) :])


@settings(max_examples=60, deadline=None)
@given(size=st.integers(0, 20_000))
def test_a_file_that_ends_early_is_refused_or_read(small, size):
    _read(small[0][:size])


def _read(data):
    try:
        table = unwind_table(Elf(BytesSource(data)))
    except MalformedInput:
        return
    assert table is None or isinstance(table, UnwindTable)
    if table is not None:
        assert (np.diff(table.rows["address"].astype(np.int64)) > 0).all()
        assert table.rows["rule"].max() < len(table.rules)


def test_an_endless_program_is_cut():
    """A function of a million instructions costs no more than the limit, and has no rules behind it."""
    cie = struct.pack("<II", 12, 0) + bytes([1, 0, 1, 0x78, 16, 0x0C, 7, 8])
    fde = struct.pack("<II", 1_000_016 + 4, len(cie) + 4) + struct.pack("<QQ", 0x1000, 0x2000000) + b"\x41" * 1_000_000
    data = cie + fde
    padded = np.zeros(len(data) + cfi.PADDING, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    functions = cfi.read_functions(cfi.Section(padded, len(data), 0, True))
    assert functions.high.tolist() == [0x1000 + 0x2000000]
