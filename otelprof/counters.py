"""The agent's own counters: one catalogue of names and meanings, and a registry that counts.

The catalogue is the only place where a name stands: docs/counters.md is generated from it, `/metrics` and OTLP read the
registry, and adding to a name that isn't in the catalogue is an error. Losses carry a `reason`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum


class MetricKind(Enum):
    """Prometheus' kinds that we use."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: full name, kind, what it means, names of its labels."""

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, meaning, labels)


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, meaning, labels)


SAMPLES_SEEN = _counter("otelprof_samples_seen_total", "CPU samples taken of targets and handed on")
SAMPLES_LOST = _counter("otelprof_samples_lost_total", "CPU samples taken of targets that have no record", "reason")
LAUNCHES_SEEN = _counter("otelprof_launches_seen_total", "kernel and graph launches seen and handed on")
LAUNCHES_LOST = _counter("otelprof_launches_lost_total", "kernel and graph launches that have no record", "reason")
STACKS_INCOMPLETE = _counter("otelprof_stacks_incomplete_total", "stacks with a part missing, which is marked", "reason")
SPANS_READ = _counter("otelprof_spans_read_total", "samples and driver calls that carry the span they were in", "source")
SPANS_UNREADABLE = _counter("otelprof_spans_unreadable_total", "samples and driver calls whose span couldn't be read")
SPAN_PROCESSES = _gauge("otelprof_span_processes", "processes whose current span is read", "source")
UNWIND_TABLES = _counter("otelprof_unwind_tables_total", "files whose unwind tables were made")
UNWIND_ROWS = _gauge("otelprof_unwind_rows", "rows of unwind tables in the kernel, 8 bytes each")
UNWIND_REFUSED = _counter("otelprof_unwind_refused_total", "files that native stacks can't be followed through", "reason")
STITCH_WAITING = _gauge("otelprof_cuda_stitch_waiting", "launches and GPU activity that wait for their other half")
STITCH_UNJOINED = _counter("otelprof_cuda_stitch_unjoined_total", "launches or GPU activity without another half", "reason")
CUDA_FILES = _gauge("otelprof_cuda_files", "CUDA driver libraries in use: probed, refused, waiting for a place", "state")
CUDA_RETURN_SITES = _gauge("otelprof_cuda_return_sites", "call sites of waits and look-ups: probed, or why not", "state")
CUDA_NAMES_UNKNOWN = _counter("otelprof_cuda_names_unknown_total", "kernel handles shown as kernel@ADDRESS", "reason")
CUDA_SCANS = _counter("otelprof_cuda_scans_total", "mapped files searched for registrations of kernels", "result")
PROCESSES = _gauge("otelprof_processes", "processes known to the agent", "state")
RECEIVED = _counter(
    "otelprof_receiver_accepted_samples_total", "samples that other agents sent and that were handed on", "receiver"
)
RECEIVED_BAD = _counter("otelprof_receiver_refused_samples_total", "samples of other agents refused", "receiver", "reason")
EXPORT_SENT = _counter("otelprof_export_sent_profiles_total", "profiles that a receiver took", "exporter")
EXPORT_FAILED = _counter("otelprof_export_failed_profiles_total", "profiles given up", "exporter", "reason")
EXPORT_REJECTED = _counter("otelprof_export_rejected_profiles_total", "profiles refused in a partial success", "exporter")
EXPORT_SENT_SPANS = _counter("otelprof_export_sent_spans_total", "spans that a receiver took", "exporter")
EXPORT_FAILED_SPANS = _counter("otelprof_export_failed_spans_total", "spans given up", "exporter", "reason")
QUEUE_BYTES = _gauge("otelprof_queue_bytes", "encoded bytes that wait to be sent", "exporter")
COMPONENT_ERRORS = _counter("otelprof_component_errors_total", "batches lost since a component failed on them", "component")
BPF_RUN_SECONDS = _counter("otelprof_bpf_run_seconds_total", "time in a BPF program, where the kernel counts it", "program")
OWN_CPU = _counter("otelprof_process_cpu_seconds_total", "CPU time of the agent itself")
OWN_MEMORY = _gauge("otelprof_process_resident_bytes", "memory of the agent itself")
SYMBOL_TABLES = _gauge("otelprof_symbol_tables", "symbol tables held in memory")
LOOP_LATE = _gauge("otelprof_loop_late_seconds_max", "the most that a reading of the rings was late in the last interval")
BACKEND_ACCEPTED = _counter("otelprof_backend_accepted_samples_total", "samples that the store took")
BACKEND_ACCEPTED_SPANS = _counter("otelprof_backend_accepted_spans_total", "spans that the store took")
BACKEND_REFUSED = _counter("otelprof_backend_refused_samples_total", "samples refused", "reason")

CATALOGUE: dict[str, Metric] = {value.name: value for value in list(globals().values()) if isinstance(value, Metric)}

Labels = tuple[str, ...]
Reading = tuple[Metric, Labels, float]


class Counters:
    """Values of metrics by label values. Safe to use from any thread."""

    def __init__(self) -> None:
        self._values: dict[tuple[Metric, Labels], float] = {}
        self._sources: list[Callable[[], Iterable[Reading]]] = []
        self._lock = threading.Lock()

    def add(self, metric: Metric, amount: float = 1, *labels: str) -> None:
        """Count `amount` more under `labels`, given in the metric's order."""
        key = self._key(metric, labels)
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """The value of a gauge, or of a counter that is kept elsewhere (in the kernel)."""
        key = self._key(metric, labels)
        with self._lock:
            self._values[key] = value

    def get(self, metric: Metric, *labels: str) -> float:
        """The value under `labels`; without labels the sum over all."""
        with self._lock:
            return sum(v for (m, found), v in self._values.items() if m is metric and labels in ((), found))

    def observe(self, source: Callable[[], Iterable[Reading]]) -> None:
        """Ask `source` for more readings whenever the counters are read."""
        self._sources.append(source)

    def read(self) -> Iterator[Reading]:
        """All readings, sorted by name and labels."""
        with self._lock:
            found = [(metric, labels, value) for (metric, labels), value in self._values.items()]
        for source in self._sources:
            found.extend(source())
        return iter(sorted(found, key=lambda reading: (reading[0].name, reading[1])))

    @staticmethod
    def _key(metric: Metric, labels: Labels) -> tuple[Metric, Labels]:
        if CATALOGUE.get(metric.name) is not metric or len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name}: not in the catalogue, or labels {labels} for {metric.labels}")
        return metric, labels


def summary(counters: Counters) -> str:
    """The last line that `record`, `run` and `up` write (INTERFACE: Commands and machines)."""
    lost = counters.get(SAMPLES_LOST) + counters.get(LAUNCHES_LOST)
    unsent = counters.get(EXPORT_FAILED) + counters.get(EXPORT_REJECTED)
    return (
        f"samples={counters.get(SAMPLES_SEEN):.0f} launches={counters.get(LAUNCHES_SEEN):.0f} "
        f"lost={lost:.0f} sent={counters.get(EXPORT_SENT):.0f} unsent={unsent:.0f}"
    )
