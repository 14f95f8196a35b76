"""`otelprof version`."""

from __future__ import annotations

import click

from otelprof import __version__
from otelprof.cli.messages import result


@click.command("version", short_help="the version")
def command() -> None:
    """Print the version.

    \b
    Example:
      otelprof version
    """  # noqa: D301  click's mark for lines that stay as they are
    result(f"otelprof {__version__}")
