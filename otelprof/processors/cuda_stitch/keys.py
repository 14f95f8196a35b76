"""Numbers by which launches and GPU activity find each other: 64-bit keys made of the process and the correlation id.

A correlation id is CUPTI's u32, unique in a process until it wraps, which takes hours; what is remembered is far younger.
Processes are known by PID and creation time, so that receivers with interners of their own agree on them.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from otelprof.batch import Interner, Resource, Table
from otelprof.otlp.semconv import PROCESS_CREATION_TIME, PROCESS_PID

Keys = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_ODD = tuple(np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93))
_WRAP = np.uint64(0xFFFFFFFF)


def process_key(resource: Resource) -> int:
    """64 bits for one life of a process; for a resource without PID, for the resource as a whole."""
    pid = resource.get(PROCESS_PID)
    known: object = (pid, resource.get(PROCESS_CREATION_TIME)) if pid != "" else resource.attributes
    return int.from_bytes(hashlib.blake2b(repr(known).encode(errors="replace"), digest_size=8).digest(), "little")


def join_keys(interner: Interner, rows: Table) -> Keys:
    """One key for each row of LAUNCHES or GPU_ACTIVITY: equal for a launch and its activity."""
    resources, inverse = np.unique(rows["resource"], return_inverse=True)
    processes = np.array([process_key(interner.resources[int(number)]) for number in resources], np.uint64)
    correlation = rows["correlation"].astype(np.uint64) & _WRAP
    return processes[inverse] + correlation * _ODD[0] if len(rows) else correlation


def activity_identity(keys: Keys, activity: Table) -> Keys:
    """One number for each activity record, the same for a repeated one.

    An id counts once for each kind of work. A graph replay has many kernels under one id, and a loop inside a graph runs
    a node many times: there the node and its start tell them apart.
    """
    node = activity["graph_node"]
    start = np.where(node != 0, activity["start"].astype(np.uint64), np.uint64(0))
    mixed: Keys = keys + activity["kind"].astype(np.uint64) * _ODD[1] + node * _ODD[2] + _spread(start)
    return mixed


def _spread(numbers: Keys) -> Keys:
    """A mix of the bits, 0 for 0, so that near times don't cancel near nodes."""
    mixed = numbers * _ODD[3]
    return (mixed ^ (mixed >> np.uint64(29))) * _ODD[3]


def first_of_each(numbers: Keys) -> Mask:
    """True where a number stands for the first time."""
    mask = np.zeros(len(numbers), np.bool_)
    mask[np.unique(numbers, return_index=True)[1]] = True
    return mask
