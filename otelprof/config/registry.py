"""Which component types there are: factories found through the entry point group `otelprof.components`.

An entry point is named `KIND.TYPE` (`exporters.otlp_grpc`), so that only the components which a configuration names are
imported. One that can't be imported is a line of text, never a traceback, and harms nobody who doesn't use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

from otelprof.component import Factory, Kind

GROUP = "otelprof.components"

ALIASES: Mapping[tuple[Kind, str], str] = {
    (Kind.EXPORTER, "otlp"): "otlp_grpc",
    (Kind.EXPORTER, "otlphttp"): "otlp_http",
    (Kind.PROCESSOR, "resourcedetection"): "resource_detection",
}
"""Older names that the Collector keeps for these types."""


class Registry:
    """Factories by kind and type. `broken` has one line for each entry point that could not be loaded so far."""

    def __init__(self, factories: Iterable[Factory] = (), points: Iterable[EntryPoint] = ()) -> None:
        self._factories = {(factory.kind, factory.type): factory for factory in factories}
        self._points = {_named(point): point for point in points}
        self.broken: dict[str, str] = {}

    @classmethod
    def installed(cls, *further: Factory) -> Registry:
        """All that is installed, and `further` ones that only this caller knows."""
        return cls(further, entry_points(group=GROUP))

    def find(self, kind: Kind, name: str) -> Factory | None:
        """The factory of a type (or of its older name), or None."""
        key = (kind, ALIASES.get((kind, name), name))
        if key not in self._factories and key in self._points:
            self._load(key)
        return self._factories.get(key)

    def known(self, kind: Kind) -> list[str]:
        """The names of all types of a kind, without loading them."""
        return sorted({name for found, name in (*self._factories, *self._points) if found is kind})

    def all(self) -> list[Factory]:
        """Every factory, loaded, sorted by kind and type."""
        for key in self._points:
            if key not in self._factories and key[0] is not None:
                self.find(key[0], key[1])
        order = list(Kind)
        return sorted(self._factories.values(), key=lambda factory: (order.index(factory.kind), factory.type))

    def _load(self, key: tuple[Kind | None, str]) -> None:
        point = self._points[key]
        try:
            factory = point.load()
        except Exception as error:  # whatever a foreign package raises while it is imported
            self.broken[point.name] = _line(point, f"{type(error).__name__}: {error}")
            return
        if not isinstance(factory, Factory) or (factory.kind, factory.type) != key:
            self.broken[point.name] = _line(point, "it isn't the factory that its name promises")
            return
        self._factories[factory.kind, factory.type] = factory


def _named(point: EntryPoint) -> tuple[Kind | None, str]:
    section, _, name = point.name.partition(".")
    return next((kind for kind in Kind if kind.value == section), None), name


def _line(point: EntryPoint, what: str) -> str:
    return " ".join(f"component {point.name} ({point.value}) can't be loaded: {what}".split())[:300]
