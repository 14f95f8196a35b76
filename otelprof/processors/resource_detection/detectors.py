"""The detectors: what each knows about a resource. Those about the machine run once, at the start of the agent.

What a process says of itself (its environment) is read by the receiver at first sight, since a process may be gone a
moment later, and comes here as `process.environment_variable.NAME` attributes, which don't leave again.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote_to_bytes

from otelprof.batch import AttributeValue
from otelprof.otlp import semconv
from otelprof.text import clean

Found = dict[str, AttributeValue]

ENV_SERVICE_NAME = f"{semconv.PROCESS_ENVIRONMENT}OTEL_SERVICE_NAME"
ENV_RESOURCE_ATTRIBUTES = f"{semconv.PROCESS_ENVIRONMENT}OTEL_RESOURCE_ATTRIBUTES"

_ATTRIBUTES_LIMIT = 64
_KEY = re.compile(r"[^\s=,;\x00-\x1f]{1,256}")
_GPU_FOLDER = Path("/proc/driver/nvidia/gpus")
_GPU_LIMIT = 64
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # host.arch has its own names


def from_environment(seen: Mapping[str, AttributeValue]) -> tuple[Found, bool]:
    """Attributes from the two OTEL variables of the process, and whether OTEL_RESOURCE_ATTRIBUTES was malformed.

    OTEL_SERVICE_NAME wins over a service.name in OTEL_RESOURCE_ATTRIBUTES
    (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).
    """
    found, malformed = parse_attributes(str(seen.get(ENV_RESOURCE_ATTRIBUTES, "")))
    name = clean(str(seen.get(ENV_SERVICE_NAME, "")).strip())
    if name:
        found[semconv.SERVICE_NAME] = name
    return found, malformed


def parse_attributes(text: str) -> tuple[Found, bool]:
    """`key=value,…` with percent-encoded values; anything malformed drops it whole and is told by the second value.

    The grammar is that of https://opentelemetry.io/docs/specs/otel/resource/sdk/#specifying-resource-information-via-an-environment-variable
    """
    found: Found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not _KEY.fullmatch(key) or len(found) >= _ATTRIBUTES_LIMIT:
            return {}, True
        try:
            found[key] = clean(unquote_to_bytes(value.encode(errors="surrogateescape")).decode())
        except UnicodeDecodeError:
            return {}, True
    return found, False


def service_name(seen: Mapping[str, AttributeValue]) -> str:
    """What to call a service that has no name: after its executable, as the OpenTelemetry specification says."""
    executable = seen.get(semconv.PROCESS_EXECUTABLE_NAME)
    return str(executable) if executable else "unknown_service"


def host() -> Found:
    """host.* and os.type of this machine."""
    name = platform.node()
    arch = platform.machine()
    found: Found = {semconv.HOST_ARCH: _ARCHITECTURES.get(arch, arch), semconv.OS_TYPE: "linux"}
    if name:
        found[semconv.HOST_NAME] = clean(name)
    machine = _text(Path("/etc/machine-id"))
    if machine:
        found[semconv.HOST_ID] = machine
    return found


def kubernetes(env: Mapping[str, str] = os.environ) -> Found:
    """Node and cluster, from the variables that the agent's pod sets by the downward API (docs: Kubernetes)."""
    pairs = ((semconv.K8S_NODE_NAME, "K8S_NODE_NAME"), (semconv.K8S_CLUSTER_NAME, "K8S_CLUSTER_NAME"))
    return {key: clean(env[name]) for key, name in pairs if env.get(name)}


def gpu_models(folder: Path = _GPU_FOLDER) -> dict[str, str]:
    """Model by UUID of the machine's GPUs, from the driver's own files; empty without the driver."""
    found = {}
    try:
        places = sorted(folder.iterdir())[:_GPU_LIMIT]
    except OSError:
        return {}
    for place in places:
        lines = (line.partition(":") for line in _text(place / "information").splitlines())
        facts = {key.strip(): value.strip() for key, _, value in lines}
        if facts.get("GPU UUID"):
            found[facts["GPU UUID"]] = clean(facts.get("Model", ""))
    return found


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(4096).decode(errors="replace").strip()
    except OSError:
        return ""
