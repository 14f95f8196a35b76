"""Names: ids of profile types as Pyroscope makes them, and periods."""

from __future__ import annotations

import pytest

from otelprof.batch import FrameKind, ProfileType
from otelprof.otlp import semconv


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (semconv.CPU, "process_cpu:cpu:nanoseconds:cpu:nanoseconds"),
        (semconv.OFF_CPU, "off_cpu:off_cpu:nanoseconds:off_cpu:nanoseconds"),
        (semconv.GPU_KERNEL_TIME, "gpu:gpu_kernel_time:nanoseconds:gpu:nanoseconds"),
        (semconv.GPU_KERNEL_LAUNCHES, "gpu:gpu_kernel_launches:count:gpu:count"),
        (semconv.GPU_MEMCPY, "gpu:gpu_memcpy:bytes:gpu:bytes"),
        (ProfileType("heap", "bytes", "", "", 0), "heap:heap:bytes::"),
    ],
)
def test_ids_are_pyroscope_s(kind: ProfileType, expected: str) -> None:
    assert semconv.pyroscope_id(kind) == expected


@pytest.mark.parametrize(("hertz", "period"), [(99, 10101010), (100, 10_000_000), (19, 52631579), (0.5, 2_000_000_000)])
def test_the_period_of_cpu_samples_is_the_time_between_two(hertz: float, period: int) -> None:
    assert semconv.cpu(hertz).period == period


def test_every_kind_of_frame_but_marks_has_a_type() -> None:
    assert set(semconv.FRAME_TYPES) == set(FrameKind) - {FrameKind.MARK}
    assert all(semconv.FRAME_KINDS[name] is kind for kind, name in semconv.FRAME_TYPES.items())


def test_no_type_or_unit_has_a_dash_which_pyroscope_refuses() -> None:
    kinds = [value for value in vars(semconv).values() if isinstance(value, ProfileType)]
    assert len(kinds) == 13
    assert not any("-" in word for kind in kinds for word in (kind.type, kind.unit, kind.period_type, kind.period_unit))
