"""The current span of the OpenTelemetry API for Python, found from outside: what the kernel needs to read it at any moment.

The API keeps its context in one ContextVar: `opentelemetry.context._RUNTIME_CONTEXT._current_context`. Its value is a dict
in which the very string object `opentelemetry.trace.propagation._SPAN_KEY` leads to the span, and a span keeps its ids in
the tuple `_context`. These names are the same in all releases of opentelemetry-api and -sdk from 1.20 to 1.45 (tested). Each
interpreter of a process has its own. Nothing is run or changed in the process; addresses are read once, and again
when it has imported more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum

import numpy as np

from otelprof.processes.memory import Memory
from otelprof.targets.cpython_layouts import CPython
from otelprof.targets.python_objects import PythonObjects
from otelprof.targets.thread_state import interpreters_of, main_interpreter

TYPE_LIMIT = 4
"""LIMIT_SPAN_TYPES of bpf/wire.h."""
_CONTEXT, _KEY, _SPAN, _SDK = (
    "opentelemetry.context",
    "opentelemetry.trace.propagation",
    "opentelemetry.trace.span",
    "opentelemetry.sdk.trace",
)
_RUNTIME = "ContextVarsRuntimeContext"
_SCANS = 3
_SCAN = 16_384
"""Bytes of an interpreter's state that are searched for sys.modules when it isn't where the table says."""


class Attributes(IntEnum):
    """enum span_attributes of bpf/wire.h: where instances have their attributes."""

    DICT = 1
    VALUES = 2
    TAGGED = 3
    INLINE = 4


@dataclass(frozen=True, slots=True)
class SpanType:
    """A class of spans: its address, and where an instance has its dictionary and its values (the wire's span_type)."""

    type: int
    dictionary: int
    values: int


@dataclass(frozen=True, slots=True)
class SpanLayout:
    """How the kernel finds the current span in one interpreter: field for field the wire's `span_layout`; addresses."""

    interpreter: int
    variable: int
    span_key: int
    attribute: int
    attribute_hash: int
    span_key_hash: int
    span_context_type: int
    int_type: int
    types: tuple[SpanType, ...]
    variable_hash: int
    attributes: int
    version_minor: int
    header: int
    thread_interpreter: int
    thread_context: int
    tuple_items: int
    type_cached_keys: int

    def to_record(self, dtype: np.dtype[np.void]) -> np.void:
        """The same as one record of the wire's dtype."""
        record: np.void = np.zeros(1, dtype)[0]
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "types":
                for number, kind in enumerate(value[:TYPE_LIMIT]):
                    for part in ("type", "dictionary", "values"):
                        record["types"][number][part] = getattr(kind, part)
            else:
                record[one.name] = value
        return record


@dataclass(slots=True)
class _Interpreter:
    """What is known of one interpreter: where sys.modules is, its size at the last look, whether there is more to find."""

    modules: int = 0
    scans: int = 0
    size: tuple[int, int, int] = (0, 0, 0)
    found: Mapping[str, int] = field(default_factory=dict)
    waits: bool = False
    """A module is there and has not all its names yet: it is being imported, or makes its runtime context at the first use
    (1.20 does): they come without a change of sys.modules."""
    complete: bool = False
    layout: SpanLayout | None = None


class SpanFinder:
    """Looks for OpenTelemetry in the interpreters of one process; two small reads when nothing was imported meanwhile."""

    def __init__(self, memory: Memory, layout: CPython, runtime: int) -> None:
        """`runtime` is the address of `_PyRuntime`."""
        self._objects = PythonObjects(memory, layout)
        self._memory, self._layout, self._runtime = memory, layout, runtime
        self._known: dict[int, _Interpreter] = {}
        self.reason = ""
        """Why spans can't be read, in one line; empty when they can or may be later."""

    def look(self) -> list[SpanLayout]:
        """The layouts that are new or have changed since the last look."""
        found = []
        for address in interpreters_of(self._memory, self._layout, self._runtime):
            known = self._known.setdefault(address, _Interpreter())
            layout = None if known.complete else self._look_at(address, known)
            if layout is not None and layout != known.layout:
                known.layout = layout
                found.append(layout)
        return found

    def forked(self, memory: Memory) -> SpanFinder:
        """A finder for a forked child, which knows what this one knows."""
        child = SpanFinder(memory, self._layout, self._runtime)
        child._known = {address: replace(known) for address, known in self._known.items()}
        child.reason = self.reason
        return child

    @property
    def waits(self) -> bool:
        """Whether OpenTelemetry is there and not ready yet: it may be so any moment."""
        return any(known.waits for known in self._known.values())

    @property
    def main(self) -> int:
        """Address of the main interpreter's state: a fork keeps it, and no other."""
        return main_interpreter(self._memory, self._layout, self._runtime)

    def add_type(self, layout: SpanLayout, kind: int) -> SpanLayout | None:
        """`layout` with one class of spans more, which the kernel has met; None when it has no attribute `_context`."""
        keys = {key for key, _ in self._objects.table(self._memory.pointer(kind + self._layout.type_cached_keys))}
        if layout.attribute not in keys or len(layout.types) >= TYPE_LIMIT or any(kind == one.type for one in layout.types):
            return None
        return replace(layout, types=(*layout.types, self._span_type(kind)))

    # --- one interpreter ---------------------------------------------------------------------------------------

    def _look_at(self, address: int, known: _Interpreter) -> SpanLayout | None:
        known.modules = known.modules or self._modules(address, known)
        size = self._objects.size_of(known.modules) if known.modules else (0, 0, 0)
        if size == known.size and not known.waits:
            return None
        if size != known.size:
            known.size, known.found = size, self._objects.find(known.modules, _CONTEXT, _KEY, _SPAN, _SDK)
        layout = self._layout_of(address, known.found) if {_CONTEXT, _KEY, _SPAN} <= known.found.keys() else None
        known.complete = bool(self.reason) or (layout is not None and len(layout.types) > 1)
        known.waits = _CONTEXT in known.found and (layout is None or (_SDK in known.found and not known.complete))
        return layout

    def _layout_of(self, address: int, modules: Mapping[str, int]) -> SpanLayout | None:
        objects = self._objects
        runtime = objects.module(modules[_CONTEXT], "_RUNTIME_CONTEXT").get("_RUNTIME_CONTEXT", 0)
        key = objects.module(modules[_KEY], "_SPAN_KEY").get("_SPAN_KEY", 0)
        api = objects.module(modules[_SPAN], "NonRecordingSpan", "SpanContext", "INVALID_SPAN_ID")
        if len(api) < 3 or not key or not runtime or objects.is_a(runtime, "NoneType"):
            return None
        if not objects.is_a(runtime, _RUNTIME):
            kind = objects.type_name(objects.type_of(runtime))
            self.reason = f"its runtime context of OpenTelemetry is {kind}, set by OTEL_PYTHON_CONTEXT: only {_RUNTIME} is read"
            return None
        variable = objects.attribute(runtime, "_current_context")
        name = objects.name_in_method(api["NonRecordingSpan"], "get_span_context", "_context")
        if not variable or not name or not objects.is_a(variable, "ContextVar"):
            return None
        sdk = objects.module(modules[_SDK], "_Span", "Span") if _SDK in modules else {}
        classes = [sdk[one] for one in ("_Span", "Span") if one in sdk]
        return self._made((address, variable, key, name), api, [*classes, api["NonRecordingSpan"]])

    def _made(self, found: tuple[int, int, int, int], api: Mapping[str, int], classes: list[int]) -> SpanLayout:
        interpreter, variable, key, name = found
        layout, objects = self._layout, self._objects
        return SpanLayout(
            interpreter=interpreter,
            variable=variable,
            span_key=key,
            attribute=name,
            attribute_hash=self._memory.pointer(name + layout.header + 8),
            span_key_hash=self._memory.pointer(key + layout.header + 8),
            span_context_type=api["SpanContext"],
            int_type=objects.type_of(api["INVALID_SPAN_ID"]),
            types=tuple(self._span_type(kind) for kind in classes),
            variable_hash=tree_hash(self._memory.pointer(variable + layout.variable_hash)),
            attributes=_attributes(layout.minor),
            version_minor=layout.minor,
            header=layout.header,
            thread_interpreter=layout.thread_interpreter,
            thread_context=layout.thread_context,
            tuple_items=layout.tuple_items,
            type_cached_keys=layout.type_cached_keys,
        )

    def _span_type(self, kind: int) -> SpanType:
        return SpanType(kind, self._objects.dictionary_place(kind), self._objects.values_place(kind))

    # --- sys.modules -------------------------------------------------------------------------------------------

    def _modules(self, interpreter: int, known: _Interpreter) -> int:
        """Address of sys.modules: where the table says, or else wherever the interpreter's state has such a dictionary."""
        at = self._memory.pointer(interpreter + self._layout.interpreter_modules)
        if self._is_modules(at):
            return at
        known.scans += 1
        if known.scans > _SCANS:
            return 0
        return next((one for one in self._dictionaries(interpreter) if self._is_modules(one)), 0)

    def _is_modules(self, at: int) -> bool:
        return self._objects.is_a(at, "dict") and len(self._objects.find(at, "sys", "builtins", "marshal")) == 3

    def _dictionaries(self, interpreter: int) -> Iterator[int]:
        state = self._memory.peek(interpreter, _SCAN) or b""
        words = np.unique(np.frombuffer(state, "<u8"))
        words = words[(words % 8 == 0) & (words > 4096) & (words < 1 << 47)]
        types = self._memory.read_many([(int(at) + self._layout.object_type, 8) for at in words])
        names = {kind: self._objects.type_name(int.from_bytes(kind, "little")) for kind in set(types) if kind}
        yield from (int(at) for at, kind in zip(words, types, strict=True) if kind and names[kind] == "dict")


def blank_layout(other: SpanLayout, interpreter: int) -> SpanLayout:
    """A layout for an interpreter without OpenTelemetry in a process where another one has it: no span is ever found."""
    return replace(other, interpreter=interpreter, variable=0, span_key=0, types=())


def tree_hash(value: int) -> int:
    """The 32 bits by which a ContextVar with the hash `value` is found in a context (hamt_hash, Python/hamt.c)."""
    folded = (value ^ value >> 32) & 0xFFFFFFFF
    return 0xFFFFFFFE if folded == 0xFFFFFFFF else folded


def _attributes(minor: int) -> Attributes:
    if minor <= 10:
        return Attributes.DICT
    return {11: Attributes.VALUES, 12: Attributes.TAGGED}.get(minor, Attributes.INLINE)
