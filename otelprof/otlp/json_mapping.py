"""OTLP's JSON mapping to protobuf messages.

It is protobuf's own JSON but for one thing: trace, span and profile ids are hex, not base64 (OTLP specification, "JSON
Protobuf Encoding"). Unknown fields are ignored; deep nesting and NaN are errors.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NoReturn, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from otelprof.errors import MalformedInput

MAX_DEPTH = 64  # of arrays and objects; a request without nested attributes has 12
_IDS = frozenset({"traceId", "spanId", "parentSpanId", "profileId", "trace_id", "span_id", "parent_span_id", "profile_id"})

_M = TypeVar("_M", bound=Message)


def parse_json(data: bytes, message: _M) -> _M:
    """`data` read into `message`, which is returned; MalformedInput for anything that isn't OTLP/JSON."""
    try:
        document = json.loads(data, parse_constant=_no_constant)
        if not isinstance(document, dict):
            raise MalformedInput("the body isn't a JSON object")
        _rewrite_ids(document)
        return json_format.ParseDict(document, message, ignore_unknown_fields=True)
    except RecursionError:
        raise MalformedInput(f"JSON nested deeper than {MAX_DEPTH}") from None
    except (ValueError, json_format.ParseError, TypeError, UnicodeError) as error:
        raise MalformedInput(f"not OTLP/JSON: {str(error)[:200]}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} isn't JSON")


def _rewrite_ids(document: dict[str, Any]) -> None:
    """Hex ids to the base64 that protobuf's parser wants, in place; level by level, without recursion."""
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                node.update({key: _base64(node[key]) for key in _IDS & node.keys()})
                below.extend(node.values())
            else:
                below.extend(node)
        level = [value for value in below if isinstance(value, dict | list)]
        if not level:
            return
    raise MalformedInput(f"JSON nested deeper than {MAX_DEPTH}")


def _base64(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64encode(binascii.unhexlify(value)).decode()
    except (binascii.Error, ValueError):
        raise MalformedInput(f"an id isn't hex: {value[:40]!r}") from None
