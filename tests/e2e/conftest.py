"""Fixtures that end-to-end tests share."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.collector import Backend, Tempo, binary


@pytest.fixture(scope="session")
def collector_binary() -> Path:
    """The Collector's binary; a test that asks for it may take the minutes that the build needs."""
    return binary()


@pytest.fixture
def memory_backend(tmp_path: Path) -> Iterator[Backend]:
    """A backend with an in-memory store."""
    with Backend(tmp_path) as program:
        yield program


@pytest.fixture
def tempo() -> Iterator[Tempo]:
    """A place for traces."""
    found = Tempo()
    yield found
    found.stop()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost and its key."""
    if not shutil.which("openssl"):
        pytest.skip("missing: openssl, to make a certificate")
    folder = tmp_path_factory.mktemp("certificate")
    cert, key = folder / "cert.pem", folder / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*make, *names, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key
