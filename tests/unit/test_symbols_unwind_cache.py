"""Unwind tables on disk: whole or not at all, by content, bounded."""

import os

import numpy as np
import pytest

from otelprof.symbols.unwind import ROW
from otelprof.symbols.unwind_cache import UnwindCache
from otelprof.symbols.unwind_parser import parse

LIBC, LIBM = "/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libm.so.6"


@pytest.fixture(scope="module")
def tables():
    """The tables of two libraries, by path."""
    files = {path: os.open(path, os.O_RDONLY) for path in (LIBC, LIBM)}
    made = dict(zip(files, parse(list(files.values())), strict=True))
    yield made
    for table, file in zip(made.values(), files.values(), strict=True):
        table.close()
        os.close(file)


def key_of(cache, path):
    file = os.open(path, os.O_RDONLY)
    try:
        return cache.key(file)
    finally:
        os.close(file)


def rows_of(table):
    rows = np.zeros(table.rows, ROW)
    table.read_rows(0, rows)
    return rows


def test_what_was_kept_comes_back_in_another_agent(tmp_path, tables):
    cache = UnwindCache(tmp_path / "unwind")
    name = key_of(cache, LIBC)
    assert cache.get(name) is None
    cache.put(name, tables[LIBC])
    found = UnwindCache(tmp_path / "unwind").get(name)
    assert (found.base, found.rows) == (tables[LIBC].base, tables[LIBC].rows)
    assert (rows_of(found) == rows_of(tables[LIBC])).all()
    assert (found.rules == tables[LIBC].rules).all()
    assert [path.name for path in (tmp_path / "unwind").iterdir()] == [name]
    found.close()


@pytest.mark.parametrize("place", [0, 40, 1000, -1])
def test_a_changed_file_is_not_believed(tmp_path, tables, place):
    cache = UnwindCache(tmp_path)
    name = key_of(cache, LIBM)
    cache.put(name, tables[LIBM])
    content = bytearray((tmp_path / name).read_bytes())
    content[place] ^= 1
    (tmp_path / name).write_bytes(content)
    assert cache.get(name) is None
    (tmp_path / name).write_bytes(content[:100])
    assert cache.get(name) is None


def test_the_same_build_id_over_other_tables_has_another_name(tmp_path):
    cache = UnwindCache(tmp_path)
    with open(LIBM, "rb") as file:
        content = bytearray(file.read())
    name = key_of(cache, LIBM)
    at = content.find(b"\x14\0\0\0\0\0\0\0\x01zR\0")  # the first CIE
    content[at + 0x20] ^= 1
    (tmp_path / "other").write_bytes(content)
    other = key_of(cache, tmp_path / "other")
    assert name.split("-")[0] == other.split("-")[0]
    assert name != other


def test_the_oldest_go(tmp_path, tables):
    cache = UnwindCache(tmp_path, limit=tables[LIBC].rows * 8 + 10_000)
    cache.put("old", tables[LIBM])
    os.utime(tmp_path / "old", (1, 1))
    cache.put("new", tables[LIBC])
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_folder_that_cannot_be_written_is_no_harm(tmp_path, tables):
    (tmp_path / "file").touch()
    cache = UnwindCache(tmp_path / "file" / "unwind")
    cache.put("name", tables[LIBM])
    assert cache.get("name") is None
    assert key_of(UnwindCache(None), LIBM) is None
