"""What a holder keeps of a text never changes an answer: fresh rows, or the text is asked for again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.dht.errors import RpcRefused
from blockswarm.model.config import RECIPES, ModelConfig
from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
from blockswarm.model.mixing import sweep_noise
from blockswarm.model.readout import BlockReader
from blockswarm.model.windows import plan_windows, window_start
from blockswarm.peer.sessions import IDLE_SECONDS, Asked, HolderSessions
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.memory import cache_bytes, session_bytes
from blockswarm.swarm.session_messages import SessionRequest, text_check

torch.set_num_threads(1)

CONTEXT, DIM = 32, 16
MODEL = ModelConfig(dim=DIM, blocks=2, layers=2, heads=2, context=CONTEXT, ngram_tables=2, ngram_rows=64)
STATES = {"digest": b"s" * 32, "embedding_digest": b"e" * 32}
TEXT = np.random.default_rng(5).integers(0, 256, 300, dtype=np.uint8).tobytes()


def reader(block: int = 1) -> BlockReader:
    rng = np.random.default_rng(block)
    theta, table = block_layout(MODEL).genesis(0, block), embedding_layout(MODEL).genesis(0, EMBEDDING)
    theta = theta + 0.2 * rng.standard_normal(theta.size, dtype=np.float32)
    return BlockReader(MODEL, RECIPES["default"], block, theta, table)


READERS = [reader(0), reader(1)]


def ask(text: bytes, first: int, at: int, *, name: bytes = b"n" * 16, client: str = "ann", **changes: Any) -> Asked:
    """The rows ``first …`` of ``text``, of which the holder is believed to have ``at`` bytes."""
    check = text_check(text[window_start(first, CONTEXT) : at])
    wanted = SessionRequest(name, 1, at=at, new=text[at:], first=first, check=check, **STATES)
    wanted = replace(wanted, **changes)
    return Asked(client, wanted, wanted.windows(CONTEXT))


def alone(text: bytes, first: int) -> np.ndarray:
    """The same rows, every window computed by itself."""
    rows = []
    for start, stop, take in plan_windows(len(text), CONTEXT, first):
        window = np.frombuffer(text[start:stop], np.uint8)
        rows.append(READERS[1].log_probs(window[None])[0, take:])
    return np.concatenate(rows)


class Desk:
    """A holder's sessions, asked one request at a time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sessions = HolderSessions(MODEL, lambda: self.now)

    def __call__(self, asked: Asked) -> np.ndarray | str:
        (answer,) = self.sessions.answer(READERS[asked.request.block], [asked])
        return answer.code if isinstance(answer, RpcRefused) else answer


def same(found: Any, expected: np.ndarray) -> bool:
    return isinstance(found, np.ndarray) and found.shape == expected.shape and np.abs(found - expected).max() < 2e-5


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_walk_through_a_text_gives_the_fresh_rows_or_is_told_to_begin_again(data: st.DataObject) -> None:
    """Drafts of any length, taken back to any place, over window jumps; requests that the holder never saw."""
    desk, text, told = Desk(), TEXT[: data.draw(st.integers(1, 70))], b""
    for step in range(data.draw(st.integers(1, 12))):
        first = len(text) - 1
        drafted = text + data.draw(st.binary(max_size=20))
        start = window_start(first, CONTEXT)
        common = next((n for n, (a, b) in enumerate(zip(drafted, told, strict=False)) if a != b), len(told))
        at = max(start, min(common, len(drafted) - 1))
        if data.draw(st.integers(0, 4)) == 0:
            desk.sessions.keep_only(())  # everything is lost
        found = desk(ask(drafted, first, at))
        if isinstance(found, str):
            assert found == "unknown-session" and at > start
            found = desk(ask(drafted, first, start))
        assert same(found, alone(drafted, first)), step
        if data.draw(st.integers(0, 5)):  # else the answer is lost on its way, and the caller does not count on it
            told = drafted
        text = drafted[: data.draw(st.integers(len(text), len(drafted)))] + TEXT[step : step + 1]


def test_only_what_is_new_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, computed = Desk(), []
    extend = READERS[1].extend

    def counting(pieces: Any) -> Any:
        computed.append([len(new) for _, new in pieces])
        return extend(pieces)

    monkeypatch.setattr(READERS[1], "extend", counting)
    desk(ask(TEXT[:20], 19, 0))
    desk(ask(TEXT[:24], 20, 20))
    desk(ask(TEXT[:22] + b"wrong", 21, 22))  # one row before what is new is wanted too
    desk(ask(TEXT[:40], 25, 22))  # a draft across the window's end: the rest of it, and the next window
    desk(ask(TEXT[:30] + b"x", 30, 30))  # it was rejected before the end: both windows are still there
    desk(ask(TEXT[:30] + b"xabcdef", 31, 31))
    assert computed == [[20], [4], [6], [10, 24], [1], [1, 7]]


def test_what_was_asked_ahead_is_not_computed_again_though_its_answer_is_not_back() -> None:
    desk = Desk()
    desk(ask(TEXT[:10], 9, 0))
    for first, end in ((10, 14), (14, 18), (18, 26)):
        asked = ask(TEXT[:end], first, 10)  # the client has the answer to the first question only
        assert desk.sessions.due(asked) == end - first
        assert same(desk(asked), alone(TEXT[:end], first))
    wrong = ask(TEXT[:12] + b"?" + TEXT[13:20], 11, 11)
    assert desk.sessions.due(wrong) == 9  # row 11 is wanted, whatever is known of it
    assert same(desk(wrong), alone(TEXT[:12] + b"?" + TEXT[13:20], 11))


def test_several_sessions_are_computed_together_as_each_would_be_by_itself() -> None:
    desk = Desk()
    texts = [TEXT[n : n + length] for n, length in ((0, 5), (50, 31), (90, 60), (7, 1))]
    names = [bytes([n]) * 16 for n in range(4)]
    begun = [
        ask(text, len(text) - 1, window_start(len(text) - 1, CONTEXT), name=n)
        for text, n in zip(texts, names, strict=True)
    ]
    for rows, text in zip(desk.sessions.answer(READERS[1], begun), texts, strict=True):
        assert same(rows, alone(text, len(text) - 1))
    longer = [text + b"draft" for text in texts]
    going_on = [ask(text, len(text) - 6, len(text) - 5, name=n) for text, n in zip(longer, names, strict=True)]
    unknown = ask(TEXT[:9], 8, 8, name=b"?" * 16)
    *answers, last = desk.sessions.answer(READERS[1], [*going_on, unknown])
    for rows, text in zip(answers, longer, strict=True):
        assert same(rows, alone(text, len(text) - 6))
    assert isinstance(last, RpcRefused) and last.code == "unknown-session"


def test_two_requests_of_one_session_in_one_go_follow_each_other() -> None:
    desk = Desk()
    one, two, three = ask(TEXT[:9], 8, 0), ask(TEXT[:12], 9, 9), ask(TEXT[:10] + b"xy", 10, 10)
    answers = desk.sessions.answer(READERS[1], [one, two, three])
    for rows, text, first in zip(answers, (TEXT[:9], TEXT[:12], TEXT[:10] + b"xy"), (8, 9, 10), strict=True):
        assert same(rows, alone(text, first))


# -- what a stranger may try ---------------------------------------------------------------------------------------


def test_nobody_is_answered_from_a_text_that_is_not_theirs() -> None:
    desk = Desk()
    assert same(desk(ask(TEXT[:20], 19, 0)), alone(TEXT[:20], 19))
    on = ask(TEXT[:24], 20, 20)
    far = replace(on.request, at=2**50 + 5, first=2**50 + 5)
    others = {
        "another session": ask(TEXT[:24], 20, 20, name=b"m" * 16),
        "another client": ask(TEXT[:24], 20, 20, client="eve"),
        "another history": ask(b"x" + TEXT[1:24], 20, 20),
        "half a history": ask(TEXT[5:29], 20, 20),
        "more than there is": ask(TEXT[:30], 26, 26),
        "another state": ask(TEXT[:24], 20, 20, digest=b"t" * 32),
        "another embedding": ask(TEXT[:24], 20, 20, embedding_digest=b"t" * 32),
        "another window": ask(TEXT[:80], 70, 72),
        "far away": replace(on, request=far, windows=far.windows(CONTEXT)),
        "a forged digest": ask(TEXT[:24], 20, 20, check=bytes(8)),
    }
    for what, asked in others.items():
        assert desk(asked) == "unknown-session", what
    assert same(desk(on), alone(TEXT[:24], 20))  # and it has cost its owner nothing


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"first": 24}, "first"),
        ({"first": 70, "at": 20, "new": b"x" * 60}, "at"),
        ({"check": b""}, "check"),
        ({"at": 0, "new": TEXT[:24]}, "check"),
        ({"check": b"short"}, "check"),
        ({"session": b"short"}, "session"),
        ({"new": b""}, "new"),
        ({"new": b"x" * 4097}, "new"),
        ({"at": -1}, "at"),
        ({"at": 2**60}, "at"),
        ({"seed": 1}, "body"),
        ({"first": "20"}, "first"),
        ({"more": 1}, "body"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_form(changes: dict[str, Any], field: str) -> None:
    body = ask(TEXT[:24], 20, 20).request.to_body() | changes
    with pytest.raises(MessageError) as caught:
        SessionRequest.parse(body).windows(CONTEXT)
    assert caught.value.field == field


def test_a_sweep_has_a_seed_and_rows_of_one_window_that_are_all_new() -> None:
    body = ask(TEXT[:24], 20, 20).request.to_body()
    with pytest.raises(MessageError, match="seed: missing"):
        SessionRequest.parse(body, sweep=True)
    good = body | {"seed": 3}
    assert SessionRequest.parse(good, sweep=True).to_body() == good
    with pytest.raises(MessageError, match="first: must not be below at"):
        SessionRequest.parse(good | {"first": 19}, sweep=True)
    with pytest.raises(MessageError, match="new: must not go beyond the window"):
        SessionRequest.parse(good | {"new": b"x" * 20}, sweep=True).windows(CONTEXT)


def test_ten_thousand_sessions_take_the_room_of_a_few_and_leave_others_theirs() -> None:
    desk = Desk()
    assert isinstance(desk(ask(TEXT[:9], 8, 0, client="modest")), np.ndarray)
    asked = ask(b"a", 0, 0)
    for number in range(10_000):
        name = number.to_bytes(16, "big")
        desk.sessions.answer(READERS[1], [replace(asked, request=replace(asked.request, session=name))])
    assert len(desk.sessions.book) == len(desk.sessions._held) <= 65
    assert desk.sessions.book.bytes <= session_bytes(MODEL)
    assert same(desk(ask(TEXT[:12], 9, 9, client="modest")), alone(TEXT[:12], 9))


def test_sessions_end_when_they_are_idle_and_when_their_states_go() -> None:
    desk = Desk()
    desk(ask(TEXT[:9], 8, 0))
    other = ask(TEXT[:9], 8, 0, name=b"m" * 16, digest=b"t" * 32)
    desk(other)
    assert desk.sessions.book.bytes >= 2 * cache_bytes(MODEL)
    desk.sessions.keep_only({b"s" * 32, b"e" * 32})
    assert desk(ask(TEXT[:12], 9, 9, name=b"m" * 16, digest=b"t" * 32)) == "unknown-session"
    desk.now = IDLE_SECONDS - 1
    assert same(desk(ask(TEXT[:12], 9, 9)), alone(TEXT[:12], 9))  # it is used, and stays
    desk.now += IDLE_SECONDS
    desk.sessions.keep_only({b"s" * 32, b"e" * 32})
    assert len(desk.sessions.book) == 0 and desk.sessions.book.bytes == 0


def test_the_memory_that_a_window_is_counted_with_is_what_it_takes() -> None:
    cache = READERS[1].open()
    real = sum(tensor.numel() * tensor.element_size() for tensor in (cache.line, cache.keys, cache.values))
    assert cache_bytes(MODEL) <= real <= 1.05 * cache_bytes(MODEL)


# -- sweep ---------------------------------------------------------------------------------------------------------


def test_the_sweep_goes_on_with_z_of_what_is_new() -> None:
    text, desks = TEXT[:30], [Desk(), Desk()]
    window = np.frombuffer(text, np.uint8)[None]
    _, z = READERS[0].sweep_step(window, sweep_noise(3, 0, 30, DIM)[None])
    assert z is not None
    expected, _ = READERS[1].sweep_step(window, z)
    for at, end in ((0, 12), (12, 13), (13, 30), (20, 26), (26, 30)):
        first = ask(text[:end], at, at, block=0, seed=3)
        after = desks[0](first)
        assert isinstance(after, np.ndarray)
        np.testing.assert_allclose(after, z[0, at:end], atol=1e-4)
        last = replace(ask(text[:end], end - 1, at, seed=3), z=after)
        assert same(desks[1](last), expected[0, end - 1 : end])
    other_seed = ask(text[:28], 27, 27, block=0, seed=4)
    assert desks[0](other_seed) == "unknown-session"
    assert desks[0](ask(text[:28], 27, 27, block=0)) == "unknown-session"  # the parallel readout is another function


@pytest.mark.parametrize(("at", "first", "work"), [(19, 19, 1), (19, 12, 8), (10, 19, 10)])
def test_rows_of_bytes_told_before_are_work_as_new_bytes_are(at: int, first: int, work: int) -> None:
    assert SessionRequest(b"n" * 16, 1, at=at, new=bytes(20 - at), first=first, check=b"", **STATES).positions == work


def test_what_must_be_computed_again_is_counted_before_it_is_accepted() -> None:
    desk, text = Desk(), TEXT[:60]
    assert desk.sessions.due(ask(text[:9], 8, 0)) == 9
    desk(ask(text[:9], 8, 0))
    assert desk.sessions.due(ask(text[:12], 9, 9)) == 3
    assert desk.sessions.due(ask(text[:12], 6, 9)) == 6  # rows of earlier bytes
    desk(ask(text[:30], 9, 9))
    jump = ask(text[:34], 30, 30)
    assert [stop - begin for begin, stop, _ in jump.windows] == [32, 18]
    assert desk.sessions.due(jump) == 2 + 18  # four bytes are new, but the window after the jump begins afresh
    desk(jump)
    desk.sessions._held["ann", b"n" * 16].caches.clear()
    assert desk.sessions.due(ask(text[:35], 34, 34)) == 19
    assert desk.sessions.due(ask(text[:35], 34, 34, client="eve")) == 19  # will be refused, and was not free to ask
