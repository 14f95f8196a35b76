"""Settings of the sending exporters: the Collector's keys, endpoints in their usual forms, and mistakes named by their key."""

from __future__ import annotations

from typing import Any

import pytest

from otelprof.component import Signal
from otelprof.config.settings import convert_class
from otelprof.exporters.file.config import Settings as FileSettings
from otelprof.exporters.otlp_grpc.config import Settings as GrpcSettings
from otelprof.exporters.otlp_http.config import Settings as HttpSettings
from otelprof.exporters.settings import Address, address


def mistakes(cls: type[Any], values: dict[str, Any]) -> list[str]:
    found: list[str] = []
    convert_class(cls, values, "exporters.x", lambda path, what: found.append(f"{path}: {what}"))
    return found


@pytest.mark.parametrize(
    ("endpoint", "insecure", "expected"),
    [
        ("h", True, Address("h", 4317, "", False)),
        ("h:1", False, Address("h", 1, "", True)),
        ("http://h:2", False, Address("h", 2, "", False)),
        ("https://h", True, Address("h", 4317, "", True)),
        ("http://[::1]:3/a/b", False, Address("[::1]", 3, "/a/b", False)),
    ],
)
def test_an_endpoint_is_host_port_path_and_whether_tls(endpoint: str, insecure: bool, expected: Address) -> None:
    assert address(endpoint, 4317, insecure) == expected


@pytest.mark.parametrize("endpoint", ["", "ftp://h", "h:0", "h:99999", "h:x", "http://", "http://u:p@h", "a b", "http://h?x=1"])
def test_other_endpoints_are_a_mistake_with_the_key(endpoint: str) -> None:
    assert mistakes(GrpcSettings, {"endpoint": endpoint})[0].startswith("exporters.x.endpoint: an endpoint such as")
    assert mistakes(HttpSettings, {"endpoint": endpoint})[0].startswith("exporters.x.endpoint: an endpoint such as")


def test_the_collector_s_keys_are_read() -> None:
    values = {
        "endpoint": "h:1",
        "tls": {"insecure": True, "ca_file": "/ca.pem"},
        "headers": {"X-A": "b"},
        "compression": "none",
        "timeout": "2s",
        "retry_on_failure": {"enabled": False, "initial_interval": "100ms", "max_interval": "1m", "max_elapsed_time": "0"},
        "sending_queue": {"queue_size": "64MiB", "sizer": "bytes"},
        "dialect": "pyroscope",
        "service_name_on_samples": True,
    }
    assert mistakes(GrpcSettings, values) == []
    assert mistakes(HttpSettings, values) == []


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"sending_queue": {"sizer": "items"}}, "exporters.x.sending_queue.sizer: must be one of bytes"),
        ({"headers": {"a b": "c"}}, "exporters.x.headers: 'a b' can't be sent"),
        ({"tls": {"cert_file": "/c.pem"}}, "exporters.x.tls: cert_file and key_file are needed together"),
        ({"compression": "zstd"}, "exporters.x.compression: must be one of gzip, none"),
    ],
)
def test_mistakes_are_named(values: dict[str, Any], path: str) -> None:
    (line,) = mistakes(GrpcSettings, values)
    assert line.startswith(path)


def test_a_secret_header_isn_t_shown() -> None:
    (line,) = mistakes(GrpcSettings, {"headers": {"authorization": "Bearer s3cret\n"}})
    assert "s3cret" not in line


def test_urls_of_the_http_exporter() -> None:
    assert HttpSettings(endpoint="https://h:1/x/v1/traces").url(Signal.PROFILES) == "https://h:1/x/v1development/profiles"


def test_the_file_exporter_s_settings_have_defaults() -> None:
    assert mistakes(FileSettings, {"path": "/tmp/x", "rotation": {"max_size": "1MiB"}}) == []
