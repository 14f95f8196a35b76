"""Layouts from BTF are the C compiler's own, and what can't cross to Python is refused."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from otelprof.ebpf.layout import Wire, wire
from otelprof.ebpf.object import OBJECTS, Btf, read_btf, read_object, section
from otelprof.errors import MalformedInput, Unsupported

WIRE_H = Path(__file__).resolve().parents[2] / "bpf" / "wire.h"
STRUCTS = re.findall(r"^struct (\w+) \{", WIRE_H.read_text(), re.MULTILINE)
ENUMS = re.findall(r"^enum (\w+) \{", WIRE_H.read_text(), re.MULTILINE)


def compiled(folder, source, *flags):
    """Compiles and runs a C program; its output."""
    (folder / "main.c").write_text(source)
    subprocess.run(["cc", *flags, f"-I{WIRE_H.parent}", "-o", folder / "main", folder / "main.c"], check=True)
    return subprocess.run([folder / "main"], capture_output=True, text=True, check=True).stdout


def btf_of(folder, source):
    """The BTF of a piece of C."""
    (folder / "piece.c").write_text(source)
    object_ = folder / "piece.o"
    subprocess.run(["clang", "-target", "bpf", "-g", "-O2", "-c", folder / "piece.c", "-o", object_], check=True)
    return Btf(section(object_.read_bytes(), ".BTF"))


@pytest.mark.parametrize("name", STRUCTS)
def test_offsets_and_sizes_are_the_c_compilers(tmp_path, name):
    fields = wire().dtype(name).fields
    lines = [f'printf("%zu\\n", offsetof(struct {name}, {field}));' for field in fields]
    source = f'#include <stddef.h>\n#include <stdio.h>\n#include "wire.h"\nint main(void) {{ {"".join(lines)}'
    numbers = compiled(tmp_path, source + f' printf("%zu\\n", sizeof(struct {name})); }}').split()

    assert [str(offset) for _, offset, *_ in fields.values()] == numbers[:-1]
    assert str(wire().dtype(name).itemsize) == numbers[-1]


@pytest.mark.parametrize("name", ENUMS)
def test_every_constant_crosses(tmp_path, name):
    body = re.search(rf"^enum {name} \{{(.*?)\}};", WIRE_H.read_text(), re.MULTILINE | re.DOTALL)[1]
    names = re.findall(r"\b([A-Z][A-Z0-9_]+)\b(?=\s*[=,\n}])", re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL))
    lines = "".join(f'printf("%u\\n", (unsigned){constant});' for constant in names)
    values = compiled(tmp_path, f'#include <stdio.h>\n#include "wire.h"\nint main(void) {{ {lines} }}').split()

    assert wire().enum(name) == dict(zip(names, map(int, values), strict=True))


def test_a_record_is_filled_by_name_and_the_rest_is_zero():
    record = wire().record("target", {"process": 7, "python": {"frame": {"steps": 2, "offset": [56, -8]}, "shim_owner": 3}})

    assert (record["process"], record["flags"], record["python"]["shim_owner"]) == (7, 0, 3)
    assert record["python"]["frame"]["offset"].tolist() == [56, -8, 0]
    with pytest.raises(ValueError, match="no field"):
        wire().record("target", {"proces": 7})


def test_names_that_the_c_lacks_are_errors():
    with pytest.raises(KeyError, match="no struct ghost"):
        wire().dtype("ghost")
    with pytest.raises(KeyError, match="no enum ghost"):
        wire().enum("ghost")


def test_kinds_of_members_become_kinds_of_dtypes(tmp_path):
    source = (
        "typedef unsigned long long u64; struct in { char name[5]; signed char s; };"
        "struct out { u64 a; int b; unsigned short c[3]; struct in d[2]; const void *e; enum k { K } f; }; struct out *x;"
    )
    dtype = Wire([btf_of(tmp_path, source)]).dtype("out")

    assert dtype["a"] == np.dtype("<u8")
    assert dtype["b"] == np.dtype("<i4")
    assert dtype["c"] == np.dtype(("<u2", (3,)))
    assert dtype["d"].base["name"] == np.dtype("S5")
    assert dtype["e"] == np.dtype("<u8")
    assert dtype["f"] == np.dtype("<u4")


@pytest.mark.parametrize(
    ("member", "words"), [("unsigned a : 3;", "bit-fields"), ("union { int a; } u;", "union"), ("float a;", "float")]
)
def test_what_cannot_cross_is_refused(tmp_path, member, words):
    with pytest.raises(MalformedInput, match=words):
        Wire([btf_of(tmp_path, f"struct bad {{ {member} }}; struct bad *x;")]).dtype("bad")


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_agree_on_what_they_share(name):
    own = Wire([read_btf(name)])

    assert own.dtype("target") == wire().dtype("target")
    assert own.dtype("loss") == wire().dtype("loss")


def test_files_that_are_no_objects_are_told_in_one_line():
    for data in (b"", b"\x7fELF", b"#!/bin/sh\n" * 100, read_object("sampler")[:200]):
        with pytest.raises(MalformedInput, match="install the package again"):
            section(data, ".BTF")
    with pytest.raises(MalformedInput, match=r"no section \.ghost"):
        section(read_object("sampler"), ".ghost")
    with pytest.raises(Unsupported, match="make bpf"):
        read_object("ghost")
