"""The variables OTEL_EXPORTER_OTLP_*: what they say where a configuration says nothing.

OTEL_EXPORTER_OTLP_PROFILES_X wins over OTEL_EXPORTER_OTLP_X
(https://opentelemetry.io/docs/specs/otel/protocol/exporter/; the profiles' ones stand in the SDKs' documentation).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from otelprof.config.units import Duration
from otelprof.errors import ConfigError
from otelprof.exporters.settings import Tls, address, check_headers

PREFIX = "OTEL_EXPORTER_OTLP_"
_MAX_HEADERS = 100


def completed(given: Mapping[str, Any], port: int, env: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The settings `given`, and for those that are absent what the environment says; `port` is the endpoint's default.

    ConfigError names the variable that says nonsense. Certificates are taken one by one, so `tls: {insecure: …}` keeps them.
    """
    mistakes: list[str] = []
    found: dict[str, Any] = {}
    for key, (name, convert) in _VARIABLES.items():
        variable, text = _variable(name, env)
        if key in given or not text:
            continue
        try:
            found[key] = convert(text)
            if key == "endpoint":
                address(text, port, insecure=True)
        except ValueError as error:
            mistakes.append(f"{key}: {variable}: {error}")
    if mistakes:
        raise ConfigError(mistakes)
    return {**found, **given, "tls": _tls(given.get("tls"), env)}


def _variable(name: str, env: Mapping[str, str]) -> tuple[str, str]:
    """The variable that counts and its value; an empty one is as good as none."""
    names = (f"{PREFIX}PROFILES_{name}", f"{PREFIX}{name}")
    return next(((full, env[full].strip()) for full in names if env.get(full, "").strip()), (names[1], ""))


def _tls(given: Tls | None, env: Mapping[str, str]) -> Tls:
    tls = given or Tls(insecure=_variable("INSECURE", env)[1].lower() == "true")
    ca, cert, key = (_variable(name, env)[1] for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"))
    if ca and tls.ca_file is None:
        tls = replace(tls, ca_file=Path(ca))
    if cert and key and tls.cert_file is None:
        tls = replace(tls, cert_file=Path(cert), key_file=Path(key))
    return tls


def _headers(text: str) -> dict[str, str]:
    """`name=value,name=value`, values percent-encoded; the text is never shown, since it is mostly a secret."""
    found = {}
    for pair in text.split(",")[:_MAX_HEADERS]:
        name, equals, value = pair.partition("=")
        if pair.strip() and not equals:
            raise ValueError("name=value,name=value is needed")
        if equals:
            found[name.strip()] = unquote(value.strip())
    check_headers(found)
    return found


def _timeout(text: str) -> Duration:
    if not text.isdecimal() or not 100 <= int(text) <= 3_600_000:
        raise ValueError(f"milliseconds from 100 to 3600000 are needed, not {text[:20]!r}")
    return Duration(int(text) / 1000)


def _compression(text: str) -> str:
    if text not in ("gzip", "none"):
        raise ValueError(f"gzip or none is needed, not {text[:20]!r}")
    return text


_VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "endpoint": ("ENDPOINT", str),
    "headers": ("HEADERS", _headers),
    "timeout": ("TIMEOUT", _timeout),
    "compression": ("COMPRESSION", _compression),
}
