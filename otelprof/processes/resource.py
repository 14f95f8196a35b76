"""The facts of a process as the attributes of its resource.

The variables that were asked for go along as `process.environment_variable.NAME`, the convention's own name: the processor
`resource_detection` makes attributes of OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES and removes these two.
"""

from __future__ import annotations

from datetime import UTC, datetime

from otelprof.batch import AttributeValue, Resource
from otelprof.otlp import semconv
from otelprof.processes.identity import Facts
from otelprof.text import clean


def process_resource(facts: Facts, runtime_name: str = "", runtime_version: str = "") -> Resource:
    """The resource of one process; what isn't known is left out."""
    known: dict[str, AttributeValue] = {
        semconv.SERVICE_NAME: facts.service,
        semconv.PROCESS_EXECUTABLE_NAME: facts.executable_name,
        semconv.PROCESS_EXECUTABLE_PATH: facts.executable_path,
        semconv.PROCESS_COMMAND: facts.command,
        semconv.PROCESS_RUNTIME_NAME: runtime_name,
        semconv.PROCESS_RUNTIME_VERSION: runtime_version,
        semconv.CONTAINER_ID: facts.container_id,
    }
    if facts.start_time:
        known[semconv.PROCESS_CREATION_TIME] = _iso(facts.start_time)
    known |= {semconv.PROCESS_ENVIRONMENT + name: clean(value) for name, value in facts.environment}
    attributes = {key: value for key, value in known.items() if value} | dict(facts.ranks)
    attributes[semconv.PROCESS_PID] = facts.pid
    return Resource(tuple(sorted(attributes.items())))


def _iso(unix_nano: int) -> str:
    """ISO 8601 in UTC with milliseconds, as the convention wants process.creation.time."""
    moment = datetime.fromtimestamp(unix_nano / 1e9, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
