"""A text in pieces: their bytes, their characters, what they were drawn from, and where they end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from blockswarm.swarm.answers import Float32
from blockswarm.swarm.continuation import Certain, Continuation
from blockswarm.swarm.options import Writing


def row_of(byte: int) -> Float32:
    """Log-probabilities of a model that is sure of ``byte``."""
    row = np.full(256, -20.0, np.float32)
    row[byte] = np.log1p(-255 * np.exp(-20.0))
    return row


def told(script: bytes, *, at_once: int = 1, **options: Any) -> tuple[list[Certain], Continuation]:
    """What comes out when a model is sure that ``script`` follows, and ``at_once`` bytes are verified in one go."""
    asked = Writing(temperature=0.0, rows=True, **{"max_bytes": len(script), **options})
    text = Continuation(b"x", asked, 32)
    pieces = []
    while not text.ended:
        draft = script[text.written : text.written + at_once]
        text.add_verified(np.stack([row_of(byte) for byte in draft]), draft[:-1])
        pieces.append(text.release())
    return pieces or [text.release()], text


def whole(pieces: list[Certain]) -> tuple[str, bytes]:
    return "".join(piece.text for piece in pieces), b"".join(piece.data for piece in pieces)


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("script", "stop", "left"),
    [
        (b"one, two, three", "two", b"one, "),
        (b"one, twtwo", "two", b"one, tw"),
        (b"aaab", "aab", b"a"),
        ("Bäume, 数百本の木".encode(), "本の", "Bäume, 数百".encode()),
        ("Bäume".encode(), "äu".encode()[1:], "Bäume".encode()[:2]),
        (b"one, two", ["xyz", "", "two", ", t"], b"one"),
        (b"abcd", ["c", "bc", "abc"], b""),
        (b"abcd", ["abc", "bc", "c"], b""),
        (b"no stop here, tw", "two", b"no stop here, tw"),
    ],
)
def test_a_text_ends_exactly_before_a_stop_string_however_it_is_cut(
    at_once: int, script: bytes, stop: Any, left: bytes
) -> None:
    pieces, text = told(script, at_once=at_once, stop=stop)
    assert whole(pieces) == (left.decode(errors="replace"), left)
    assert text.finish_reason == ("length" if left == script else "stop")


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
@pytest.mark.parametrize("script", ["ä数🙂".encode(), b"\xff\xfe ok \xe6\x95", b"\xe6\x95a\xf0\x9f\x99"])
def test_characters_come_whole_and_what_is_none_as_replacement_characters(script: bytes, at_once: int) -> None:
    pieces, _ = told(script, at_once=at_once)
    assert whole(pieces) == (script.decode(errors="replace"), script)


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
def test_each_byte_comes_with_what_it_was_drawn_from(at_once: int) -> None:
    pieces, _ = told(b"one, two, three", at_once=at_once, stop="two")
    for piece in pieces:
        assert piece.rows is not None
        assert piece.rows.shape == (len(piece.data), 256) and piece.rows.dtype == np.float32
        assert bytes(piece.rows.argmax(axis=1).astype(np.uint8)) == piece.data


def test_nothing_is_told_that_could_be_the_beginning_of_a_stop_string() -> None:
    pieces, _ = told(b"one, twenty", stop="two")
    assert [piece.data for piece in pieces[4:8]] == [b" ", b"", b"", b"twe"]


def test_a_text_of_no_bytes_has_one_empty_last_piece() -> None:
    pieces, text = told(b"", max_bytes=0)
    assert whole(pieces) == ("", b"") and text.finish_reason == "length"


def test_both_faces_tell_bytes_rows_and_why_a_text_ended(swarm: Any) -> None:
    found = swarm.client(
        """
        options = dict(max_bytes=40, seed=5, temperature=1.0)

        async def main():
            async with AsyncSwarmClient.connect(peers, timeout=Deadline(60)) as client:
                cut = [piece async for piece in client.pieces("The ", stop=stop, rows=True, **options)]
                return cut, [piece async for piece in client.pieces("The ", max_bytes=0)]

        from blockswarm.swarm import Deadline
        limit = Deadline(60)
        with SwarmClient.connect(peers, timeout=limit) as client:
            pieces = list(client.pieces("The ", rows=True, timeout=limit, **options))
            text, data = "".join(piece.text for piece in pieces), b"".join(piece.data for piece in pieces)
            same = text == client.generate("The ", timeout=limit, **options) == data.decode(errors="replace")
            rows = np.concatenate([piece.rows for piece in pieces])
            table = client.logprobs(b"The " + data, pin=pieces[0].report.pin)[3:-1]
            stop = data[20:23]
        cut, none = asyncio.run(main())
        result(same=same, bytes=len(data), off=float(np.abs(rows - table).max()),
               ends=[[piece.last for piece in one][-2:] for one in (pieces, cut)],
               reasons=[one[-1].report.finish_reason for one in (pieces, cut, none)],
               cut=b"".join(piece.data for piece in cut) == data[:data.index(stop)],
               shapes=[piece.rows.shape == (len(piece.data), 256) for piece in cut],
               none=[[piece.text, piece.last, piece.rows is None] for piece in none])
        """
    )
    assert found["same"] and found["cut"] and all(found["shapes"])
    assert found["bytes"] == 40 and found["off"] < 1e-4
    assert found["reasons"] == ["length", "stop", "length"]
    assert found["ends"][0] == [False, True] and found["ends"][1][-1]
    assert found["none"] == [["", True, True]]


def test_pieces_are_in_order_of_time(swarm: Any) -> None:
    found = swarm.client(
        """
        with SwarmClient.connect(peers) as client:
            bytes_so_far = [piece.report.bytes for piece in client.pieces("The ", max_bytes=20)]
        result(bytes=bytes_so_far)
        """
    )
    assert all(before < after for before, after in pairwise(found["bytes"])) and found["bytes"][-1] == 20
