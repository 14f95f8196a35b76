"""`otelprof backend`: the reference backend alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from otelprof.backend.options import DEFAULT_DATA_DIR, DEFAULT_GRPC_LISTEN, DEFAULT_LISTEN, BackendOptions
from otelprof.errors import OtelprofError

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE = click.Path(dir_okay=False, path_type=Path)

OPTIONS = (
    click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="HOST:PORT", help="Page, queries, OTLP/HTTP."),
    click.option("--grpc-listen", default=DEFAULT_GRPC_LISTEN, show_default=True, metavar="HOST:PORT", help="OTLP/gRPC."),
    click.option(
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=DEFAULT_DATA_DIR,
        show_default=True,
        help="Folder of the embedded store; made if missing.",
    ),
    click.option("--store", default="", metavar="STORE", help="`memory`; by default chdb in the data folder."),
    click.option("--token-file", type=_FILE, help="File with the bearer tokens that are accepted, one a line."),
    click.option("--insecure-no-auth", is_flag=True, help="Allow an address beyond loopback without a token."),
)


def backend_options(function: _Command) -> _Command:
    """The options that `backend` and `up` share."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


@click.command("backend", short_help="the reference backend alone")
@backend_options
@click.option("--tls-cert", type=_FILE, help="Certificate chain (PEM); with --tls-key.")
@click.option("--tls-key", type=_FILE, help="Private key (PEM); with --tls-cert.")
@click.option("--retention-days", type=click.IntRange(1), default=7, show_default=True, help="Raw samples older than this go.")
@click.option("--window-back", type=float, default=3600.0, show_default=True, help="Seconds back in which samples are taken.")
@click.option("--window-ahead", type=float, default=600.0, show_default=True, help="Seconds ahead in which they are taken.")
@click.option("--ready-fd", type=int, hidden=True)
def command(**values: Any) -> int:
    """Run the backend: takes OTLP profiles and traces, answers queries as Pyroscope does, serves the page.

    \b
    Examples:
      otelprof backend
      otelprof backend --listen 127.0.0.1:0 --grpc-listen 127.0.0.1:0 --store memory
      otelprof backend --listen 0.0.0.0:4040 --token-file tokens.txt --tls-cert cert.pem --tls-key key.pem
    """  # noqa: D301  click's mark for lines that stay as they are
    try:
        from otelprof.backend.main import serve  # noqa: PLC0415  --help needn't load a web server
    except ModuleNotFoundError as error:
        raise OtelprofError(f"the backend needs {error.name}, which isn't installed: pip install 'otelprof[backend]'") from None

    known = {field.name for field in fields(BackendOptions)}
    return serve(BackendOptions(**{name: value for name, value in values.items() if name in known}))
