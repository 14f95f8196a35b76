"""Reads our compiled BPF objects: the sections of an ELF file and the types in its BTF, without libraries.

ELF64 little-endian: System V gABI, chapter 4. BTF: Documentation/bpf/btf.rst of the Linux kernel. The files are our own,
from the package, so an odd one is an installation's mistake and not an attack; it is still told in one line.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from importlib import resources

from otelprof.errors import MalformedInput, Unsupported

OBJECTS = ("sampler", "processes", "cuda")
BTF_MAGIC = 0xEB9F


class Kind(IntEnum):
    """BTF_KIND_* of the types that are looked at."""

    INT = 1
    PTR = 2
    ARRAY = 3
    STRUCT = 4
    UNION = 5
    ENUM = 6
    FWD = 7
    TYPEDEF = 8
    VOLATILE = 9
    CONST = 10
    RESTRICT = 11
    FUNC = 12
    FUNC_PROTO = 13
    VAR = 14
    DATASEC = 15
    FLOAT = 16
    DECL_TAG = 17
    TYPE_TAG = 18
    ENUM64 = 19


_TAIL = {Kind.INT: 4, Kind.ARRAY: 12, Kind.VAR: 4, Kind.DECL_TAG: 4}  # bytes after the 12 that each type has
_PER_MEMBER = {Kind.STRUCT: 12, Kind.UNION: 12, Kind.ENUM: 8, Kind.FUNC_PROTO: 8, Kind.DATASEC: 12, Kind.ENUM64: 12}


@dataclass(frozen=True, slots=True)
class Type:
    """One BTF type: `size` doubles as the id of the type that it refers to, `flag` is the kind flag (bit-fields)."""

    kind: Kind
    name: str
    size: int
    flag: bool
    members: tuple[tuple[str, int, int], ...]  # struct: name, type, bit offset; enum: name, value, 0
    extra: tuple[int, ...]  # int: its word; array: element type, index type, length


def read_object(name: str) -> bytes:
    """The bytes of bpf/NAME.bpf.c, compiled; Unsupported when the package lacks it."""
    path = resources.files("otelprof") / "_bpf" / f"{name}.bpf.o"
    try:
        return path.read_bytes()
    except OSError:
        raise Unsupported(f"the package has no BPF object {name}.bpf.o: install it again, or run `make bpf`") from None


def section(elf: bytes, name: str) -> bytes:
    """The contents of a section of an ELF file; MalformedInput when there is none."""
    try:
        for found, start, size in _sections(elf):
            if found == name:
                return elf[start : start + size]
    except (struct.error, ValueError):
        raise MalformedInput("not an ELF64 file of little-endian order: install the package again") from None
    raise MalformedInput(f"the BPF object has no section {name}: install the package again")


def _sections(elf: bytes) -> Iterator[tuple[str, int, int]]:
    """Name, file offset and size of each section."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF64")
    table, entry, count, names_index = struct.unpack_from("<Q10xHHH", elf, 0x28)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry) for i in range(count)]
    names = headers[names_index][4]
    for header in headers:
        start = names + header[0]
        yield elf[start : elf.index(b"\0", start)].decode(), header[4], header[5]


class Btf:
    """The types of one object, by id (0: void) and by kind and name."""

    def __init__(self, data: bytes) -> None:
        magic, header, types, types_length, strings, strings_length = struct.unpack_from("<H2xIIIII", data)
        if magic != BTF_MAGIC:
            raise MalformedInput("the BPF object's BTF has another magic number: install the package again")
        self._strings = data[header + strings :][:strings_length]
        self._types = list(self._read(data[header + types :][:types_length]))
        self._ids = {(t.kind, t.name): number for number, t in enumerate(self._types, 1)}

    def __getitem__(self, number: int) -> Type:
        """The type with this id, from 1 on."""
        return self._types[number - 1]

    def __iter__(self) -> Iterator[Type]:
        return iter(self._types)

    def find(self, kind: Kind, name: str) -> int | None:
        """The id of a named type."""
        return self._ids.get((kind, name))

    def _string(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _read(self, data: bytes) -> Iterator[Type]:
        at = 0
        while at < len(data):
            name, info, size = struct.unpack_from("<III", data, at)
            kind, count = Kind(info >> 24 & 0x1F), info & 0xFFFF
            body = at + 12
            at = body + _TAIL.get(kind, 0) + _PER_MEMBER.get(kind, 0) * count
            extra = struct.unpack_from(f"<{_TAIL.get(kind, 0) // 4}I", data, body)
            yield Type(kind, self._string(name), size, bool(info >> 31), self._members(kind, data[body:at]), extra)

    def _members(self, kind: Kind, data: bytes) -> tuple[tuple[str, int, int], ...]:
        if kind in (Kind.STRUCT, Kind.UNION):
            return tuple((self._string(name), type_, offset) for name, type_, offset in struct.iter_unpack("<III", data))
        if kind is Kind.ENUM:
            return tuple((self._string(name), value, 0) for name, value in struct.iter_unpack("<II", data))
        return ()


def read_btf(name: str) -> Btf:
    """The types of the object NAME in the package."""
    return Btf(section(read_object(name), ".BTF"))
