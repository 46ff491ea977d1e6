"""A client tells a holder what it lacks, proves that both mean the same text, and can always send it again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.dht.errors import RpcError
from blockswarm.swarm.chunks import chunks
from blockswarm.swarm.link import Reply
from blockswarm.swarm.messages import StateName
from blockswarm.swarm.pins import Pin
from blockswarm.swarm.remembered import Piece, Remembered, tail
from blockswarm.swarm.session_messages import SessionRequest, text_check

PIN = Pin(StateName(1, b"e" * 32), {0: StateName(1, b"s" * 32), 1: StateName(1, b"t" * 32)})


class Holder:
    """Notes what it is asked; ``refusals`` are its next answers."""

    def __init__(self, *refusals: str) -> None:
        self.refusals = list(refusals)
        self.asked: list[SessionRequest] = []

    async def __call__(self, request: SessionRequest) -> Reply:
        assert SessionRequest.parse(request.to_body()) == request
        self.asked.append(request)
        if self.refusals and (code := self.refusals.pop(0)):
            raise RpcError(code, code)
        return Reply({}, b"")

    @property
    def told(self) -> list[tuple[int, bytes]]:
        return [(request.at, request.new) for request in self.asked]


def piece(text: bytes, *, start: int = 0, first: int | None = None, seed: int | None = None) -> Piece:
    return Piece(text, start, start + len(text) - 1 if first is None else first, seed)


def ask(remembered: Remembered, holder: Holder, asked: Piece, *, peer: str = "ann", block: int = 0) -> None:
    async def main() -> None:
        await remembered.ask(asked, peer, block, PIN, holder)

    trio.run(main)


def test_each_holder_is_told_what_is_new_to_it() -> None:
    session, ann, bob = Remembered(), Holder(), Holder()
    ask(session, ann, piece(b"The cat"))
    ask(session, ann, piece(b"The cat sat"))
    ask(session, bob, piece(b"The cat sat"), peer="bob")
    ask(session, ann, piece(b"The cow"))  # the guess " sat", and more, was wrong
    assert ann.told == [(0, b"The cat"), (7, b" sat"), (5, b"ow")]
    assert bob.told == [(0, b"The cat sat")]
    assert ann.asked[2].check == text_check(b"The c")
    assert len({request.session for request in ann.asked + bob.asked}) == 1
    assert Remembered()._name != session._name


def test_positions_are_those_of_the_text_when_windows_jump() -> None:
    session, holder = Remembered(), Holder()
    ask(session, holder, piece(b"0123456789"))
    ask(session, holder, piece(b"56789abc", start=5))
    ask(session, holder, piece(b"0123456789x"))  # back again: what is before the window is not counted on
    assert holder.told == [(0, b"0123456789"), (10, b"abc"), (0, b"0123456789x")]
    assert holder.asked[1].check == text_check(b"56789")


def test_something_is_always_new_and_nothing_beyond_what_is_of_use_is_counted_on() -> None:
    session, holder = Remembered(), Holder()
    ask(session, holder, piece(b"The cat"))
    assert session.known(piece(b"The cat"), "ann", 0, PIN) == 6
    assert session.known(piece(b"The cat sat", first=3), "ann", 0, PIN) == 7  # rows of bytes it has are no trouble
    assert session.known(piece(b"The cat sat", first=3, seed=1), "ann", 0, PIN) == 3  # but z of them it has not kept
    for peer, block, pin in (("bob", 0, PIN), ("ann", 1, PIN), ("ann", 0, Pin(StateName(1, b"f" * 32), PIN.blocks))):
        assert session.known(piece(b"The cat sat"), peer, block, pin) == 0


def test_a_holder_that_has_forgotten_is_sent_the_window_and_remembers_again() -> None:
    session, holder = Remembered(), Holder("", "unknown-session")
    for text in (b"The cat", b"The cat sat", b"The cat sat on"):
        ask(session, holder, piece(text))
    assert holder.told == [(0, b"The cat"), (7, b" sat"), (0, b"The cat sat"), (11, b" on")]


@pytest.mark.parametrize("refusals", [["unknown-session"], ["", "unknown-session", "unknown-session"]])
def test_a_holder_that_does_not_even_take_the_whole_window_is_not_asked_for_ever(refusals: Sequence[str]) -> None:
    session, holder = Remembered(), Holder(*refusals)
    with pytest.raises(RpcError, match="unknown-session"):
        for text in (b"The cat", b"The cat sat"):
            ask(session, holder, piece(text))
    assert len(holder.asked) == len(refusals)


def test_after_an_error_nothing_is_counted_on() -> None:
    session, holder = Remembered(), Holder("", "timeout")
    ask(session, holder, piece(b"The cat"))
    with pytest.raises(RpcError):
        ask(session, holder, piece(b"The cat sat"))
    ask(session, holder, piece(b"The cat sat"))
    assert holder.told[-1] == (0, b"The cat sat")


@given(st.binary(min_size=1, max_size=120), st.integers(2, 40), st.data())
def test_the_tail_is_what_the_windows_cover(text: bytes, context: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(text) - 1))
    chunk = next(chunks(text, context, first))
    assert tail(chunk) == text[chunk.starts[0] : chunk.first_row + chunk.rows]
