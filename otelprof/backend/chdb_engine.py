"""ClickHouse inside this process (chdb): runs statements and takes rows, one owner for each data folder.

Rows go in by `INSERT … FROM INFILE` of an Arrow stream in an anonymous file: as fast as chdb's own send_insert, but it raises
when a row isn't stored. send_insert answers a full disk with success (measured with chdb 4.4) and is never used.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import chdb
import pyarrow as pa

from otelprof.backend.clickhouse import Parameter
from otelprof.backend.store import StoreFailed, StoreFull
from otelprof.errors import OtelprofError

_connect: Callable[[str], Any] = chdb.connect
_LEAST_FREE, _MOST_FREE = 16 << 20, 1 << 30  # bytes: with less left nothing is stored, so that queries still work
_FULL = ("NOT_ENOUGH_SPACE", "No space left", "ENOSPC")


class ChdbEngine:
    """One embedded database in `folder`. Any thread may call; each has its own connection."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock_file = _owned(folder)
        self._local = threading.local()
        self._opened: list[Any] = []
        pa.array([0])  # pyarrow imports what it needs at its first array, which takes longer than all else here
        try:
            self._connection()
        except OtelprofError:
            self._lock_file.close()
            raise

    @property
    def title(self) -> str:
        """What it is and where."""
        return f"chdb in {self._folder}"

    @property
    def nearly_full(self) -> bool:
        """True when there is less than twice the room below which nothing is stored."""
        free, least = self._space()
        return free < 2 * least

    def query(self, sql: str, parameters: Mapping[str, Parameter] | None = None) -> Any:
        """The rows as a pyarrow.Table."""
        found = self._run(sql, parameters)
        data = found.bytes()
        return pa.ipc.open_stream(data).read_all() if data else pa.table({})

    def command(self, sql: str) -> None:
        """A statement without rows."""
        self._run(sql, None)

    def insert(self, table: str, rows: Any) -> None:
        """Store all rows of a pyarrow.Table; StoreFailed when one isn't."""
        self._check_space()
        fd = os.memfd_create("otelprof-insert")
        with os.fdopen(fd, "wb") as file:
            with pa.ipc.new_stream(file, rows.schema) as stream:
                stream.write_table(rows)
            file.flush()
            names = ", ".join(rows.column_names)
            into = f"INSERT INTO otelprof.{table} ({names})"
            done = self._run(f"{into} FROM INFILE '/proc/self/fd/{fd}' FORMAT ArrowStream", None)
        if done.rows_read() != len(rows):
            raise StoreFailed(f"the store took {done.rows_read()} of {len(rows)} rows of {table}")

    def close(self) -> None:
        """Close all connections and give the folder free."""
        for connection in self._opened:
            connection.close()
        self._lock_file.close()

    def _connection(self) -> Any:
        found = getattr(self._local, "connection", None)
        if found is None:
            try:
                found = self._local.connection = _connect(str(self._folder))
            except Exception as error:
                raise StoreFailed(f"the store in {self._folder} can't be opened: {_one_line(error)}") from None
            self._opened.append(found)
            found.query("SET allow_suspicious_low_cardinality_types = 1")
        return found

    def _run(self, sql: str, parameters: Mapping[str, Parameter] | None) -> Any:
        given = {name: _written(value) for name, value in parameters.items()} if parameters else None
        try:
            return self._connection().query(sql, "ArrowStream", params=given)
        except OtelprofError:
            raise
        except Exception as error:  # chdb raises ChdbError and RuntimeError
            raise self._failure(_one_line(error)) from None

    def _check_space(self) -> None:
        free, least = self._space()
        if free < least:
            raise self._failure(f"NOT_ENOUGH_SPACE: {free >> 20} MiB are left")

    def _space(self) -> tuple[int, int]:
        """Free bytes of the disk, and the least with which something is stored."""
        usage = shutil.disk_usage(self._folder)
        return usage.free, min(max(usage.total // 50, _LEAST_FREE), _MOST_FREE)

    def _failure(self, reason: str) -> StoreFailed:
        if any(word in reason for word in _FULL):
            return StoreFull(f"the disk of {self._folder} is full: free some space; senders keep their data and try again")
        return StoreFailed(f"the store failed: {reason}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _owned(folder: Path) -> Any:
    """A locked file in the folder, which is made; OtelprofError when another process has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "otelprof.lock", "a+", encoding="utf-8")  # noqa: SIM115  it is open as long as the store is
    except OSError as error:
        raise OtelprofError(f"--data-dir {folder}: {error.strerror}; choose another folder") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read(20).strip() or "?"
        file.close()
        raise OtelprofError(f"--data-dir {folder} is in use by process {owner}: end that or choose another folder") from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def _written(value: Parameter) -> Parameter | str:
    """A parameter as ClickHouse reads it: strings escaped, strings in arrays quoted as well."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
    return "[" + ",".join(_quoted(part) if isinstance(part, str) else str(part) for part in value) + "]"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
