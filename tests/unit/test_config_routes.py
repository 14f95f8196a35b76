"""Pipelines become routes in which one id is one instance and a batch passes it once."""

from otelprof.component import Signal
from otelprof.config.routes import PipelineConfig, routes, signals_of


def pipeline(name, receivers, processors, exporters):
    signal = Signal(name.split("/")[0])
    return PipelineConfig(name, signal, *(tuple(words.split()) for words in (receivers, processors, exporters)))


def routed(*pipelines):
    mistakes, warnings = [], []
    found = routes(
        pipelines, lambda path, text: mistakes.append(f"{path}: {text}"), lambda path, text: warnings.append(f"{path}: {text}")
    )
    return found, mistakes, warnings


def test_the_usual_profiles_and_traces_are_one_route():
    found, mistakes, warnings = routed(
        pipeline("profiles", "ebpf", "resource cuda", "otlp debug"), pipeline("traces", "ebpf", "resource cuda", "otlp")
    )

    assert not mistakes
    assert not warnings
    assert len(found) == 1
    assert (found[0].receivers, found[0].processors, found[0].exporters) == (("ebpf",), ("resource", "cuda"), ("otlp", "debug"))


def test_pipelines_that_share_only_a_receiver_stay_apart():
    found, mistakes, _ = routed(pipeline("profiles/1", "ebpf", "a", "x"), pipeline("profiles/2", "ebpf", "b", "y"))

    assert not mistakes
    assert [route.exporters for route in found] == [("x",), ("y",)]


def test_pipelines_that_share_a_receiver_and_an_exporter_are_merged_and_say_so():
    found, mistakes, warnings = routed(pipeline("profiles", "ebpf", "a b", "x"), pipeline("traces", "ebpf", "b c", "x"))

    assert not mistakes
    assert [route.processors for route in found] == [("a", "b", "c")]
    assert len(warnings) == 2


def test_a_route_that_joins_two_others_merges_all_three():
    found, _, _ = routed(
        pipeline("profiles/1", "ebpf", "a", "x"),
        pipeline("profiles/2", "ebpf", "b", "y"),
        pipeline("profiles/3", "ebpf", "a b", "x y"),
    )

    assert len(found) == 1


def test_two_orders_for_the_same_ids_are_a_mistake():
    _, mistakes, _ = routed(pipeline("profiles", "ebpf", "a b", "x"), pipeline("traces", "ebpf", "b a", "x"))

    assert mistakes == [
        "service.pipelines.traces.processors: a, b stand in another order in profiles; give one of them a second id (type/name)"
    ]


def test_data_that_would_reach_an_exporter_which_no_pipeline_gives_it_are_a_mistake():
    _, mistakes, _ = routed(pipeline("profiles/1", "one", "shared", "x"), pipeline("profiles/2", "two", "shared", "y"))

    assert len(mistakes) == 2
    assert "two would send profiles to x too" in mistakes[0]


def test_an_exporter_knows_the_signals_of_its_pipelines():
    pipelines = [pipeline("profiles", "r", "", "x y"), pipeline("traces", "r", "", "x")]

    assert signals_of("x", pipelines) == {Signal.PROFILES, Signal.TRACES}
    assert signals_of("y", pipelines) == {Signal.PROFILES}
