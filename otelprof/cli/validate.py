"""`otelprof validate`: check a configuration without running it."""

from __future__ import annotations

import click

from otelprof.cli.messages import say
from otelprof.cli.run import config_option, read, set_option


@click.command("validate", short_help="check a configuration without running it")
@config_option
@set_option
def command(paths: tuple[str, ...], assignments: tuple[str, ...]) -> None:
    """Check a configuration: every mistake is one line. Nothing is started, and the kernel isn't asked.

    \b
    Examples:
      otelprof validate --config agent.yaml
      otelprof validate --config agent.yaml --set receivers.ebpf.report_interval=1s
    """  # noqa: D301  click's mark for lines that stay as they are
    for warning in read(paths, assignments).warnings:
        say(f"warning: {warning}")
    say(f"{', '.join(paths)}: good")
