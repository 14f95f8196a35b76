"""Command-line values that click has no type for."""

from __future__ import annotations

import click

from otelprof.config.units import parse_duration


def seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """An option's callback: a duration (`30`, `1.5`, `30s`, `2m`) as seconds above zero."""
    if value is None:
        return None
    try:
        found = float(value) if value.replace(".", "", 1).isdecimal() else float(parse_duration(value))
    except ValueError as error:
        raise click.BadParameter(f"{error}, not {value!r}", ctx, param) from None
    if not 0 < found < 1e9:
        raise click.BadParameter(f"a duration above zero is needed, such as 30s, not {value!r}", ctx, param)
    return found
