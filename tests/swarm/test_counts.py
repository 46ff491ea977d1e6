"""The n-gram counts in the target: the same text whether a holder answers, another one, or the client's own file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio
from trio.testing import MockClock

from blockswarm.errors import BlockswarmError
from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import CHUNK_BYTES, COUNTS
from blockswarm.model.mixing import mix_counts, mix_log_probs, normalise_log_probs, without_veto
from blockswarm.model.ngram import NgramModel
from blockswarm.swarm import operations
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.counts.choosing import find_counts
from blockswarm.swarm.counts.fetching import _Part, fetch_counts
from blockswarm.swarm.counts.files import CountsError, build_counts, cache_folder, describe, file_name, open_counts
from blockswarm.swarm.counts_messages import METHOD, CountsRequest
from blockswarm.swarm.drafting.counts import MixedPredictor
from blockswarm.swarm.errors import ArgumentError, GivenManifestError, MessageError, NoHolderError
from blockswarm.swarm.fetching import LostStateError
from blockswarm.swarm.local_model import LocalModel
from blockswarm.swarm.manifest import create_manifest
from blockswarm.swarm.messages import StateHead
from blockswarm.swarm.model_folder import SavedModel, SavedState
from blockswarm.swarm.options import Reading, Writing
from tests.swarm.counting import TEXT, CountsSwarm, counted, section
from tests.swarm.holding import Model

SMALL = ModelConfig(dim=16, blocks=2, layers=1, heads=2, context=32)
HOLDERS = ("0a", "1a")
LONG = b"The quick brown fox; a cat on the mat " * 6
"""Several windows long."""


@pytest.fixture(scope="module")
def counts() -> NgramModel:
    return counted()


@pytest.fixture(scope="module")
def model(counts: NgramModel) -> Model:
    """Two blocks with opinions, and counts in the manifest."""
    torch.set_num_threads(1)
    manifest = create_manifest(name="test", now=0.0, size=SMALL, round_seconds=60.0, seed=7, counts=section(counts))

    def weights(subject: int) -> Float32:
        noise = np.random.default_rng(subject + 1).standard_normal(manifest.parameters(subject))
        return manifest.verify_genesis(subject) + (0.15 * noise).astype(np.float32)

    return Model(manifest, weights)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of counts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder()


def run(
    model: Model,
    counts: NgramModel,
    work: Callable[[CountsSwarm], Any],
    *,
    number: int = 1,
    local: NgramModel | None = None,
) -> Any:
    """What ``work`` gives in a swarm with so many holders of counts, in virtual time."""

    async def main() -> Any:
        async with trio.open_nursery() as nursery:
            swarm = CountsSwarm(nursery, model, counts, *HOLDERS, number=number)
            if local is not None:
                swarm.core.take_counts(local)
            try:
                result = await work(swarm)
            except BlockswarmError as error:
                result = error
            nursery.cancel_scope.cancel()
        return result

    result = trio.run(main, clock=MockClock(autojump_threshold=0))
    if isinstance(result, BlockswarmError):
        raise result
    return result


def writes(prompt: bytes = b"The ", **options: Any) -> Callable[[CountsSwarm], Any]:
    async def work(swarm: CountsSwarm) -> Any:
        return await operations.generate(swarm.core, prompt, Writing(**{"max_bytes": 48, "seed": 3, **options}))

    return work


async def rows(swarm: CountsSwarm) -> Float32:
    table, _ = await operations.logprobs(swarm.core, LONG, Reading())
    return table


# -- what is computed --------------------------------------------------------------------------------------------------


def test_the_target_is_the_geometric_mixture_of_blocks_and_counts(model: Model, counts: NgramModel) -> None:
    table = run(model, counts, rows)
    text = np.frombuffer(LONG, np.uint8)[None]
    first = slice(0, SMALL.context)  # one window, which is computed as it stands
    blocks = mix_log_probs([without_veto(reader.log_probs(text[:, first]))[0] for reader in model.readers])
    wanted = 0.6 * blocks + 0.4 * counts.log_probs(text[:, first])[0]
    wanted -= np.log(np.exp(wanted).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(table[first], wanted, atol=1e-5)


def test_rows_of_a_long_text_see_the_counts_across_windows(model: Model, counts: NgramModel) -> None:
    """Every row sees the last bytes of the text, wherever its window begins."""
    bare = run(Model(_without_counts(model), lambda subject: model.values[subject]), counts, rows)
    table = run(model, counts, rows)
    whole = without_veto(counts.log_probs(np.frombuffer(LONG, np.uint8)[None])[0])
    np.testing.assert_allclose(table, mix_counts(bare, whole, 0.4), atol=1e-5)


def test_a_file_of_ones_own_gives_the_same_rows_and_asks_nobody(model: Model, counts: NgramModel) -> None:
    async def work(swarm: CountsSwarm) -> tuple[Float32, list[str]]:
        return await rows(swarm), [name for name in swarm.asked if name.endswith(METHOD)]

    asked, whom = run(model, counts, work)
    computed, nobody = run(model, counts, work, local=counts)
    assert whom and not nobody
    np.testing.assert_array_equal(asked, computed)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_text_depends_neither_on_who_has_the_counts_nor_on_the_drafter(
    model: Model, counts: NgramModel, temperature: float
) -> None:
    plain, report = run(model, counts, writes(temperature=temperature, draft="none"))
    assert report.round_trips == 48
    for local in (None, counts):
        for draft in ("none", "ngram", "counts", "block"):
            text, _ = run(model, counts, writes(temperature=temperature, draft=draft), local=local)
            assert text == plain, (draft, local)


def test_who_has_the_file_drafts_from_it(model: Model, counts: NgramModel) -> None:
    """By default, and it takes fewer round trips for the same texts."""

    def trips(local: NgramModel | None) -> int:
        async def work(swarm: CountsSwarm) -> int:
            for holder in swarm.holders.values():
                holder.seconds = lambda size: 0.08  # guesses are worth their rows
            reports = [(await writes(seed=seed)(swarm))[1] for seed in range(10, 16)]
            return sum(report.round_trips for report in reports)

        return int(run(model, counts, work, local=local))

    assert trips(counts) < trips(None) < 6 * 48


def test_a_drafter_mixes_a_block_and_the_counts_as_the_swarm_does(counts: NgramModel) -> None:
    block = normalise_log_probs(np.random.default_rng(1).standard_normal(256).astype(np.float32))
    row = MixedPredictor(lambda text: block, counts, 0.3)(b"the quick")
    np.testing.assert_allclose(row, mix_counts(block, counts.next_log_probs(b"the quick"), 0.3), atol=1e-6)


def test_the_sweep_is_of_the_blocks_alone(model: Model, counts: NgramModel) -> None:
    async def work(swarm: CountsSwarm) -> Float32:
        return (await operations.logprobs(swarm.core, LONG, Reading(readout="sweep")))[0]

    bare = Model(_without_counts(model), lambda subject: model.values[subject])
    np.testing.assert_allclose(run(model, counts, work), run(bare, counts, work), atol=1e-6)


def test_a_model_on_this_machine_gives_what_the_swarm_gives(model: Model, counts: NgramModel) -> None:
    states = {subject: SavedState(subject, values, 0, 0) for subject, values in model.values.items()}
    local = LocalModel(SavedModel(model.manifest, states, counts), device="cpu")
    np.testing.assert_allclose(local.logprobs(LONG), run(model, counts, rows), atol=1e-5)
    for temperature in (0.0, 1.0):
        text, _ = run(model, counts, writes(temperature=temperature))
        assert local.generate(b"The ", max_bytes=48, seed=3, temperature=temperature) == text
    with pytest.raises(ArgumentError, match="n-gram counts"):
        LocalModel(SavedModel(model.manifest, states), device="cpu")


# -- who answers -------------------------------------------------------------------------------------------------------


def test_another_holder_takes_over_and_the_text_is_the_same(model: Model, counts: NgramModel) -> None:
    plain, _ = run(model, counts, writes(draft="none"))

    async def work(swarm: CountsSwarm) -> Any:
        for holder in swarm.counts_holders:
            holder.left = 20  # neither lasts for the whole text
        return await operations.generate(swarm.core, b"The ", Writing(max_bytes=48, seed=3, draft="none"))

    text, report = run(model, counts, work, number=3)
    assert text == plain
    assert report.replaced == 2


def test_without_holder_and_file_there_is_no_text_and_the_counts_are_named(model: Model, counts: NgramModel) -> None:
    with pytest.raises(NoHolderError, match=r"no live holder of the counts.*--block counts.*counts=") as caught:
        run(model, counts, writes(), number=0)
    assert caught.value.block == COUNTS
    text, report = run(model, counts, writes(), number=0, local=counts)
    assert (report.bytes, report.missing) == (48, [])
    assert text == run(model, counts, writes())[0]


def test_counts_that_are_lost_in_the_middle_end_the_text(model: Model, counts: NgramModel) -> None:
    async def work(swarm: CountsSwarm) -> Any:
        swarm.counts_holders[0].left = 5
        return await writes(draft="none")(swarm)

    with pytest.raises(NoHolderError, match="the counts"):
        run(model, counts, work)


def test_best_effort_goes_on_without_them_and_says_so(model: Model, counts: NgramModel) -> None:
    async def work(swarm: CountsSwarm) -> Any:
        _, report = await writes(best_effort=True)(swarm)
        return report, [event.text for event in swarm.core.events if event.kind == "missing"]

    report, told = run(model, counts, work, number=0)
    assert report.missing == [COUNTS]
    assert told == ["going on without the counts: nobody serves it"]


# -- the file ----------------------------------------------------------------------------------------------------------


def test_fetched_counts_are_kept_and_drafted_from(model: Model, counts: NgramModel, cache: Path) -> None:
    async def work(swarm: CountsSwarm) -> Any:
        await writes(draft="counts")(swarm)
        with trio.fail_after(60):
            while swarm.core.counts is None:  # noqa: ASYNC110 - virtual time, and no event is told of it
                await trio.sleep(0.1)
        return swarm.core.counts, [event.text for event in swarm.core.events]

    found, told = run(model, counts, work)
    assert found.digest == counts.digest
    assert any(text.startswith("the counts are here") for text in told)
    assert [path.name for path in cache.iterdir()] == [f"{counts.digest.hex()}.ngram"]
    again = find_counts(model.manifest, None)
    assert again is not None and again.digest == counts.digest


def test_a_fetch_goes_on_where_an_earlier_one_stopped(model: Model, tmp_path: Path) -> None:
    large = counted(np.random.default_rng(0).integers(0, 256, 1_000_000, np.uint8).tobytes(), order=6)
    assert large.size > 3 << 20
    manifest = create_manifest(name="large", now=0.0, size=SMALL, counts=section(large))
    other = Model(manifest)

    async def broken_off(swarm: CountsSwarm) -> None:
        swarm.counts_holders[0].left = 3  # the head and two pieces
        with pytest.raises(LostStateError):
            await fetch_counts(swarm.core, lambda size: None, tmp_path)

    async def whole(swarm: CountsSwarm) -> int:
        await fetch_counts(swarm.core, lambda size: None, tmp_path)
        return sum(count for name, count in swarm.asked.items() if name.endswith("state.chunk"))

    run(other, large, broken_off)
    asked = run(other, large, whole)
    assert asked == -(-large.size // CHUNK_BYTES) - 2
    assert (tmp_path / file_name(manifest.counts)).read_bytes() == bytes(large.data)


def test_wrong_pieces_cost_their_sender_and_never_the_file(model: Model, counts: NgramModel, cache: Path) -> None:
    async def work(swarm: CountsSwarm) -> NgramModel:
        swarm.counts_holders[0].wrong = True
        return await fetch_counts(swarm.core, lambda size: None)

    assert run(model, counts, work, number=2).digest == counts.digest
    for path in cache.iterdir():
        path.unlink()
    with pytest.raises(LostStateError, match="wrong chunk"):
        run(model, counts, lambda swarm: work(swarm), number=1)


def test_only_the_file_of_the_manifest_is_taken(model: Model, counts: NgramModel, tmp_path: Path) -> None:
    wanted = section(counts)
    right = tmp_path / "right.ngram"
    right.write_bytes(counts.data)
    assert open_counts(right, wanted).digest == counts.digest
    assert find_counts(model.manifest, right) is not None
    wrong = tmp_path / "wrong.ngram"
    for data, why in (
        (b"short", "bytes"),
        (bytes(counts.data)[:-8] + b"\1" * 8, "wrong.ngram"),
        (bytes(counted(TEXT + b"!").data), "digest"),
    ):
        wrong.write_bytes(data)
        with pytest.raises(CountsError, match=why):
            open_counts(wrong, wanted)
        with pytest.raises(ArgumentError, match=f"counts .*{why}"):
            find_counts(model.manifest, wrong)
    with pytest.raises(CountsError, match="cannot be read"):
        open_counts(tmp_path / "none", wanted)
    with pytest.raises(ArgumentError, match="has no n-gram counts"):
        find_counts(_without_counts(model), right)


def test_a_damaged_file_in_the_cache_counts_as_none(model: Model, cache: Path) -> None:
    cache.mkdir(parents=True)
    assert model.manifest.counts is not None
    (cache / file_name(model.manifest.counts)).write_bytes(b"damaged")
    assert find_counts(model.manifest, None) is None


def test_a_manifest_is_told_of_a_file_as_it_is(counts: NgramModel, tmp_path: Path) -> None:
    path = tmp_path / "counts.ngram"
    path.write_bytes(counts.data)
    assert describe(path, 0.4) == section(counts)
    with pytest.raises(GivenManifestError, match="counts_weight 1: must lie between"):
        describe(path, 1.0)
    path.write_bytes(b"something else")
    with pytest.raises(GivenManifestError, match="not an n-gram file"):
        describe(path, 0.4)


@pytest.mark.parametrize("least", [1, 2, 5])
def test_a_text_is_counted_into_the_file_that_a_manifest_names(least: int) -> None:
    """Though it does not say how far the file was pruned."""
    from blockswarm.model.ngram_file import build_ngram_file

    text = np.frombuffer(TEXT[:700] + LONG, np.uint8)
    model = NgramModel(build_ngram_file(text, order=4, min_count=least))
    assert build_counts(text, section(model)) == bytes(model.data)
    assert build_counts(text[:-1], section(model)) is None


def test_a_text_that_gives_other_counts_of_that_length_is_given_up() -> None:
    """Where only the empty context is left a file has the same length whatever was left out: all that can differ."""
    from blockswarm.model.ngram_file import build_ngram_file

    text = np.frombuffer(LONG, np.uint8)
    model = NgramModel(build_ngram_file(text, order=2, min_count=len(text)))
    assert build_counts(text, section(model)) == bytes(model.data)
    assert build_counts(text, section(model).model_copy(update={"digest": "0" * 64})) is None


# -- the request -------------------------------------------------------------------------------------------------------


def test_a_request_carries_the_bytes_that_its_rows_look_at_and_no_more() -> None:
    request = CountsRequest.of(bytes(32), (b"abcdefghij", b"xyz"), (7, 0), order=3)
    assert (request.windows, request.take) == ((b"fghij", b"xyz"), (2, 0))
    assert request.rows == 3 + 3
    assert CountsRequest.parse(request.to_body()) == request


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"digest": b"short"}, "digest"),
        ({"windows": []}, "windows"),
        ({"windows": [b"a" * 4096, b"b"], "take": [0, 0]}, "windows"),
        ({"take": [0, 0]}, "take"),
        ({"take": [3]}, r"take\[0\]"),
        ({"more": 1}, "body"),
    ],
)
def test_foreign_requests_are_refused_by_field(change: dict[str, Any], field: str) -> None:
    body = {"digest": bytes(32), "windows": [b"abc"], "take": [0]} | change
    with pytest.raises(MessageError, match=field):
        CountsRequest.parse(body)


def _without_counts(model: Model) -> Any:
    from dataclasses import replace

    return replace(model.manifest, counts=None)


def test_a_part_that_cannot_be_read_is_closed_and_told(
    counts: NgramModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(handle: int, size: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    head = StateHead(0, counts.digest, 0, counts.size // 4, counts.chunk_digests, b"")
    monkeypatch.setattr("os.pread", broken)
    before = opened()
    with pytest.raises(CountsError, match=r"\.part: cannot be read: Input/output error"):
        _Part.open(tmp_path / "a.ngram", head)
    assert opened() == before
