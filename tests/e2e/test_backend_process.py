"""The backend as a process: it keeps what it acknowledged, owns its folder and ports, asks for tokens, ends in time."""

import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import grpc
import pytest

from tests.e2e.backend_program import PROFILES, PROTOBUF, Backend
from tests.e2e.programs import Program, fetch, otelprof, wait_for
from tests.unit.otlp_requests import CPU, PERIOD, simple

pytestmark = pytest.mark.e2e


def request(number: int) -> bytes:
    """A request of its own, 10 samples."""
    builder = simple("shop")
    builder.current.profile_id = (number + 1).to_bytes(16, "big")
    return builder.data()


def failed(work: Path, *flags: str) -> str:
    """The only line of a backend that can't start; its exit status is 1."""
    done = subprocess.run([otelprof(), "backend", *flags], capture_output=True, text=True, timeout=60, cwd=work)
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_what_was_acknowledged_survives_kill_9_and_a_repeat_is_still_known(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    with Backend(tmp_path) as first:

        def send(part: int) -> None:
            for turn in range(1000):
                data = request(part * 1000 + turn)
                try:
                    first.send(data)
                except (OSError, AssertionError):
                    return
                acknowledged.append(data)

        threads = [threading.Thread(target=send, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(acknowledged) >= 40, 60, first)
        first.process.kill()
        for thread in threads:
            thread.join()
    with Backend(tmp_path) as second:
        stored = second.total(CPU)
        assert stored % (10 * PERIOD) == 0
        assert len(acknowledged) <= stored // (10 * PERIOD) <= len(acknowledged) + 4  # those under way may be there as well
        for data in acknowledged[-5:]:
            second.send(data)
        assert second.total(CPU) == stored
        assert second.ask("LabelValues", name="service_name")["names"] == ["shop"]


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    with Backend(tmp_path) as owner:
        line = failed(tmp_path, "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
        assert f"in use by process {owner.pid}" in line


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flags in (
            ("--listen", address, "--grpc-listen", "127.0.0.1:0"),
            ("--listen", "127.0.0.1:0", "--grpc-listen", address),
        ):
            line = failed(tmp_path, *flags, "--store", "memory")
            assert address in line
            assert "in use" in line


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--listen", "0.0.0.0:0"), "--token-file"),
        (("--listen", "127.0.0.1:0", "--grpc-listen", "[::]:0"), "--token-file"),
        (("--token-file", "missing"), "missing"),
        (("--data-dir", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_what_can_not_be_is_one_line(tmp_path: Path, flags: tuple[str, ...], word: str) -> None:
    ports = [] if "--listen" in flags else ["--listen", "127.0.0.1:0"]
    assert word in failed(tmp_path, "--grpc-listen", "127.0.0.1:0", *ports, *flags)


def test_tokens_guard_both_ports_but_not_the_page(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("# ours\nsecret-1\nsecret-2\n")
    with Backend(tmp_path, "--token-file", str(tokens), store="memory") as backend:
        assert fetch(f"{backend.url}/api/v1/types")[0] == 401
        assert backend.post(PROFILES, request(1), content_type=PROTOBUF, authorization="Bearer wrong")[0] == 401
        assert backend.post(PROFILES, request(1), content_type=PROTOBUF, authorization="Bearer secret-2")[0] == 200
        assert [fetch(backend.url + path)[0] for path in ("/healthz", "/readyz", "/explore", "/static/main.js")] == [200] * 4
        with pytest.raises(grpc.RpcError) as caught:
            backend.call(request(2))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
        backend.call(request(2), authorization="Bearer secret-1")


def test_tls_on_both_ports(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    if not shutil.which("openssl"):
        pytest.skip("missing: openssl, to make a certificate")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", key, "-out", cert, *names]
    subprocess.run(make, check=True, capture_output=True)
    with Backend(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key), store="memory") as backend:
        context = ssl.create_default_context(cafile=str(cert))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        with opener.open(f"{backend.url}/healthz", timeout=10) as answer:
            assert answer.status == 200
        with grpc.secure_channel(backend.target, grpc.ssl_channel_credentials(cert.read_bytes())) as channel:
            method = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
            assert channel.unary_unary(method)(request(1), timeout=10) == b""


@pytest.mark.parametrize("store", ["memory", "chdb"])
def test_sigterm_ends_it_within_five_seconds_with_a_page_open(tmp_path: Path, store: str) -> None:
    with Backend(tmp_path, store=store) as backend:
        host, port = backend.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as page:
            page.sendall(b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert page.recv(100)
            backend.send(request(1))
            before = time.monotonic()
            assert backend.stop(10) == 0
            assert time.monotonic() - before < 5  # the interface promises it
        assert "Traceback" not in backend.log()


def test_the_addresses_are_the_first_lines(tmp_path: Path) -> None:
    with Backend(tmp_path, store="memory") as backend:
        first, second = backend.log().splitlines()[:2]
        assert first == f"listening on {backend.url}"
        assert second == f"listening on grpc://{backend.target}"


def test_ready_waits_for_the_pipe(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    ports = ["--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0", "--store", "memory", "--ready-fd", str(reader)]
    log = tmp_path / "log"
    with log.open("wb") as err:
        process = subprocess.Popen([otelprof(), "backend", *ports], stderr=err, pass_fds=[reader])
    try:
        wait_for(lambda: "store:" in log.read_text(), 30)
        url = log.read_text().split()[2]
        assert [fetch(url + path)[0] for path in ("/readyz", "/healthz")] == [503, 200]
        os.write(writer, b"!")
        wait_for(lambda: fetch(f"{url}/readyz")[0] == 200, 10)
    finally:
        process.terminate()
        assert process.wait(10) == 0


def test_a_full_disk_is_said_and_what_fits_later_is_stored(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(mount)], capture_output=True).returncode:
        pytest.skip("missing: the right to mount a small file system")
    try:
        with Backend(tmp_path, data=mount / "data") as backend:
            backend.send(request(1))
            filler = mount / "filler"
            filler.write_bytes(bytes(shutil.disk_usage(mount).free - (4 << 20)))
            status, body, headers = backend.post(PROFILES, request(2), content_type=PROTOBUF)
            assert (status, b"full" in body) == (503, True)
            assert int(headers["retry-after"]) >= 10
            assert backend.total(CPU) == 10 * PERIOD
            filler.unlink()
            backend.send(request(2))
            assert backend.total(CPU) == 20 * PERIOD
            assert "is full: free some space" in backend.log()
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_before_the_disk_is_full_the_oldest_day_goes_and_that_is_said(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "none", str(mount)], capture_output=True).returncode:
        pytest.skip("missing: the right to mount a small file system")
    try:
        with Backend(tmp_path, "--window-back", "400000", data=mount / "data") as backend:
            for days in (3, 2, 0):
                backend.send(simple(start=time.time_ns() - days * 86_400 * 10**9).data())
            assert backend.total(CPU) == 30 * PERIOD
            (mount / "filler").write_bytes(bytes(shutil.disk_usage(mount).free - (24 << 20)))
            wait_for(lambda: backend.log().count("the disk is nearly full: dropped") == 2, 60, backend)
            assert backend.total(CPU) == 10 * PERIOD
            backend.send(request(4))
            assert backend.total(CPU) == 20 * PERIOD
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_without_chdb_it_runs_in_memory_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfound = u.find_spec\nu.find_spec = lambda n, *a: None if n == 'chdb' else found(n, *a)\n"
    )
    ports = ["--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"]
    argv = [otelprof(), "backend", *ports, "--data-dir", str(tmp_path / "data")]
    with Program(argv, tmp_path, "plain", {"PYTHONPATH": str(tmp_path)}) as program:
        wait_for(lambda: "store:" in program.log(), 30, program)
        assert "in memory only, since chdb isn't installed" in program.log()
