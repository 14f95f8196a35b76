"""How batches go from receivers through processors to exporters when one component id is one instance.

A batch passes each instance once (docs: this differs from the Collector, where every pipeline has processors of its own).
So pipelines that share a processor, or a receiver and an exporter, are merged into one route: their receivers feed one
chain, the union of their processors in an order that agrees with all of them, and the chain feeds all their exporters.
What would send data where no pipeline sends it is a mistake that asks for a second id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, product

from otelprof.component import Signal

Report = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """One entry of service.pipelines; ids in the order of the file."""

    id: str
    signal: Signal
    receivers: tuple[str, ...]
    processors: tuple[str, ...]
    exporters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """Merged pipelines: all `receivers` feed the first processor, the last one feeds all `exporters`."""

    pipelines: tuple[str, ...]
    receivers: tuple[str, ...]
    processors: tuple[str, ...]
    exporters: tuple[str, ...]


def routes(pipelines: Sequence[PipelineConfig], report: Report, warn: Report) -> tuple[Route, ...]:
    """The routes of all pipelines; `report` gets what can't be routed, `warn` what differs from the Collector."""
    return tuple(_route(group, report, warn) for group in _groups(pipelines))


def signals_of(exporter: str, pipelines: Iterable[PipelineConfig]) -> frozenset[Signal]:
    """The signals that an exporter's pipelines carry."""
    return frozenset(pipeline.signal for pipeline in pipelines if exporter in pipeline.exporters)


def _groups(pipelines: Sequence[PipelineConfig]) -> list[list[PipelineConfig]]:
    groups: list[list[PipelineConfig]] = []
    for pipeline in pipelines:
        joined = [group for group in groups if any(_together(pipeline, other) for other in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(member for group in joined for member in group), pipeline])
    return groups


def _together(one: PipelineConfig, other: PipelineConfig) -> bool:
    if set(one.processors) & set(other.processors):
        return True
    return bool(set(one.receivers) & set(other.receivers)) and bool(set(one.exporters) & set(other.exporters))


def _route(group: list[PipelineConfig], report: Report, warn: Report) -> Route:
    processors = _chain(group, report)
    _check_strays(group, report)
    for pipeline in group:
        more = [name for name in processors if name not in pipeline.processors]
        if more:
            warn(
                f"service.pipelines.{pipeline.id}",
                f"{', '.join(more)} will run for it too, since it shares components with other pipelines",
            )
    return Route(
        tuple(pipeline.id for pipeline in group),
        _union(pipeline.receivers for pipeline in group),
        processors,
        _union(pipeline.exporters for pipeline in group),
    )


def _chain(group: list[PipelineConfig], report: Report) -> tuple[str, ...]:
    """All processors of a group in an order that agrees with every pipeline."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for pipeline in group:
        for name in pipeline.processors:
            sorter.add(name)
        for before, after in pairwise(pipeline.processors):
            sorter.add(after, before)
    try:
        return tuple(sorter.static_order())
    except CycleError as error:
        names = sorted(set(error.args[1]))
        where = f"service.pipelines.{group[-1].id}.processors"
        report(where, f"{', '.join(names)} stand in another order in {group[0].id}; give one of them a second id (type/name)")
        return _union(pipeline.processors for pipeline in group)


def _check_strays(group: list[PipelineConfig], report: Report) -> None:
    """Report what a receiver would send to an exporter although no pipeline connects the two for that signal."""
    meant = {
        (receiver, exporter, pipeline.signal)
        for pipeline in group
        for receiver, exporter in product(pipeline.receivers, pipeline.exporters)
    }
    receivers = _union(pipeline.receivers for pipeline in group)
    for pipeline, receiver in product(group, receivers):
        for exporter in pipeline.exporters:
            if (receiver, exporter, pipeline.signal) not in meant:
                meant.add((receiver, exporter, pipeline.signal))
                report(
                    f"service.pipelines.{pipeline.id}",
                    f"{receiver} would send {pipeline.signal.value} to {exporter} too, since its pipeline shares a processor; "
                    f"name {receiver} here, or give that processor a second id (type/name)",
                )


def _union(lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in lists for name in names))
