"""The functions of libbpf.so.1 that are used, through ctypes, and its log.

Signatures: bpf/libbpf.h and bpf/bpf.h of libbpf 1.0 and newer. libbpf writes to a log callback, never to stderr; what it
said about a failure is kept for one line of an error and, in full, for the log level debug.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections import deque
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

from otelprof.errors import Unsupported

LOG = logging.getLogger(__name__)
LOG_BYTES = 1 << 18
LOG_LINES = 2000

_PRINT = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)


class OpenOptions(ctypes.Structure):
    """struct bpf_object_open_opts, its beginning."""

    _fields_ = [("size", c_size_t), ("object_name", c_char_p)]


class PerfEventOptions(ctypes.Structure):
    """struct bpf_perf_event_opts."""

    _fields_ = [("size", c_size_t), ("cookie", c_uint64)]


class MapCreateOptions(ctypes.Structure):
    """struct bpf_map_create_opts, its beginning."""

    _fields_ = [
        ("size", c_size_t),
        ("btf", c_uint32 * 4),
        ("inner_map_fd", c_uint32),
        ("map_flags", c_uint32),
        ("rest", c_uint64),  # map_extra is 64 bits and aligned so
    ]


_SIGNATURES: dict[str, tuple[Any, ...]] = {  # result, arguments
    "bpf_object__open_mem": (c_void_p, c_void_p, c_size_t, POINTER(OpenOptions)),
    "bpf_object__load": (c_int, c_void_p),
    "bpf_object__close": (None, c_void_p),
    "bpf_object__next_map": (c_void_p, c_void_p, c_void_p),
    "bpf_object__next_program": (c_void_p, c_void_p, c_void_p),
    "bpf_map__name": (c_char_p, c_void_p),
    "bpf_map__fd": (c_int, c_void_p),
    "bpf_map__set_max_entries": (c_int, c_void_p, c_uint32),
    "bpf_map__max_entries": (c_uint32, c_void_p),
    "bpf_map__reuse_fd": (c_int, c_void_p, c_int),
    "bpf_program__name": (c_char_p, c_void_p),
    "bpf_program__fd": (c_int, c_void_p),
    "bpf_program__set_expected_attach_type": (c_int, c_void_p, c_int),
    "bpf_program__attach_perf_event_opts": (c_void_p, c_void_p, c_int, POINTER(PerfEventOptions)),
    "bpf_program__attach_raw_tracepoint": (c_void_p, c_void_p, c_char_p),
    "bpf_link__destroy": (c_int, c_void_p),
    "bpf_map_create": (c_int, c_int, c_char_p, c_uint32, c_uint32, c_uint32, POINTER(MapCreateOptions)),
    "bpf_map_update_elem": (c_int, c_int, c_void_p, c_void_p, c_uint64),
    "bpf_map_lookup_elem": (c_int, c_int, c_void_p, c_void_p),
    "bpf_map_delete_elem": (c_int, c_int, c_void_p),
    "bpf_map_get_next_key": (c_int, c_int, c_void_p, c_void_p),
    "bpf_map_lookup_batch": (c_int, c_int, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_uint32), c_void_p),
    "bpf_obj_get_info_by_fd": (c_int, c_int, c_void_p, POINTER(c_uint32)),
    "libbpf_num_possible_cpus": (c_int,),
    "libbpf_version_string": (c_char_p,),
    "libbpf_set_print": (c_void_p, _PRINT),
}


class Libbpf:
    """The library. Calls that fail raise OSError with the kernel's errno; `log` holds what libbpf said lately."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libbpf.so.1", use_errno=True)
        except OSError:
            raise Unsupported("libbpf.so.1 isn't installed: apt-get install libbpf1") from None
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self._print = _PRINT(self._say)  # kept: C holds a pointer to it
        self._format = ctypes.CDLL(None).vsnprintf
        self._format.argtypes = [c_void_p, c_size_t, c_char_p, c_void_p]
        self._functions = {name: self._declare(name, *signature) for name, signature in _SIGNATURES.items()}
        self._functions["libbpf_set_print"](self._print)

    def call(self, name: str, *arguments: object) -> Any:
        """Call a function; a negative number or a null pointer is raised as OSError."""
        function = self._functions[name]
        result = function(*arguments)
        if (isinstance(result, int) and result < 0) or (result is None and function.restype is c_void_p):
            number = -result if result is not None and result < -1 else ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)
        return result

    def walk(self, name: str, parent: object) -> list[int]:
        """All results of an iterator function of libbpf (`next_map`, `next_program`)."""
        found: list[int] = []
        step: Callable[..., int | None] = self._functions[name]
        at = step(parent, None)
        while at:
            found.append(at)
            at = step(parent, at)
        return found

    @property
    def version(self) -> str:
        """Such as `v1.1`."""
        return bytes(self.call("libbpf_version_string")).decode()

    def _declare(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._library, name)
        function.restype, function.argtypes = result, list(arguments)
        return function

    def _say(self, level: int, form: bytes, arguments: int) -> int:
        buffer = ctypes.create_string_buffer(LOG_BYTES)
        self._format(buffer, LOG_BYTES, form, arguments)
        text = buffer.value.decode(errors="replace").rstrip()
        self.log.extend(text.splitlines())
        LOG.debug("%s", text)
        return 0


@cache
def libbpf() -> Libbpf:
    """The library, loaded at first use; Unsupported when it isn't installed."""
    return Libbpf()
