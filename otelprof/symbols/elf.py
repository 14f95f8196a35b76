"""A reader of ELF files (64-bit, little-endian) for what a profiler needs: segments, symbols, build id, soname.

Files belong to strangers, so every length is checked against the file and a limit before it is used, and what doesn't fit
raises MalformedInput. They are read with `pread`, not mapped: a file that its owner shortens under a mapping would kill the
agent by SIGBUS. Layouts: System V ABI, gABI 4.1 chapters 4 and 5; GNU hash: https://sourceware.org/gnu-gabi/program-loading-and-dynamic-linking.txt
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from otelprof.errors import MalformedInput, TooLarge

Table = npt.NDArray[np.void]

HEADER = np.dtype(
    [
        ("ident", "S16"), ("type", "<u2"), ("machine", "<u2"), ("version", "<u4"), ("entry", "<u8"), ("phoff", "<u8"),
        ("shoff", "<u8"), ("flags", "<u4"), ("ehsize", "<u2"), ("phentsize", "<u2"), ("phnum", "<u2"), ("shentsize", "<u2"),
        ("shnum", "<u2"), ("shstrndx", "<u2"),
    ]
)  # fmt: skip
SEGMENT = np.dtype(
    [
        ("type", "<u4"), ("flags", "<u4"), ("offset", "<u8"), ("vaddr", "<u8"), ("paddr", "<u8"), ("filesz", "<u8"),
        ("memsz", "<u8"), ("align", "<u8"),
    ]
)  # fmt: skip
SECTION = np.dtype(
    [
        ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("addr", "<u8"), ("offset", "<u8"), ("size", "<u8"),
        ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entsize", "<u8"),
    ]
)  # fmt: skip
SYMBOL = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("value", "<u8"), ("size", "<u8")])
DYNAMIC = np.dtype([("tag", "<i8"), ("value", "<u8")])

TYPE_EXECUTABLE = 2
"""ET_EXEC: linked to a fixed address."""
SEGMENT_LOAD, _SEGMENT_DYNAMIC, _SEGMENT_NOTE, SEGMENT_TLS = 1, 2, 4, 7
_SECTION_NOBITS = 8
_TAG_STRTAB, _TAG_SONAME = 5, 14
_NOTE_BUILD_ID = 3
_MAGIC = b"\x7fELF\x02\x01\x01"

SEGMENT_LIMIT = 1024
SECTION_LIMIT = 65_280  # SHN_LORESERVE: beyond it the count stands elsewhere, which no file we met does
SYMBOL_LIMIT = 8_000_000
"""libtorch_cpu.so has 530,000."""
_NAME_LIMIT = 1 << 16
_NOTE_LIMIT = 1 << 16
_CHAIN_LIMIT = 1 << 16
_STEP = 1 << 20


class Source(Protocol):
    """Bytes by offset; less comes back at the end."""

    size: int

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`."""


class FileSource:
    """An open file; closed with the source."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.size = os.fstat(file).st_size

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`."""
        try:
            return os.pread(self._file, size, offset) if 0 <= offset < 1 << 62 else b""
        except OSError as error:
            raise MalformedInput(f"ELF file can't be read: {error.strerror}") from None

    def close(self) -> None:
        """Give the file back; safe twice."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()


class BytesSource:
    """An ELF image in memory, such as the vDSO's."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`."""
        return self._data[offset : offset + size] if offset >= 0 else b""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A defined symbol: address as linked, size in bytes, type (STT_*), number of its section."""

    name: str
    value: int
    size: int
    type: int
    section: int


@dataclass(frozen=True)
class SymbolTable:
    """The rows of .symtab or .dynsym, and where in the file their names stand."""

    rows: Table
    names: int
    names_size: int


class Elf:
    """One ELF file. Opening it reads the headers only; all else is read when it is asked for."""

    def __init__(self, source: Source) -> None:
        """MalformedInput when it is no 64-bit little-endian ELF file or its headers lie outside it."""
        self.source = source
        header = self._table(0, 1, HEADER)[0]
        if not bytes(header["ident"]).startswith(_MAGIC):
            raise MalformedInput("not a 64-bit little-endian ELF file")
        self._header = header
        self.type = int(header["type"])
        self.machine = int(header["machine"])
        self.segments = self._counted("phoff", "phnum", SEGMENT, SEGMENT_LIMIT)

    # --- headers -----------------------------------------------------------------------------------------------

    @cached_property
    def sections(self) -> Table:
        """All section headers; none when the file has lost them or they lie outside it."""
        try:
            return self._counted("shoff", "shnum", SECTION, SECTION_LIMIT)
        except MalformedInput:
            return np.zeros(0, SECTION)

    @cached_property
    def section_names(self) -> dict[str, int]:
        """Numbers of the sections by name; of two with one name the first."""
        index = int(self._header["shstrndx"])
        if index >= len(self.sections):
            return {}
        strings = self.section_data(index, _STEP)
        found: dict[str, int] = {}
        for number, start in enumerate(self.sections["name"].tolist()):
            found.setdefault(_cstring(strings, start), number)
        return found

    def section(self, name: str) -> np.void | None:
        """The header of the section with this name."""
        number = self.section_names.get(name)
        return None if number is None else self.sections[number]

    def section_data(self, number: int, limit: int) -> bytes:
        """The bytes of a section, at most `limit`; none of one without bytes in the file."""
        header = self.sections[number]
        if header["type"] == _SECTION_NOBITS:
            return b""
        return self._read(int(header["offset"]), min(int(header["size"]), limit))

    @property
    def loads(self) -> Table:
        """The PT_LOAD segments."""
        found: Table = self.segments[self.segments["type"] == SEGMENT_LOAD]
        return found

    @property
    def tls(self) -> np.void | None:
        """The PT_TLS segment."""
        found = self.segments[self.segments["type"] == SEGMENT_TLS]
        return found[0] if len(found) else None

    def address_of(self, offset: int) -> int | None:
        """The linked address of a byte of the file, None when no segment loads it."""
        for load in self.loads:
            start = int(load["offset"])
            if start <= offset < start + int(load["filesz"]):
                return offset - start + int(load["vaddr"])
        return None

    def bias(self, start: int, offset: int) -> int | None:
        """Run-time minus linked addresses when the page at file `offset` is mapped at `start`.

        A page of the file may belong to two segments, the end of one and the beginning of the next: then it is mapped as
        the beginning, since a mapping that was cut in pieces seldom begins with a segment's last page.
        """
        found = None
        for load in self.loads:
            first = int(load["offset"]) & ~0xFFF
            if first == offset or (found is None and first < offset < int(load["offset"]) + int(load["filesz"])):
                found = start - (offset - int(load["offset"]) + int(load["vaddr"]))
        return found

    # --- identity ----------------------------------------------------------------------------------------------

    @cached_property
    def build_id(self) -> str:
        """The GNU build id in hex, empty when there is none."""
        for segment in self.segments[self.segments["type"] == _SEGMENT_NOTE]:
            data = self.source.read(int(segment["offset"]), min(int(segment["filesz"]), _NOTE_LIMIT))
            for kind, owner, content in _notes(data, 8 if int(segment["align"]) == 8 else 4):
                if kind == _NOTE_BUILD_ID and owner == b"GNU\0":
                    return content[:64].hex()
        return ""

    @cached_property
    def soname(self) -> str:
        """DT_SONAME, empty when there is none."""
        values = self._dynamic
        if _TAG_SONAME not in values or _TAG_STRTAB not in values:
            return ""
        offset = self._offset_of(values[_TAG_STRTAB])
        return "" if offset is None else self._string(offset + values[_TAG_SONAME])

    @cached_property
    def _dynamic(self) -> dict[int, int]:
        for segment in self.segments[self.segments["type"] == _SEGMENT_DYNAMIC]:
            count = min(int(segment["filesz"]) // DYNAMIC.itemsize, 4096)
            return {int(row["tag"]): int(row["value"]) for row in self._table(int(segment["offset"]), count, DYNAMIC)}
        return {}

    def _offset_of(self, address: int) -> int | None:
        for load in self.loads:
            start = int(load["vaddr"])
            if start <= address < start + int(load["filesz"]):
                return address - start + int(load["offset"])
        return None

    def read_address(self, address: int, size: int) -> bytes:
        """Bytes as the file loads them at a linked address; fewer at the end of a segment, none outside."""
        offset = self._offset_of(address)
        return b"" if offset is None else self.source.read(offset, min(size, _STEP))

    # --- symbols -----------------------------------------------------------------------------------------------

    def symbols(self, name: str) -> SymbolTable | None:
        """The table `.symtab` or `.dynsym`; None when the file has none. Shape (symbols,), dtype SYMBOL."""
        header = self.section(name)
        if header is None or header["type"] == _SECTION_NOBITS or int(header["link"]) >= len(self.sections):
            return None
        count = int(header["size"]) // SYMBOL.itemsize
        if count > SYMBOL_LIMIT:
            raise TooLarge(f"{name} has {count} symbols, more than {SYMBOL_LIMIT}")
        strings = self.sections[int(header["link"])]
        return SymbolTable(self._table(int(header["offset"]), count, SYMBOL), int(strings["offset"]), int(strings["size"]))

    def symbol_name(self, table: SymbolTable, start: int) -> bytes:
        """The name that begins `start` bytes into the table's strings, at most 65,535 bytes of it."""
        if start >= table.names_size:
            return b""
        return self._cstring_at(table.names + start, min(_NAME_LIMIT, table.names_size - start))

    def find(self, name: str) -> Symbol | None:
        """The defined symbol `name` of .dynsym, else of .symtab."""
        return self.find_exported(name) or self._find_listed(name, ".symtab")

    def find_exported(self, name: str) -> Symbol | None:
        """The defined symbol `name` of .dynsym: by its hash table (some ten small reads), without one by going through."""
        return self._find_hashed(name) if ".gnu.hash" in self.section_names else self._find_listed(name, ".dynsym")

    def _find_listed(self, name: str, where: str) -> Symbol | None:
        table = self.symbols(where)
        if table is None:
            return None
        for start in _positions(self.source, (table.names, table.names_size), name.encode()):
            rows = table.rows[(table.rows["name"] == start) & (table.rows["shndx"] != 0)]
            if len(rows):
                return _symbol(name, rows[0])
        return None

    def _find_hashed(self, name: str) -> Symbol | None:
        header = self.section(".gnu.hash")
        dynamic = self.section(".dynsym")
        if header is None or dynamic is None or int(dynamic["link"]) >= len(self.sections):
            return None
        strings = self.sections[int(dynamic["link"])]
        for index in _GnuHash(self.source, int(header["offset"]), int(header["size"])).indexes(name.encode()):
            row = self._table(int(dynamic["offset"]) + index * SYMBOL.itemsize, 1, SYMBOL)[0]
            found = self._cstring_at(int(strings["offset"]) + int(row["name"]), len(name) + 1)
            if found == name.encode() and row["shndx"] != 0:
                return _symbol(name, row)
        return None

    # --- reading -----------------------------------------------------------------------------------------------

    def _counted(self, offset: str, count: str, dtype: np.dtype[np.void], limit: int) -> Table:
        number = int(self._header[count])
        if number > limit:
            raise TooLarge(f"ELF header counts {number} entries in {count}, more than {limit}")
        return self._table(int(self._header[offset]), number, dtype)

    def _table(self, offset: int, count: int, dtype: np.dtype[np.void]) -> Table:
        return np.frombuffer(self._read(offset, count * dtype.itemsize), dtype)

    def _read(self, offset: int, size: int) -> bytes:
        if offset + size > self.source.size:
            raise MalformedInput(f"ELF file ends before byte {offset + size}")
        data = self.source.read(offset, size)
        if len(data) != size:
            raise MalformedInput(f"ELF file ends before byte {offset + size}")
        return data

    def _cstring_at(self, offset: int, limit: int) -> bytes:
        first = self.source.read(offset, min(limit, 256))
        if b"\0" not in first and limit > 256:
            first = self.source.read(offset, limit)
        return first.partition(b"\0")[0]

    def _string(self, offset: int) -> str:
        return self._cstring_at(offset, _NAME_LIMIT).decode(errors="replace")


class _GnuHash:
    """The hash table of .dynsym: one bloom filter word says `no` for nearly all names."""

    def __init__(self, source: Source, offset: int, size: int) -> None:
        self._source, self._end = source, offset + size
        head = self._words(offset, 4)
        self._buckets_count, self._first, bloom_size, self._shift = head if len(head) == 4 else (0, 0, 0, 0)
        self._bloom, self._bloom_size = offset + 16, bloom_size
        self._buckets = self._bloom + 8 * bloom_size
        self._chains = self._buckets + 4 * self._buckets_count

    def indexes(self, name: bytes) -> Iterator[int]:
        """Numbers of the symbols whose hash is that of `name`."""
        value = _gnu_hash(name)
        if not self._buckets_count or not self._bloom_size or not self._may_hold(value):
            return
        bucket = self._words(self._buckets + 4 * (value % self._buckets_count), 1)
        index = bucket[0] if bucket else 0
        for _ in range(_CHAIN_LIMIT if index >= self._first else 0):
            word = self._words(self._chains + 4 * (index - self._first), 1)
            if not word:
                return
            if word[0] | 1 == value | 1:
                yield index
            if word[0] & 1:
                return
            index += 1

    def _may_hold(self, value: int) -> bool:
        words = self._words(self._bloom + 8 * (value // 64 % self._bloom_size), 2)
        if len(words) < 2:
            return False
        word = words[0] | words[1] << 32
        return bool(word >> value % 64 & word >> (value >> (self._shift & 31)) % 64 & 1)

    def _words(self, offset: int, count: int) -> list[int]:
        if offset + 4 * count > self._end:
            return []
        data = self._source.read(offset, 4 * count)
        return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data) - 3, 4)]


def _gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def _symbol(name: str, row: np.void) -> Symbol:
    return Symbol(name, int(row["value"]), int(row["size"]), int(row["info"]) & 15, int(row["shndx"]))


def _positions(source: Source, strings: tuple[int, int], name: bytes) -> Iterator[int]:
    """Where in a string table a whole name stands, from its start; read in steps that overlap by a name."""
    offset, size = strings
    wanted = b"\0" + name + b"\0"
    for start in range(0, min(size, source.size), _STEP):
        data = source.read(offset + start, min(_STEP + len(wanted), size - start))
        at = data.find(wanted)
        if at >= 0:
            yield start + at + 1


def _notes(data: bytes, align: int) -> Iterator[tuple[int, bytes, bytes]]:
    """(type, owner, content) of each ELF note."""
    at = 0
    while at + 12 <= len(data):
        name_size, content_size, kind = (int.from_bytes(data[at + k : at + k + 4], "little") for k in (0, 4, 8))
        name = at + 12
        content = _aligned(name + name_size, align)
        if content + content_size > len(data):
            return
        yield kind, data[name : name + name_size], data[content : content + content_size]
        at = _aligned(content + content_size, align)


def _aligned(value: int, align: int) -> int:
    return -(-value // align) * align


def _cstring(data: bytes, start: int) -> str:
    return data[start : max(data.find(b"\0", start), start)].decode(errors="replace")
