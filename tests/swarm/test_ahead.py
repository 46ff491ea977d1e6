"""Several verifications of one text under way: the text is that of decoding byte by byte, whatever comes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from blockswarm.swarm.drafting.drafting import PacedDrafting
from blockswarm.swarm.errors import DeadlineError
from blockswarm.swarm.flights import MOST_FLIGHTS
from blockswarm.swarm.generation import Generation
from blockswarm.swarm.link import KEPT_STREAMS
from blockswarm.swarm.operations import open_session
from blockswarm.swarm.options import Writing
from blockswarm.swarm.policy.drafting import LONGEST_UNANSWERED, PIECE, DraftPace
from blockswarm.swarm.report import CallReport
from tests.swarm.exact import BYTES, HOLDERS, PROMPTS, SMALL, Ahead, Fixed, Scripted, plain_text, small_model, write
from tests.swarm.holding import Model, Swarm

FAR = 0.1
"""Seconds that an answer takes."""


@pytest.fixture(scope="module")
def model() -> Model:
    return small_model()


@pytest.fixture(scope="module")
def plain(model: Model) -> Iterator[Callable[..., bytes]]:
    yield plain_text(model)


def far(swarm: Swarm) -> None:
    """Every answer takes a while, so that there is time to ask ahead."""
    for holder in swarm.holders.values():
        holder.seconds = lambda size: FAR


def ahead(
    model: Model,
    script: bytes,
    *,
    prompt: bytes = b"The ",
    wrong: int = 0,
    size: int = 3,
    spoil: Callable[[Swarm], None] = far,
    pace: type[DraftPace] = Ahead,
    **asked: Any,
) -> tuple[bytes, CallReport, Swarm]:
    return write(
        model, prompt, Writing(**asked), lambda: PacedDrafting(Scripted(script, wrong), pace(size)), spoil=spoil
    )


@pytest.mark.parametrize("prompt", PROMPTS[1:], ids=["empty", "to the window's end", "long", "unicode"])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_the_text_is_that_of_plain_decoding_where_guesses_are_right_and_where_they_are_not(
    model: Model, plain: Callable[..., bytes], prompt: bytes, size: int
) -> None:
    for number, wrong in enumerate((0, 2, 5, 11)):
        asked = {"max_bytes": BYTES, "seed": number, "temperature": (0.0, 1.0, 0.7, 1.0)[number]}
        expected = plain(prompt, **asked)
        text, report, _ = ahead(model, expected, prompt=prompt, wrong=wrong, size=size, **asked)
        assert text == expected
        assert report.bytes == BYTES and report.accepted <= report.drafted


def test_good_guesses_take_as_many_round_trips_as_follow_one_another(model: Model, plain: Callable[..., bytes]) -> None:
    asked = {"max_bytes": BYTES, "seed": 1, "temperature": 1.0}
    script = plain(b"The ", **asked)
    text, report, swarm = ahead(model, script, size=5, **asked)
    assert text == script and report.unsettled == 0
    # Four under way bring 5 bytes each and one more, so 48 bytes take three times the way there and back.
    assert report.round_trips == 3
    one_by_one = ahead(model, script, size=5, pace=Fixed, **asked)[1]
    assert one_by_one.round_trips == 8 and report.seconds < 0.5 * one_by_one.seconds
    questions = sum(count for key, count in swarm.asked.items() if "logprobs" in key)
    assert questions == 10 * SMALL.blocks  # 6 rows, then 5 each: 48 bytes, and no row was asked for twice


def test_what_is_under_way_is_bounded(model: Model, plain: Callable[..., bytes]) -> None:
    asked = {"max_bytes": BYTES, "seed": 1, "temperature": 1.0}
    script, most = plain(b"The ", **asked), 0

    def spoil(swarm: Swarm) -> None:
        def seconds(size: int) -> float:
            nonlocal most
            most = max(most, *(holder.in_flight for holder in swarm.core.router._holders.values()))
            return FAR

        for holder in swarm.holders.values():
            holder.seconds = seconds

    ahead(model, script, size=1, spoil=spoil, **asked)
    assert most == MOST_FLIGHTS


def test_nothing_is_asked_ahead_where_other_texts_of_this_client_take_the_calls(
    model: Model, plain: Callable[..., bytes]
) -> None:
    asked = {"max_bytes": BYTES, "seed": 1, "temperature": 1.0}
    script = plain(b"The ", **asked)

    def spoil(swarm: Swarm) -> None:
        far(swarm)
        for peer in swarm.ids.values():
            swarm.core.link._limits[peer] = trio.Semaphore(KEPT_STREAMS)

    text, report, _ = ahead(model, script, size=5, spoil=spoil, **asked)
    assert text == script and report.round_trips == 8  # as one by one


def test_a_session_stays_with_its_holders_though_others_are_idle(model: Model, plain: Callable[..., bytes]) -> None:
    asked = {"max_bytes": BYTES, "seed": 1, "temperature": 1.0}
    _, _, swarm = ahead(model, plain(b"The ", **asked), size=4, **asked)
    assert sum(bool(holder.sent) for holder in swarm.holders.values()) == SMALL.blocks


@pytest.mark.parametrize("answers", range(0, 10, 2))
@pytest.mark.parametrize("wrong", [0, 7])
def test_holders_that_die_under_several_questions_change_nothing(
    model: Model, plain: Callable[..., bytes], answers: int, wrong: int
) -> None:
    asked = {"max_bytes": BYTES, "seed": 2, "temperature": 1.0}
    expected = plain(b"The ", **asked)

    def spoil(swarm: Swarm) -> None:
        far(swarm)
        for name in ("0a", "1b"):
            swarm.holders[name].left = answers

    text, report, _ = ahead(model, expected, wrong=wrong, spoil=spoil, **asked)
    assert text == expected and report.missing == [] and report.repinned == 0


def test_holders_that_are_swapped_or_forget_everything_change_nothing(
    model: Model, plain: Callable[..., bytes]
) -> None:
    asked = {"max_bytes": BYTES, "seed": 3, "temperature": 1.0}
    expected = plain(b"The ", **asked)

    def spoil(swarm: Swarm) -> None:
        def seconds(size: int) -> float:
            for holder in swarm.holders.values():
                holder.forget()
            for peer in swarm.ids.values():  # whoever answers is in no favour for a while
                swarm.core.router.failed(peer, now=trio.current_time(), kind="busy")
            return FAR

        for name in HOLDERS:
            swarm.holders[name].seconds = seconds

    for wrong in (0, 5):
        assert ahead(model, expected, wrong=wrong, spoil=spoil, **asked)[0] == expected


def test_what_was_asked_of_other_states_is_asked_again(model: Model, plain: Callable[..., bytes]) -> None:
    """A block's state is lost everywhere and exchanged: from there on only the new states answer."""
    asked = {"max_bytes": BYTES, "seed": 4, "temperature": 1.0}
    expected, answers = plain(b"The ", **asked), 0

    def spoil(swarm: Swarm) -> None:
        def seconds(size: int) -> float:
            nonlocal answers
            answers += 1
            if answers == 8:
                for session in swarm.core.sessions:
                    session.pin = replace(session.pin)  # the same states, for the test's sake
            return FAR

        for holder in swarm.holders.values():
            holder.seconds = seconds

    text, report, _ = ahead(model, expected, size=4, spoil=spoil, **asked)
    untouched = ahead(model, expected, size=4, **asked)
    assert text == expected == untouched[0]
    assert report.drafted == untouched[1].drafted and report.round_trips > untouched[1].round_trips


def test_a_text_that_ends_at_a_stop_string_leaves_nothing_behind(model: Model, plain: Callable[..., bytes]) -> None:
    asked = {"max_bytes": BYTES, "seed": 1, "temperature": 1.0}
    script = plain(b"The ", **asked)
    stop = script[20:22]
    stopped = script[: script.index(stop, 4)]
    text, report, _ = ahead(model, script, size=4, stop=stop, **asked)
    assert text == stopped and report.finish_reason == "stop"


def test_a_text_that_is_given_up_leaves_no_question_under_way(model: Model, plain: Callable[..., bytes]) -> None:
    """Neither those that it waits for nor those behind a wrong guess, of which nothing is expected any more."""
    script = plain(b"The ", max_bytes=BYTES, seed=1, temperature=1.0)
    asked = Writing(max_bytes=BYTES, seed=1, temperature=1.0, timeout=5.0)

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            swarm, report = Swarm(nursery, model, *HOLDERS), CallReport("generate", "parallel")
            session = await open_session(swarm.core, None, None, report)
            answers = iter([FAR] * SMALL.blocks)
            for holder in swarm.holders.values():
                holder.seconds = lambda size: next(answers, 3600.0)
            generation = Generation(session, b"The ", asked, PacedDrafting(Scripted(script, wrong=2), Ahead(3)))
            with pytest.raises(DeadlineError):
                await generation.whole()
            assert report.bytes > 0  # a guess was wrong, and what was behind it is forgotten
            await wait_all_tasks_blocked()
            assert not any(known.in_flight for known in swarm.core.router._holders.values())
            nursery.cancel_scope.cancel()

    trio.run(story, clock=MockClock(autojump_threshold=0))


def test_rows_kept_of_a_text_are_those_it_was_drawn_from(model: Model, plain: Callable[..., bytes]) -> None:
    asked = Writing(max_bytes=20, seed=5, temperature=1.0)
    script = plain(b"The ", max_bytes=20, seed=5, temperature=1.0)
    text, report, _ = write(
        model, b"The ", replace(asked, rows=True), lambda: PacedDrafting(Scripted(script, 6), Ahead(3)), spoil=far
    )
    assert text == script and report.bytes == 20


def good(acceptance: float, *, round_trip: float) -> DraftPace:
    """A pace that knows how it goes."""
    pace = DraftPace(3)
    for _ in range(60):
        pace.made(10, 0.01)
        pace.note(drafted=10, accepted=10, seconds=round_trip)
    pace._accepted, pace._refused = acceptance, 1.0 - acceptance
    return pace


def test_more_is_asked_ahead_the_better_the_guesses_and_the_longer_the_line() -> None:
    def under_way(pace: DraftPace) -> int:
        unanswered, pieces = pace.piece(1000, 0), 1
        while piece := pace.piece(1000, unanswered):
            unanswered, pieces = unanswered + piece, pieces + 1
            assert piece <= PIECE
        assert pieces == 1 or unanswered <= LONGEST_UNANSWERED
        return unanswered

    assert under_way(good(0.5, round_trip=0.1)) <= PIECE
    depths = [under_way(good(share, round_trip=0.1)) for share in (0.5, 0.8, 0.9, 0.97)]
    assert depths == sorted(depths) and depths[-1] > 2 * PIECE
    assert under_way(good(0.97, round_trip=0.005)) < under_way(good(0.97, round_trip=0.25))


def test_what_was_answered_makes_room_and_the_end_of_the_text_takes_it() -> None:
    pace = good(0.99, round_trip=0.2)
    full = LONGEST_UNANSWERED
    assert pace.piece(1000, full) == 0
    assert pace.piece(1000, full - PIECE - 1) == PIECE
    assert pace.piece(3, PIECE) == 0 or pace.piece(3, PIECE) <= 3
    assert pace.piece(0, 0) == 0 and pace.piece(1, 0) == 1
