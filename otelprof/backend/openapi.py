"""The OpenAPI 3.1 document of /api/v1, made from the table of endpoints."""

from __future__ import annotations

from typing import Any

from otelprof import __version__
from otelprof.backend.endpoints import ENDPOINTS, JSON, Endpoint, Parameter
from otelprof.backend.store import WEIGHTS

_INTEGER, _STRING = {"type": "integer"}, {"type": "string"}
_STRINGS = {"type": "array", "items": _STRING}
_WEIGHTS = {"cpu": "cpu_ns", "launches": "launches", "gpu_time": "gpu_time_ns", "waiting": "waiting_ns"}
"""How the weights of traces and spans are called in answers."""


def weights_shown(weights: dict[str, int]) -> dict[str, int]:
    """Weights under the names that answers give them."""
    return {_WEIGHTS[name]: weights[name] for name in WEIGHTS}


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(fields), "properties": fields}


def _list_of(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_LEVELS = _list_of(_list_of(_INTEGER))
_GRAPH = {
    "names": _STRINGS,
    "kinds": _STRINGS,
    "files": _STRINGS,
    "levels": {**_LEVELS, "description": "per bar: gap to the bar before it, total, self, index of its name"},
    "total": _INTEGER,
    "max_self": _INTEGER,
    "other": {**_INTEGER, "description": "the value of all that was folded"},
    "unit": _STRING,
}
_FUNCTION = {"name": _STRING, "kind": _STRING, "file": _STRING}
_COSTS = dict.fromkeys(_WEIGHTS.values(), _INTEGER)
_PLACED = {"service": _STRING, "name": _STRING, "start_us": _INTEGER, "duration_ns": _INTEGER}

SCHEMAS: dict[str, Any] = {
    "Error": _object(code=_STRING, message=_STRING),
    "Graph": _object(**_GRAPH, until=_INTEGER),
    "Diff": _object(
        **{**_GRAPH, "levels": {**_LEVELS, "description": "per bar: gap, total, self of each side, index of its name"}},
        left_total=_INTEGER,
        right_total=_INTEGER,
    ),
    "Top": _object(
        functions=_list_of(
            {
                "anyOf": [
                    _object(**_FUNCTION, self=_INTEGER, total=_INTEGER),
                    _object(
                        **_FUNCTION, left_self=_INTEGER, left_total=_INTEGER, right_self=_INTEGER, right_total=_INTEGER
                    ),
                ]
            }
        ),
        unit=_STRING,
    ),
    "Sandwich": _object(
        function=_STRING, self=_INTEGER, total=_INTEGER, callers=_object(**_GRAPH), callees=_object(**_GRAPH), unit=_STRING
    ),
    "Types": _object(
        types=_list_of(_object(id=_STRING, unit=_STRING, first=_INTEGER, last=_INTEGER, services=_STRINGS))
    ),
    "Traces": _object(traces=_list_of(_object(trace=_STRING, spans=_INTEGER, **_PLACED, **_COSTS))),
    "Spans": _object(
        trace=_STRING,
        spans=_list_of(
            _object(
                span=_STRING,
                parent=_STRING,
                attributes={"type": "object", "additionalProperties": _STRING},
                **_PLACED,
                **_COSTS,
            )
        ),
    ),
    "OpenApi": {"type": "object"},
}  # fmt: skip

_REFUSALS = {
    "400": "a parameter is wrong or missing",
    "401": "a token is needed",
    "403": "asked under another name than localhost, without tokens",
    "503": "too many queries at once, or the store failed; Retry-After says when to try again",
}


def document() -> dict[str, Any]:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "otelprof backend",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"token": []}],
        "paths": {one.path: {"get": _operation(one)} for one in ENDPOINTS},
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "a token of --token-file"}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    schema = _ref(endpoint.answer) if endpoint.answer else _STRING
    refused = {"content": {JSON: {"schema": _ref("Error")}}}
    return {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "parameters": [_parameter(one) for one in endpoint.parameters],
        "responses": {
            "200": {"description": "the answer", "content": {endpoint.media: {"schema": schema}}},
            **{status: {"description": text, **refused} for status, text in _REFUSALS.items()},
        },
    }


def _parameter(one: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer" if one.kind == "integer" else "string"}
    if one.kind == "time":
        schema["pattern"] = r"^(now(-[0-9]{1,9}(ms|s|m|h|d|w))?|[0-9]{1,18})$"
    if one.choices:
        schema["enum"] = list(one.choices)
    if one.required:
        schema["minLength"] = 1
    if one.default != "" and not one.required:
        schema["default"] = str(one.default) if one.kind == "time" else one.default
    if one.kind == "strings":
        schema = {"type": "array", "items": schema}
    return {"name": one.name, "in": "query", "required": one.required, "description": one.meaning, "schema": schema}
