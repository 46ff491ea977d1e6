"""The client's pure parts: which states to pin, which answers to believe, how a race between holders goes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from blockswarm.model.mixing import VETO_FLOOR
from blockswarm.swarm.answers import check_hidden, check_rows
from blockswarm.swarm.chunks import chunks, last_row
from blockswarm.swarm.core import choose_run
from blockswarm.swarm.errors import ClientError, ConnectError, UntrustedAnswerError
from blockswarm.swarm.holders import Run
from blockswarm.swarm.link import Reply, dialable
from blockswarm.swarm.messages import StateName
from blockswarm.swarm.pins import Offer, Pin, choose_pin, exchange
from blockswarm.swarm.race import Race, Won, drain, race
from blockswarm.swarm.report import MAX_EVENTS, EventLog


def state(round_number: int, kind: str = "x") -> StateName:
    """A state's name for tests."""
    return StateName(round_number, (kind + str(round_number)).encode().ljust(32, b"."))


def offer(peer: str, block: int, rounds: list[int], embedding: list[int]) -> Offer:
    """A holder that serves some rounds of its block and of the embedding."""
    return Offer(peer, block, tuple(state(r, f"b{block}") for r in rounds), tuple(state(r, "e") for r in embedding))


def rounds(pin: Pin | None) -> tuple[int, dict[int, int]] | None:
    """The rounds of a pin."""
    return None if pin is None else (pin.embedding.round, {b: s.round for b, s in pin.blocks.items()})


class TestPins:
    """Pinned are the states most holders have."""

    def test_the_newest_state_when_all_have_it(self) -> None:
        offers = [offer(p, b, [5, 4, 3], [5, 4, 3]) for b in (0, 1) for p in (f"{b}a", f"{b}b")]
        assert rounds(choose_pin(offers, 2)) == (5, {0: 5, 1: 5})

    def test_a_state_with_a_spare_is_worth_more_than_a_newer_one_without(self) -> None:
        offers = [offer("a", 0, [6, 5, 4], [6, 5, 4]), offer("b", 0, [5, 4, 3], [5, 4, 3])]
        assert rounds(choose_pin(offers, 1)) == (5, {0: 5})

    def test_the_embedding_that_serves_most_blocks_wins_over_the_one_most_holders_have(self) -> None:
        offers = [offer("a", 0, [1], [1]), offer("b", 0, [1], [1]), offer("c", 0, [1], [1, 2]), offer("d", 1, [1], [2])]
        assert rounds(choose_pin(offers, 2)) == (2, {0: 1, 1: 1})

    def test_a_block_without_a_holder_is_left_out(self) -> None:
        assert rounds(choose_pin([offer("a", 1, [3], [3])], 3)) == (3, {1: 3})
        assert choose_pin([], 3) is None

    def test_an_exchange_touches_only_what_is_lost(self) -> None:
        before = Pin(state(3, "e"), {0: state(3, "b0"), 1: state(3, "b1")})
        offers = [offer("a", 0, [5, 4, 3], [5, 4, 3]), offer("b", 1, [6, 5, 4], [5, 4, 3])]
        assert rounds(exchange(before, offers, 1, 2)) == (3, {0: 3, 1: 6})

    def test_a_lost_embedding_is_exchanged_for_all_and_states_stay_where_they_can(self) -> None:
        before = Pin(state(3, "e"), {0: state(3, "b0"), 1: state(3, "b1")})
        offers = [offer("a", 0, [5, 4, 3], [6, 5, 4]), offer("b", 1, [6, 5, 4], [6, 5, 4])]
        assert rounds(exchange(before, offers, 1, 2)) == (6, {0: 3, 1: 6})

    def test_no_exchange_when_nobody_serves_the_block(self) -> None:
        before = Pin(state(3, "e"), {0: state(3, "b0"), 1: state(3, "b1")})
        assert exchange(before, [offer("a", 0, [4], [4])], 1, 2) is None


class TestAnswers:
    """Every honest answer keeps these rules."""

    @staticmethod
    def rows(count: int = 3) -> np.ndarray:
        logits = np.random.default_rng(1).normal(size=(count, 256))
        return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)

    def test_honest_rows_come_back_unchanged(self) -> None:
        rows = self.rows()
        np.testing.assert_array_equal(check_rows(Reply({}, rows.tobytes()), 3), rows)

    def test_a_veto_is_floored(self) -> None:
        rows = np.full((1, 256), -1e4, np.float32)
        rows[0, 7] = 0.0
        checked = check_rows(Reply({}, rows.tobytes()), 1)
        assert checked.min() == np.float32(VETO_FLOOR) and checked[0, 7] == 0.0

    @pytest.mark.parametrize(
        ("spoil", "words"),
        [
            (lambda rows: rows[:-1], "bytes instead of"),
            (lambda rows: np.concatenate([rows, rows[:1]]), "bytes instead of"),
            (lambda rows: rows + np.float32(0.01), "sum to"),
            (lambda rows: rows * np.float32(0), "sum to"),
            (lambda rows: np.where(rows == rows[1, 5], np.float32("nan"), rows), "finite"),
            (lambda rows: np.where(rows == rows[1, 5], np.float32("inf"), rows), "finite"),
            (lambda rows: np.where(rows == rows[1, 5], np.float32("-inf"), rows), "finite"),
            (lambda rows: np.where(rows == rows[1, 5], np.float32(3e38), rows), "sum to"),
            (lambda rows: rows - np.float32(3e38), "sum to"),
        ],
    )
    def test_what_no_honest_holder_sends_is_refused(
        self, spoil: Callable[[np.ndarray], np.ndarray], words: str
    ) -> None:
        with pytest.raises(UntrustedAnswerError, match=words):
            check_rows(Reply({}, spoil(self.rows()).astype(np.float32).tobytes()), 3)

    def test_z_must_have_its_shape_and_be_finite(self) -> None:
        z = np.ones((4, 8), np.float32)
        np.testing.assert_array_equal(check_hidden(Reply({}, z.tobytes()), 4, 8), z)
        with pytest.raises(UntrustedAnswerError, match="bytes instead of"):
            check_hidden(Reply({}, z.tobytes()), 4, 7)
        z[2, 2] = np.inf
        with pytest.raises(UntrustedAnswerError, match="finite"):
            check_hidden(Reply({}, z.tobytes()), 4, 8)


class TestRace:
    """Holders are tried in order, beside each other when one is slow; virtual time, so nothing really waits."""

    @staticmethod
    def run(behaviour: dict[str, tuple[float, str | None]], patience: float = 1.0) -> tuple[Race[str], float]:
        """Each candidate takes some seconds and then answers or (None) fails."""

        async def attempt(name: str) -> str:
            seconds, answer = behaviour[name]
            await trio.sleep(seconds)
            if answer is None:
                raise ValueError(name)
            return answer

        async def main() -> tuple[Race[str], float]:
            began = trio.current_time()
            outcome = await race(behaviour, attempt, lambda _: patience)
            return outcome, trio.current_time() - began

        return virtual(main)

    def test_the_first_good_one_is_enough(self) -> None:
        outcome, seconds = self.run({"a": (0.5, "A"), "b": (0.1, "B")})
        assert (outcome.won, outcome.overtaken, seconds) == (Won("a", "A"), {}, 0.5)

    def test_a_failure_starts_the_next_at_once(self) -> None:
        outcome, seconds = self.run({"a": (0.2, None), "b": (0.1, None), "c": (0.3, "C")})
        assert outcome.won == Won("c", "C") and list(outcome.failed) == ["a", "b"]
        assert seconds == pytest.approx(0.6)

    def test_a_slow_one_gets_a_rival_and_whoever_is_first_wins(self) -> None:
        outcome, seconds = self.run({"a": (60.0, "A"), "b": (0.5, "B")})
        assert outcome.won == Won("b", "B") and outcome.overtaken == {"a": pytest.approx(1.5)}
        assert seconds == pytest.approx(1.5)
        outcome, seconds = self.run({"a": (1.2, "A"), "b": (5.0, "B")})
        assert outcome.won == Won("a", "A") and list(outcome.overtaken) == ["b"]

    def test_everybody_fails(self) -> None:
        outcome, seconds = self.run({"a": (3.0, None), "b": (0.5, None)})
        assert outcome.won is None and set(outcome.failed) == {"a", "b"}
        assert seconds == pytest.approx(3.0)
        assert self.run({})[0].won is None


def virtual(main: Callable[[], Awaitable[tuple[Race[str], float]]]) -> tuple[Race[str], float]:
    """Run ``main`` in trio with a clock that jumps over the waiting."""
    from trio.testing import MockClock

    outcome: tuple[Race[str], float] = trio.run(main, clock=MockClock(autojump_threshold=0))
    return outcome


class TestChunks:
    """A long text travels in bounded requests that cover every row once."""

    @pytest.mark.parametrize("length", [1, 31, 32, 33, 1000, 5000])
    @pytest.mark.parametrize("context", [1, 2, 32, 2000])
    def test_every_row_once_and_no_request_too_large(self, length: int, context: int) -> None:
        text = bytes(n % 251 for n in range(length))
        row = 0
        for chunk in chunks(text, context):
            assert chunk.first_row == row
            row += chunk.rows
            assert len(chunk.windows) <= 64 and chunk.positions <= max(1024, context)
            for window, start in zip(chunk.windows, chunk.starts, strict=True):
                assert text[start : start + len(window)] == window and len(window) <= context
        assert row == length

    def test_the_last_row_is_the_one_a_long_reading_would_give(self) -> None:
        text = bytes(range(200))
        for length in range(1, 201):
            one = last_row(text[:length], 32)
            *_, chunk = chunks(text[:length], 32)
            assert one.rows == 1 and one.first_row == length - 1
            assert one.windows[0] == chunk.windows[-1] and one.starts[0] == chunk.starts[-1]


class TestRuns:
    """One run is taken, several are listed."""

    one = Run("demo-111", b"1" * 32, "demo", ("a",))
    two = Run("demo-222", b"2" * 32, "demo", ("b",))
    twin = Run("demo-111", b"3" * 32, "demo", ("c",))

    def test_the_only_one(self) -> None:
        assert choose_run([self.one], None) is self.one

    def test_by_id_or_digest(self) -> None:
        assert choose_run([self.one, self.two], "demo-222") is self.two
        assert choose_run([self.one, self.two], (b"1" * 32).hex()) is self.one

    def test_several_or_none_are_errors_that_list_them(self) -> None:
        with pytest.raises(ClientError, match="several runs: demo-111, demo-222"):
            choose_run([self.one, self.two], None)
        with pytest.raises(ConnectError, match="'demo-333'; there are: demo-111, demo-222"):
            choose_run([self.one, self.two], "demo-333")

    def test_one_id_with_two_manifests_is_not_guessed(self) -> None:
        for wanted in (None, "demo-111"):
            with pytest.raises(ClientError, match="manifests"):
                choose_run([self.one, self.twin], wanted)
        assert choose_run([self.one, self.twin], self.twin.digest.hex()) is self.twin


def test_only_direct_tcp_addresses_can_be_dialled() -> None:
    peer = "12D3KooWGS8hdDYPnTSAQVY3h8p1L4gcMG3FveaNhv9uWaaUewhn"
    assert dialable(f"/ip4/1.2.3.4/tcp/4001/p2p/{peer}") == ("1.2.3.4", 4001)
    assert dialable("/dns4/example.org/tcp/1") == ("example.org", 1)
    assert dialable("/ip6/::1/tcp/80") == ("::1", 80)
    for address in (
        "/ip4/1.2.3.4/udp/4001/quic-v1",
        "/ip4/1.2.3.4/tcp/4001/ws",
        f"/ip4/1.2.3.4/tcp/4001/p2p/{peer}/p2p-circuit",
        "/ip4/1.2.3.4/tcp/0",
        "nonsense",
    ):
        assert dialable(address) is None


def test_repeated_events_are_folded_and_their_number_is_bounded() -> None:
    log = EventLog()
    for _ in range(5):
        log.add("refused", "the same")
    log.add("clock", "another")
    assert [(event.text, event.count) for event in log] == [("the same", 5), ("another", 1)]
    for number in range(2 * MAX_EVENTS):
        log.add("refused", str(number))
    assert len(log) == MAX_EVENTS


class TestDrain:
    """Several workers deal with many items."""

    def test_every_item_is_dealt_with_in_order_by_as_many_as_were_allowed(self) -> None:
        begun: list[int] = []
        busy: list[int] = []

        async def work(item: int) -> None:
            begun.append(item)
            busy.append(item)
            assert len(busy) <= 3
            await trio.sleep(0.1 * (item % 3))
            busy.remove(item)

        trio.run(partial(drain, range(10), work, workers=3), clock=MockClock(autojump_threshold=0))
        assert begun == list(range(10))

    def test_the_first_failure_ends_the_others_and_is_raised_as_it_is(self) -> None:
        ended: list[int] = []

        async def work(item: int) -> None:
            if item == 1:
                await trio.sleep(1.0)
                raise ClientError("the second")
            await trio.sleep(5.0)
            ended.append(item)

        with pytest.raises(ClientError, match="the second"):
            trio.run(partial(drain, range(10), work, workers=3), clock=MockClock(autojump_threshold=0))
        assert not ended
