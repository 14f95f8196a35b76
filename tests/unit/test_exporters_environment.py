"""OTEL_EXPORTER_OTLP_*: where a configuration says nothing, and only there."""

from pathlib import Path

import pytest

from otelprof.component import Kind, Signal
from otelprof.config import Registry, load_values
from otelprof.errors import ConfigError

PREFIX = "OTEL_EXPORTER_OTLP_"


def settings(kind, given=None):
    values = {
        "receivers": {"replay": {"path": "x"}},
        "exporters": {kind: given},
        "service": {"pipelines": {"profiles": {"receivers": ["replay"], "exporters": [kind]}}},
    }
    return load_values(values, Registry.installed()).components[Kind.EXPORTER, kind].settings


@pytest.fixture
def env(monkeypatch):
    def put(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(PREFIX + name, value)

    return put


@pytest.mark.parametrize("kind", ["otlp_grpc", "otlp_http"])
def test_what_is_absent_comes_from_the_environment(env, kind):
    env(ENDPOINT="https://there:1234", HEADERS="api-key=a%20b, x=1", TIMEOUT="2500", COMPRESSION="none", CERTIFICATE="/ca.pem")
    env(CLIENT_CERTIFICATE="/cert.pem", CLIENT_KEY="/key.pem")
    found = settings(kind)
    assert (found.endpoint, found.headers, found.timeout) == ("https://there:1234", {"api-key": "a b", "x": "1"}, 2.5)
    assert (found.compression, found.tls.ca_file) == ("none", Path("/ca.pem"))
    assert (found.tls.cert_file, found.tls.key_file) == (Path("/cert.pem"), Path("/key.pem"))


def test_what_the_configuration_says_wins(env):
    env(ENDPOINT="https://there:1234", HEADERS="a=b", CERTIFICATE="/ca.pem", INSECURE="false")
    given = {"endpoint": "here:1", "headers": {"c": "d"}, "tls": {"insecure": True, "ca_file": "/mine.pem"}}
    found = settings("otlp_grpc", given)
    assert (found.endpoint, found.headers, found.tls.ca_file) == ("here:1", {"c": "d"}, Path("/mine.pem"))
    assert not found.address.secure


def test_the_profiles_own_variable_wins_and_an_empty_one_is_none(env):
    env(ENDPOINT="http://all:4318", PROFILES_ENDPOINT="http://mine:4318/v1/profiles", PROFILES_HEADERS=" ", HEADERS="a=b")
    found = settings("otlp_http")
    assert found.url(Signal.PROFILES) == "http://mine:4318/v1/profiles"
    assert found.url(Signal.TRACES) == "http://mine:4318/v1/traces"
    assert found.headers == {"a": "b"}


def test_insecure_is_for_endpoints_without_a_scheme(env):
    env(ENDPOINT="there:4317", INSECURE="true")
    assert not settings("otlp_grpc").address.secure
    env(ENDPOINT="https://there:4317")
    assert settings("otlp_grpc").address.secure


def test_nonsense_is_a_mistake_that_names_the_variable_but_no_secret(env):
    env(TIMEOUT="soon", HEADERS="secret", PROFILES_COMPRESSION="lz4", ENDPOINT="ftp://x")
    with pytest.raises(ConfigError) as caught:
        settings("otlp_grpc")
    text = "\n".join(caught.value.lines)
    assert "exporters.otlp_grpc.timeout: OTEL_EXPORTER_OTLP_TIMEOUT: milliseconds from 100" in text
    assert "exporters.otlp_grpc.compression: OTEL_EXPORTER_OTLP_PROFILES_COMPRESSION: gzip or none" in text
    assert "exporters.otlp_grpc.headers: OTEL_EXPORTER_OTLP_HEADERS: name=value" in text
    assert "exporters.otlp_grpc.endpoint: OTEL_EXPORTER_OTLP_ENDPOINT: an endpoint such as host:4317" in text
    assert "secret" not in text


def test_pyroscope_and_files_don_t_ask(env):
    env(ENDPOINT="http://there:4318")
    assert settings("pyroscope").endpoint == "http://localhost:4040"
