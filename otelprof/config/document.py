"""A configuration file as plain values, with the line of every key for messages, and `${env:VAR}` filled in.

YAML 1.1 by PyYAML's safe loader, with what the Collector adds: a key that stands twice is a mistake; `${env:VAR}` and
`${env:VAR:-default}` (also without `env:`), `$$` for a dollar sign. A scalar that is one reference and nothing else takes
the type of its value. References: https://opentelemetry.io/docs/collector/configuration/#environment-variables
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from otelprof.errors import ConfigError

MAX_BYTES = 1 << 20
_MAX_NODES = 50_000
_MAX_DEPTH = 50
_REFERENCE = re.compile(r"\$\$|\$\{([^}]*)\}")
_VARIABLE = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]+):)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


Place = tuple[int, int]
"""Number of a source among a document's, and the line in it from 1 (0: nowhere in particular)."""


@dataclass
class Document:
    """Plain values of a file or of several, the place of each path, and the mistakes found so far as (place, path, message)."""

    source: str
    root: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    mistakes: list[tuple[Place, str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    owners: dict[str, int] = field(default_factory=dict)  # which source a path is from, where it isn't the first

    def __post_init__(self) -> None:
        self.sources = self.sources or [self.source]

    def line(self, path: str) -> int:
        """The line of `path` or of the nearest thing around it, from 1; 0 when the file says nothing about it."""
        return self.place(path)[1]

    def place(self, path: str) -> Place:
        """The source and line of `path` or of the nearest thing around it."""
        while path and path not in self.lines:
            path = path.rpartition(".")[0]
        return self.owners.get(path, 0), self.lines.get(path, 0)

    def report(self, path: str, message: str) -> None:
        """Note a mistake at `path`."""
        self.mistakes.append((self.place(path), path, message))

    def warn(self, path: str, message: str) -> None:
        """Note what works but is probably not meant."""
        self.warnings.append(self._written(self.place(path), path, message))

    def raise_mistakes(self) -> None:
        """Raise a ConfigError with one line for each mistake, in the order of the file; nothing when there is none."""
        if self.mistakes:
            raise ConfigError([self._written(*mistake) for mistake in sorted(self.mistakes)])

    def _written(self, place: Place, path: str, message: str) -> str:
        source, line = self.sources[place[0]], place[1]
        where = f"{source}:{line}: " if line else f"{source}: "
        return " ".join(f"{where}{path}{': ' if path else ''}{message}".split())


class _Loader(yaml.SafeLoader):
    """The safe loader without timestamps: a date in a setting is a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012  the base class shares its table in the same way
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def parse(text: str, source: str, env: Mapping[str, str] | None = None) -> Document:
    """The document in `text`; a ConfigError when it isn't YAML. Other mistakes are noted in the document."""
    document = Document(source)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        values = _Reader(loader, document, os.environ if env is None else env).value(node, "") if node else {}
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError([_syntax(source, error)]) from None
    if isinstance(values, dict):
        document.root = values
    else:
        document.report("", "a mapping with receivers, processors, exporters and service is needed")
    return document


def _syntax(source: str, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark else ""
    problem = getattr(error, "problem", None) or str(error) or "nested too deeply"
    return " ".join(f"{source}{line}: not YAML: {problem}".split())[:300]


@dataclass
class _Reader:
    """Builds the plain values of a tree of nodes, bounded in number and depth (aliases may repeat a node)."""

    loader: _Loader
    document: Document
    env: Mapping[str, str]
    left: int = _MAX_NODES

    def value(self, node: yaml.Node, path: str) -> Any:
        self.left -= 1
        if self.left < 0 or path.count(".") > _MAX_DEPTH:
            raise ValueError("too many or too deeply nested values")
        if path:
            self.document.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, f"{path}.{number}") for number, child in enumerate(node.value)]
        return self._scalar(node, path) if isinstance(node, yaml.ScalarNode) else None

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        self._check_twice(node, path)
        self.loader.flatten_mapping(node)  # merge keys: `<<: *base`
        found: dict[str, Any] = {}
        for key_node, child in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            inner = f"{path}.{key}" if path else key
            self.document.lines[inner] = key_node.start_mark.line + 1
            found[key] = self.value(child, inner)
        return found

    def _check_twice(self, node: yaml.MappingNode, path: str) -> None:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in seen and key != "<<":
                inner = f"{path}.{key}" if path else key
                self.document.mistakes.append(((0, line), inner, f"stands twice (first in line {seen[key]})"))
            seen.setdefault(key, line)

    def _scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        text = str(node.value)
        if node.tag == "tag:yaml.org,2002:str" and "$" in text:
            return self._expanded(text, path, plain=node.style is None)
        try:
            return self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError):
            self.document.report(path, "a text, a number, true or false is needed")
            return None

    def _expanded(self, text: str, path: str, *, plain: bool) -> Any:
        whole = _REFERENCE.fullmatch(text)
        filled = expand(text, self.env, lambda message: self.document.report(path, message))
        if not (plain and whole and whole[1] is not None):
            return filled
        tag = self.loader.resolve(yaml.ScalarNode, filled, (True, False))  # type: ignore[no-untyped-call]
        return self.loader.construct_object(yaml.ScalarNode(tag, filled))


def expand(text: str, env: Mapping[str, str], report: Callable[[str], None]) -> str:
    """`text` with its references to the environment filled in; `report` gets what is wrong with one."""

    def filled(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        inner = _VARIABLE.fullmatch(match[1])
        if inner is None or inner[1] not in (None, "env"):
            report(f"{match[0]} isn't understood; write ${{env:NAME}} or ${{env:NAME:-default}}")
            return ""
        if inner[2] not in env and inner[3] is None:
            report(f"the environment variable {inner[2]} isn't set; set it, or write ${{env:{inner[2]}:-default}}")
        return env.get(inner[2]) or (inner[3] or "")

    return _REFERENCE.sub(filled, text)


def merged(documents: Sequence[Document]) -> Document:
    """Several documents as one, later ones over earlier ones, as the Collector merges: mappings key by key, all else whole.

    https://opentelemetry.io/docs/collector/configuration/ ("multiple --config")
    """
    if len(documents) == 1:
        return documents[0]
    whole = Document(documents[0].source, sources=[document.source for document in documents])
    for number, document in enumerate(documents):
        whole.root = _over(whole.root, document.root)
        whole.lines |= document.lines
        whole.owners |= dict.fromkeys(document.lines, number)
        whole.mistakes += [((number, place[1]), path, message) for place, path, message in document.mistakes]
    return whole


def _over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`; depth is bounded by the reader."""
    found = dict(below)
    for key, value in above.items():
        under = found.get(key)
        found[key] = _over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return found


def override(document: Document, assignments: Iterable[str]) -> None:
    """Apply `path=value` (the value in YAML) to the document, in order."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        keys = path.split(".")
        if not equals or not all(keys):
            document.mistakes.append(
                ((0, 0), "", f"--set {assignment}: write path=value, such as receivers.ebpf.loader=libbpf")
            )
            continue
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError):
            document.mistakes.append(((0, 0), "", f"--set {assignment}: the value isn't YAML"))
            continue
        _assign(document, keys, value)


def _assign(document: Document, keys: list[str], value: object) -> None:
    place: Any = document.root
    for key in keys[:-1]:
        if place.get(key) is None:
            place[key] = {}
        place = place[key]
        if not isinstance(place, dict):
            document.mistakes.append(((0, 0), "", f"--set {'.'.join(keys)}: {key} isn't a mapping"))
            return
    place[keys[-1]] = value
