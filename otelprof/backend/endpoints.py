"""Our own API under /api/v1 as one table: paths, parameters, answers. Handlers read requests by it, openapi.py describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from otelprof.backend import traces
from otelprof.backend.flame import DEFAULT_NODES, MAX_NODES
from otelprof.backend.functions import MAX_FUNCTIONS
from otelprof.backend.query import MAX_IDS, Question
from otelprof.backend.times import milliseconds
from otelprof.errors import MalformedInput

JSON = "application/json"
FORMATS = ("pprof", "folded", "speedscope", "perfetto")
MAX_TEXT = 65_536  # characters of a parameter


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a query string. `kind`: string, strings (may repeat), integer, time (Unix milliseconds or `now-1h`)."""

    name: str
    meaning: str
    kind: str = "string"
    default: str | int = ""
    choices: tuple[str, ...] = ()
    most: int = 0  # of an integer
    required: bool = False

    def read(self, texts: Sequence[str]) -> Any:
        """The value of what was sent; MalformedInput says what is wrong with it."""
        texts = [text[: MAX_TEXT + 1] for text in texts if text]
        if any(len(text) > MAX_TEXT for text in texts):
            raise MalformedInput(f"{self.name} has more than {MAX_TEXT} characters")
        if self.kind == "strings":
            return list(texts[:MAX_IDS])
        if self.required and not texts:
            raise MalformedInput(f"{self.name} is missing: {self.meaning}")
        return self._one(texts[-1]) if texts else self.default

    def _one(self, text: str) -> str | int:
        if self.choices and text not in self.choices:
            raise MalformedInput(f"{self.name} is one of {', '.join(self.choices)}, not {text[:40]!r}")
        if self.kind == "integer" or (self.kind == "time" and not text.startswith("now")):
            return self._number(text)
        return milliseconds(text) if self.kind == "time" else text

    def _number(self, text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
            words = "now, now-1h or Unix milliseconds" if self.kind == "time" else "a whole number"
            raise MalformedInput(f"{self.name} is {words}, not {text[:40]!r}")
        return min(int(text), self.most) if self.most else int(text)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path that GET answers; `answer` names the schema of its JSON, or is a media type."""

    path: str
    name: str  # of the handler
    summary: str
    parameters: tuple[Parameter, ...] = ()
    answer: str = ""
    media: str = JSON

    def read(self, sent: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """The values of all parameters, by name."""
        return {one.name: one.read(sent.get(one.name, ())) for one in self.parameters}


TYPE = Parameter("type", "profile type id, such as process_cpu:cpu:nanoseconds:cpu:nanoseconds", required=True)
QUERY = Parameter("query", 'label selector, such as {service_name="web"}; none selects everything')
FROM = Parameter("from", "start: Unix milliseconds, now, or now-1h (ms, s, m, h, d, w); 0 is the beginning", "time", 0)
UNTIL = Parameter("until", "end, as `from`; 0 is no end", "time", 0)
NODES = Parameter("max_nodes", "bars at most, the rest is folded; 0 is the default", "integer", DEFAULT_NODES, most=MAX_NODES)
TRACE = Parameter("trace", "only samples of these traces: 32 hex digits each", "strings")
SPAN = Parameter("span", "only samples of these spans: 16 hex digits each", "strings")
RANGE = (QUERY, FROM, UNTIL)
CHOSEN = (TYPE, *RANGE, TRACE, SPAN)


def _side(name: str) -> tuple[Parameter, ...]:
    return (
        Parameter(f"{name}_query", f"selector of the {name} side; `query` when there is none"),
        Parameter(f"{name}_from", f"start of the {name} side; `from` when there is none", "time"),
        Parameter(f"{name}_until", f"end of the {name} side; `until` when there is none", "time"),
    )


SIDES = (*_side("left"), *_side("right"))
FUNCTIONS = Parameter("limit", "functions at most", "integer", 100, most=MAX_FUNCTIONS)

ENDPOINTS = (
    Endpoint("/api/v1/flamegraph", "flamegraph", "The merged flame graph", (*CHOSEN, NODES), "Graph"),
    Endpoint("/api/v1/diff", "diff", "The flame graph of two sides", (TYPE, *RANGE, *SIDES, NODES), "Diff"),
    Endpoint(
        "/api/v1/top", "top", "Functions by their own value, or with sides by the change of its share",
        (*CHOSEN, FUNCTIONS, Parameter("order", "what to order by", choices=("self", "total"), default="self"), *SIDES), "Top",
    ),
    Endpoint(
        "/api/v1/sandwich", "sandwich", "What calls a function, and what it calls",
        (*CHOSEN, Parameter("function", "its name as it is shown, such as `[cuda] gemm`", required=True), NODES), "Sandwich",
    ),
    Endpoint("/api/v1/types", "types", "All profile types with their times and services", (), "Types"),
    Endpoint(
        "/api/v1/traces", "requests", "Requests by what they cost",
        (
            *RANGE,
            Parameter("order", "the largest of what first", choices=traces.ORDERS, default=traces.ORDERS[0]),
            Parameter("limit", "requests at most", "integer", 50, most=traces.MAX_TRACES),
        ), "Traces",
    ),
    Endpoint(
        "/api/v1/spans", "spans", "The spans of a trace with what each of them cost",
        (Parameter("trace", "32 hex digits", required=True),), "Spans",
    ),
    Endpoint(
        "/api/v1/export", "export", "A download; perfetto: of the spans of a trace, or of what ran on GPUs in the range",
        (Parameter("format", "the file's form", choices=FORMATS, required=True), Parameter("type", TYPE.meaning), *CHOSEN[1:]),
        media="application/octet-stream",
    ),
    Endpoint("/api/v1/live", "live", "Server-sent events: `data` with the newest sample's time", media="text/event-stream"),
    Endpoint("/api/v1/openapi.json", "openapi", "This document", (), "OpenApi"),
)  # fmt: skip


def question(given: Mapping[str, Any], side: str = "") -> Question:
    """Which samples a request means; of one side of a comparison."""

    def of_side(name: str) -> Any:
        own = given.get(f"{side}_{name}", "") if side else ""
        return given[name] if own == "" else own

    return Question(
        given["type"], of_side("query"), of_side("from"), of_side("until"), given.get("trace", ()), given.get("span", ())
    )


def has_sides(given: Mapping[str, Any]) -> bool:
    """True when a request compares two sides."""
    return any(given.get(one.name, "") != "" for one in SIDES)
