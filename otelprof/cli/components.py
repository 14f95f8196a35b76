"""`otelprof components`: which component types there are."""

from __future__ import annotations

import click

from otelprof.cli.messages import json_result, result, say, table
from otelprof.config import Registry


@click.command("components", short_help="the receivers, processors, exporters and extensions there are")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(as_json: bool) -> None:
    """List the component types that are installed, with how stable they are.

    \b
    Examples:
      otelprof components
      otelprof components --json
    """  # noqa: D301  click's mark for lines that stay as they are
    registry = Registry.installed()
    rows = [(factory.type, factory.kind.value[:-1], factory.stability.value, factory.summary) for factory in registry.all()]
    for line in registry.broken.values():
        say(line)
    if as_json:
        names = ("type", "kind", "stability", "summary")
        json_result([dict(zip(names, row, strict=True)) for row in rows])
    else:
        result(table([("TYPE", "KIND", "STABILITY", "WHAT IT DOES"), *rows]))
