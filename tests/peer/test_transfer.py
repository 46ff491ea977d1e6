"""A newcomer gets a certified state from several holders at once, whatever one of them does in the middle of it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from blockswarm.clock import SystemClock
from blockswarm.dht.errors import RpcError, RpcRefused
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.dht.rpc import Reply, Request
from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import CHUNK_BYTES, state_digest
from blockswarm.peer.giving import serve_states
from blockswarm.peer.states import State, StateStore
from blockswarm.peer.transfer import Offer, StateFetcher, TransferError, heaviest
from blockswarm.swarm.certified import check_certified
from blockswarm.swarm.manifest import EMBEDDING, Manifest, create_manifest
from blockswarm.swarm.messages import StateHead
from tests.peer.hosts import running_hosts
from tests.swarm.signing import certify

# One layer of width 288: a block of 1.5 million values, six chunks.
MANIFEST = create_manifest(
    name="transfer",
    now=0.0,
    size=ModelConfig(dim=288, blocks=1, layers=1, heads=8, context=16),
    round_seconds=60.0,
)
SIGNERS = [Identity.ephemeral() for _ in range(3)]


def certified(round_number: int, samples: int, *, subject: int = 0, manifest: Manifest = MANIFEST) -> State:
    """A state with values of its own, and the certificate of three voters."""
    rng = np.random.default_rng(round_number)
    values = rng.standard_normal(manifest.parameters(subject), dtype=np.float32)
    certificate = certify(manifest, SIGNERS, subject, round_number, state_digest(values), samples)
    return State.make(subject, round_number, values, samples=samples, certificate=certificate)


STATE = certified(round_number=7, samples=7000)
OLDER = certified(round_number=6, samples=6000)


def latest_round() -> int:
    """The newest round that can have been committed while these tests run."""
    return 10


Fault = Callable[[int, Reply], Awaitable[Reply]]
"""Makes of the chunk with an index, as an honest donor answers it, what this donor sends."""


class Swarm:
    """A newcomer and its donors, each a real host with a store of its own."""

    def __init__(self, hosts: list[Host]) -> None:
        self.newcomer, *self.donors = hosts
        self.asked: dict[str, list[int]] = {donor.peer_id: [] for donor in self.donors}
        """Indices of the chunks each donor was asked for."""
        self.faults: dict[str, Fault] = {}
        for donor in self.donors:
            self.holds(donor, OLDER, STATE)

    @property
    def ids(self) -> list[str]:
        return [donor.peer_id for donor in self.donors]

    def holds(self, donor: Host, *states: State) -> None:
        """Let ``donor`` give these states, the last one as its head, through its fault if it has one."""
        store = StateStore(SystemClock())
        for state in states:
            store.commit(state)
        serve_states(donor, store)
        honest = donor._server._methods["state.chunk"].handler

        async def answer(request: Request) -> Reply:
            self.asked[donor.peer_id].append(request.body["index"])
            reply = await honest(request)
            fault = self.faults.get(donor.peer_id)
            return await fault(request.body["index"], reply) if fault else reply

        donor.register("state.chunk", answer)

    def fetcher(self, **options: Any) -> StateFetcher:
        return StateFetcher(self.newcomer.call, MANIFEST, latest_round, **{"stall": 1.5} | options)


@pytest.fixture
async def swarm() -> AsyncIterator[Swarm]:
    async with running_hosts(4, MANIFEST.digest) as hosts:
        yield Swarm(hosts)


def late(seconds: float) -> Fault:
    """Every chunk comes so much later."""

    async def answer(index: int, reply: Reply) -> Reply:
        await asyncio.sleep(seconds)
        return reply

    return answer


def is_exactly(got: State, expected: State) -> bool:
    same_fields = (got.subject, got.round, got.digest, got.samples, got.certificate, got.chunks) == (
        expected.subject,
        expected.round,
        expected.digest,
        expected.samples,
        expected.certificate,
        expected.chunks,
    )
    return same_fields and np.array_equal(got.values, expected.values) and not got.values.flags.writeable


async def test_a_newcomer_takes_over_the_newest_state_from_several_holders(swarm: Swarm) -> None:
    # A little time per chunk, so that the fastest donor cannot give everything before the others are asked.
    swarm.faults = dict.fromkeys(swarm.ids, late(0.03))
    assert is_exactly(await swarm.fetcher().fetch(0, swarm.ids, seconds=20.0), STATE)
    assert sorted(itertools.chain(*swarm.asked.values())) == [*range(6)]
    assert sum(bool(indices) for indices in swarm.asked.values()) >= 2


async def test_one_holder_alone_is_enough_and_a_given_older_state_can_be_asked_for(swarm: Swarm) -> None:
    fetcher = swarm.fetcher()
    assert is_exactly(await fetcher.fetch(0, swarm.ids[:1], seconds=20.0, digest=OLDER.digest), OLDER)


async def test_a_donor_that_dies_in_the_middle_is_replaced(swarm: Swarm) -> None:
    dying = swarm.donors[0]

    async def die(index: int, reply: Reply) -> Reply:
        dying._daemon._process.kill()
        return reply

    swarm.faults[dying.peer_id] = die
    assert is_exactly(await swarm.fetcher().fetch(0, swarm.ids, seconds=20.0), STATE)
    assert swarm.asked[dying.peer_id]
    async with asyncio.timeout(10):
        assert await dying.daemon_died


async def test_donors_that_stall_are_left_after_a_while_without_progress(swarm: Swarm) -> None:
    swarm.faults = dict.fromkeys(swarm.ids[:2], late(60.0))
    assert is_exactly(await swarm.fetcher().fetch(0, swarm.ids, seconds=20.0), STATE)
    assert all(swarm.asked[donor] for donor in swarm.ids)


async def test_a_wrong_chunk_costs_its_sender_not_the_state(swarm: Swarm) -> None:
    async def one_bit_off(index: int, reply: Reply) -> Reply:
        blob = bytearray(reply.blob)
        blob[17] ^= 1
        return Reply({}, blob)

    async def cut_short(index: int, reply: Reply) -> Reply:
        return Reply({}, bytes(reply.blob[:-4]))

    swarm.faults = {swarm.ids[0]: one_bit_off, swarm.ids[1]: cut_short}
    assert is_exactly(await swarm.fetcher().fetch(0, swarm.ids, seconds=20.0), STATE)
    with pytest.raises(TransferError, match=rf"every holder .* failed: {swarm.ids[0]}: sent a wrong chunk"):
        await swarm.fetcher().fetch(0, swarm.ids[:1], seconds=20.0)


async def test_an_attempt_that_runs_out_of_time_is_taken_up_where_it_stopped(swarm: Swarm) -> None:
    async def stop_at_the_fourth(index: int, reply: Reply) -> Reply:
        return await late(60.0 if index >= 3 else 0.0)(index, reply)

    swarm.faults[swarm.ids[0]] = stop_at_the_fourth
    fetcher = swarm.fetcher()
    with pytest.raises(TransferError, match=r"the state of block 0 did not arrive in 4 s, 3 of 6 chunks missing"):
        await fetcher.fetch(0, swarm.ids[:1], seconds=4.0)
    assert is_exactly(await fetcher.fetch(0, swarm.ids[1:2], seconds=20.0), STATE)
    assert sorted(swarm.asked[swarm.ids[1]]) == [3, 4, 5]


async def test_dead_holders_do_not_delay_the_newcomer(swarm: Swarm) -> None:
    await asyncio.gather(*(donor.stop() for donor in swarm.donors[:2]))
    assert is_exactly(await swarm.fetcher().fetch(0, swarm.ids, seconds=15.0), STATE)


async def test_nobody_has_it_and_every_reason_is_told(swarm: Swarm) -> None:
    await swarm.donors[0].stop()
    with pytest.raises(TransferError, match="no holder gives the state of the embedding") as caught:
        await swarm.fetcher().fetch(EMBEDDING, swarm.ids, seconds=20.0)
    assert str(caught.value).count("unknown-state") == 2
    assert swarm.ids[0] in str(caught.value)
    with pytest.raises(TransferError, match="nobody was asked"):
        await swarm.fetcher().fetch(0, [], seconds=20.0)


async def test_a_holder_without_a_believable_certificate_is_not_followed(swarm: Swarm) -> None:
    boaster = State.make(0, 9, STATE.values.copy(), samples=10**9, certificate=STATE.certificate)
    swarm.holds(swarm.donors[0], boaster)
    offers, problems = await swarm.fetcher().offers(0, swarm.ids)
    assert [offer.peer_id for offer in offers] == swarm.ids[1:]
    assert "its certificate is of another state" in problems[swarm.ids[0]]
    assert is_exactly(await swarm.fetcher().fetch(0, swarm.ids, seconds=20.0), STATE)


async def test_a_state_of_a_future_round_is_not_followed_whoever_signed_it(swarm: Swarm) -> None:
    swarm.holds(swarm.donors[0], certified(round_number=latest_round() + 1, samples=10**9))
    swarm.holds(swarm.donors[1], certified(round_number=latest_round(), samples=8000))
    offers, problems = await swarm.fetcher().offers(0, swarm.ids)
    assert [offer.head.round for offer in offers] == [latest_round(), STATE.round]
    assert problems == {swarm.ids[0]: f"its round {latest_round() + 1} lies in the future"}


async def test_the_heavier_line_is_taken(swarm: Swarm) -> None:
    heavier = certified(round_number=5, samples=8000)
    swarm.holds(swarm.donors[2], heavier)
    assert (await swarm.fetcher().fetch(0, swarm.ids, seconds=20.0)).digest == heavier.digest


# -- what is believed ----------------------------------------------------------------------------------------------


def test_of_several_offers_the_one_with_most_samples_then_the_lowest_digest_is_taken() -> None:
    def offer(samples: int, first_byte: int) -> Offer:
        digest = bytes([first_byte]) + bytes(31)
        return Offer(f"peer{first_byte}", StateHead(1, digest, samples, 1, (digest,), b""))

    offers = [offer(5, 1), offer(9, 8), offer(9, 3), offer(9, 6)]
    assert heaviest(offers).digest[0] == 3


async def test_a_state_that_is_not_finite_is_refused_even_when_it_is_certified() -> None:
    values = np.zeros(MANIFEST.parameters(EMBEDDING), dtype=np.float32)
    values[5] = np.nan
    state = State.make(EMBEDDING, 1, values, samples=5)

    async def call(peer_id: str, method: str, body: Any, *, max_blob: int = 0, timeout: float = 0.0) -> Reply:
        return Reply(state.head.to_body()) if method == "state.head" else Reply({}, state.chunk(body["index"]))

    fetcher = StateFetcher(call, MANIFEST, latest_round, check=lambda *_: None)
    with pytest.raises(TransferError, match="the state of the embedding is not finite"):
        await fetcher.fetch(EMBEDDING, ["peer"], seconds=5.0)


async def test_a_state_with_an_outer_momentum_is_fetched_whole_and_only_whole() -> None:
    manifest = create_manifest(name="outer", now=0.0, size=MANIFEST.model, round_seconds=60.0, outer="nesterov")
    rng = np.random.default_rng(1)
    values, momentum = (rng.standard_normal(manifest.parameters(0), dtype=np.float32) for _ in range(2))
    state = State.make(0, 3, values, samples=5, momentum=momentum)
    store = StateStore(SystemClock())
    store.commit(state)
    asked = []

    async def call(peer_id: str, method: str, body: Any, *, max_blob: int = 0, timeout: float = 0.0) -> Reply:
        if method == "state.head":
            return Reply(state.head.to_body())
        asked.append(body["index"])
        return Reply({}, state.chunk(body["index"]))

    got = await StateFetcher(call, manifest, latest_round, check=lambda *_: None).fetch(0, ["peer"], seconds=5.0)
    assert is_exactly(got, state)
    assert got.momentum is not None and np.array_equal(got.momentum, momentum)
    assert sorted(asked) == list(range(12))
    with pytest.raises(TransferError, match="momentum: must not be there"):
        await StateFetcher(call, MANIFEST, latest_round, check=lambda *_: None).fetch(0, ["peer"], seconds=5.0)
    genesis = State.genesis(manifest, 0)
    check_certified(manifest, 0, genesis.head, latest_round())


# -- the donor's side ----------------------------------------------------------------------------------------------


async def test_a_donor_gives_only_what_it_has(swarm: Swarm) -> None:
    donor, ask = swarm.ids[0], swarm.newcomer.call
    for method, body, code in (
        ("state.head", {"subject": 0, "digest": bytes(32)}, "unknown-state"),
        ("state.head", {"subject": 99}, "unknown-state"),
        ("state.head", {"subject": "0"}, "bad-request"),
        ("state.chunk", {"subject": 0, "digest": STATE.digest, "index": 6}, "bad-request"),
        ("state.chunk", {"subject": 0, "digest": bytes(32), "index": 0}, "unknown-state"),
    ):
        with pytest.raises(RpcError) as caught:
            await ask(donor, method, body, max_blob=CHUNK_BYTES, timeout=5.0)
        assert caught.value.code == code


async def test_a_busy_donor_is_asked_again(swarm: Swarm) -> None:
    async def busy_at_first(index: int, reply: Reply) -> Reply:
        if len(swarm.asked[swarm.ids[0]]) <= 2:
            raise RpcRefused("busy", "later", {"retry_after": 0.1})
        return reply

    swarm.faults[swarm.ids[0]] = busy_at_first
    assert is_exactly(await swarm.fetcher().fetch(0, swarm.ids[:1], seconds=20.0), STATE)


async def test_what_an_attempt_left_running_in_a_thread_is_over_before_the_next_one_touches_the_same_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread cannot be ended; the attempt that began it is over in time all the same."""
    gate, inside, most = threading.Event(), 0, 0
    resume = StateFetcher._resume

    def slow(self: StateFetcher, subject: int, head: StateHead) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        gate.wait(5.0)
        inside -= 1
        return resume(self, subject, head)

    async def give(peer_id: str, method: str, body: Any, *, max_blob: int = 0, timeout: float) -> Reply:
        if method == "state.head":
            return Reply(STATE.head.to_body())
        return Reply({}, bytearray(STATE.chunk(body["index"])))

    monkeypatch.setattr(StateFetcher, "_resume", slow)
    fetcher = StateFetcher(give, MANIFEST, latest_round)
    for _ in range(2):
        with pytest.raises(TransferError, match=r"did not arrive in 0\.3 s"):
            await fetcher.fetch(0, ["donor"], seconds=0.3)
    assert most == 1
    asyncio.get_running_loop().call_later(0.1, gate.set)
    assert is_exactly(await fetcher.fetch(0, ["donor"], seconds=20.0), STATE)
    assert most == 1 and fetcher._working == {}
