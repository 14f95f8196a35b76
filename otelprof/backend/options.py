"""What `otelprof backend` can be told; the command line fills it in, `main.serve` obeys it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_LISTEN = "127.0.0.1:4040"
DEFAULT_GRPC_LISTEN = "127.0.0.1:4041"  # not 4317: a Collector lives there
DEFAULT_DATA_DIR = Path(".otelprof")


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Settings of the backend; each is the command-line flag of the same name.

    `listen`, `grpc_listen`: HOST:PORT, port 0 picks a free one. `data_dir`: folder of the embedded store (made if missing).
    `store`: "" (embedded through chdb in `data_dir`; in memory, said in one line, where chdb isn't installed) or "memory".
    `token_file`: file whose lines are accepted bearer tokens. `tls_cert`, `tls_key`: PEM files, only together.
    `insecure_no_auth`: allow an address beyond loopback without a token. `retention_days`: raw samples older than this go.
    `window_back`, `window_ahead`: seconds around now in which samples are taken. `ready_fd`: an inherited pipe; until a
    byte arrives in it /readyz stays 503, since the one who started the backend isn't ready (`otelprof up`: the agent).
    """

    listen: str = DEFAULT_LISTEN
    grpc_listen: str = DEFAULT_GRPC_LISTEN
    data_dir: Path = DEFAULT_DATA_DIR
    store: str = ""
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure_no_auth: bool = False
    retention_days: int = 7
    window_back: float = 3600
    window_ahead: float = 600
    ready_fd: int | None = None
