"""Tokens and hosts: who is let in."""

from pathlib import Path

import pytest

from otelprof.backend.guard import Tokens, is_local
from otelprof.errors import OtelprofError


@pytest.mark.parametrize("host", ["127.0.0.1:4040", "localhost", "localhost:1", "[::1]:4040", "a.localhost:80", "10.0.0.7"])
def test_addresses_and_localhost_are_local(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example:4040", "localhost.evil.example", "127.0.0.1.evil.example", "[", "notlocalhost"]
)
def test_other_names_are_not(host: str) -> None:
    assert not is_local(host)


def test_only_known_tokens_are_allowed() -> None:
    tokens = Tokens(["one", "two"])
    assert [tokens.allow(f"Bearer {token}") for token in ("one", "two", "three", "")] == [True, True, False, False]
    assert not tokens.allow("one")
    assert not tokens.allow("Basic one")
    assert Tokens([]).allow("")


@pytest.mark.parametrize("text", ["", "# nothing\n\n", "x\n" * 1001])
def test_a_file_without_tokens_or_with_too_many_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(OtelprofError, match="tokens"):
        Tokens.read(path)
