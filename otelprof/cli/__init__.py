"""The command line: one file per command, loaded when it is called.

`main` is the only place that turns errors into exit statuses: 0 done, 1 can't, 2 wrong use of the command line.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys

import click

from otelprof.cli.messages import explain, prepare_streams, say, set_up_logging
from otelprof.errors import OtelprofError

COMMANDS = {
    "up": "agent and backend on this machine, with one command",
    "run": "the agent, as a configuration file says",
    "backend": "the reference backend alone",
    "query": "ask a backend: functions, call trees, changes, lines, requests",
    "record": "record processes into a file",
    "ps": "what can be profiled of each process, and why not",
    "check": "what this kernel and these rights allow",
    "check-otlp": "check files of OTLP profiles as careful readers do",
    "validate": "check a configuration without running it",
    "components": "the receivers, processors, exporters and extensions there are",
    "version": "the version",
}
"""Every command and what it does; the command NAME is `command` in otelprof/cli/NAME.py, with _ for -."""


class _Commands(click.Group):
    """Commands that are imported when they are needed: the start of one doesn't pay for all."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"otelprof.cli.{cmd_name.replace('-', '_')}").command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`otelprof COMMAND --help` shows options and examples.",
)
@click.version_option(package_name="otelprof", message="otelprof %(version)s")
def cli() -> None:
    """Continuous profiling for Python and CUDA: no code change, no restart."""


def main() -> None:
    """The entry point `otelprof`."""
    sys.unraisablehook = lambda what: logging.getLogger("otelprof").debug("%s: %s", what.err_msg, what.exc_value)
    status = run_command(sys.argv[1:], stdout_open=prepare_streams())
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a reader that left: nothing more can be said there
        status = status or 1
    sys.exit(status)


def run_command(arguments: list[str], *, stdout_open: bool = True) -> int:
    """Run one command; its exit status. Every error becomes a line on standard error."""
    set_up_logging()
    try:
        status = cli.main(arguments, prog_name="otelprof", standalone_mode=False, obj=stdout_open)
    except OtelprofError as error:
        return explain(error)
    except click.ClickException as error:
        return _explain_usage(error)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception as error:
        return _explain_bug(error)
    return status if isinstance(status, int) else 0


def _explain_usage(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return 2
    context = error.ctx if isinstance(error, click.UsageError) else None
    where = f"; see `{context.command_path} --help`" if context else ""
    say(f"{error.format_message().rstrip('.')}{where}")
    return 2 if isinstance(error, click.UsageError) else 1


def _explain_bug(error: Exception) -> int:
    if isinstance(error, BrokenPipeError):
        return 1  # the reader of standard output left
    if os.environ.get("OTELPROF_DEBUG"):
        raise error
    say(f"internal error: {type(error).__name__}: {error}; run again with OTELPROF_DEBUG=1 and report what it shows")
    return 1
