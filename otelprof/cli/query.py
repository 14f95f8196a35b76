"""`otelprof query`: what a backend has, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from otelprof.cli import shown
from otelprof.cli.asking import Asked, asking, time_option
from otelprof.cli.messages import json_result, result, say
from otelprof.text import printable

MAX_POINTS = 60  # of a line in the terminal
_TIMES = ("cpu_ns", "gpu_time_ns", "waiting_ns")


@click.group("query", short_help="ask a backend: top, flame, diff, series, traces")
def command() -> None:
    """Ask a backend from the terminal. Without --from and --until: about the last hour.

    \b
    Examples:
      otelprof query top
      otelprof query top --type gpu_kernel_launches --query inference-server
      otelprof query flame --from now-5m --min-share 2
      otelprof query diff --before-from now-1d --before-until now-23h
      otelprof query series --group-by service_name
      otelprof query traces --order launches
    """  # noqa: D301  click's mark for lines that stay as they are


@command.command()
@asking
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=30, show_default=True, help="Functions at most.")
@click.option("--order", type=click.Choice(["self", "total"]), default="self", show_default=True, help="The largest first.")
def top(asked: Asked, limit: int, order: str) -> int:
    """The functions that took most.

    \b
    Examples:
      otelprof query top
      otelprof query top -t off_cpu -q '{service_name="web", k8s_namespace_name=~"prod.*"}' -n 10
    """  # noqa: D301
    found = asked.get("top", {**asked.samples(), "limit": limit, "order": order})
    if asked.as_json or not _has_samples(asked, found["total"]):
        return _as_json(asked, found)
    unit, total = found["unit"], found["total"]
    rows = [
        (
            shown.value(one["self"], unit),
            shown.share(one["self"], total),
            shown.value(one["total"], unit),
            shown.share(one["total"], total),
            shown.function(one["name"], one["kind"], one["file"]),
        )
        for one in found["functions"]
    ]
    result(shown.columns(("self", "", "total", "", "function"), rows))
    return 0


@command.command()
@asking
@click.option("--depth", type=click.IntRange(1, 10_000), default=60, show_default=True, help="Levels at most.")
@click.option("--min-share", type=click.FloatRange(0, 100), default=1.0, show_default=True, help="Percent; less isn't shown.")
def flame(asked: Asked, depth: int, min_share: float) -> int:
    """The call tree from the roots down, with what each call took in all.

    \b
    Examples:
      otelprof query flame -q inference-server
      otelprof query flame -t gpu_kernel_launches --min-share 5 --depth 30
    """  # noqa: D301
    found = asked.get("flamegraph", asked.samples())
    if asked.as_json or not _has_samples(asked, found["total"]):
        return _as_json(asked, found)
    for level, bar in _tree(found, depth, found["total"] * min_share / 100):
        _, total, _, name = bar
        numbers = f"{shown.share(total, found['total']):>6}  {shown.value(total, found['unit']):>10}"
        place = found["files"][name]
        result(f"{numbers}  {'│ ' * level}{shown.function(found['names'][name], found['kinds'][name], place)}")
    return 0


def _tree(found: dict[str, Any], depth: int, least: float) -> Iterator[tuple[int, Sequence[int]]]:
    """Bars of a flame graph depth first, each with its level; thinner ones than `least` are left out."""
    levels = [list(_placed(level)) for level in found["levels"][: depth + 1]]
    at = [0] * len(levels)
    open_ends: list[int] = []
    level = 0
    while level >= 0:
        left = levels[level][at[level] :][:1] if level < len(levels) else []
        if not left or (open_ends and left[0][0] >= open_ends[-1]):
            level -= 1
            if open_ends:
                open_ends.pop()
            continue
        (bar,) = left
        at[level] += 1
        if bar[1] >= least:
            yield level, bar
        open_ends.append(bar[0] + bar[1])
        level += 1


def _placed(level: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Begin, total, own value and name of each bar of a level."""
    end = 0
    for gap, total, own, name in zip(*[iter(level)] * 4, strict=True):
        begin = end + gap
        end = begin + total
        yield begin, total, own, name


@command.command()
@asking
@time_option("--before-from", "before_start", None, "Start of the time before; by default as long as the time itself.")
@time_option("--before-until", "before_end", None, "End of the time before; by default where the time itself starts.")
@click.option("--before-query", default=None, metavar="SELECTOR", help="Selector of the time before, where it is another.")
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=30, show_default=True, help="Functions at most.")
def diff(asked: Asked, before_start: int | None, before_end: int | None, before_query: str | None, limit: int) -> int:
    """What changed: the functions whose share of the whole grew or shrank most.

    \b
    Examples:
      otelprof query diff --from now-10m
      otelprof query diff -q web --before-from now-1d --before-until now-23h
      otelprof query diff -q '{service_version="2"}' --before-query '{service_version="1"}' --before-from now-1h --before-until now
    """  # noqa: D301, E501
    end = asked.start if before_end is None else before_end
    start = end - (asked.end - asked.start) if before_start is None else before_start
    sides = {"left_from": start, "left_until": end, "left_query": asked.query if before_query is None else before_query}
    sides |= {"right_from": asked.start, "right_until": asked.end, "right_query": asked.query}
    found = asked.get("top", {"type": asked.full_type(), **sides, "limit": limit})
    left, right = found["left_total"], found["right_total"]
    if asked.as_json or not _has_samples(asked, min(left, right)):
        return _as_json(asked, found)
    rows = [
        (
            shown.change(100 * (one["right_self"] / right - one["left_self"] / left)),
            shown.share(one["left_self"], left),
            shown.share(one["right_self"], right),
            shown.function(one["name"], one["kind"], one["file"]),
        )
        for one in found["functions"]
    ]
    result(f"before {shown.value(left, found['unit'])}, now {shown.value(right, found['unit'])}; share of self:")
    result(shown.columns(("points", "before", "now", "function"), rows))
    return 0


@command.command()
@asking
@click.option("-g", "--group-by", multiple=True, metavar="LABEL", help="A line for each value; may be given more than once.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Lines at most.")
def series(asked: Asked, group_by: tuple[str, ...], limit: int) -> int:
    """Sums over time, as lines.

    \b
    Examples:
      otelprof query series -g service_name
      otelprof query series -t gpu_kernel_launches -q inference-server --from now-15m
    """  # noqa: D301
    step = max((asked.end - asked.start) // 1000 // MAX_POINTS, 1)
    kind = asked.full_type()
    question = {"profileTypeID": kind, "labelSelector": asked.query, "start": asked.start, "end": asked.end}
    found = asked.post("SelectSeries", {**question, "step": step, "groupBy": group_by, "limit": limit})
    lines = found.get("series", [])
    if asked.as_json or not _has_samples(asked, len(lines)):
        return _as_json(asked, found)
    rows = [_line(asked, one, step, kind.split(":")[2]) for one in lines]
    result(shown.columns(("sum", "", "labels"), rows))
    result(f"{shown.moment(asked.start)} to {shown.moment(asked.end)}, a bar is {step} s")
    return 0


def _line(asked: Asked, one: dict[str, Any], step: int, unit: str) -> tuple[str, str, str]:
    points = {int(point["timestamp"]): float(point.get("value", 0)) for point in one.get("points", [])}
    first = asked.start // 1000 // step * step * 1000
    values = [points.get(at, 0.0) for at in range(first, asked.end + 1, step * 1000)]
    labels = ", ".join(f"{label['name']}={label.get('value', '')}" for label in one.get("labels", [])) or "all"
    return shown.value(sum(points.values()), unit), shown.spark(values), printable(labels, shown.MAX_NAME)


@command.command()
@asking
@click.argument("trace", required=False)
@click.option(
    "--order", type=click.Choice(["cpu", "launches", "gpu_time", "waiting", "duration"]), default="cpu", show_default=True,
    help="The largest first.",
)  # fmt: skip
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Requests at most.")
def traces(asked: Asked, trace: str | None, order: str, limit: int) -> int:
    """Requests by what they cost; with the id of one: its spans.

    \b
    Examples:
      otelprof query traces --order launches
      otelprof query traces 4bf92f3577b34da6a3ce929d0e0e4736
    """  # noqa: D301
    if trace:
        return _one_trace(asked, trace)
    chosen = {"query": asked.query, "from": asked.start, "until": asked.end}
    found = asked.get("traces", {**chosen, "order": order, "limit": limit})
    if asked.as_json or not found["traces"]:
        return _as_json(asked, found) if asked.as_json else _nothing("no samples inside of spans in this time")
    rows = [(one["trace"], *_costs(one), f"{_text(one['service'])} {_text(one['name'])}") for one in found["traces"]]
    result(shown.columns(("trace", "duration", "cpu", "gpu", "waiting", "launches", "request"), rows))
    return 0


def _one_trace(asked: Asked, trace: str) -> int:
    found = asked.get("spans", {"trace": trace})
    if asked.as_json or not found["spans"]:
        return _as_json(asked, found) if asked.as_json else _nothing("nothing is known of this trace")
    rows = [(*_costs(one), f"{'│ ' * depth}{_text(one['name']) or one['span']}") for depth, one in _nested(found["spans"])]
    result(shown.columns(("duration", "cpu", "gpu", "waiting", "launches", "span"), rows))
    return 0


def _nested(spans: list[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Spans depth first with their depth; those whose parent isn't known are roots."""
    known = {one["span"] for one in spans}
    below: dict[str, list[dict[str, Any]]] = {}
    for one in spans:
        below.setdefault(one["parent"] if one["parent"] in known - {one["span"]} else "", []).append(one)
    todo = [(0, one) for one in reversed(below.pop("", []))]
    while todo:
        depth, one = todo.pop()
        yield depth, one
        todo.extend((depth + 1, child) for child in reversed(below.pop(one["span"], [])))


def _costs(one: dict[str, Any]) -> tuple[str, ...]:
    duration = shown.value(one["duration_ns"], "nanoseconds") if one["start_us"] else ""
    times = (shown.value(one[name], "nanoseconds") if one[name] else "" for name in _TIMES)
    return (duration, *times, str(one["launches"] or ""))


def _text(text: str) -> str:
    return printable(text, shown.MAX_NAME)


def _as_json(asked: Asked, found: Any) -> int:
    if asked.as_json:
        json_result(found)
    return 0


def _nothing(text: str) -> int:
    say(text)
    return 0


def _has_samples(asked: Asked, total: int) -> bool:
    """True when there are samples; else says which data there are."""
    if total or asked.as_json:
        return bool(total)
    types = asked.get("types", {})["types"]
    say(f"no samples between {shown.moment(asked.start)} and {shown.moment(asked.end)}")
    for one in types[:20]:
        services = ", ".join(one["services"][:8])
        say(f"{one['id'].split(':')[1]}: last data {shown.moment(one['last'])}, services {services}")
    if not types:
        say("the backend has no data yet")
    return False
