"""Spans from launches and kernels.

A launch's span is `launch KERNEL`, as long as the CPU call, a child of the span that the launch happened in. Spans named
for a kernel exist only where the GPU itself said when the kernel ran.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from otelprof.batch import SPANS, CallKind, Interner, Link, Table
from otelprof.otlp import semconv
from otelprof.processors.cuda_stitch.config import Settings
from otelprof.processors.cuda_stitch.keys import Mask
from otelprof.processors.cuda_stitch.samples import Ids, Values, launch_leaves, times_possible

Bytes = npt.NDArray[np.uint8]

_SHAPE = ("device", "stream", "grid", "block", "shared")
_RANDOM_BITS = 56  # of a trace id, W3C Trace Context Level 2: the right-most 7 bytes


class SpanMaker:
    """Makes rows of SPANS; which launches and kernels get one is a setting."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._random = np.random.default_rng()

    def launches(self, interner: Interner, launches: Table) -> Table:
        """One span for each kernel and graph launch that is wanted."""
        started = (launches["kind"] == CallKind.KERNEL) | (launches["kind"] == CallKind.GRAPH)
        chosen = launches[started & self._wanted(interner, launches["link"])]
        length = np.maximum(chosen["duration"], 0)
        names = _names(interner, launch_leaves(interner, chosen), "launch {}")
        return self._rows(interner, chosen, names, (chosen["time"], chosen["time"] + length))

    def kernels(self, interner: Interner, launches: Table, activity: Table) -> Table:
        """One span for each kernel that is wanted; `launches` stands row by row beside `activity`."""
        ran = (activity["kind"] == CallKind.KERNEL) & (activity["kernel"] != 0) & times_possible(activity)
        which = ran & self._wanted(interner, launches["link"])
        chosen, times = launches[which].copy(), (activity["start"][which], activity["end"][which])
        chosen["device"], chosen["stream"] = activity["device"][which], activity["stream"][which]
        return self._rows(interner, chosen, _names(interner, activity["kernel"][which], "{}"), times)

    def _wanted(self, interner: Interner, links: Ids) -> Mask:
        mode, share = self._settings.spans, self._settings.spans_share
        if mode == "none" or share <= 0:
            return np.zeros(len(links), np.bool_)
        kept = _randomness(interner, links) >= (1 - share) * 2**_RANDOM_BITS
        alone = self._random.random(len(links)) < share if mode == "all" else np.zeros(len(links), np.bool_)
        return np.where(links != 0, kept, alone)

    def _rows(self, interner: Interner, launches: Table, names: Ids, times: tuple[Values, Values]) -> Table:
        rows = np.zeros(len(launches), SPANS)
        rows["start"], rows["end"] = times
        rows["name"], rows["resource"] = names, launches["resource"]
        rows["attributes"] = _attributes(interner, launches)
        rows["trace_id"], rows["parent"] = _contexts(interner, launches["link"])
        roots = launches["link"] == 0
        rows["trace_id"][roots] = self._ids((int(np.count_nonzero(roots)), 16))
        rows["span_id"] = self._ids((len(launches), 8))
        return rows

    def _ids(self, shape: tuple[int, int]) -> Bytes:
        """Random ids; the first byte is never 0, so that none is all zero."""
        found = self._random.integers(0, 256, shape, np.uint8)
        found[:, 0] |= 1
        return found


def _contexts(interner: Interner, links: Ids) -> tuple[Bytes, Bytes]:
    """Trace id and span id of each link, zeros for none."""
    found, inverse = np.unique(links, return_inverse=True)
    values = [interner.links[int(number)] or Link(bytes(16), bytes(8)) for number in found]
    traces = np.frombuffer(b"".join(link.trace_id for link in values), np.uint8).reshape(-1, 16)
    spans = np.frombuffer(b"".join(link.span_id for link in values), np.uint8).reshape(-1, 8)
    return traces[inverse], spans[inverse]


def _randomness(interner: Interner, links: Ids) -> npt.NDArray[np.uint64]:
    traces, _ = _contexts(interner, links)
    last = np.ascontiguousarray(traces[:, 8:]).view(">u8").reshape(-1)
    return last.astype(np.uint64) & np.uint64((1 << _RANDOM_BITS) - 1)


def _names(interner: Interner, leaves: Ids, pattern: str) -> Ids:
    found, inverse = np.unique(leaves, return_inverse=True)
    names = [pattern.format(interner.frames[int(number)].name) for number in found]
    return np.array(interner.strings.ids(names), np.uint32)[inverse]


def _attributes(interner: Interner, launches: Table) -> Ids:
    """Attribute ids, made once for each different shape; no id that grows without end is among them."""
    shapes = np.zeros(len(launches), [(name, launches.dtype[name]) for name in _SHAPE])
    for name in _SHAPE:
        shapes[name] = launches[name]
    found, inverse = np.unique(shapes.view(np.dtype((np.void, shapes.dtype.itemsize))), return_inverse=True)
    made = [interner.attributes.id(_shape(shape)) for shape in found.view(shapes.dtype)]
    return np.array(made, np.uint32)[inverse]


def _shape(shape: np.void) -> tuple[tuple[str, str | int], ...]:
    device, stream, grid, block, shared = (shape[name] for name in _SHAPE)
    found: list[tuple[str, str | int]] = [(semconv.CUDA_STREAM, int(stream.astype(np.int64)))]  # OTLP has signed integers only
    if device >= 0:
        found.append((semconv.CUDA_DEVICE, int(device)))
    if grid.any():
        found.append((semconv.CUDA_GRID, ",".join(map(str, grid))))
        found.append((semconv.CUDA_BLOCK, ",".join(map(str, block))))
        found.append((semconv.CUDA_SHARED_BYTES, int(shared)))
    return tuple(sorted(found))
