"""The gateway's rules without a network: limits, turns, keys, names of tokens, and what is said of errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockswarm.errors import UsageError
from blockswarm.swarm.errors import ClientError, DeadlineError, NoHolderError, UntrustedAnswerError
from blockswarm.swarm.gateway.errors import ApiError, GatewayError, GivenGatewayError, as_api_error
from blockswarm.swarm.gateway.key import ApiKey, read_key
from blockswarm.swarm.gateway.limits import Gate, Limits
from blockswarm.swarm.gateway.server import listen, url_of
from blockswarm.swarm.gateway.tokens import TokenLog, token_name


async def test_the_longer_texts_took_the_longer_one_is_told_to_stay_away() -> None:
    now = 0.0
    gate = Gate(Limits(concurrency=2, queue=0), lambda: now)
    assert gate.retry_after() == 1
    for _ in range(30):
        async with gate.turn():
            now += 10.0
    assert gate.retry_after() == 5  # of two places one is free every five seconds
    with gate.admit(), gate.admit(), pytest.raises(ApiError) as caught, gate.admit():
        raise AssertionError("a third was let in")
    assert caught.value.retry_after == 5


@pytest.mark.parametrize(
    ("name", "value"), [("concurrency", 0), ("queue", -1), ("timeout", 0.0), ("timeout", float("inf"))]
)
def test_a_limit_that_cannot_work_is_named(name: str, value: Any) -> None:
    with pytest.raises(GivenGatewayError, match=name):
        Limits(**{name: value})


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NoHolderError(3), 503, "no_holder"),
        (DeadlineError("late"), 504, "deadline_exceeded"),
        (TimeoutError(), 504, "deadline_exceeded"),
        (UntrustedAnswerError("12D3Koo… lies"), 502, "untrusted_answer"),
        (ClientError("12D3Koo… is strange"), 502, "swarm_error"),
        (ZeroDivisionError("secret"), 500, "internal_error"),
    ],
)
def test_errors_of_the_swarm_are_told_without_their_details(error: Exception, status: int, code: str) -> None:
    told = as_api_error(error, 5.0)
    assert (told.status, told.code) == (status, code)
    assert "12D3" not in str(told) and "secret" not in str(told)


def test_a_key_opens_for_itself_alone() -> None:
    key = ApiKey("a-secret")
    assert key.opens("Bearer a-secret") and key.opens("bearer  a-secret")
    assert not any(map(key.opens, ("", "Bearer", "Bearer a-secre", "Bearer a-secret2", "Basic a-secret", "a-secret")))
    assert "a-secret" not in repr(vars(key))


def test_a_key_comes_from_a_file_before_anything_else(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("in-the-file\n")
    for found in (read_key(None, file), read_key("given", file)):
        assert found is not None and found.opens("Bearer in-the-file")
    assert read_key(None, None) is None


@pytest.mark.parametrize("content", [None, b"", b"\n", b"two words", b"two\nlines", b"\xff\xfe", b"x" * 5000])
def test_a_file_without_a_key_is_wrong_usage(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match="api_key"):
        read_key(None, file)


def test_every_byte_has_a_name_of_its_own() -> None:
    assert len({token_name(byte) for byte in range(256)}) == 256
    assert (token_name(65), token_name(0xE2)) == ("A", "bytes:\\xe2")


def test_a_byte_within_a_character_stands_where_the_character_does() -> None:
    row = np.full(256, np.log(1 / 256), np.float32)
    log = TokenLog(2)
    text = "ä木a".encode()
    told = [log.write(text[begin : begin + 1], [row]) for begin in range(len(text))]
    assert [part["text_offset"] for part in told] == [[0], [0], [1], [1], [1], [2]]
    assert list(told[0]["top_logprobs"][0]) == ["\x00", "\x01", "bytes:\\xc3"]


def test_an_address_that_is_taken_or_no_address_is_one_line() -> None:
    with listen("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        assert url_of(held) == f"http://127.0.0.1:{port}"
        with pytest.raises(GatewayError, match=f"127.0.0.1:{port}: cannot be listened on") as caught:
            listen("127.0.0.1", port)
        assert not isinstance(caught.value, UsageError)
    with pytest.raises(GivenGatewayError, match="no address"):
        listen("no such host", 0)
