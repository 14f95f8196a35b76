"""Where CPython keeps what we read: byte offsets by minor version, x86-64, GIL and free-threaded builds.

Source of every number: compiled with each version's own headers (offsetof; 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1, 3.13.0,
3.13.5t, 3.14.8, 3.15.0, and 3.14.8 and 3.15.0 with Py_GIL_DISABLED); 3.8 to 3.13 agree with the DWARF of those builds.
From 3.13 on an interpreter publishes most of them in `_Py_DebugOffsets` (Include/internal/pycore_debug_offsets.h) at the
start of `_PyRuntime`; its own values win over the table.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

OLDEST, NEWEST = 8, 15
"""The minor versions that are supported."""

COOKIE = b"xdebugpy"
DEBUG_OFFSETS_SIZE = 1024
"""Bytes to read at `_PyRuntime` for `debug_offsets`; the largest structure so far has 888 (3.15)."""


@dataclass(frozen=True, slots=True)
class CPython:
    """One build's layout. Offsets in bytes from the start of the structure that the name begins with; 0: not there."""

    minor: int
    free_threaded: bool = False
    # _PyRuntime, PyInterpreterState
    runtime_interpreters: int = 0
    runtime_tss_key: int = 0
    """Py_tss_t autoTSSkey: int _is_initialized, then the pthread key."""
    interpreter_next: int = 0
    interpreter_threads: int = 0
    interpreter_modules: int = 0
    """The dict that is sys.modules."""
    # PyThreadState
    thread_next: int = 8
    thread_interpreter: int = 16
    thread_id: int = 0
    """pthread_self(), which glibc and musl make equal to the thread pointer."""
    thread_frame: tuple[int, ...] = ()
    """Dereferences from the thread state to its innermost frame."""
    thread_c_frame: int = 0
    """The C frame of the innermost evaluation call, which lies on the C stack (CFrame, _PyCFrame)."""
    c_frame_previous: int = 0
    thread_context: int = 0
    """The current contextvars.Context."""
    # PyFrameObject, _PyInterpreterFrame
    frame_size: int = 0
    frame_code: int = 0
    frame_previous: int = 0
    frame_instruction: int = 0
    frame_owner: int = 0
    frame_tlbc_index: int = 0
    shim_owner: int = 0
    # PyCodeObject
    code_first_line: int = 0
    code_filename: int = 0
    code_name: int = 0
    """co_qualname from 3.11 on, else co_name."""
    code_lines: int = 0
    code_bytecode: int = 0
    """co_code_adaptive: where instructions begin inside the code object."""
    code_tlbc: int = 0
    code_names: int = 0
    """The tuple co_names."""
    # objects
    object_type: int = 8
    type_name: int = 24
    type_flags: int = 168
    type_dict: int = 264
    type_dict_offset: int = 288
    type_cached_keys: int = 0
    """PyHeapTypeObject.ht_cached_keys: the keys that instances share."""
    function_code: int = 48
    module_dict: int = 16
    tuple_items: int = 24
    variable_hash: int = 56
    """PyContextVar.var_hash."""
    bytes_size: int = 16
    bytes_data: int = 32
    text_length: int = 16
    text_state: int = 32
    text_kind_shift: int = 2
    text_ascii: int = 48
    """sizeof(PyASCIIObject): where pure ASCII begins."""
    text_compact: int = 72
    """sizeof(PyCompactUnicodeObject): where other compact strings begin, and PyUnicodeObject.data of legacy ones."""

    @property
    def header(self) -> int:
        """sizeof(PyObject): where a structure's own fields begin, and ob_size of those of variable size."""
        return self.object_type + 8

    @property
    def code_size(self) -> int:
        """Bytes of a code object that hold everything above."""
        return max(self.code_first_line + 4, self.code_filename + 8, self.code_name + 8, self.code_lines + 8)


def _free_threaded(layout: CPython, **changes: int) -> CPython:
    """The same version with Py_GIL_DISABLED: object headers of 32 instead of 16 bytes."""
    moved = {
        name: getattr(layout, name) + 16
        for name in (
            "code_first_line", "code_filename", "code_name", "code_lines", "code_bytecode", "object_type", "type_name",
            "bytes_size", "bytes_data", "text_length", "text_state", "text_ascii", "text_compact", "code_names", "type_flags",
            "type_dict", "type_dict_offset", "type_cached_keys", "function_code", "module_dict", "tuple_items",
        )
    }  # fmt: skip
    return replace(layout, free_threaded=True, **{**moved, **changes})


_38 = CPython(
    minor=8, runtime_interpreters=32, runtime_tss_key=1392, interpreter_next=0, interpreter_threads=8, thread_id=176,
    thread_frame=(24,), frame_size=112, frame_code=32, frame_previous=24, frame_instruction=104, code_first_line=40,
    code_filename=104, code_name=112, code_lines=120, code_names=64, interpreter_modules=56, thread_context=240,
    type_cached_keys=872, function_code=16,
)  # fmt: skip
_39 = replace(_38, minor=9, runtime_tss_key=584, interpreter_modules=856, type_cached_keys=864)
_310 = replace(
    _39, minor=10, frame_size=104, frame_instruction=96, type_cached_keys=872, function_code=48, thread_c_frame=48,
    c_frame_previous=8,
)  # fmt: skip
_311 = CPython(
    minor=11, runtime_interpreters=40, runtime_tss_key=592, interpreter_next=0, interpreter_threads=16, thread_id=152,
    thread_frame=(56, 8), frame_size=72, frame_code=32, frame_previous=48, frame_instruction=56, frame_owner=68,
    code_first_line=72, code_filename=112, code_name=128, code_lines=136, code_bytecode=184, code_names=32,
    interpreter_modules=888, thread_context=224, type_cached_keys=872, thread_c_frame=56, c_frame_previous=16,
)  # fmt: skip
_312 = replace(
    _311, minor=12, runtime_tss_key=1544, interpreter_threads=72, thread_id=136, thread_frame=(56, 0), frame_code=0,
    frame_previous=8, frame_owner=70, shim_owner=3, code_first_line=68, code_bytecode=192, text_ascii=40, text_compact=56,
    interpreter_modules=944, thread_context=208, type_cached_keys=880, thread_c_frame=0, c_frame_previous=0,
)  # fmt: skip
_313 = replace(
    _312, minor=13, runtime_interpreters=632, runtime_tss_key=2160, interpreter_next=7264, interpreter_threads=7344,
    thread_id=152, thread_frame=(72,), code_bytecode=200, interpreter_modules=7656,
)  # fmt: skip
_314 = replace(
    _313, minor=14, runtime_interpreters=808, runtime_tss_key=2336, interpreter_next=7272, frame_size=80, frame_owner=74,
    code_bytecode=208, interpreter_modules=7688, tuple_items=32,
)  # fmt: skip
_315 = replace(
    _314, minor=15, runtime_interpreters=936, runtime_tss_key=0, interpreter_next=7264, interpreter_threads=7336, thread_id=176,
    interpreter_modules=7592, thread_context=232, type_cached_keys=888,
)  # fmt: skip
_TLBC = {"frame_owner": 78, "frame_tlbc_index": 72, "code_tlbc": 224, "code_bytecode": 232, "text_kind_shift": 8}

TABLE: Mapping[tuple[int, bool], CPython] = {
    **{(layout.minor, False): layout for layout in (_38, _39, _310, _311, _312, _313, _314, _315)},
    (13, True): _free_threaded(_313, interpreter_modules=7664, variable_hash=48),
    (14, True): _free_threaded(_314, **_TLBC, interpreter_modules=7712, variable_hash=48),
    (15, True): _free_threaded(_315, **_TLBC, variable_hash=48),
}
"""Layouts by (minor version, free-threaded)."""

# Byte positions of fields inside _Py_DebugOffsets, for 3.13, 3.14 and 3.15 (measured as above).
_POSITIONS: Mapping[str, tuple[int, int, int]] = {
    "runtime_interpreters": (40, 40, 40),
    "interpreter_next": (64, 64, 64),
    "interpreter_threads": (72, 72, 72),
    "interpreter_modules": (88, 96, 96),
    "thread_next": (168, 192, 192),
    "thread_frame": (184, 208, 208),
    "thread_id": (192, 216, 240),
    "frame_previous": (232, 256, 320),
    "frame_code": (240, 264, 328),
    "frame_instruction": (248, 272, 336),
    "frame_owner": (264, 288, 352),
    "code_filename": (280, 320, 384),
    "code_name": (296, 336, 400),
    "code_lines": (304, 344, 408),
    "code_first_line": (312, 352, 416),
    "code_bytecode": (344, 384, 448),
    "object_type": (360, 408, 472),
    "bytes_data": (528, 608, 704),
    "text_state": (544, 624, 720),
    "text_length": (552, 632, 728),
    "text_ascii": (560, 640, 736),
}
_POSITIONS_TLBC: Mapping[str, tuple[int, int, int]] = {"frame_tlbc_index": (0, 304, 368), "code_tlbc": (0, 392, 456)}
_LARGEST = 1 << 20


def debug_offsets(data: bytes) -> CPython | str:
    """The layout that an interpreter publishes about itself (3.13 and newer), from the first bytes of `_PyRuntime`.

    A string says why there is none: another version than we know, or numbers that can't be.
    """
    version, free_threaded = struct.unpack_from("<QQ", data, 8)
    minor = version >> 16 & 0xFF
    table = TABLE.get((minor, bool(free_threaded)))
    if version >> 24 != 3 or table is None or minor < 13:
        return f"CPython {version >> 24 & 0xFF}.{minor} isn't supported: 3.{OLDEST} to 3.{NEWEST} are"
    own = {name: struct.unpack_from("<Q", data, at[minor - 13])[0] for name, at in _published(table).items()}
    if max(own.values()) > _LARGEST or own["frame_owner"] >= 128:
        return f"CPython 3.{minor} publishes debug offsets that can't be right"
    frame_size = max(table.frame_size, -(-(own["frame_owner"] + 1) // 8) * 8)
    return replace(table, **{**own, "thread_frame": (own["thread_frame"],), "frame_size": frame_size})


def _published(table: CPython) -> Mapping[str, tuple[int, int, int]]:
    return {**_POSITIONS, **_POSITIONS_TLBC} if table.code_tlbc else _POSITIONS


def differences(one: CPython, other: CPython) -> list[str]:
    """Names of the fields in which two layouts differ."""
    return [field.name for field in fields(CPython) if getattr(one, field.name) != getattr(other, field.name)]
