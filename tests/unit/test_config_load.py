"""Whole configurations: what can run is typed and routed; what can't is told with all its mistakes."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from otelprof.component import Factory, Kind, Signal, Stability
from otelprof.config import Duration, Registry, load_file, load_text, load_values, setting
from otelprof.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    every: Duration = setting(Duration(5.0), "how often")
    headers: dict[str, str] = setting({}, "headers")


def never(build):
    raise AssertionError("validation must not make components")


def factory(kind, name, signals=frozenset(Signal)):
    return Factory(name, kind, Stability.ALPHA, Settings, never, signals=signals)


REGISTRY = Registry(
    [
        factory(Kind.RECEIVER, "source"),
        factory(Kind.PROCESSOR, "change"),
        factory(Kind.EXPORTER, "sink"),
        factory(Kind.EXPORTER, "otlp_grpc"),
        factory(Kind.EXPORTER, "pictures", frozenset({Signal.PROFILES})),
        factory(Kind.EXTENSION, "extra"),
    ]
)
GOOD = """
receivers: {source: {every: 1s}}
processors: {change: , change/2: {}}
exporters: {sink: {headers: {a: b}}}
service:
  pipelines:
    profiles: {receivers: [source], processors: [change], exporters: [sink]}
"""


def lines(text, **how):
    with pytest.raises(ConfigError) as caught:
        load_text(text, "c.yaml", REGISTRY, **how)
    return caught.value.lines


def test_a_good_configuration_is_typed_and_routed():
    found = load_text(GOOD, "c.yaml", REGISTRY)

    assert found.components[Kind.RECEIVER, "source"].settings == Settings(Duration(1.0))
    assert found.components[Kind.PROCESSOR, "change"].settings == Settings()
    assert found.routes[0].receivers == ("source",)
    assert found.signals("sink") == {Signal.PROFILES}
    assert found.telemetry.metrics.listen == ("127.0.0.1", 4042)


def test_a_component_that_no_pipeline_uses_is_a_warning():
    assert load_text(GOOD, "c.yaml", REGISTRY).warnings == (
        "c.yaml:3: processors.change/2: is configured, but no pipeline uses it",
    )


def test_ten_mistakes_are_ten_lines_in_the_order_of_the_file():
    found = lines(
        """
receivers:
  source: {evry: 1s}
  sourc: {}
processors:
  change: {every: 5}
exporters:
  sink: {headers: [a]}
  pictures: {}
extra: {}
service:
  telemetry: {logs: {level: loud}}
  pipelines:
    profiles: {receivers: [source], processors: [chang], exporters: [sink]}
    traces: {receivers: [source], exporters: [pictures]}
    metrics: {receivers: [source], exporters: [sink]}
    profiles/2: {exporters: [sink]}
""".lstrip()
    )

    assert [(line.split(": ")[0], line.split(": ")[1]) for line in found] == [
        ("c.yaml:2", "receivers.source.evry"),
        ("c.yaml:3", "receivers.sourc"),
        ("c.yaml:5", "processors.change.every"),
        ("c.yaml:7", "exporters.sink.headers"),
        ("c.yaml:9", "extra"),
        ("c.yaml:11", "service.telemetry.logs.level"),
        ("c.yaml:13", "service.pipelines.profiles.processors.0"),
        ("c.yaml:14", "service.pipelines.traces.exporters"),
        ("c.yaml:15", "service.pipelines.metrics"),
        ("c.yaml:16", "service.pipelines.profiles/2"),
    ]
    assert "did you mean every?" in found[0]
    assert "did you mean source?" in found[1]
    assert "pictures can't take traces, only profiles" in found[7]


def test_an_empty_file_says_what_is_needed():
    assert lines("") == ("c.yaml: service.pipelines: no pipeline; write profiles: {receivers: [...], exporters: [...]}",)


@pytest.mark.parametrize(
    "section", ["receivers: []", "service: 3", "service: {pipelines: [x]}", "service: {pipelines: {profiles: 1}}"]
)
def test_a_section_of_the_wrong_shape_is_told(section):
    assert any("a mapping is needed" in line for line in lines(section))


def test_overrides_come_before_the_checks():
    found = load_text(GOOD, "c.yaml", REGISTRY, ["receivers.source.every=3s"])

    assert found.components[Kind.RECEIVER, "source"].settings.every == 3.0
    assert any("receivers.source.nothing" in line for line in lines(GOOD, assignments=["receivers.source.nothing=1"]))


def test_the_collectors_readers_say_where_to_listen():
    text = GOOD + "  telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: 0.0.0.0, port: 8888}}}}]}}\n"

    assert load_text(text, "c", REGISTRY).telemetry.metrics.listen == ("0.0.0.0", 8888)


@pytest.mark.parametrize(
    ("address", "listen"), [("127.0.0.1:0", ("127.0.0.1", 0)), ('"[::1]:1"', ("::1", 1)), ("':5'", ("", 5))]
)
def test_an_address_is_host_and_port(address, listen):
    text = GOOD + f"  telemetry: {{metrics: {{address: {address}}}}}\n"

    assert load_text(text, "c", REGISTRY).telemetry.metrics.listen == listen


@pytest.mark.parametrize("address", ["localhost", "h:99999", "::1:5", "h:-1", "h:x"])
def test_what_is_no_address_is_a_mistake(address):
    assert "HOST:PORT is needed" in lines(GOOD + f"  telemetry: {{metrics: {{address: '{address}'}}}}\n")[0]


def test_the_level_none_serves_no_page():
    text = GOOD + "  telemetry: {metrics: {level: none}}\n"

    assert load_text(text, "c", REGISTRY).telemetry.metrics.listen is None


def test_older_names_of_the_collector_are_known():
    text = GOOD.replace("sink", "otlp")

    assert load_text(text, "c", REGISTRY).components[Kind.EXPORTER, "otlp"].factory.type == "otlp_grpc"


def test_plain_values_are_checked_like_text():
    with pytest.raises(ConfigError, match="unknown section"):
        load_values({"receiver": {}}, REGISTRY)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    for path, content in (
        (tmp_path / "none.yaml", None),
        (tmp_path / "latin.yaml", b"a: \xff"),
        (tmp_path / "big.yaml", b"#" * (2 << 20)),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load_file(path, REGISTRY)
        assert len(caught.value.lines) == 1
        assert str(path) in caught.value.lines[0]


def test_a_broken_entry_point_is_told_only_to_those_who_use_it():
    points = [
        EntryPoint("exporters.gone", "no.such.module:FACTORY", "otelprof.components"),
        EntryPoint("exporters.odd", "os:path", "otelprof.components"),
    ]
    registry = Registry([factory(Kind.RECEIVER, "source"), factory(Kind.EXPORTER, "sink")], points)
    text = "receivers: {source: }\nexporters: {sink: , gone: }\n"
    text += "service: {pipelines: {profiles: {receivers: [source], exporters: [sink]}}}"

    assert load_text(text.replace(", gone: ", ""), "c", registry).routes
    with pytest.raises(ConfigError, match=r"exporters\.gone .* can't be loaded: ModuleNotFoundError"):
        load_text(text, "c", registry)
    assert [one.type for one in registry.all()] == ["source", "sink"]
    assert "isn't the factory" in registry.broken["exporters.odd"]
