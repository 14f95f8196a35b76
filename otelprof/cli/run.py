"""`otelprof run`: the agent as a collector-style pipeline."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from otelprof.agent import Agent, find_state_dir
from otelprof.cli.messages import finish, set_up_logging
from otelprof.config import Configuration, Registry, load_file, load_text

log = logging.getLogger(__name__)

config_option = click.option(
    "--config",
    "path",
    required=True,
    metavar="FILE",
    help="The configuration, in the OpenTelemetry Collector's grammar; - reads standard input.",
)
set_option = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change one setting, such as receivers.ebpf.sampling_frequency=19. May be given more than once.",
)


def read(path: str, assignments: tuple[str, ...]) -> Configuration:
    """The checked configuration in a file, or on standard input for `-`."""
    registry = Registry.installed()
    if path == "-":
        return load_text(sys.stdin.read(), "<stdin>", registry, assignments)
    return load_file(Path(path), registry, assignments)


def run_agent(configuration: Configuration) -> None:
    """Run an agent to its end and write the summary line."""
    set_up_logging(configuration.telemetry.logs.level)
    for warning in configuration.warnings:
        log.warning("%s", warning)
    agent = Agent(configuration, find_state_dir())
    agent.run(on_ready=lambda: log.info("ready"))
    finish(agent.counters)


@click.command("run", short_help="the agent, as a configuration file says")
@config_option
@set_option
def command(path: str, assignments: tuple[str, ...]) -> None:
    """Run the agent with a pipeline from a configuration file, until SIGTERM or Ctrl-C.

    \b
    Examples:
      otelprof run --config collector-config/agent-minimal.yaml
      otelprof run --config agent.yaml --set exporters.otlp_grpc.endpoint=collector:4317
      otelprof run --config agent.yaml --set service.telemetry.logs.level=debug
    """  # noqa: D301  click's mark for lines that stay as they are
    run_agent(read(path, assignments))
