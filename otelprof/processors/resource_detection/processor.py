"""The processor itself: replaces each row's resource by one with what the detectors know.

A resource is made once, when its first row comes by; after that a batch costs one numpy look-up for each table. New
resources go into the batch's own interner, so that nothing else of the batch changes.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from otelprof.batch import Batch, Interner, Resource, Table
from otelprof.component import Build, Consumer, Host
from otelprof.otlp import semconv
from otelprof.processors.resource_detection import detectors
from otelprof.processors.resource_detection.config import Settings

log = logging.getLogger(__name__)

_INTERNERS = 8  # generations whose look-ups are remembered: one for each receiver, and the one that just ended
_CONSUMED = frozenset({detectors.ENV_SERVICE_NAME, detectors.ENV_RESOURCE_ATTRIBUTES})
_NEW = np.uint32(0xFFFFFFFF)


class _Ids:
    """Old resource id to new, of one interner."""

    def __init__(self) -> None:
        self._new = np.full(64, _NEW, np.uint32)

    def unknown(self, ids: npt.NDArray[np.uint32]) -> list[int]:
        """Those of `ids` that have no new id yet."""
        self._grow(int(np.max(ids, initial=0)))
        return [int(number) for number in np.unique(ids[self._new[ids] == _NEW])]

    def put(self, old: int, new: int) -> None:
        """Remember; a new id stands for itself from now on."""
        self._grow(max(old, new))
        self._new[old] = self._new[new] = new

    def take(self, ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """The new id of each of `ids`."""
        return np.take(self._new, ids)

    def _grow(self, number: int) -> None:
        if number >= len(self._new):
            grown = np.full(2 * number + 1, _NEW, np.uint32)
            grown[: len(self._new)] = self._new
            self._new = grown


class ResourceDetection:
    """See the module's text."""

    def __init__(self, build: Build) -> None:
        settings: Settings = build.settings
        self._wanted = frozenset(settings.detectors)
        self._consumer: Consumer | None = build.consumer
        self._machine: detectors.Found = {}
        self._gpus: dict[str, str] = {}
        self._ids: OrderedDict[int, _Ids] = OrderedDict()
        self._noted = False

    def start(self, host: Host) -> None:
        """Run the detectors that look at the machine."""
        if "host" in self._wanted:
            self._machine |= detectors.host()
        if "k8s" in self._wanted:
            self._machine |= detectors.kubernetes()
        if "gpu" in self._wanted:
            self._gpus = detectors.gpu_models()

    def consume(self, batch: Batch) -> None:
        """Hand on `batch` with its resources replaced."""
        if self._consumer is not None:
            self._consumer.consume(self._changed(batch))

    def _changed(self, batch: Batch) -> Batch:
        samples, launches, activity, spans = (
            self._replaced(batch.interner, table) if len(table) else table
            for table in (batch.samples, batch.launches, batch.activity, batch.spans)
        )
        return replace(batch, samples=samples, launches=launches, activity=activity, spans=spans)

    def shutdown(self, deadline: float) -> None:
        """Nothing is kept back."""

    def _replaced(self, interner: Interner, table: Table) -> Table:
        ids = self._ids_of(interner)
        old = table["resource"]
        for number in ids.unknown(old):
            ids.put(number, interner.resources.id(self._enriched(interner.resources[number])))
        new = ids.take(old)
        if np.array_equal(new, old):
            return table
        copy = table.copy()
        copy["resource"] = new
        return copy

    def _ids_of(self, interner: Interner) -> _Ids:
        ids = self._ids.setdefault(interner.generation, _Ids())
        self._ids.move_to_end(interner.generation)
        while len(self._ids) > _INTERNERS:
            self._ids.popitem(last=False)
        return ids

    def _enriched(self, resource: Resource) -> Resource:
        seen = dict(resource.attributes)
        said = self._said(seen)
        found: detectors.Found = {**self._machine, **said}
        found |= {key: value for key, value in seen.items() if key not in _CONSUMED}
        if semconv.SERVICE_NAME in said:  # a process may name itself, but not be another one
            found[semconv.SERVICE_NAME] = said[semconv.SERVICE_NAME]
        if "process" in self._wanted:
            found.setdefault(semconv.SERVICE_NAME, detectors.service_name(seen))
        if "container" not in self._wanted:
            found.pop(semconv.CONTAINER_ID, None)
        model = self._gpus.get(str(seen.get(semconv.GPU_UUID, "")))
        if model:
            found.setdefault(semconv.GPU_MODEL, model)
        return Resource(tuple(sorted(found.items())))

    def _said(self, seen: detectors.Found) -> detectors.Found:
        """What the process says of itself in its environment."""
        if "env" not in self._wanted:
            return {}
        said, malformed = detectors.from_environment(seen)
        if malformed and not self._noted:
            self._noted = True
            log.warning(
                "OTEL_RESOURCE_ATTRIBUTES of process %s is malformed and left out (said once)",
                seen.get(semconv.PROCESS_PID, "?"),
            )
        return said
