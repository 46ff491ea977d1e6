"""An export that is given up, loses states on the way, or is asked for twice; the holders are functions."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from blockswarm.dht.errors import RpcError
from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import CHUNK_BYTES, chunk_digests, state_digest
from blockswarm.swarm import model_writer
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.exporting import Export
from blockswarm.swarm.link import Reply
from blockswarm.swarm.manifest import EMBEDDING, create_manifest
from blockswarm.swarm.messages import StateHead
from blockswarm.swarm.model_folder import CARD_FILE, SavedState, read_model_folder
from blockswarm.swarm.model_writer import write_model_folder
from blockswarm.swarm.thread import TrioThread
from tests.swarm.answering import World

# Blocks of two chunks, the embedding of one.
MODEL = ModelConfig(dim=128, blocks=2, layers=1, heads=2, context=32)
MANIFEST = create_manifest(name="exporting", now=0.0, size=MODEL, round_seconds=60.0, seed=3)
GENESIS = {subject: MANIFEST.verify_genesis(subject) for subject in MANIFEST.subjects}
SECONDS = 10.0


async def honest(method: str, body: dict[str, Any]) -> Reply:
    """What a holder of the states that training begins with answers."""
    values = GENESIS[body["subject"]]
    if method == "state.head":
        return Reply(StateHead(0, state_digest(values), 0, values.size, tuple(chunk_digests(values)), b"").to_body())
    begin = body["index"] * CHUNK_BYTES
    return Reply({}, values.tobytes()[begin : begin + CHUNK_BYTES])


@pytest.fixture
def thread() -> Iterator[TrioThread]:
    made = TrioThread()
    yield made
    made.close(SECONDS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An older model, whose values are all ones."""
    states = [SavedState(subject, values * 0 + 1, 5, 800, b"") for subject, values in GENESIS.items()]
    write_model_folder(tmp_path / "model", MANIFEST, states)
    return tmp_path / "model"


def block_0(folder: Path) -> Float32:
    return read_model_folder(folder).states[0].values


class Gate:
    """Holds up a function at its first call, so that something can happen in the middle of it."""

    def __init__(self, function: Callable[..., Any], where: Callable[..., bool] = lambda *_: True) -> None:
        self._function, self._where = function, where
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self._where(*arguments):
            self.reached.set()
            assert self.opened.wait(SECONDS)
        return self._function(*arguments, **options)


def given_up_at(gate: Gate, thread: TrioThread, folder: Path) -> None:
    """Replace the model in ``folder``, give up in the middle of what ``gate`` holds, and let all come to rest."""
    world = World(thread.nursery, MANIFEST, a=honest)
    exported = thread.submit(Export(world.core).run, folder, True, SECONDS)
    assert gate.reached.wait(SECONDS)
    assert exported.cancel()  # as a cancelled task and Ctrl-C do
    thread.submit(no_more).result(SECONDS)
    gate.opened.set()
    thread.close(SECONDS)


async def no_more() -> None:
    """Whatever was asked of the thread before this has reached it when this is done."""


def test_given_up_while_the_folder_takes_its_place_the_new_model_is_whole(
    thread: TrioThread, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(model_writer.write_atomically, lambda path, _: path.name == CARD_FILE)
    monkeypatch.setattr(model_writer, "write_atomically", gate)
    given_up_at(gate, thread, folder)
    assert (block_0(folder) == GENESIS[0]).all() and (folder / CARD_FILE).is_file()
    assert list(folder.parent.iterdir()) == [folder]


def test_given_up_while_a_state_is_written_the_older_model_stays(
    thread: TrioThread, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(model_writer.save_file)
    monkeypatch.setattr(model_writer, "save_file", gate)
    given_up_at(gate, thread, folder)
    assert (block_0(folder) == 1).all()
    assert list(folder.parent.iterdir()) == [folder]


# -- states that are lost on the way -------------------------------------------------------------------------------


def exported_though_lost(folder: Path, *lost: int) -> tuple[list[int], World]:
    """Export while the first answer to a chunk of the subjects ``lost`` is late, and that the state is gone.

    Returns the bytes that were done, as they were told, and the world afterwards.
    """
    left = set(lost)
    told: list[int] = []

    async def answer(method: str, body: dict[str, Any]) -> Reply:
        if method == "state.chunk" and body["subject"] in left and body["index"] == last_chunk(body["subject"]):
            left.discard(body["subject"])
            await trio.sleep(0.1)  # the other chunks of it, and other states, have come meanwhile
            raise RpcError("unknown-state", "unknown-state")
        return await honest(method, body)

    async def main() -> World:
        async with trio.open_nursery() as nursery:
            world = World(nursery, MANIFEST, a=answer)
            await world.core.survey(fresh=True)  # as connecting does
            await Export(world.core, lambda done, _: told.append(done)).run(folder, False, SECONDS)
            return world

    return told, trio.run(main)


def last_chunk(subject: int) -> int:
    return (4 * MANIFEST.parameters(subject) - 1) // CHUNK_BYTES


def test_what_is_lost_takes_back_its_own_bytes_only(tmp_path: Path) -> None:
    told, _ = exported_though_lost(tmp_path / "model", 0)
    sizes = {subject: 4 * MANIFEST.parameters(subject) for subject in MANIFEST.subjects}
    assert told[-1] == sum(sizes.values())
    (fell,) = [before - after for before, after in itertools.pairwise(told) if after < before]
    assert fell == CHUNK_BYTES * last_chunk(0)
    read_model_folder(tmp_path / "model")


@pytest.mark.parametrize(("lost", "again"), [((), []), ((1,), [[1]]), ((EMBEDDING,), [[0, 1]])])
def test_holders_are_looked_up_again_only_where_a_state_was_lost(
    tmp_path: Path, lost: tuple[int, ...], again: list[list[int]]
) -> None:
    """Connecting has just looked them all up; the embedding is held by the holders of every block."""
    _, world = exported_though_lost(tmp_path / "model", *lost)
    assert world.book.refreshed == [[0, 1], *again]
