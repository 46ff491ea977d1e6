"""What a client gets from volunteers who train at the same time: figures, text, and the same text when holders die."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from blockswarm.peer.local import LocalSwarm
from blockswarm.swarm import LocalModel
from blockswarm.swarm.gateway.answers import fingerprint_of
from blockswarm.swarm.model_folder import read_model_folder
from tests.integration.clients import Answer, connected
from tests.integration.commands import run_command
from tests.integration.gateways import gateway_of
from tests.integration.serving import Served, newest_round, one, sessions_kept, start_served
from tests.integration.small import PATIENCE, peer_id, peer_ids, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

READOUTS = ("parallel", "sweep")
UNTRAINED = math.log(256)
"""Nats per byte of a model that knows nothing."""


@pytest.fixture(scope="module")
def served(start_swarm: Callable[..., LocalSwarm]) -> Served:
    return start_served(start_swarm(blocks=2))


def test_status_shows_who_holds_what(served: Served) -> None:
    status = json.loads(served.ask("status", "--json").stdout)
    assert status["run_id"] == served.swarm.manifest.run_id
    assert [entry["block"] for entry in status["blocks"]] == [0, 1]
    for entry in status["blocks"]:
        assert sorted(holder["peer_id"] for holder in entry["holders"]) == peer_ids(served.holders[entry["block"]])
        for holder in entry["holders"]:
            assert holder["state"] == "TRAINING"
            assert 0 < holder["rounds"][0] <= status["round"]
            assert holder["samples_per_second"] > 0
            assert holder["age"] < 60
    shown = served.ask("status").stdout
    for node in served.swarm.volunteers():
        assert peer_id(node) in shown


def test_evaluate_sees_the_training_with_both_readouts(served: Served) -> None:
    before, after = (
        json.loads(served.ask("evaluate", "--max-bytes", "1024", "--states", states, "--json").stdout)
        for states in ("genesis", "latest")
    )
    for figures in (before, after):
        assert figures["run_id"] == served.swarm.manifest.run_id
        assert figures["missing"] == {"parallel": [], "sweep": []}
        assert figures["bytes"] == 1024
    assert set(before["ce"]) == {"parallel", "sweep"}
    for readout in ("parallel", "sweep"):
        assert before["ce"][readout] == pytest.approx(UNTRAINED, abs=0.3)
    # A few steps show in what the blocks know each for themselves; the sweep takes longer to gain from them.
    assert 1.0 < after["ce"]["parallel"] < before["ce"]["parallel"]
    assert 1.0 < after["ce"]["sweep"] < UNTRAINED + 0.5
    assert after["ce"]["sweep"] != before["ce"]["sweep"]


def test_evaluate_measures_a_file_of_ones_own(served: Served) -> None:
    text = served.swarm.folder / "own.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 20)
    options = ("--data", str(text), "--part", "all", "--readout", "parallel", "--json")
    figures = json.loads(served.ask("evaluate", *options).stdout)
    assert figures["bytes"] == len(text.read_bytes()) - 1
    assert 1.0 < figures["ce"]["parallel"] < UNTRAINED + 1.0


def test_an_export_is_the_model_that_the_swarm_serves(served: Served, tmp_path: Path) -> None:
    folder, text = tmp_path / "model", "The quick brown fox jumps over the lazy dog. " * 10
    with connected(served.swarm) as client:

        def measured() -> tuple[dict[str, float], dict[str, float]] | None:
            """The figures of one export, from its folder and through the swarm; None if its states were let go."""
            told = client.do("export", folder=str(folder), force=True)
            assert told.error is None, told.text
            model = LocalModel.open(folder, device="cpu")
            here = {one: model.score(text, readout=one).nats_per_byte for one in READOUTS}
            there = {one: client.do("score", text=text, readout=one, pin=model.pin.as_json()) for one in READOUTS}
            return None if any(one.error for one in there.values()) else (here, {k: v.result for k, v in there.items()})

        here, there = wait_until(measured, "export", nodes=served.swarm.volunteers())
    assert here == pytest.approx(there, abs=1e-6)
    saved = read_model_folder(folder)
    assert saved.manifest == served.swarm.manifest
    assert all(state.round > 0 and state.samples > 0 and state.certificate for state in saved.states.values())


def test_the_export_command_measures_what_it_wrote_and_needs_no_swarm_afterwards(
    served: Served, tmp_path: Path
) -> None:
    told = json.loads(
        served.ask("export", str(tmp_path / "model"), "--evaluate", "--max-bytes", "512", "--json").stdout
    )
    assert [entry["file"] for entry in told["states"]] == [
        "embedding.safetensors",
        "block-0.safetensors",
        "block-1.safetensors",
    ]
    card = (tmp_path / "model" / "MODEL_CARD.md").read_text()
    assert f"{told['evaluation']['ce']['parallel']:.4f}" in card
    arguments = ("evaluate", "--checkpoint", "model", "--max-bytes", "512", "--json")
    alone = run_command(tmp_path, *arguments)
    assert json.loads(alone.out)["ce"] == pytest.approx(told["evaluation"]["ce"], abs=1e-6)
    again = run_command(tmp_path, "generate", "The ", "--checkpoint", "model", "--max-bytes", "16", "--seed", "1")
    assert again.code == 0 and len(again.out.encode()) >= 16


def test_logprobs_are_those_of_a_distribution(served: Served) -> None:
    with connected(served.swarm) as client:
        for readout in ("parallel", "sweep"):
            rows = client.do("logprobs", text="The swarm", readout=readout).result
            assert len(rows) == len("The swarm")
            for row in rows:
                assert len(row) == 256
                assert sum(map(math.exp, row)) == pytest.approx(1.0, abs=1e-4)


def test_programs_made_for_openai_get_the_swarms_text_from_the_gateway(served: Served) -> None:
    with connected(served.swarm) as swarm, gateway_of(served.swarm) as gateway, gateway.client() as client:
        wanted = {"model": client.models.list().data[0].id, "prompt": "The ", "max_tokens": 24, "seed": 3}
        assert wanted["model"] == served.swarm.manifest.run_id

        def both() -> tuple[str, openai.types.Completion] | None:
            """The client's text and the gateway's, once both come from the same states: training goes on."""
            text = swarm.do("generate", prompt="The ", max_bytes=24, seed=3, temperature=1.0)
            answer = client.completions.create(**wanted, logprobs=2)
            same = answer.system_fingerprint == fingerprint_of([text.last["pin"]])
            return (text.result, answer) if same else None

        text, answer = wait_until(both, "text of the same states", nodes=served.swarm.volunteers())
        assert answer.choices[0].text == text and answer.usage.completion_tokens == 24
        assert len(answer.choices[0].logprobs.token_logprobs) == 24

        stop = text[5:7]
        streams = {(): "length", (stop,): "stop"}
        for stops, reason in streams.items():
            *chunks, last = client.completions.create(
                **wanted, stop=list(stops), stream=True, stream_options={"include_usage": True}
            )
            written = "".join(chunk.choices[0].text for chunk in chunks)
            if chunks[-1].system_fingerprint == answer.system_fingerprint:
                assert written == (text if reason == "length" else text[: text.index(stop)])
                assert chunks[-1].choices[0].finish_reason == reason
            assert last.usage.completion_tokens <= 24

        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.completions.create(**wanted, temperature=9)
        with gateway.client("wrong") as stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()


def test_a_gateway_takes_on_what_it_can_and_ends_cleanly(served: Served) -> None:
    with gateway_of(served.swarm, "--concurrency", "1", "--queue", "0") as gateway, gateway.client() as client:
        wanted = {"model": gateway.run_id, "prompt": "The ", "max_tokens": 2048}
        stream = client.completions.create(**wanted, stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(**wanted)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        stream.close()  # hanging up gives the place back

        def admitted() -> openai.Stream[openai.types.Completion] | None:
            try:
                return client.completions.create(**wanted, stream=True)
            except openai.RateLimitError:
                return None

        stream = wait_until(admitted, "free place")
        next(iter(stream))
        began = time.monotonic()
        gateway.process.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError, match="shutting down"):
            for _ in stream:
                pass
        assert gateway.process.wait(PATIENCE) == 0
        assert time.monotonic() - began < 5.0


IN_A_LOOP = """
import asyncio, json, sys
from blockswarm.swarm import AsyncSwarmClient, SwarmClient

async def main(peers):
    ticks = 0
    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)
    ticking = asyncio.create_task(tick())
    async with AsyncSwarmClient.connect(peers, timeout=60) as swarm:
        pieces = [piece async for piece in swarm.stream("The ", max_bytes=24, seed=3)]
        pin = swarm.stats.last.pin
        again, other = await asyncio.gather(
            swarm.generate("The ", max_bytes=24, seed=3, pin=pin), swarm.generate("The ", max_bytes=24, seed=4, pin=pin)
        )
        holders = await swarm.holders()
    meanwhile = ticks
    with SwarmClient.connect(peers, timeout=60) as swarm:
        blocking = swarm.generate("The ", max_bytes=24, seed=3, pin=pin)
    ticking.cancel()
    texts = {"streamed": "".join(pieces), "again": again, "other": other, "blocking": blocking}
    print(json.dumps({"texts": texts, "ticks": meanwhile, "holders": [len(listed) for listed in holders.values()]}))

asyncio.run(main(sys.argv[1]))
"""


def test_both_clients_work_inside_a_running_loop(served: Served) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_LOOP, str(served.swarm.peers_file)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = json.loads(done.stdout)
    texts = said["texts"]
    assert texts["streamed"] == texts["again"] == texts["blocking"] != texts["other"]
    assert said["holders"] == [2, 2]
    assert said["ticks"] > 10  # the loop went on beside the client


def test_guessing_ahead_saves_round_trips_and_changes_no_byte(served: Served) -> None:
    asked = {"prompt": "The ", "max_bytes": 48, "seed": 5, "temperature": 1.0}
    with connected(served.swarm) as client:
        plain = client.do("generate", **asked, draft="none")
        assert plain.error is None, plain.text
        assert plain.last["round_trips"] == 48 + plain.last["unsettled"]

        def guessed(draft: str) -> Answer:
            found = client.do("generate", **asked, draft=draft, pin=plain.last["pin"])
            assert found.error is None, found.text
            assert found.result == plain.result
            return found

        guessed("ngram")
        wait_until(
            lambda: any(event["kind"] == "drafting" for event in guessed("block").events),
            "a block to draft with",
            nodes=served.swarm.volunteers(),
        )
        told = guessed("block")
        assert [event["text"] for event in told.events if "no block" in event["text"]] == []
        assert told.last["round_trips"] < 48
    wait_until(
        lambda: any(map(sessions_kept, served.swarm.volunteers())),
        "session in a report",
        nodes=served.swarm.volunteers(),
    )


def test_text_stays_the_same_when_a_holder_of_each_block_dies(served: Served) -> None:
    asked = {"prompt": "The ", "max_bytes": 200, "seed": 7, "temperature": 1.0, "timeout": 300.0}
    with connected(served.swarm) as client, connected(served.swarm) as other:
        client.do("begin", **asked, draft="none")  # a byte a round trip lasts until the holders are dead
        first = client.do("more", characters=10)
        pin = first.last["pin"]
        text = first.result + client.do("more", characters=10).result
        undisturbed = other.do("generate", **asked, pin=pin)
        assert undisturbed.error is None, undisturbed.text

        def read_on() -> list[int]:
            """Read slowly; how many rounds newer than the text's states the spares' newest ones are."""
            nonlocal text
            text += client.do("more", characters=1).result
            time.sleep(1.0)  # a reader's pace; nothing is waited for here
            begun = {int(block): state["round"] for block, state in pin["blocks"].items()}
            return [newest_round(nodes[1]) - begun[block] for block, nodes in served.holders.items()]

        wait_until(lambda: max(read_on()) >= 1, "new round", nodes=served.spares)
        # For a moment only the holders to be killed can answer, so it is certain that they are in use.
        for node in served.spares:
            node.kill(signal.SIGSTOP)
        text += client.do("more", characters=5).result
        for node in served.victims:
            node.kill(signal.SIGKILL)
        for node in served.spares:
            node.kill(signal.SIGCONT)
        # Holders keep the newest three states of a block, and older ones that somebody uses: those of this text.
        wait_until(lambda: min(read_on()) >= 4, "four new rounds", nodes=served.spares)
        last = client.do("more")
        assert last.error is None, last.text
    assert text + last.result == undisturbed.result
    assert last.last["pin"] == pin
    assert (last.last["bytes"], last.last["repinned"], last.last["missing"]) == (asked["max_bytes"], 0, [])
    replaced = {event["peer_id"] for event in last.events if event["kind"] == "replaced"}
    assert replaced >= set(peer_ids(served.victims))


@pytest.fixture(scope="module")
def without_block_1(served: Served) -> Served:
    """Nobody holds block 1 any more, though the directory still lists those who did."""
    for node in served.holders[1]:
        node.kill(signal.SIGKILL)
    served.victims[0].kill(signal.SIGKILL)
    for node in [*served.holders[1], served.victims[0]]:
        node.wait_ended(timeout=PATIENCE)
    return served


def test_logprobs_do_without_a_block_nobody_holds_and_say_so(without_block_1: Served) -> None:
    with connected(without_block_1.swarm) as client:
        answer = client.do("logprobs", text="The swarm")
    assert answer.error is None, answer.text
    assert len(answer.result) == len("The swarm")
    assert sum(map(math.exp, answer.result[-1])) == pytest.approx(1.0, abs=1e-4)
    assert one(answer.warnings).startswith("answered without block 1: ")
    assert answer.last["missing"] == [1]
    assert any(event["kind"] == "missing" and event["block"] == 1 for event in answer.events)


def test_best_effort_text_does_without_a_block_nobody_holds_and_says_so(without_block_1: Served) -> None:
    options = ("--best-effort", "--max-bytes", "16", "--seed", "1", "--json")
    done = without_block_1.ask("generate", "The ", *options)
    answer = json.loads(done.stdout)
    assert answer["bytes"] == 16
    assert answer["missing"] == [1]
    assert one(done.stderr.splitlines()).startswith("warning: answered without block 1: ")


@pytest.mark.parametrize("readout", ["parallel", "sweep"])
def test_plain_text_needs_every_block_and_names_the_one_nobody_holds(without_block_1: Served, readout: str) -> None:
    done = without_block_1.ask("generate", "The ", "--max-bytes", "16", "--readout", readout, check=False)
    assert done.returncode == 1
    assert done.stdout.strip() == ""
    line = one(done.stderr.splitlines())
    assert line.startswith("error: no live holder of block 1")
    assert "blockswarm join --block 1" in line


def test_evaluate_measures_without_a_block_and_says_that_the_sweep_is_impossible(without_block_1: Served) -> None:
    figures = json.loads(without_block_1.ask("evaluate", "--max-bytes", "512", "--json").stdout)
    assert figures["missing"] == {"parallel": [1], "sweep": None}
    assert math.isfinite(figures["ce"]["parallel"]) and figures["ce"]["sweep"] is None
    assert figures["impossible"]["sweep"].startswith("no live holder of block 1")
    alone = without_block_1.ask("evaluate", "--max-bytes", "512", "--readout", "sweep", check=False)
    assert alone.returncode == 1 and one(alone.stderr.splitlines()).startswith("error: no live holder of block 1")


def test_an_export_needs_every_block_and_names_the_one_nobody_holds(without_block_1: Served) -> None:
    done = without_block_1.ask("export", "model", check=False)
    assert done.returncode == 1
    assert one(done.stderr.splitlines()).startswith("error: no live holder of block 1")
    assert not (without_block_1.swarm.folder / "model").exists()
