"""One serialised request, what an exporter may choose about it, and the limits that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from otelprof.component import Signal

MAX_BYTES = 3_670_016
"""Bytes of a request before compression: 3.5 MiB, below the 4 MiB that gRPC servers take by default."""


class Dialect(StrEnum):
    """Whom a request is for. `pyroscope` drops ids and all attributes but a list, since Pyroscope makes labels of them."""

    DEFAULT = "default"
    PYROSCOPE = "pyroscope"


@dataclass(frozen=True, slots=True)
class Options:
    """What an exporter may choose.

    With `service_name_on_samples` each sample carries its `service.name`, for ways on which resource attributes are lost
    (Collector 0.160 and later to Pyroscope).
    """

    dialect: Dialect = Dialect.DEFAULT
    service_name_on_samples: bool = False


@dataclass(frozen=True, slots=True)
class Encoded:
    """A serialised ExportProfilesServiceRequest or ExportTraceServiceRequest with `items` profiles or spans."""

    signal: Signal
    data: bytes
    items: int
    samples: int = 0


def split_to_size(count: int, encode: Callable[[int, int], Encoded]) -> list[Encoded]:
    """Requests for rows [0, count), halved as often as it takes to keep each within MAX_BYTES."""
    done: list[Encoded] = []
    open_ranges = [(0, count)]
    while open_ranges:
        first, stop = open_ranges.pop()
        request = encode(first, stop)
        if len(request.data) <= MAX_BYTES or stop - first == 1:
            done.append(request)
        else:
            middle = (first + stop) // 2
            open_ranges += [(middle, stop), (first, middle)]
    return done
