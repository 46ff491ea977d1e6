"""A live swarm's model in a folder: verified, whole or absent, and the same model as the swarm's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockswarm.swarm.model_folder import read_model_folder

ADVANCE = '[tell(do="advance", holder=name, rounds=2) for name in info["holders"]]'
TEXT = "Ein Wald aus Zeichen – näher betrachtet sind es Bäume, 数百本の木。 " * 30


def test_the_newest_state_of_every_subject_is_written_and_reads_back(swarm: Any, tmp_path: Path) -> None:
    found = swarm.client(
        f"""
        {ADVANCE}
        with SwarmClient.connect(peers) as client:
            steps = []
            told = client.export({str(tmp_path / "model")!r}, progress=lambda *done: steps.append(done)).as_json()
            client.generate("x", max_bytes=1)
            result(told=told, pin=client.stats.last.pin, steps=steps)
        """
    )
    saved = read_model_folder(tmp_path / "model")
    assert saved.manifest.canonical().hex() == swarm.info["manifest"]
    assert saved.pin.as_json() == found["pin"]
    assert {state.samples for state in saved.states.values()} == {1280}
    told = found["told"]
    assert told["run_id"] == swarm.info["run_id"]
    assert [(state["round"], state["voters"], state["members"]) for state in told["states"]] == [(2, 1, 1)] * 4
    assert found["steps"][-1] == [4 * told["parameters"]] * 2
    card = (tmp_path / "model" / "MODEL_CARD.md").read_text()
    assert all(state.digest.hex() in card for state in saved.states.values())


@pytest.mark.parametrize("readout", ["parallel", "sweep"])
def test_the_folder_is_the_same_model_as_the_swarm(swarm: Any, tmp_path: Path, readout: str) -> None:
    """Cross-entropy of a whole long text, of parts of it, and text by seed; the network and torch side by side."""
    found = swarm.client(
        f"""
        from blockswarm.swarm import LocalModel
        from blockswarm.swarm.evaluation import Sample, evaluate, spread
        {ADVANCE}
        text = {TEXT!r}.encode()
        samples = [Sample("test", "all", text, spread(len(text), most)) for most in (0, 300)]
        with SwarmClient.connect(peers) as client:
            client.export({str(tmp_path / "model")!r})
            here = LocalModel.open({str(tmp_path / "model")!r}, device="cpu")
            figures = [
                [evaluate(model, sample, readout={readout!r}, seed=4) for model in (client, here)] for sample in samples
            ]
            texts = [[model.generate("The ", max_bytes=60, seed=seed, temperature=1.0, readout={readout!r},
                                     pin=here.pin) for model in (client, here)] for seed in range(2)]
        result(ce=[[one.score.nats_per_byte for one in pair] for pair in figures],
               ci=[[one.score.ci95 for one in pair] for pair in figures],
               bytes=[[one.score.bytes for one in pair] for pair in figures],
               states=[one.states for pair in figures for one in pair], pin=here.pin.as_json(), texts=texts)
        """
    )
    length = len(TEXT.encode())
    assert found["bytes"] == [[length - 1] * 2, [300] * 2]
    for through_the_swarm, from_the_folder in found["ce"]:
        assert from_the_folder == pytest.approx(through_the_swarm, abs=1e-6)
    assert found["ci"][0][0] == pytest.approx(found["ci"][0][1], abs=1e-6) and found["ci"][1] == [None, None]
    assert all(states == found["pin"] for states in found["states"])
    for through_the_swarm, from_the_folder in found["texts"]:
        assert from_the_folder == through_the_swarm


def test_a_block_nobody_holds_is_named_and_nothing_is_written(swarm: Any, tmp_path: Path) -> None:
    found = swarm.client(
        f"""
        tell(do="kill", holder="1a"), tell(do="kill", holder="1b")
        with SwarmClient.connect(peers) as client:
            try:
                client.export({str(tmp_path / "model")!r})
            except NoHolderError as error:
                result(block=error.block, said=str(error))
        """
    )
    assert found["block"] == 1
    assert found["said"].startswith("no live holder of block 1 (") and found["said"].count("connection refused") == 2
    assert "blockswarm join --block 1" in found["said"]
    assert list(tmp_path.iterdir()) == []


def test_holders_that_lie_about_states_are_left_for_others_and_named(swarm: Any, tmp_path: Path) -> None:
    found = swarm.client(
        f"""
        {ADVANCE}
        tell(do="behave", holder="0a", how="liar"), tell(do="behave", holder="1a", how="boaster")
        tell(do="behave", holder="0b", how="well"), tell(do="freeze", holder="2a")
        with SwarmClient.connect(peers) as client:
            for attempt in range(3):  # which holder is asked first is left to chance
                client.export(f"{tmp_path}/model-{{attempt}}")
            result(refused={{event.peer_id: event.text for event in client.events if event.kind == "refused"}},
                   count=client.stats.refused_answers)
        """
    )
    pins = {str(read_model_folder(tmp_path / f"model-{attempt}").pin) for attempt in range(3)}
    assert len(pins) == 1
    boaster = found["refused"][swarm.info["holders"]["1a"]]
    assert "its certificate is of another state" in boaster
    liar = found["refused"].get(swarm.info["holders"]["0a"], "sent a wrong chunk")
    assert "sent a wrong chunk" in liar
    assert found["count"] >= 3


def test_when_everybody_lies_the_error_says_so_and_nothing_is_written(swarm: Any, tmp_path: Path) -> None:
    found = swarm.client(
        f"""
        {ADVANCE}
        for name in ("2a", "2b"):
            tell(do="behave", holder=name, how="boaster")
        with SwarmClient.connect(peers) as client:
            try:
                client.export({str(tmp_path / "model")!r})
            except NoHolderError as error:
                boast = str(error)
            for name in ("2a", "2b"):
                tell(do="behave", holder=name, how="liar")
            try:
                client.export({str(tmp_path / "model")!r})
            except ClientError as error:
                result(boast=boast, lie=str(error))
        """
    )
    assert "block 2" in found["boast"] and found["boast"].count("certificate is of another state") == 2
    assert "block 2" in found["lie"] and "sent a wrong chunk 0" in found["lie"]
    assert list(tmp_path.iterdir()) == []


def test_time_that_is_up_says_how_far_it_got(swarm: Any, tmp_path: Path) -> None:
    found = swarm.client(
        f"""
        with SwarmClient.connect(peers) as client:
            for name in ("1a", "1b"):
                tell(do="freeze", holder=name)
            begun = time.monotonic()
            try:
                client.export({str(tmp_path / "model")!r}, timeout=1.5)
            except DeadlineError as error:
                result(said=str(error), seconds=time.monotonic() - begun)
        """
    )
    assert found["said"].startswith("1.5 s were not enough: 0.0 of ") and "allow more with timeout" in found["said"]
    assert found["seconds"] < 5
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_else_is_refused_before_anything_is_asked(swarm: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    found = swarm.client(
        f"""
        with SwarmClient.connect(peers) as client:
            requests = sum(tell(do="served").values())
            try:
                client.export({str(tmp_path)!r}, force=True)
            except ModelFolderError as error:
                result(said=str(error), served=sum(tell(do="served").values()))
        """
    )
    assert "holds something else, such as notes.txt" in found["said"]
    assert found["served"] == 0


def test_the_asyncio_client_exports_too(swarm: Any, tmp_path: Path) -> None:
    found = swarm.client(
        f"""
        async def main():
            async with AsyncSwarmClient.connect(peers) as client:
                told = await client.export({str(tmp_path / "model")!r})
                score = await client.score("some text", spans=[(0, 4)])
            result(states=len(told.states), bytes=score.bytes)

        asyncio.run(main())
        """
    )
    assert found == {"states": 4, "bytes": 4}
    assert read_model_folder(tmp_path / "model").pin.embedding.round == 0
