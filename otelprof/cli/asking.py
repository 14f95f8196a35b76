"""How `otelprof query` asks a backend over HTTP, and the options that all its commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import click
import urllib3

from otelprof.backend.times import milliseconds
from otelprof.errors import OtelprofError, UsageError

DEFAULT_URL = "http://127.0.0.1:4040"
TIMEOUT = urllib3.Timeout(connect=5, read=60)
MAX_ANSWER = 256 << 20  # bytes

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Asked:
    """What all commands know: where the backend is, which samples, and how to answer."""

    url: str
    token: str
    type: str
    query: str
    start: int  # Unix milliseconds
    end: int
    as_json: bool

    def samples(self) -> dict[str, Any]:
        """The parameters that choose samples."""
        return {"type": self.full_type(), "query": self.query, "from": self.start, "until": self.end}

    def get(self, path: str, parameters: Mapping[str, Any]) -> Any:
        """The JSON that GET /api/v1/PATH answers."""
        return self._call("GET", f"/api/v1/{path}?{urlencode(parameters, doseq=True)}", None)

    def post(self, method: str, request: Mapping[str, Any]) -> Any:
        """The JSON that a method of Pyroscope's querier answers."""
        return self._call("POST", f"/querier.v1.QuerierService/{method}", json.dumps(request).encode())

    def full_type(self) -> str:
        """The id of the profile type that is meant: given whole, or by one of its names."""
        if ":" in self.type:
            return self.type
        known = [one["id"] for one in self.get("types", {})["types"]]
        found = [one for one in known if self.type in (one.split(":")[1], one.split(":")[0])]
        if len(found) == 1:
            return str(found[0])
        short = ", ".join(sorted(one.split(":")[1] for one in known)) or "none yet"
        raise OtelprofError(f"--type {self.type[:100]}: this backend has samples of: {short}")

    def _call(self, method: str, path: str, body: bytes | None) -> Any:
        headers = {"content-type": "application/json", "accept-encoding": "gzip"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        try:
            with urllib3.PoolManager(retries=False, timeout=TIMEOUT) as pool:
                answer = pool.request(method, self.url + path, body=body, headers=headers, preload_content=False)
                data = answer.read(MAX_ANSWER, decode_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise OtelprofError(f"no backend answers at {self.url} ({_cause(error)}); start one or give --url") from None
        return _answer(self.url, answer.status, data)


def _cause(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason).rpartition("> ")[2].rpartition(": ")[2][:200] or type(error).__name__


def _answer(url: str, status: int, data: bytes) -> Any:
    """The JSON of an answer; OtelprofError with the backend's own words when it refused."""
    try:
        found = json.loads(data)
    except ValueError:
        raise OtelprofError(f"{url} isn't an otelprof backend: it answered {status} without JSON") from None
    if status == 401:
        raise OtelprofError(f"{url} wants a token: give --token-file FILE, or set OTELPROF_TOKEN")
    if status != 200:
        message = found.get("message", "") if isinstance(found, dict) else ""
        raise OtelprofError(f"the backend refused with {status}: {message[:800]}")
    return found


def _time(_context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """An option's callback: a point in time as Unix milliseconds."""
    try:
        return None if value is None else milliseconds(value)
    except OtelprofError as error:
        raise UsageError(f"--{parameter.name}: {error}") from None


def time_option(flag: str, name: str, default: str | None, text: str) -> Callable[[_Command], _Command]:
    """An option that takes a point in time."""
    return click.option(flag, name, default=default, show_default=bool(default), metavar="TIME", callback=_time, help=text)


def _url(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    parts = urlsplit(value if "://" in value else f"http://{value}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {value[:100]}: an address such as {DEFAULT_URL} is needed")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


_OPTIONS = (
    click.option("--url", default=DEFAULT_URL, show_default=True, envvar="OTELPROF_URL", callback=_url, help="The backend."),
    click.option("--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File with its token."),
    click.option(
        "-t", "--type", "type_", default="cpu", show_default=True, help="Profile type: its id, or a part such as `cpu`."
    ),
    click.option("-q", "--query", default="", metavar="SELECTOR", help="Label selector, or the name of a service."),
    time_option("--from", "start", "now-1h", "Start: now, now-15m, Unix time."),
    time_option("--until", "end", "now", "End."),
    click.option("--json", "as_json", is_flag=True, help="The backend's answer as JSON."),
)


def asking(function: _Command) -> _Command:
    """The options that all commands have; the command gets them as one `Asked`."""

    def command(**values: Any) -> Any:
        names = ("url", "start", "end", "as_json")
        asked = Asked(
            **{name: values.pop(name) for name in names},
            token=_token(values.pop("token_file")),
            type=values.pop("type_"),
            query=_selector(values.pop("query")),
        )
        if asked.end < asked.start:
            raise UsageError("--from is after --until")
        return function(asked, **values)

    command.__doc__, command.__name__ = function.__doc__, function.__name__
    command.__click_params__ = list(getattr(function, "__click_params__", ()))  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        command = option(command)
    return command  # type: ignore[return-value]


def _token(path: Path | None) -> str:
    """The first token of a file, or OTELPROF_TOKEN's."""
    if path is None:
        return os.environ.get("OTELPROF_TOKEN", "").strip()
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line for line in lines if line and not line.startswith("#")), "")


def _selector(text: str) -> str:
    """A selector as it is; the name of a service as the selector of it."""
    text = text.strip()
    if not text or text.startswith("{"):
        return text
    if any(sign in text for sign in "={}"):
        return "{" + text + "}"
    return "{service_name=" + json.dumps(text, ensure_ascii=False) + "}"
