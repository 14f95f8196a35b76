"""The records, map values and constants of bpf/wire.h, as numpy dtypes and numbers, from the BTF of the compiled objects.

Nothing is written down twice: a field or constant that the C doesn't have is a KeyError here, with the C's names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from otelprof.ebpf.object import OBJECTS, Btf, Kind, Type, read_btf
from otelprof.errors import MalformedInput

_SIGNED = 1  # BTF_INT_SIGNED, in bits 24-27 of an integer's word
_WRAPPERS = (Kind.TYPEDEF, Kind.VOLATILE, Kind.CONST, Kind.RESTRICT, Kind.TYPE_TAG)


class Wire:
    """The types of one or more objects; they agree, since all include the same header."""

    def __init__(self, objects: Iterable[Btf]) -> None:
        self._objects = tuple(objects)
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self.constants = {n: value for btf in self._objects for t in btf if t.kind is Kind.ENUM for n, value, _ in t.members}

    def __getitem__(self, constant: str) -> int:
        """The value of an enumerator: `wire()["TARGET_PYTHON"]`."""
        return self.constants[constant]

    def dtype(self, name: str) -> np.dtype[Any]:
        """The structured dtype of `struct name`, with the C compiler's offsets and size. char arrays become bytes ('S')."""
        if name not in self._dtypes:
            self._dtypes[name] = self._find(name)
        return self._dtypes[name]

    def enum(self, name: str) -> dict[str, int]:
        """The enumerators of `enum name`, in the C's order."""
        for btf in self._objects:
            number = btf.find(Kind.ENUM, name)
            if number is not None:
                return {member: value for member, value, _ in btf[number].members}
        raise KeyError(f"no enum {name} in the BPF objects: EXPORT() it")

    def record(self, name: str, values: Mapping[str, Any]) -> np.void:
        """One `struct name` with `values` by field; nested structs are mappings too, what isn't named is 0."""
        table = np.zeros(1, self.dtype(name))
        _fill(table, values)
        row: np.void = table[0]
        return row

    def _find(self, name: str) -> np.dtype[Any]:
        for btf in self._objects:
            number = btf.find(Kind.STRUCT, name)
            if number is not None:
                return _dtype(btf, number)
        raise KeyError(f"no struct {name} in the BPF objects: EXPORT() it")


def _fill(table: npt.NDArray[np.void], values: Mapping[str, Any]) -> None:
    for field, value in values.items():
        if isinstance(value, Mapping):
            _fill(table[field], value)
        elif isinstance(value, Sequence) and not isinstance(value, bytes):
            table[field][..., : len(value)] = value
        else:
            table[field] = value


@cache
def wire() -> Wire:
    """The types of all objects in the package."""
    return Wire(read_btf(name) for name in OBJECTS)


def _resolve(btf: Btf, number: int) -> Type:
    """The type behind typedefs and qualifiers."""
    while btf[number].kind in _WRAPPERS:
        number = btf[number].size
    return btf[number]


def _dtype(btf: Btf, number: int) -> np.dtype[Any]:
    found = _resolve(btf, number)
    if found.kind is Kind.INT:
        signed = found.extra[0] >> 24 & _SIGNED
        return np.dtype(f"<{'i' if signed and found.name != 'char' else 'u'}{found.size}")
    if found.kind is Kind.ENUM:
        return np.dtype(f"<u{found.size}")
    if found.kind is Kind.PTR:
        return np.dtype("<u8")
    if found.kind is Kind.ARRAY:
        return _array(btf, found)
    if found.kind is Kind.STRUCT:
        return _struct(btf, found)
    raise MalformedInput(f"{found.kind.name.lower()} {found.name} can't cross to Python: use integers, arrays and structs")


def _array(btf: Btf, array: Type) -> np.dtype[Any]:
    element, _, length = array.extra
    if _resolve(btf, element).name == "char":
        return np.dtype(f"S{length}")
    return np.dtype((_dtype(btf, element), (length,)))


def _struct(btf: Btf, record: Type) -> np.dtype[Any]:
    if record.flag or any(offset % 8 for _, _, offset in record.members):
        raise MalformedInput(f"struct {record.name} has bit-fields, which can't cross to Python: use whole integers")
    return np.dtype(
        {
            "names": [name for name, _, _ in record.members],
            "formats": [_dtype(btf, type_) for _, type_, _ in record.members],
            "offsets": [offset // 8 for _, _, offset in record.members],
            "itemsize": record.size,
        }
    )
