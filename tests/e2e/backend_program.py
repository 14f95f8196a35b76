"""The backend as a program, with clients of both transports."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceResponse

from tests.e2e.programs import Program, fetch, otelprof, wait_for

METHOD = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
PROFILES, TRACES = "/v1development/profiles", "/v1/traces"
PROTOBUF, JSON = "application/x-protobuf", "application/json"


class Backend(Program):
    """`otelprof backend` on free ports; `store` is `memory` or `chdb`."""

    def __init__(self, work: Path, *flags: str, store: str = "chdb", data: Path | None = None) -> None:
        listen = ["--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"]
        stored = ["--store", "memory"] if store == "memory" else ["--data-dir", str(data or work / "data")]
        super().__init__([otelprof(), "backend", *listen, *stored, *flags], work, f"backend-{time.monotonic_ns()}")
        wait_for(lambda: "store:" in self.log(), 60, self)
        self.url = self._address(r"listening on (https?://\S+)")
        self.target = self._address(r"listening on grpc://(\S+)")
        if not self.url.startswith("https"):
            wait_for(lambda: fetch(f"{self.url}/readyz")[0] == 200, 30, self)

    def _address(self, pattern: str) -> str:
        found = re.search(pattern, self.log())
        assert found, self.log()
        return found[1]

    def post(self, path: str, data: bytes, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers (lower case) of a POST; `content_type=` becomes Content-Type."""
        parts = urlsplit(self.url)
        link = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        try:
            link.request("POST", path, data, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = link.getresponse()
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        finally:
            link.close()

    def send(self, data: bytes, kind: str = PROTOBUF, squeeze: bool = False) -> ExportProfilesServiceResponse:
        """A profiles request by HTTP, which must be taken."""
        more = {"content_encoding": "gzip"} if squeeze else {}
        status, body, _ = self.post(PROFILES, gzip.compress(data) if squeeze else data, content_type=kind, **more)
        assert status == 200, body
        answer = ExportProfilesServiceResponse()
        if kind == PROTOBUF:
            answer.ParseFromString(body)
        return answer

    def call(self, data: bytes, compression: Any = None, **metadata: str) -> ExportProfilesServiceResponse:
        """A profiles request by gRPC; raises grpc.RpcError when it is refused."""
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(self.target, options=options) as channel:
            export = channel.unary_unary(METHOD, response_deserializer=ExportProfilesServiceResponse.FromString)
            answer: ExportProfilesServiceResponse = export(
                data, timeout=30, compression=compression, metadata=tuple(metadata.items())
            )
            return answer

    def ask(self, method: str, **request: Any) -> dict[str, Any]:
        """A call of the query API in JSON."""
        body = json.dumps(request).encode()
        status, answer, _ = self.post(f"/querier.v1.QuerierService/{method}", body, content_type=JSON)
        assert status == 200, answer
        found: dict[str, Any] = json.loads(answer)
        return found

    def total(self, kind: str, selector: str = "{}", **more: Any) -> int:
        """The total of a flame graph over all time."""
        answer = self.ask("SelectMergeStacktraces", profileTypeID=kind, labelSelector=selector, **more)
        return int(answer.get("flamegraph", {}).get("total", 0))
