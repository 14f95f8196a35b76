"""From the text of a configuration to checked settings and routes. Nothing here touches the kernel or a component.

All mistakes are found in one pass and raised as one ConfigError with a line for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otelprof.component import Factory, Kind, Signal
from otelprof.config.document import MAX_BYTES, Document, merged, override, parse
from otelprof.config.registry import ALIASES, Registry
from otelprof.config.routes import PipelineConfig, Route, routes, signals_of
from otelprof.config.settings import INVALID, convert_class, nearest, shown
from otelprof.config.telemetry import Telemetry
from otelprof.errors import ConfigError

_SECTIONS = (*(kind.value for kind in Kind), "service")
_LISTS = ("receivers", "processors", "exporters")


@dataclass(frozen=True, slots=True)
class ComponentConfig:
    """One configured component: its id (`type/name`), its factory and its settings."""

    id: str
    factory: Factory
    settings: Any


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration that can run."""

    components: Mapping[tuple[Kind, str], ComponentConfig]
    pipelines: tuple[PipelineConfig, ...]
    routes: tuple[Route, ...]
    extensions: tuple[str, ...]
    telemetry: Telemetry
    warnings: tuple[str, ...] = ()

    def signals(self, exporter: str) -> frozenset[Signal]:
        """The signals that an exporter's pipelines carry."""
        return signals_of(exporter, self.pipelines)


def load_file(path: Path, registry: Registry, assignments: Iterable[str] = ()) -> Configuration:
    """The configuration in a file, with `path=value` assignments over it."""
    return load_texts([(read_text(path), str(path))], registry, assignments)


def read_text(path: Path) -> str:
    """The text of a configuration file; ConfigError when it can't be one."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{path}: can't be read: {error.strerror}; name a readable file after --config"]) from None
    if len(data) > MAX_BYTES:
        raise ConfigError([f"{path}: longer than {MAX_BYTES} bytes; is this the right file?"])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8"]) from None


def load_text(text: str, source: str, registry: Registry, assignments: Iterable[str] = ()) -> Configuration:
    """The configuration in `text`; `source` names it in messages."""
    return load_texts([(text, source)], registry, assignments)


def load_texts(texts: Iterable[tuple[str, str]], registry: Registry, assignments: Iterable[str] = ()) -> Configuration:
    """The configuration in several (text, source), later ones over earlier ones, and `path=value` assignments over all."""
    document = merged([parse(text, source) for text, source in texts])
    override(document, assignments)
    return _checked(document, registry)


def load_values(values: dict[str, Any], registry: Registry) -> Configuration:
    """The configuration in plain values, as commands make them."""
    return _checked(Document("configuration", values), registry)


def _checked(document: Document, registry: Registry) -> Configuration:
    for key in document.root:
        if key not in _SECTIONS:
            document.report(key, f"unknown section{nearest(key, _SECTIONS)}")
    components = {(kind, one.id): one for kind in Kind for one in _components(document, kind, registry)}
    service = _mapping(document, document.root.get("service"), "service")
    for key in service:
        if key not in ("pipelines", "telemetry", "extensions"):
            document.report(f"service.{key}", f"unknown key{nearest(key, ('pipelines', 'telemetry', 'extensions'))}")
    telemetry = convert_class(Telemetry, service.get("telemetry"), "service.telemetry", document.report)
    extensions = _ids(document, service.get("extensions"), "service.extensions", Kind.EXTENSION)
    pipelines = tuple(_pipelines(document, service.get("pipelines")))
    _check_signals(document, components, pipelines)
    _check_extensions(document, components, extensions)
    _warn_unused(document, components, pipelines, extensions)
    found = routes(pipelines, document.report, document.warn)
    document.raise_mistakes()
    return Configuration(components, pipelines, found, extensions, telemetry, tuple(document.warnings))


def _mapping(document: Document, value: object, path: str) -> dict[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    document.report(path, f"a mapping is needed, not {shown(value)}")
    return {}


def _components(document: Document, kind: Kind, registry: Registry) -> Iterator[ComponentConfig]:
    section = _mapping(document, document.root.get(kind.value), kind.value)
    for name, values in section.items():
        path = f"{kind.value}.{name}"
        type_name, slash, own = name.partition("/")
        factory = registry.find(kind, type_name)
        if slash and not own:
            document.report(path, "a name is needed after the slash")
        if factory is None:
            document.report(path, _unknown_type(kind, type_name, registry))
            continue
        settings = convert_class(factory.settings, values, path, document.report)
        if settings is not INVALID:
            yield ComponentConfig(name, factory, settings)


def _unknown_type(kind: Kind, name: str, registry: Registry) -> str:
    broken = registry.broken.get(f"{kind.value}.{ALIASES.get((kind, name), name)}")
    return broken or f"unknown type of {kind.value[:-1]}{nearest(name, registry.known(kind))}"


def _pipelines(document: Document, value: object) -> Iterator[PipelineConfig]:
    section = _mapping(document, value, "service.pipelines")
    if not section:
        document.report("service.pipelines", "no pipeline; write profiles: {receivers: [...], exporters: [...]}")
    for name, entry in section.items():
        path = f"service.pipelines.{name}"
        signal = next((signal for signal in Signal if signal.value == name.partition("/")[0]), None)
        if signal is None:
            document.report(path, f"unknown kind of pipeline{nearest(name, [signal.value for signal in Signal])}")
        lists = _mapping(document, entry, path)
        for key in lists:
            if key not in _LISTS:
                document.report(f"{path}.{key}", f"unknown key{nearest(key, _LISTS)}")
        ids = [_ids(document, lists.get(kind.value), f"{path}.{kind.value}", kind) for kind in _KINDS]
        for kind in _KINDS:
            if not lists.get(kind.value) and kind is not Kind.PROCESSOR:
                document.report(path, f"no {kind.value}; a pipeline needs at least one")
        if signal is not None:
            yield PipelineConfig(name, signal, *ids)


_KINDS = (Kind.RECEIVER, Kind.PROCESSOR, Kind.EXPORTER)


def _ids(document: Document, value: object, path: str, kind: Kind) -> tuple[str, ...]:
    """The ids in a list that are configured; the others are reported."""
    if not isinstance(value, list | tuple):
        if value is not None:
            document.report(path, f"a list is needed, not {shown(value)}")
        return ()
    defined = document.root.get(kind.value)
    known = [str(name) for name in defined] if isinstance(defined, dict) else []
    found: list[str] = []
    for number, entry in enumerate(value):
        if not isinstance(entry, str) or entry not in known:
            hint = nearest(str(entry), known)
            document.report(f"{path}.{number}", f"{shown(entry)} isn't configured under {kind.value}{hint}")
        elif entry in found:
            document.report(f"{path}.{number}", f"{entry} stands twice in this list")
        else:
            found.append(entry)
    return tuple(found)


def _check_signals(
    document: Document, components: Mapping[tuple[Kind, str], ComponentConfig], pipelines: Iterable[PipelineConfig]
) -> None:
    for pipeline in pipelines:
        for name in pipeline.exporters:
            component = components.get((Kind.EXPORTER, name))
            if component is not None and pipeline.signal not in component.factory.signals:
                takes = " and ".join(sorted(signal.value for signal in component.factory.signals))
                document.report(
                    f"service.pipelines.{pipeline.id}.exporters", f"{name} can't take {pipeline.signal.value}, only {takes}"
                )


def _check_extensions(
    document: Document, components: Mapping[tuple[Kind, str], ComponentConfig], running: tuple[str, ...]
) -> None:
    """Settings with a property `extensions` (ids by setting) need those under service.extensions."""
    for (kind, name), component in components.items():
        for key, wanted in getattr(component.settings, "extensions", {}).items():
            if wanted not in running:
                document.report(f"{kind.value}.{name}.{key}", f"{shown(wanted)} isn't among service.extensions")


def _warn_unused(
    document: Document,
    components: Iterable[tuple[Kind, str]],
    pipelines: Iterable[PipelineConfig],
    extensions: tuple[str, ...],
) -> None:
    used = {(Kind.EXTENSION, name) for name in extensions}
    for pipeline in pipelines:
        lists = (pipeline.receivers, pipeline.processors, pipeline.exporters)
        used.update((kind, name) for kind, names in zip(_KINDS, lists, strict=True) for name in names)
    for kind, name in components:
        if (kind, name) not in used:
            document.warn(f"{kind.value}.{name}", "is configured, but no pipeline uses it")
