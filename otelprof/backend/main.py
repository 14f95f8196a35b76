"""Runs the backend as one process: HTTP for OTLP, queries and the page on one port, OTLP/gRPC on another."""

from __future__ import annotations

from otelprof.backend.options import BackendOptions
from otelprof.errors import Unsupported


def serve(options: BackendOptions) -> int:
    """Serve until SIGTERM or SIGINT; the exit status. Raises an OtelprofError when it can't start."""
    raise Unsupported(f"the backend can't listen on {options.listen} yet")
