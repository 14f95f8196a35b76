"""Reads and writes BPF maps as numpy records: hash tables, arrays, and per-CPU arrays as sums."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import numpy as np
import numpy.typing as npt

from otelprof.ebpf.libbpf import libbpf
from otelprof.ebpf.refusals import refused

_EXISTS = 2  # BPF_EXIST
Array = npt.NDArray[Any]


def _pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class Table:
    """A hash or array map. Keys and values are anything that numpy can make one element of the dtype of."""

    def __init__(self, fd: int, key: np.dtype[Any], value: np.dtype[Any]) -> None:
        self.fd = fd
        self.key = key
        self.value = value

    def put(self, key: object, value: object) -> None:
        """Insert or replace; Unsupported when the map is full."""
        k, v = self._one(key, self.key), self._one(value, self.value)
        try:
            libbpf().call("bpf_map_update_elem", self.fd, _pointer(k), _pointer(v), 0)
        except OSError as error:
            raise refused("bpf(BPF_MAP_UPDATE_ELEM)", error, "the map is full") from error

    def replace(self, key: object, value: object) -> bool:
        """Write to a key that is there; False when it isn't."""
        k, v = self._one(key, self.key), self._one(value, self.value)
        return _found("bpf_map_update_elem", self.fd, _pointer(k), _pointer(v), _EXISTS)

    def get(self, key: object) -> Any:
        """The value, or None."""
        k, v = self._one(key, self.key), np.zeros(1, self.value)
        return v[0] if _found("bpf_map_lookup_elem", self.fd, _pointer(k), _pointer(v)) else None

    def delete(self, key: object) -> bool:
        """Remove; False when the key wasn't there."""
        return _found("bpf_map_delete_elem", self.fd, _pointer(self._one(key, self.key)))

    def items(self, limit: int) -> tuple[Array, Array]:
        """At most `limit` keys and values, by one system call or a few. What others change meanwhile may be missed."""
        keys, values, position = np.zeros(limit, self.key), np.zeros(limit, self.value), np.zeros(1, "u8")
        filled, start = 0, None
        while filled < limit:
            got = ctypes.c_uint32(limit - filled)
            more = _found(
                "bpf_map_lookup_batch",
                self.fd,
                start,
                _pointer(position),
                _pointer(keys[filled:]),
                _pointer(values[filled:]),
                ctypes.byref(got),
                None,
            )
            filled, start = filled + got.value, _pointer(position)
            if not more:
                break
        return keys[:filled], values[:filled]

    @staticmethod
    def _one(value: object, dtype: np.dtype[Any]) -> Array:
        array = np.zeros(1, dtype)
        array[0] = value
        return array


def _found(call: str, *arguments: object) -> bool:
    """Whether the call found its key; other failures are raised."""
    try:
        libbpf().call(call, *arguments)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise refused(f"bpf: {call}", error) from error
    return True


class PerCpuCounters:
    """A per-CPU array of u64."""

    def __init__(self, fd: int, length: int) -> None:
        self._table = Table(fd, np.dtype("u4"), np.dtype(("u8", (int(libbpf().call("libbpf_num_possible_cpus")),))))
        self._length = length

    def read(self) -> npt.NDArray[np.uint64]:
        """The sum over all CPUs, by index; one system call."""
        total: npt.NDArray[np.uint64] = self._table.items(self._length)[1].sum(axis=1, dtype=np.uint64)
        return total
