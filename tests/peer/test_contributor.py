"""A slow volunteer beside fast members: nobody waits for it, and its work enters one round, once."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcError
from blockswarm.dht.identity import Identity
from blockswarm.dht.rpc import Reply
from blockswarm.peer.catchup import CatchUp
from blockswarm.peer.contributor import Contributor
from blockswarm.peer.heads import Head
from blockswarm.peer.hosting import PIECE_BYTES, Hosting
from blockswarm.peer.line import Line
from blockswarm.peer.live import LiveWeights
from blockswarm.peer.round import RoundResult
from blockswarm.peer.states import State, StateStore
from blockswarm.swarm.codec import encode
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.manifest import EMBEDDING, Manifest
from blockswarm.swarm.policy.contributing import STALEST, staleness_discount
from tests.peer.test_live import VectorLearner
from tests.peer.test_round import one_digest, updates
from tests.peer.wires import Replica, Wires

STEP = np.float32(1e-4)


class SmallSteps(VectorLearner):
    """Every step adds the same small update."""

    def step(self) -> float:
        self.theta += STEP
        self.embedding += STEP
        return 1.0


class SlowTrainer:
    """The face of a trainer whose steps take virtual time: longer than a round of the members."""

    def __init__(self, learner: SmallSteps, seconds: float) -> None:
        self.learner, self.step_seconds = learner, seconds
        self.steps, self.samples, self.busy_seconds = 0, 0, 0.0
        self.training = True

    async def work(self) -> None:
        while True:
            await asyncio.sleep(self.step_seconds)
            self.learner.step()
            self.steps, self.samples = self.steps + 1, self.samples + SmallSteps.samples_per_step

    async def run(self, job: Callable[[Any], Any]) -> Any:
        return job(self.learner)

    def renew_steps(self) -> None:
        pass

    def take_loss(self) -> float:
        return 1.0


class Slow:
    """A contributor of block 0 with real live weights."""

    def __init__(
        self,
        manifest: Manifest,
        clock: Clock,
        identity: Identity,
        caller: Any,
        members: list[str],
        source: Any,
        make_trainer: Callable[[Callable[[], SmallSteps]], Any],
    ) -> None:
        genesis = {subject: State.genesis(manifest, subject) for subject in (0, EMBEDDING)}
        store = StateStore(clock)
        for state in genesis.values():
            store.commit(state)
        self.trainer = make_trainer(lambda: SmallSteps(genesis[0].values, genesis[EMBEDDING].values))
        self.live = LiveWeights(0, manifest, clock, store, self.trainer)
        self.live.contributes = True
        self.events: list[dict[str, Any]] = []
        self.work = Contributor(
            manifest=manifest,
            identity=identity,
            clock=clock,
            caller=caller,
            trainer=self.trainer,
            live=self.live,
            catch_up=CatchUp(self.live, source, clock, emit=self.events.append, adopted=lambda: None),
            members=lambda subject: tuple(members),
            emit=self.events.append,
        )

    def told(self) -> list[dict[str, Any]]:
        """What became of its updates of the block."""
        return [event for event in self.events if event["event"] == "contribution" and event["subject"] == 0]


class Swarm:
    """Three fast members of block 0, and a contributor."""

    def __init__(self) -> None:
        self.wires = wires = Wires(3, first=2)
        self.hosting = {
            peer_id: Hosting(wires.manifest, wires.clock, one.desk) for peer_id, one in wires.replicas.items()
        }
        for peer_id, replica in wires.replicas.items():
            self.hosting[peer_id].register(replica)
            replica.desk.line = lambda subject, replica=replica: Line.beginning(replica.state)
        self.identity = Identity.ephemeral()
        self.replica = Replica(self.identity, wires[0].state, wires.manifest, wires.clock)
        caller = wires.caller(self.replica)
        slow_steps = 1.4 * wires.manifest.rounds.seconds
        self.slow = Slow(
            wires.manifest,
            wires.clock,
            self.identity,
            caller,
            wires.ids,
            self,
            lambda make: SlowTrainer(make(), slow_steps),
        )

    async def newer(self, own: State, heads: list[Head]) -> State | None:
        state = self.wires[0].state
        return state if own.subject == 0 and state.samples > own.samples else None

    def guests(self, number: int) -> int:
        return sum(len(hosting.guests(0, number)) for hosting in self.hosting.values())

    async def one_round(self) -> list[RoundResult]:
        """The next round of the members."""
        wires = self.wires
        number = wires.next_round()
        await wires.clock.sleep_until(wires[0].desk.times(number).train_end)
        exchanges = []
        for (peer_id, replica), delta in zip(wires.replicas.items(), updates(wires), strict=True):
            exchange = wires.exchange(replica, number, delta, 16)
            exchange.guests = self.hosting[peer_id].guests(0, number)
            exchanges.append(exchange)
        results = await wires.run(exchanges)
        for hosting, exchange, result in zip(self.hosting.values(), exchanges, results, strict=True):
            hosting.settle(result, exchange.guests)
        return results

    async def call(self, method: str, body: dict[str, Any], blob: bytes = b"", *, of: Replica | None = None) -> Reply:
        """A message to the first member."""
        return await self.wires.deliver(of or self.replica, self.wires.ids[0], method, body, blob, 5.0)


@pytest.fixture
async def swarm() -> Swarm:
    return Swarm()


async def test_members_never_wait_for_a_contributor_and_its_work_is_in_one_mean_once(swarm: Swarm):
    wires, slow = swarm.wires, swarm.slow
    training = asyncio.create_task(slow.trainer.work())
    cycle = asyncio.create_task(slow.work.cycle())
    states, rounds = [wires[0].state], []
    for _ in range(6):
        rounds.append(await swarm.one_round())
        states.append(wires[0].state)
    assert cycle.done()
    training.cancel()
    for results in rounds:
        one_digest(results)
        for result in results:
            assert sum(result.phases_ms.values()) < 200  # of 3,500 that the phases may take
            assert sorted(result.accepted) == sorted(result.members) == sorted(wires.ids)  # it is no member
            assert result.rejected == {}

    (told,) = slow.told()
    (at,) = [at for at, results in enumerate(rounds) if results[0].contributed]
    assert at >= 2  # its first step takes longer than a round, and its word comes before the next one's training ends
    age = rounds[at][0].round - 1
    assert all(result.contributed == {swarm.identity.peer_id: age} for result in rounds[at])
    assert told["counted"] and (told["age"], told["base_round"], told["samples"]) == (age, 0, 16)
    weight = 16 * staleness_discount(age, 0.5)
    expected = (16 * sum(updates(wires)) + weight * STEP) / (48 + weight)
    np.testing.assert_allclose(states[at + 1].values - states[at].values, expected, atol=2e-5)
    gained = [after.samples - before.samples for before, after in itertools.pairwise(states)]
    assert gained == [48 + int(weight) if index == at else 48 for index in range(6)]

    # What it had handed over has left its live weights, and comes back as part of the state.
    await slow.work.catch_up.refresh()
    assert slow.live.head(0).digest == wires[0].state.digest
    later = slow.trainer.steps - told["samples"] // SmallSteps.samples_per_step
    kept = staleness_discount(wires[0].state.round, 0.5)
    np.testing.assert_allclose(slow.trainer.learner.theta - wires[0].state.values, later * STEP * kept, atol=2e-5)


def announced(swarm: Swarm, data: bytes, **changed: Any) -> dict[str, Any]:
    base = swarm.wires[0].state
    values = swarm.wires.manifest.parameters(0)
    return {
        "subject": 0,
        "base_round": base.round,
        "base": base.digest,
        "base_samples": base.samples,
        "certificate": base.certificate,
        "values": values,
        "hash": hashlib.sha256(data).digest(),
    } | changed


def encoded(swarm: Swarm, value: float) -> bytes:
    wires = swarm.wires
    return encode(np.full(wires.manifest.parameters(0), value, np.float32), wires.manifest.averaging.compression)


async def bring(swarm: Swarm, data: bytes, **changed: Any) -> None:
    """Announce an update and send all of it."""
    await swarm.call("contribute.open", announced(swarm, data, **changed))
    for index in range(-(-len(data) // PIECE_BYTES)):
        piece = data[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
        await swarm.call(
            "contribute.piece", {"subject": 0, "hash": hashlib.sha256(data).digest(), "index": index}, piece
        )


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"values": 7}, "wrong-shape"),
        ({"base_round": 1}, "unknown-base"),  # the genesis under another number, and no certificate
        ({"base": b"x" * 32}, "unknown-base"),
        ({"base_round": 99}, "stale-base"),
        ({"subject": 2}, "not-mine"),
    ],
)
async def test_a_member_reads_nothing_of_an_update_that_no_round_could_take(swarm: Swarm, changed: dict, code: str):
    with pytest.raises(RpcError) as refused:
        await swarm.call("contribute.open", announced(swarm, b"data", **changed))
    assert refused.value.code == code


async def test_a_state_is_too_old_a_base_once_its_rounds_are_over(swarm: Swarm):
    await swarm.call("contribute.open", announced(swarm, b"data"))
    await asyncio.sleep(STALEST * swarm.wires.manifest.rounds.seconds)
    with pytest.raises(RpcError, match="at most 8 are taken"):
        await swarm.call("contribute.open", announced(swarm, b"other"))


async def test_a_broken_update_is_refused_and_its_sender_kept_out_if_it_comes_again(swarm: Swarm):
    number = swarm.wires.next_round()
    for _ in range(2):
        with pytest.raises(RpcError, match="not finite"):
            await bring(swarm, encoded(swarm, np.nan))
    standing = swarm.wires[0].desk.standing(0)
    assert swarm.identity.peer_id in standing.out(number)
    with pytest.raises(RpcError) as refused:
        await bring(swarm, encoded(swarm, 1e-3))
    assert refused.value.code == "kept-out"


async def test_pieces_come_in_order_and_hash_to_what_was_announced(swarm: Swarm):
    data = encoded(swarm, 1e-3)
    body = {"subject": 0, "hash": hashlib.sha256(data).digest(), "index": 0}
    with pytest.raises(RpcError, match="no update of this name"):
        await swarm.call("contribute.piece", body, data[:PIECE_BYTES])
    await swarm.call("contribute.open", announced(swarm, data))
    with pytest.raises(RpcError, match="bytes are here"):
        await swarm.call("contribute.piece", body | {"index": 1}, data[:PIECE_BYTES])
    with pytest.raises(RpcError, match="wrong hash"):
        for index in range(-(-len(data) // PIECE_BYTES)):
            size = len(data[index * PIECE_BYTES : (index + 1) * PIECE_BYTES])
            await swarm.call("contribute.piece", body | {"index": index}, bytes(size))


async def test_there_is_room_for_one_if_the_members_line_bears_it(swarm: Swarm):
    await swarm.call("contribute.open", announced(swarm, b"first"))
    other = Replica(Identity.ephemeral(), swarm.wires[0].state, swarm.wires.manifest, swarm.wires.clock)
    with pytest.raises(RpcError) as refused:
        await swarm.call("contribute.open", announced(swarm, b"second"), of=other)
    assert refused.value.code == "busy"
    hosting = swarm.hosting[swarm.wires.ids[1]]
    hosting.upload_seconds[0] = swarm.wires.manifest.rounds.scatter / 2
    with pytest.raises(RpcError, match="no room"):
        await swarm.wires.deliver(other, swarm.wires.ids[1], "contribute.open", announced(swarm, b"x"), b"", 5.0)


async def test_only_the_contributor_itself_can_sign_and_only_in_time(swarm: Swarm):
    data, wires = encoded(swarm, 1e-3), swarm.wires
    await bring(swarm, data)

    def word(number: int, identity: Identity) -> dict[str, Any]:
        signed = Contribution.make(
            identity,
            wires.manifest.digest,
            subject=0,
            round_number=number,
            base_round=0,
            base=wires[0].state.digest,
            samples=16,
            values=hashlib.sha256(data).digest(),
        )
        return {"contribution": signed.statement.raw}

    number = wires.next_round()
    with pytest.raises(RpcError, match="signed by somebody else"):
        await swarm.call("contribute.sign", word(number, Identity.ephemeral()))
    await swarm.call("contribute.sign", word(number, swarm.identity))
    assert swarm.guests(number) == 1 and swarm.guests(number + 1) == 0
    with pytest.raises(RpcError, match="training of round 1 is over"):
        await swarm.call("contribute.sign", word(1, swarm.identity))
