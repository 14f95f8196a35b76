"""`otelprof run`: the agent as a collector-style pipeline; SIGHUP reads the configuration again."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from otelprof.agent import Agent, find_state_dir
from otelprof.cli.messages import explain, finish, set_up_logging
from otelprof.config import Configuration, Registry, load_texts, read_text
from otelprof.counters import Counters
from otelprof.errors import ConfigError, OtelprofError

log = logging.getLogger(__name__)

config_option = click.option(
    "--config",
    "paths",
    required=True,
    multiple=True,
    metavar="FILE",
    help="The configuration, in the OpenTelemetry Collector's grammar; - reads standard input, env:NAME a variable. May be "
    "given more than once: later ones are laid over earlier ones.",
)
set_option = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change one setting, such as receivers.ebpf.sampling_frequency=19. May be given more than once.",
)


def read(paths: tuple[str, ...], assignments: tuple[str, ...]) -> Configuration:
    """The checked configuration in files, on standard input (`-`) or in variables (`env:NAME`), merged in their order."""
    return load_texts([_text(path) for path in paths], Registry.installed(), assignments)


def _text(path: str) -> tuple[str, str]:
    """The text at one --config, and its name in messages."""
    if path == "-":
        return sys.stdin.read(), "<stdin>"
    if path.startswith("env:"):
        name = path.removeprefix("env:")
        if name not in os.environ:
            raise ConfigError([f"--config {path}: the environment variable {name} isn't set"])
        return os.environ[name], path
    file = Path(path.removeprefix("file:"))
    return read_text(file), str(file)


def run_agent(configuration: Configuration, again: Callable[[], Configuration] | None = None) -> None:
    """Run an agent to its end and write the summary line; with `again` SIGHUP goes on with what that returns.

    A configuration that has mistakes, or whose components can't start, is said and the one before goes on.
    """
    before: Configuration | None = None
    counters: Counters | None = None
    while True:
        run = _Run(configuration, counters, again)
        counters = run.agent.counters
        try:
            run.agent.run(on_ready=lambda: log.info("ready"), on_hangup=run.reload if again else None)
        except OtelprofError as error:
            if before is None or run.agent.is_started:
                raise
            explain(error)
            log.warning("the new configuration can't run, so the one before goes on")
            configuration, before = before, None
            continue
        if run.next is None:
            break
        before, configuration = configuration, run.next
    finish(counters)


class _Run:
    """One configuration while it runs."""

    def __init__(
        self, configuration: Configuration, counters: Counters | None, again: Callable[[], Configuration] | None
    ) -> None:
        set_up_logging(configuration.telemetry.logs.level)
        for warning in configuration.warnings:
            log.warning("%s", warning)
        self.agent = Agent(configuration, find_state_dir(), counters)
        self.next: Configuration | None = None
        self._again = again

    def reload(self) -> bool:
        """Read the configuration again; true when it is good, and this run should end for it."""
        assert self._again is not None  # noqa: S101  # only then is this called
        try:
            self.next = self._again()
        except OtelprofError as error:
            explain(error)
            log.warning("the configuration has mistakes, so the one before goes on")
            return False
        log.info("the configuration was read again")
        return True


@click.command("run", short_help="the agent, as a configuration file says")
@config_option
@set_option
def command(paths: tuple[str, ...], assignments: tuple[str, ...]) -> None:
    """Run the agent with a pipeline from a configuration file, until SIGTERM or Ctrl-C. SIGHUP reads the file again.

    \b
    Examples:
      otelprof run --config collector-config/agent-minimal.yaml
      otelprof run --config agent.yaml --set exporters.otlp_grpc.endpoint=collector:4317
      otelprof run --config agent.yaml --config mine.yaml --set service.telemetry.logs.level=debug
    """  # noqa: D301  click's mark for lines that stay as they are
    once = "-" in paths  # standard input can't be read again
    run_agent(read(paths, assignments), None if once else lambda: read(paths, assignments))
