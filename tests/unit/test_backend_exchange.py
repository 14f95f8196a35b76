"""Uploads in other formats take the way of all profiles, and downloads hold what a query selects."""

import json
import time

import pytest

from otelprof.backend.exchange import export, ingest
from otelprof.backend.memory import MemoryStore
from otelprof.backend.query import Querier, Question
from otelprof.backend.series import SeriesIndex
from otelprof.backend.store import Block, Seen
from otelprof.errors import MalformedInput
from otelprof.formats import pprof
from otelprof.otlp.decode import decode_profiles
from otelprof.otlp.decoded import Profiles
from tests.unit.otlp_requests import CPU, PERIOD, Builder

NOW = str(int(time.time()))


def uploaded(data: bytes, **parameters: str) -> tuple[list[Profiles], list[str]]:
    """What an upload becomes, decoded, and the words on its bad lines."""
    made = ingest({"name": "shop", "from": NOW, "until": NOW, **parameters}, data)
    return [decode_profiles(request) for request in made.requests], made.bad_lines


def test_folded_text_becomes_cpu_time_of_its_service() -> None:
    (profiles,), bad = uploaded(b"main;work 7\nmain 3\n", sampleRate="50", name='shop{region=eu,zone="a"}')
    assert profiles.samples["value"].sum() == 10 * 20_000_000
    assert [(one.type, one.labels) for one in profiles.series] == [
        (CPU, (("region", "eu"), ("service_name", "shop"), ("zone", "a")))
    ]
    assert not bad


def test_bad_lines_are_named_and_the_good_ones_stay() -> None:
    (profiles,), bad = uploaded(b"\xef\xbb\xbfmain 1\r\nnothing\nmain;x 2\nb -2\n")
    assert profiles.samples["value"].sum() == 3 * 10_000_000
    assert [line.split(":")[0] for line in bad] == ["line 2", "line 4"]


def test_an_upload_of_bad_lines_only_names_the_first() -> None:
    requests, bad = uploaded(b"x\n" * 100)
    assert not requests
    assert bad[-1] == "and 80 more"


@pytest.mark.parametrize(
    "parameters",
    [{"format": "jfr"}, {"sampleRate": "0"}, {"sampleRate": "x"}, {"from": "yesterday"}, {"format": "pprof"}],
)
def test_what_can_not_be_is_malformed(parameters: dict[str, str]) -> None:
    with pytest.raises(MalformedInput):
        uploaded(b"main", **parameters)


@pytest.mark.parametrize("digits", [10**9, 10**12, 10**15, 10**18])
def test_times_may_be_seconds_up_to_nanoseconds(digits: int) -> None:
    at = str(int(time.time() * digits / 10**9))
    (profiles,), _ = uploaded(b"main 1", **{"from": at, "until": at})
    assert abs(int(profiles.samples["time"][0]) / 1000 - time.time()) < 60


def querier() -> Querier:
    """Over one service with Python, native and CUDA frames."""
    builder = Builder()
    stack = [builder.location("gemm", "cuda"), builder.location("launch", "native"), builder.location("step", line=7)]
    builder.tables.stack_table.add(location_indices=stack)
    builder.current.samples.add(stack_index=1, values=[3])
    builder.sample("step", "other", values=(2,))
    profiles = decode_profiles(builder.data())
    store, index = MemoryStore(), SeriesIndex()
    store.insert(Block([profiles]))
    index.add(Seen(profiles.series[0], 0, 2**62))
    return Querier(store, index)


def test_folded_download() -> None:
    made = export(querier(), Question(CPU), "folded")
    assert made.data.decode().splitlines() == [f"step;launch;[cuda] gemm {3 * PERIOD}", f"step;other {2 * PERIOD}"]
    assert made.file_name == "cpu.folded"


def test_pprof_download_reads_back() -> None:
    made = export(querier(), Question(CPU), "pprof")
    batch = pprof.read(made.data)
    assert batch.samples["value"].sum() == 5 * PERIOD
    kinds = {(batch.interner.types[int(t)].type, batch.interner.types[int(t)].unit) for t in batch.samples["type"]}  # type: ignore[union-attr]
    assert kinds == {("cpu", "nanoseconds")}


def test_speedscope_download() -> None:
    document = json.loads(export(querier(), Question(CPU), "speedscope").data)
    assert {frame["name"] for frame in document["shared"]["frames"]} == {"step", "launch", "[cuda] gemm", "other"}
    assert sum(document["profiles"][0]["weights"]) == 5 * PERIOD


@pytest.mark.parametrize(("kind", "form"), [(CPU, "svg"), ("cpu", "folded"), ("", "pprof")])
def test_what_there_is_not_is_malformed(kind: str, form: str) -> None:
    with pytest.raises(MalformedInput):
        export(querier(), Question(kind), form)


def test_an_empty_selection_is_an_empty_file() -> None:
    assert export(querier(), Question(CPU, '{service_name="none"}'), "folded").data == b""
