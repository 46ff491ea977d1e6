"""Whoever guesses ahead, and however far: the text is the one that decoding byte by byte gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from blockswarm.model.mixing import sweep_noise
from blockswarm.model.ngram_file import build_ngram_file
from blockswarm.model.sampling import sample_byte
from blockswarm.swarm import operations
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.continuation import Continuation
from blockswarm.swarm.drafting.blend import BlendDrafter
from blockswarm.swarm.drafting.drafter import Drafter
from blockswarm.swarm.drafting.drafting import PacedDrafting
from blockswarm.swarm.errors import ArgumentError
from blockswarm.swarm.narrow_z import narrowed, widened
from blockswarm.swarm.one_sweep import OneSweep
from blockswarm.swarm.options import Writing
from blockswarm.swarm.report import CallReport
from tests.swarm.exact import BYTES, HOLDERS, PROMPTS, SMALL, Fixed, Scripted, plain_text, small_model, write
from tests.swarm.holding import Model, Swarm

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 4},
    {"temperature": 0.7, "top_p": 0.6},
]


@pytest.fixture(scope="module")
def model() -> Model:
    """Two blocks that are not trained but have opinions."""
    return small_model()


@pytest.fixture(scope="module")
def plain(model: Model) -> Callable[..., bytes]:
    """What decoding byte by byte gives, every window by itself; prompt and output."""
    return plain_text(model)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, itertools.chain(*options.items()))))
@pytest.mark.parametrize("length", [1, 2, 7, 32])  # two odd, two even: each takes every other prompt
def test_the_text_is_that_of_decoding_byte_by_byte(
    model: Model, plain: Callable[..., bytes], options: dict[str, Any], length: int
) -> None:
    for seed, prompt in enumerate(PROMPTS):
        if (seed + length) % 2:
            continue  # each pair of a prompt and these options has drafts of two lengths
        asked = {"max_bytes": BYTES, "seed": seed, **options}
        expected = plain(prompt, **asked)
        found, report, _ = write(model, prompt, Writing(**asked))
        assert found == expected
        assert report.round_trips == BYTES + report.unsettled
        drafters: list[Callable[[], Drafter]] = [
            BlendDrafter,
            partial(Scripted, expected),
            partial(Scripted, expected, wrong=5),
            partial(Scripted, bytes(len(expected))),
        ]
        for drafter in drafters:
            found, report, _ = write(
                model, prompt, Writing(**asked), lambda d=drafter: PacedDrafting(d(), Fixed(length))
            )
            assert found == expected
            assert report.bytes == BYTES
            assert report.accepted <= report.drafted


def test_a_perfect_draft_takes_one_round_trip_for_all_its_bytes_and_one_more(
    model: Model, plain: Callable[..., bytes]
) -> None:
    asked = {"max_bytes": BYTES, "seed": 1, "temperature": 1.0}
    script = plain(b"The ", **asked)
    _, report, swarm = write(model, b"The ", Writing(**asked), lambda: PacedDrafting(Scripted(script), Fixed(9)))
    assert report.unsettled == 0
    assert report.round_trips == 5  # the windows that jump on the way cost none: two of them fit one request
    assert report.bytes_per_round_trip == pytest.approx(BYTES / report.round_trips)
    assert report.accepted == BYTES - report.round_trips
    assert sum(swarm.asked[f"{peer_id} session.logprobs"] for peer_id in swarm.ids.values()) == 2 * report.round_trips


def test_a_wrong_draft_costs_no_round_trip(model: Model, plain: Callable[..., bytes]) -> None:
    asked = {"max_bytes": BYTES, "seed": 1, "temperature": 1.0}
    never = bytes(4 + BYTES)
    _, report, _ = write(model, b"The ", Writing(**asked), lambda: PacedDrafting(Scripted(never), Fixed(9)))
    assert report.accepted == 0
    assert report.round_trips == BYTES + report.unsettled


@pytest.mark.parametrize("length", [3, 32])
def test_the_sweep_is_verified_the_same_way(model: Model, plain: Callable[..., bytes], length: int) -> None:
    asked = {"max_bytes": BYTES, "seed": 4, "temperature": 1.0, "readout": "sweep"}
    expected = plain(b"The ", **asked)
    for wrong in (0, 4):
        script = Scripted(expected, wrong)
        found, report, _ = write(model, b"The ", Writing(**asked), lambda s=script: PacedDrafting(s, Fixed(length)))
        assert found == expected
        assert report.round_trips < 1 + BYTES // 2


def test_a_sweep_goes_step_by_step_where_a_holder_knows_no_other_way(model: Model, plain: Callable[..., bytes]) -> None:
    asked = {"max_bytes": BYTES, "seed": 4, "temperature": 1.0, "readout": "sweep"}

    def spoil(swarm: Swarm) -> None:
        for holder in swarm.holders.values():
            holder.chains = False

    found, report, swarm = write(model, b"The ", Writing(**asked), spoil=spoil)
    assert found == plain(b"The ", **asked)
    tried = sum(swarm.asked[f"{peer_id} chain"] for peer_id in swarm.ids.values())
    assert 1 <= tried <= SMALL.blocks  # then not again for a while
    assert report.round_trips == 1 + (BYTES + report.unsettled) * SMALL.blocks


@pytest.mark.parametrize("answers", range(0, 6))
def test_a_traversal_that_breaks_is_made_up_for_step_by_step(
    model: Model, plain: Callable[..., bytes], answers: int
) -> None:
    asked = {"max_bytes": BYTES, "seed": 4, "temperature": 1.0, "readout": "sweep"}

    def spoil(swarm: Swarm) -> None:
        for name in ("0a", "1b"):
            swarm.holders[name].left = answers

    found, report, _ = write(model, b"The ", Writing(**asked), spoil=spoil)
    assert found == plain(b"The ", **asked)
    assert report.repinned == 0 and report.missing == []


def test_one_sweep_draws_all_bytes_at_once_as_the_sweep_of_an_unknown_text_says(model: Model) -> None:
    prompt, count, seed = b"The quick brown fox jumps", 20, 9
    asked = Writing(max_bytes=count, seed=seed, temperature=1.0, readout="one-sweep")
    found, report, _ = write(model, prompt, asked, make=OneSweep)
    assert report.round_trips == 1 and report.bytes == count

    known = prompt[-(SMALL.context + 1 - count) :]
    z = sweep_noise(seed, len(prompt) - len(known), len(known) + count - 1, SMALL.dim)[None]
    window = np.frombuffer(known + bytes(count - 1), np.uint8)[None]
    for reader in model.readers:
        rows, z = reader.sweep_step(window, z)
        if z is not None:  # it travels at 8 bits a value
            z = np.frombuffer(widened(narrowed(z[0]), *z.shape[1:]), "<f4").reshape(z.shape)
    drawn = [
        sample_byte(row, temperature=1.0, seed=seed, position=len(prompt) + number)
        for number, row in enumerate(rows[0, len(known) - 1 :])
    ]
    assert found == prompt + bytes(drawn)

    def spoil(swarm: Swarm) -> None:
        for holder in swarm.holders.values():
            holder.chains = False

    again, report, _ = write(model, prompt, asked, make=OneSweep, spoil=spoil)
    assert again == found and report.round_trips == 1 + SMALL.blocks
    assert write(model, prompt, replace(asked, rows=True), make=OneSweep)[0] == found


def test_one_sweep_takes_no_more_than_one_window(model: Model) -> None:
    asked = Writing(max_bytes=SMALL.context + 1, readout="one-sweep")
    with pytest.raises(ExceptionGroup) as caught:  # trio's
        write(model, b"The ", asked, make=OneSweep)
    (error,) = caught.value.exceptions
    assert isinstance(error, ArgumentError) and "at most 32 bytes" in str(error)


@pytest.mark.parametrize("answers", range(0, 12))
def test_holders_that_die_under_a_draft_change_nothing(model: Model, plain: Callable[..., bytes], answers: int) -> None:
    asked = {"max_bytes": BYTES, "seed": 2, "temperature": 0.7}
    expected = plain(b"The ", **asked)

    def spoil(swarm: Swarm) -> None:
        for name in ("0a", "1b"):
            swarm.holders[name].left = answers

    script = Scripted(expected, wrong=6)
    found, report, _ = write(model, b"The ", Writing(**asked), lambda: PacedDrafting(script, Fixed(8)), spoil)
    assert found == expected
    assert report.repinned == 0 and report.missing == []


def test_a_text_ends_before_a_stop_string_in_the_middle_of_a_draft(model: Model, plain: Callable[..., bytes]) -> None:
    whole = plain(b"The ", max_bytes=BYTES, seed=3, temperature=1.0)
    for begin, size in [(10, 1), (17, 3), (38, 6)]:
        mark = whole[4 + begin : 4 + begin + size]
        asked = {"max_bytes": BYTES, "seed": 3, "temperature": 1.0, "stop": mark}
        expected = plain(b"The ", **asked)
        assert expected == whole[: whole.index(mark, 4)]
        for length in (1, 5, 32):
            found, report, _ = write(
                model, b"The ", Writing(**asked), lambda n=length: PacedDrafting(Scripted(whole), Fixed(n))
            )
            assert found == expected
            assert report.bytes == len(expected) - 4 + size


def test_a_drafter_is_told_what_the_swarm_predicts_after_every_byte_it_guessed(
    model: Model, plain: Callable[..., bytes]
) -> None:
    asked = {"max_bytes": 20, "seed": 3, "temperature": 1.0}
    expected = plain(b"The ", **asked)
    script = Scripted(expected, wrong=7)
    write(model, b"The ", Writing(**asked), lambda: PacedDrafting(script, Fixed(4)))
    for text, rows in script.told:
        assert rows <= 5 and len(text) >= 4
    assert script.told[0] == (script.told[0][0][:4] + script.propose(b"The ", 4, lambda *_: 0), 5)


def test_a_block_is_fetched_beside_the_text_and_drafts_as_soon_as_it_is_there(
    model: Model, plain: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_here(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)  # virtual time would run on while a thread works

    monkeypatch.setattr(trio.to_thread, "run_sync", run_here)
    asked = {"max_bytes": BYTES, "seed": 6, "temperature": 1.0}
    texts, reports = [], []

    async def main() -> list[str]:
        async with trio.open_nursery() as nursery:
            swarm = Swarm(nursery, model, *HOLDERS)
            for _ in range(2):
                text, report = await operations.generate(swarm.core, b"The ", Writing(**asked, draft="block"))
                texts.append(text)
                reports.append(report)
            events = [event.text for event in swarm.core.events if event.kind == "drafting"]
            nursery.cancel_scope.cancel()
        return events

    told = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert texts == [plain(b"The ", **asked)[4:].decode(errors="replace")] * 2
    # Which block: the one with more holders at that instant, and in the end both have two.
    assert told in (["block 0 is here to draft with (0.1 MiB)"], ["block 1 is here to draft with (0.1 MiB)"])
    assert reports[1].round_trips < reports[0].round_trips <= BYTES


def test_without_a_block_to_fetch_the_text_comes_all_the_same(model: Model, plain: Callable[..., bytes]) -> None:
    asked = {"max_bytes": 12, "seed": 6, "temperature": 1.0}

    async def main() -> tuple[str, list[str]]:
        async with trio.open_nursery() as nursery:
            swarm = Swarm(nursery, model, *HOLDERS)
            for holder in swarm.holders.values():
                holder.gives_states = False
            text, _ = await operations.generate(swarm.core, b"The ", Writing(**asked, draft="block"))
            await trio.sleep(20)
            events = [event.text for event in swarm.core.events if event.kind == "drafting"]
            nursery.cancel_scope.cancel()
        return text, events

    text, told = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert text == plain(b"The ", **asked)[4:].decode(errors="replace")
    assert [line.split(":")[0] for line in told] == ["no block to draft with"]


class Near:
    """A model whose rows differ by rounding when a window has another length, and whose bytes are close calls."""

    def rows(self, windows: int) -> Float32:
        row = np.full((windows, 256), -20.0, np.float32)
        row[:, [65, 66]] = np.log(0.5)
        row[:, 66 if windows > 1 else 65] += 3e-6
        return row


def test_a_byte_that_rounding_could_turn_is_asked_for_alone() -> None:
    text = Continuation(b"x", Writing(max_bytes=4, temperature=0.0), 32)
    verified = text.add_verified(Near().rows(3), b"BB")
    assert not verified.settled and (verified.drawn, verified.right) == (0, 0)
    text.add(Near().rows(1)[0])
    assert text.text == b"xA"  # what decoding byte by byte takes; the rows of the draft said B


def test_a_file_of_counts_drafts_too(model: Model, plain: Callable[..., bytes], tmp_path: Path) -> None:
    asked = {"max_bytes": BYTES, "seed": 5, "temperature": 1.0}
    expected = plain(b"The ", **asked)
    path = tmp_path / "counts.ngram"
    path.write_bytes(build_ngram_file(np.frombuffer(expected * 5, np.uint8), order=4))

    broken = tmp_path / "broken"
    broken.write_bytes(bytes(5))
    with pytest.raises(ArgumentError, match=r"draft .*missing.: must be none, ngram, counts, block, or an n-gram file"):
        Writing(draft=str(tmp_path / "missing"))

    async def main() -> tuple[str, CallReport]:
        async with trio.open_nursery() as nursery:
            swarm = Swarm(nursery, model, *HOLDERS)
            with pytest.raises(ArgumentError, match=r"draft .*broken: this is not an n-gram file"):
                await operations.generate(swarm.core, b"The ", Writing(draft=str(broken)))
            answer = await operations.generate(swarm.core, b"The ", Writing(**asked, draft=str(path)))
            nursery.cancel_scope.cancel()
        return answer

    text, report = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert text == expected[4:].decode(errors="replace")
    assert (report.bytes_per_round_trip or 0) > 2
