"""Writes docs/configuration.md and docs/counters.md from the settings classes, the commands' own words and the catalogue.

    python -m otelprof.reference [FOLDER]

What is written there is written nowhere else: the meaning of a setting stands at its field, of a counter in counters.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from otelprof.component import Factory, Kind
from otelprof.config import Registry
from otelprof.config.telemetry import Telemetry
from otelprof.config.units import ByteSize, Duration, Percent, format_duration, format_percent, format_size
from otelprof.counters import CATALOGUE

_UNITS = {Duration: ("duration", format_duration), ByteSize: ("size", format_size), Percent: ("percent", format_percent)}
_PLAIN = {int: "number", float: "number", bool: "true or false", str: "text", Path: "path", Any: "anything"}

CONFIGURATION_HEAD = """# Configuration

<!-- Written by `python -m otelprof.reference`; change the settings classes instead. -->

One YAML file in the OpenTelemetry Collector's grammar. Every mistake is one line with its place, and `otelprof validate`
shows them without starting anything.

- `receivers`, `processors`, `exporters`, `extensions`: components by id, `type` or `type/name`; nothing after the colon means
  the defaults. `service.pipelines` connects them: `profiles`, `traces`, each also as `profiles/name`.
- `${env:VAR}` and `${env:VAR:-default}` are filled in from the environment; `$$` is a dollar sign. A variable that isn't set
  and has no default is a mistake.
- What `otlp_grpc` and `otlp_http` aren't told they take from `OTEL_EXPORTER_OTLP_PROFILES_*` and then `OTEL_EXPORTER_OTLP_*`:
  `ENDPOINT`, `HEADERS`, `TIMEOUT` (milliseconds), `COMPRESSION`, `INSECURE`, `CERTIFICATE`, `CLIENT_CERTIFICATE`, `CLIENT_KEY`.
  Proxies are those of `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`.
- Durations are `100ms`, `5s`, `1m30s`; sizes `64MiB`, `500kB` or a number of bytes; percents `1%`.
- `--config` may be given more than once, as with the Collector: later files are laid over earlier ones, mappings key by key,
  lists and values whole. `--set path=value` changes one setting after that: `--set receivers.ebpf.report_interval=1s`.
- SIGHUP makes `otelprof run` read its files again. With mistakes in them, or when a component can't start, it goes on with
  the configuration that it had. What is attached is let go and attached again, which takes a second or two.

**One id is one instance.** Unlike in the Collector, where every pipeline has processors of its own, a batch passes each
component once, however many pipelines name it. Pipelines that share a processor, or a receiver and an exporter, run as one:
their processors in an order that agrees with all of them, and each exporter takes the signals of the pipelines that name it.
Orders that contradict each other are a mistake, and so is a shared processor through which a receiver's data would reach an
exporter that no pipeline sends it to: give the component a second id, `type/name`.
"""

COUNTERS_HEAD = """# Counters

<!-- Written by `python -m otelprof.reference`; change otelprof/counters.py instead. -->

The agent serves them at `/metrics` of `service.telemetry.metrics.address` (default 127.0.0.1:4042), the backend at
`/metrics` of its own address. Every loss is counted where it happens: seen + lost is the truth.

| name | kind | labels | meaning |
|---|---|---|---|
"""


def configuration() -> str:
    """The text of docs/configuration.md."""
    parts = [CONFIGURATION_HEAD]
    factories = Registry.installed().all()
    for kind in Kind:
        found = [factory for factory in factories if factory.kind is kind]
        if found:
            parts.append(f"## {kind.value.capitalize()}\n")
            parts += [_component(factory) for factory in found]
    parts.append("## service.telemetry\n\nWhat the agent says about itself.\n\n" + settings_table(Telemetry))
    return "\n".join(parts)


def counters() -> str:
    """The text of docs/counters.md."""
    rows = (
        f"| `{metric.name}` | {metric.kind.value} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.meaning} |\n"
        for metric in sorted(CATALOGUE.values(), key=lambda metric: metric.name)
    )
    return COUNTERS_HEAD + "".join(rows)


def _component(factory: Factory) -> str:
    title = f"### {factory.type} ({factory.kind.value[:-1]}, {factory.stability.value})\n\n"
    summary = f"{factory.summary[:1].upper()}{factory.summary[1:]}.\n\n" if factory.summary else ""
    return title + summary + settings_table(factory.settings)


def settings_table(cls: type[Any]) -> str:
    """The settings of a class and of the classes in it, as a table."""
    rows = list(_rows(cls, ""))
    if not rows:
        return "No settings.\n"
    return "| setting | type | default | meaning |\n|---|---|---|---|\n" + "".join(rows)


def _rows(cls: type[Any], prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint, path = hints[field.name], prefix + field.name
        inner = _nested(hint)
        if inner is not None:
            yield from _rows(inner, f"{path}[]." if get_origin(hint) is tuple else f"{path}.")
            continue
        default = "required" if _required(field) else f"`{_shown(hint, _default(field))}`"
        yield f"| `{path}` | {_cell(type_name(hint))} | {_cell(default)} | {_cell(_meaning(field, hint))} |\n"


def _nested(hint: Any) -> type[Any] | None:
    """The settings class in a hint: itself, or of a list's entries."""
    if get_origin(hint) is tuple:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        hint = next(arm for arm in get_args(hint) if arm is not NoneType)
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def type_name(hint: Any) -> str:
    """A type hint in the words of people who write configurations."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return type_name(next(arm for arm in arguments if arm is not NoneType))
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin is tuple:
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return f"mapping of {type_name(arguments[1])}"
    return _UNITS[hint][0] if hint in _UNITS else _PLAIN.get(hint, getattr(hint, "__name__", str(hint)))


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _shown(hint: Any, value: Any) -> str:
    if hint in _UNITS:
        return _UNITS[hint][1](value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value) or '""'


def _meaning(field: dataclasses.Field[Any], hint: Any) -> str:
    limits = (("at least", field.metadata.get("minimum")), ("at most", field.metadata.get("maximum")))
    bounds = [f"{word} {_shown(hint, bound)}" for word, bound in limits if bound is not None]
    meaning = field.metadata.get("meaning", "")
    return f"{meaning} ({', '.join(bounds)})" if bounds else str(meaning)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main(folder: Path) -> None:
    """Write both files."""
    folder.mkdir(exist_ok=True)
    (folder / "configuration.md").write_text(configuration(), encoding="utf-8")
    (folder / "counters.md").write_text(counters(), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write docs/configuration.md and docs/counters.md from the code.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1] / "docs")
    main(parser.parse_args().folder)
