"""Reading Python objects out of a live process: dictionaries, strings, attributes; by layout table, many with few calls.

Everything read may be torn or made up: sizes are bounded, and what can't be read is missing from the answer, never an error.
Layouts: Objects/dict-common.h (to 3.10) and Include/internal/pycore_dict.h (dictionaries), Include/cpython/unicodeobject.h
(strings), Objects/dictobject.c and Include/internal/pycore_object.h (where attributes of instances lie).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from otelprof.processes.memory import Memory
from otelprof.targets.cpython_layouts import CPython

ENTRY_LIMIT = 1 << 15
"""Entries of a dictionary that are read."""
TEXT_LIMIT = 256
_TYPE_NAME = 64
_GENERAL = 0  # dk_kind of 3.11 and newer: entries with a hash
_INLINE_VALUES = 1 << 2  # Py_TPFLAGS_INLINE_VALUES, 3.13 and newer

Pairs = list[tuple[int, int]]
"""Addresses of keys and values; a value of 0: none in this entry."""


class PythonObjects:
    """The objects of one process."""

    def __init__(self, memory: Memory, layout: CPython) -> None:
        self.memory, self.layout = memory, layout

    def type_of(self, thing: int) -> int:
        """Address of the object's type, 0 when it can't be read."""
        return self.memory.pointer(thing + self.layout.object_type)

    def type_name(self, kind: int) -> str:
        """A type's `tp_name`, cut at 64 bytes; empty when it can't be read."""
        at = self.memory.pointer(kind + self.layout.type_name)
        data = self.memory.peek(at, _TYPE_NAME) or self.memory.peek(at, 16) or b""
        return data.split(b"\0", 1)[0].decode("utf-8", "replace")

    def is_a(self, thing: int, name: str) -> bool:
        """Whether the object's type is called `name`, whatever its module (static types name that too)."""
        return bool(thing) and self.type_name(self.type_of(thing)).rpartition(".")[2] == name

    # --- strings -----------------------------------------------------------------------------------------------

    def texts(self, strings: Iterable[int], wanted: Iterable[str]) -> dict[str, int]:
        """Addresses of those of the `strings` whose text is `wanted` (pure ASCII), by text."""
        names = {name.encode(): name for name in wanted}
        lengths = {len(name) for name in names}
        addresses = list(strings)
        heads = self.memory.read_many([(at + self.layout.text_length, 8) for at in addresses])
        sized = [(at, int.from_bytes(head, "little")) for at, head in zip(addresses, heads, strict=True) if head]
        likely = [(at, size) for at, size in sized if size in lengths]
        data = self.memory.read_many([(at + self.layout.text_ascii, size) for at, size in likely])
        return {names[text]: at for (at, _), text in zip(likely, data, strict=True) if text in names}

    def text(self, string: int) -> str:
        """The text of a pure ASCII string, cut at 256; empty when it can't be read."""
        size = min(self.memory.pointer(string + self.layout.text_length), TEXT_LIMIT)
        return (self.memory.peek(string + self.layout.text_ascii, size) or b"").decode("ascii", "replace")

    # --- dictionaries ------------------------------------------------------------------------------------------

    def size_of(self, dictionary: int) -> tuple[int, int, int]:
        """(items, address of the key table, entries in it): changes when anything is put in or taken out."""
        data = self.memory.peek(dictionary + self.layout.header, 24)
        if data is None:
            return 0, 0, 0
        used, _, keys = struct.unpack("<QQQ", data)
        return used, keys, self._entries(keys)[0]

    def items(self, dictionary: int) -> Pairs:
        """Keys and values of a dictionary, in its order."""
        keys, values = struct.unpack("<QQ", self.memory.peek(dictionary + self.layout.header + 16, 16) or bytes(16))
        pairs = self.table(keys)
        if values:
            pairs = self._split(pairs, values + (8 if self.layout.minor >= 13 else 0))
        return [(key, value) for key, value in pairs if key and value]

    def table(self, keys: int) -> Pairs:
        """The entries of a key table, in order, also those without a key or a value."""
        count, start, size, place = self._entries(keys)
        data = self.memory.peek(start, count * size) if 0 < count <= ENTRY_LIMIT else None
        if data is None:
            return []
        return [struct.unpack_from("<QQ", data, at + place) for at in range(0, len(data), size)]

    def _entries(self, keys: int) -> tuple[int, int, int, int]:
        """(how many, where they begin, bytes of each, where the key stands in one) of a key table."""
        if self.layout.minor >= 11:
            data = self.memory.peek(keys, 32) or bytes(32)
            index_bits, kind, count = data[9], data[10], int.from_bytes(data[24:32], "little")
            entry = (24, 8) if kind == _GENERAL else (16, 0)
            return (count, keys + 32 + (1 << (index_bits & 63)), *entry)
        slots, count = struct.unpack("<Q16xQ", (self.memory.peek(keys, 40) or bytes(40))[8:40])
        width = 1 if slots <= 0xFF else 2 if slots <= 0xFFFF else 4
        return count, keys + 40 + slots * width, 24, 8

    def _split(self, pairs: Pairs, values: int) -> Pairs:
        data = self.memory.peek(values, 8 * len(pairs)) or bytes(8 * len(pairs))
        return [(key, value) for (key, _), (value,) in zip(pairs, struct.iter_unpack("<Q", data), strict=True)]

    def find(self, dictionary: int, *names: str) -> dict[str, int]:
        """The values under those of the `names` that are there."""
        values = dict(self.items(dictionary))
        return {name: values[at] for name, at in self.texts(values, names).items()}

    # --- instances ---------------------------------------------------------------------------------------------

    def attribute(self, thing: int, name: str) -> int:
        """The value of an instance's own attribute; 0 when there is none."""
        kind = self.type_of(thing)
        values = self._inline(thing, kind)
        if values:
            keys = self.memory.pointer(kind + self.layout.type_cached_keys)
            pairs = dict(self._split(self.table(keys), values))
        else:
            pairs = dict(self.items(self.memory.pointer(thing + self.dictionary_place(kind))))
        found = self.texts((key for key in pairs if key), (name,))
        return pairs[found[name]] if found else 0

    def dictionary_place(self, kind: int) -> int:
        """Where an instance of the type has the pointer to its dictionary, from its start."""
        if self.layout.minor >= 11:
            return -8 if self.layout.free_threaded else -24
        return self._number(kind + self.layout.type_dict_offset)

    def values_place(self, kind: int) -> int:
        """Where an instance has its values without a dictionary: pointer (3.11) or values themselves (3.13 on); 0: nowhere."""
        if self.layout.minor == 11:
            return -32
        if self.layout.minor >= 13 and self._number(kind + self.layout.type_flags) & _INLINE_VALUES:
            return self._number(kind + self.layout.type_name + 8)
        return 0

    def _inline(self, thing: int, kind: int) -> int:
        """Address of the first value of an instance whose values lie in an array, 0 when they are in a dictionary."""
        place = self.values_place(kind)
        if self.layout.minor == 11:
            return self.memory.pointer(thing + place)
        if self.layout.minor == 12:
            word = self.memory.pointer(thing + self.dictionary_place(kind))
            return word + 1 if word & 1 else 0
        valid = (self.memory.peek(thing + place, 4) or bytes(4))[3] if place else 0
        return thing + place + 8 if valid else 0

    def _number(self, address: int) -> int:
        return int.from_bytes(self.memory.peek(address, 8) or b"", "little", signed=True)

    # --- classes and modules -----------------------------------------------------------------------------------

    def module(self, module: int, *names: str) -> Mapping[str, int]:
        """The values of a module's globals."""
        return self.find(self.memory.pointer(module + self.layout.module_dict), *names)

    def name_in_method(self, kind: int, method: str, name: str) -> int:
        """The string object `name` among those that a method of the class refers to; 0 when there is none."""
        function = self.find(self.memory.pointer(kind + self.layout.type_dict), method).get(method, 0)
        code = self.memory.pointer(function + self.layout.function_code) if function else 0
        names = self.memory.pointer(code + self.layout.code_names) if code else 0
        size = min(self.memory.pointer(names + self.layout.header), TEXT_LIMIT) if names else 0
        data = self.memory.peek(names + self.layout.tuple_items, 8 * size) or b""
        return self.texts((at for (at,) in struct.iter_unpack("<Q", data)), (name,)).get(name, 0)
