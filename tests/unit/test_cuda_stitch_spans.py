"""Which launches and kernels become spans, where they hang and how long they last."""

import numpy as np
import pytest

from otelprof.batch import GPU_ACTIVITY, LAUNCHES, CallKind, Frame, FrameKind, Interner, Table, rows
from otelprof.processors.cuda_stitch.config import Settings
from otelprof.processors.cuda_stitch.spans import SpanMaker

TRACE, SPAN = bytes(range(1, 17)), bytes(range(1, 9))


def launches(interner: Interner, *records: dict) -> Table:
    """Rows of LAUNCHES with the fields that spans are made of."""
    table = np.zeros(len(records), LAUNCHES)
    for row, record in zip(table, records, strict=True):
        row["time"], row["duration"] = record.get("time", 1000), record.get("duration", -1)
        row["kind"], row["stream"], row["device"] = record.get("kind", CallKind.KERNEL), record.get("stream", 7), -1
        row["grid"], row["block"], row["shared"] = (4, 2, 1), (128, 1, 1), 49152
        row["link"] = interner.link(*record["link"]) if "link" in record else 0
        row["kernel"] = interner.frames.id(Frame(record.get("kernel", "gemm"), FrameKind.CUDA))
    return table


def names(interner: Interner, spans: Table) -> list[str]:
    return [interner.strings[int(number)] for number in spans["name"]]


def test_a_linked_launch_is_a_child_of_the_span_it_happened_in_and_as_long_as_the_call() -> None:
    interner = Interner()
    calls = launches(interner, {"link": (TRACE, SPAN), "duration": 250}, {"link": (TRACE, SPAN)}, {})
    spans = SpanMaker(Settings(spans="linked")).launches(interner, calls)
    assert names(interner, spans) == ["launch gemm", "launch gemm"]
    assert [bytes(row["trace_id"]) for row in spans] == [TRACE, TRACE]
    assert [bytes(row["parent"]) for row in spans] == [SPAN, SPAN]
    assert (spans["end"] - spans["start"]).tolist() == [250, 0]
    assert len({bytes(row["span_id"]) for row in spans} | {SPAN, bytes(8)}) == 4


def test_attributes_tell_the_shape_of_the_launch() -> None:
    interner = Interner()
    spans = SpanMaker(Settings(spans="all")).launches(interner, launches(interner, {}))
    found = dict(interner.attributes[int(spans["attributes"][0])])
    assert found == {"cuda.stream": 7, "cuda.grid": "4,2,1", "cuda.block": "128,1,1", "cuda.shared_bytes": 49152}


def test_a_stream_handle_beyond_63_bits_still_fits_into_an_attribute() -> None:
    interner = Interner()
    spans = SpanMaker(Settings(spans="all")).launches(interner, launches(interner, {"stream": 2**64 - 1}))
    assert dict(interner.attributes[int(spans["attributes"][0])])["cuda.stream"] == -1


def test_all_gives_launches_without_a_span_a_trace_of_their_own() -> None:
    interner = Interner()
    spans = SpanMaker(Settings(spans="all")).launches(interner, launches(interner, {}, {}))
    assert not spans["parent"].any()
    assert len({bytes(row["trace_id"]) for row in spans}) == 2


def test_copies_and_waits_are_no_spans_and_none_makes_none() -> None:
    interner = Interner()
    linked = {"link": (TRACE, SPAN)}
    calls = launches(interner, {**linked, "kind": CallKind.MEMCPY}, {**linked, "kind": CallKind.SYNC}, linked)
    assert len(SpanMaker(Settings(spans="all")).launches(interner, calls)) == 1
    assert len(SpanMaker(Settings(spans="none")).launches(interner, calls)) == 0


def test_a_kernel_span_has_the_times_of_the_gpu_and_only_possible_ones() -> None:
    interner = Interner()
    calls = launches(interner, {"link": (TRACE, SPAN)}, {"link": (TRACE, SPAN)})
    kernel = interner.frames.id(Frame("gemm", FrameKind.CUDA))
    activity = rows(
        GPU_ACTIVITY,
        [(2000, 2600, CallKind.KERNEL, 0, 1, kernel, 3, 9, 0, 0), (0, 0, CallKind.KERNEL, 0, 2, kernel, 3, 9, 0, 0)],
    )
    spans = SpanMaker(Settings(spans="linked")).kernels(interner, calls, activity)
    assert names(interner, spans) == ["gemm"]
    assert (int(spans["start"][0]), int(spans["end"][0])) == (2000, 2600)
    assert dict(interner.attributes[int(spans["attributes"][0])])["cuda.device"] == 3


@pytest.mark.parametrize("mode", ["linked", "all"])
def test_a_share_keeps_whole_traces(mode: str) -> None:
    """Every launch of a trace is kept or none is, by the trace id's own random bits, as samplers of OpenTelemetry do."""
    interner = Interner()
    high, low = bytes(9) + bytes([200]) + bytes(6), bytes(9) + bytes([100]) + bytes(6)
    calls = launches(interner, *({"link": (trace, SPAN)} for trace in (high, low) for _ in range(50)))
    spans = SpanMaker(Settings(spans=mode, spans_share=0.5)).launches(interner, calls)
    assert [bytes(row["trace_id"]) for row in spans] == [high] * 50
