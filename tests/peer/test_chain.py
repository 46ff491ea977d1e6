"""z goes from holder to holder over real connections, and the last one answers who asked them all."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from blockswarm.clock import SystemClock
from blockswarm.dht.errors import RpcError, RpcRefused
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.dht.rpc import Request
from blockswarm.model.config import ModelConfig
from blockswarm.model.mixing import sweep_noise
from blockswarm.model.readout import BlockReader
from blockswarm.model.sampling import sample_byte
from blockswarm.peer import chain as chains
from blockswarm.peer.chain import ChainDesk
from blockswarm.peer.serving import ServingDesk
from blockswarm.peer.states import State, StateStore
from blockswarm.swarm.chain_messages import ChainRequest, Draw, ZArrives
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.manifest import EMBEDDING, create_manifest
from blockswarm.swarm.messages import SweepRequest
from blockswarm.swarm.narrow_z import narrow_size, narrowed, widened
from blockswarm.swarm.session_messages import SessionRequest, text_check
from tests.peer.hosts import running_hosts

MANIFEST = create_manifest(
    name="chain",
    now=0.0,
    size=ModelConfig(dim=16, blocks=3, layers=1, heads=2, context=32),
    round_seconds=20.0,
)
DIM = MANIFEST.model.dim
TEXT = b"the brown fox"


@pytest.fixture
def desks() -> list[ChainDesk]:
    """Those of the holders, by block."""
    return []


def on_record(hosts: list[Host], block: int) -> set[str]:
    """The holder of ``block``, and of block 1 one more, who takes no z."""
    return {hosts[block].peer_id, hosts[3].peer_id} if block == 1 else {hosts[block].peer_id}


@pytest.fixture
async def hosts(desks: list[ChainDesk]) -> AsyncIterator[list[Host]]:
    """Holders of blocks 0, 1 and 2, and somebody who asks."""
    async with running_hosts(4, MANIFEST.digest) as running:
        for block, host in enumerate(running[:3]):
            store = StateStore(SystemClock())
            for subject in (block, EMBEDDING):
                store.commit(State.genesis(MANIFEST, subject))
            serving = ServingDesk(MANIFEST, store, asyncio.to_thread, SystemClock(), block=block)
            desks.append(ChainDesk(MANIFEST, serving, host, partial(on_record, running)))
            desks[-1].register(host)
        yield running


def requests(hosts: list[Host], *, draw: Draw | None = None, seed: int = 3, narrow: bool = False) -> list[ChainRequest]:
    """What a client asks each of the holders."""
    token = secrets.token_bytes(16)
    made = []
    for block in range(3):
        digests = MANIFEST.genesis_digest(block), MANIFEST.genesis_digest(EMBEDDING)
        step = SweepRequest(block, *digests, (TEXT, TEXT[:5]), (40, 7), (2, 0), seed)
        last = block == 2
        made.append(
            ChainRequest(step, token, None if last else hosts[block + 1].peer_id, draw if last else None, narrow)
        )
    assert all(ChainRequest.parse(wanted.to_body()) == wanted for wanted in made)
    return made


async def ask(hosts: list[Host], wanted: ChainRequest) -> Any:
    block = wanted.sweep.block
    return await hosts[3].call(hosts[block].peer_id, "chain", wanted.to_body(), max_blob=1 << 20, timeout=20.0)


async def has_arrived(desk: ChainDesk, count: int = 1) -> None:
    """Until calls wait at a holder."""
    for _ in range(1000):
        if desk.waiting >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing came")


def expected(seed: int = 3, *, narrow: bool = False) -> list[np.ndarray]:
    """The same sweep in one place."""
    table = MANIFEST.verify_genesis(EMBEDDING)
    found = []
    for window, start, take in ((TEXT, 40, 2), (TEXT[:5], 7, 0)):
        z = sweep_noise(seed, start, len(window), DIM)[None]
        for block in range(3):
            reader = BlockReader(MANIFEST.model, MANIFEST.recipe, block, MANIFEST.verify_genesis(block), table)
            rows, z = reader.sweep_step(np.frombuffer(window, np.uint8)[None], z)
            if narrow and z is not None:
                z = np.frombuffer(widened(narrowed(z[0]), *z.shape[1:]), "<f4").reshape(z.shape)
        found.append(rows[0, take:])
    return found


async def test_the_last_holder_answers_what_a_sweep_in_one_place_gives(hosts: list[Host]) -> None:
    replies = await asyncio.gather(*(ask(hosts, wanted) for wanted in requests(hosts)))
    assert [reply.body for reply in replies] == [{"last": False}, {"last": False}, {"last": True}]
    rows = np.frombuffer(bytes(replies[2].blob), "<f4").reshape(-1, 256)
    np.testing.assert_allclose(rows, np.concatenate(expected()), atol=1e-5)


async def test_z_travels_at_a_quarter_of_its_size_where_all_are_told_so(
    hosts: list[Host], desks: list[ChainDesk]
) -> None:
    before = hosts[1].traffic.received
    replies = await asyncio.gather(*(ask(hosts, wanted) for wanted in requests(hosts, narrow=True)))
    rows = np.frombuffer(bytes(replies[2].blob), "<f4").reshape(-1, 256)
    # A rounding of float32 may now and then turn a whole step of an integer.
    np.testing.assert_allclose(rows, np.concatenate(expected(narrow=True)), atol=2e-2)
    assert hosts[1].traffic.received - before < 18 * DIM * 2 + 500
    assert np.abs(rows - np.concatenate(expected())).max() < 0.2

    _, middle, _ = requests(hosts, narrow=True)
    for blob, why in ((bytes(narrow_size(18, DIM) - 1), "are due"), (b"\xff" * narrow_size(18, DIM), "z: not finite")):
        waiting = asyncio.create_task(ask(hosts, middle))
        await has_arrived(desks[1])
        arrival = ZArrives(middle.token, 18, narrow=True).to_body()
        sent = hosts[3].call(hosts[1].peer_id, "chain.z", arrival, blob=blob, timeout=10.0)
        refused, _ = await asyncio.gather(waiting, sent, return_exceptions=True)
        assert isinstance(refused, RpcError) and refused.code == "bad-request" and why in refused.text
    waiting = asyncio.create_task(ask(hosts, middle))
    await has_arrived(desks[1])
    with pytest.raises(RpcError, match="narrow: False, True is due"):
        wide = ZArrives(middle.token, 18).to_body()
        await hosts[3].call(hosts[1].peer_id, "chain.z", wide, blob=bytes(4 * 18 * DIM), timeout=10.0)
    waiting.cancel()


async def test_bytes_are_drawn_with_the_noise_of_their_places(hosts: list[Host]) -> None:
    draw = Draw(temperature=1.0, top_k=20)
    replies = await asyncio.gather(*(ask(hosts, wanted) for wanted in requests(hosts, draw=draw)))
    due = [
        sample_byte(row, temperature=1.0, top_k=20, seed=3, position=first + number)
        for first, rows in zip((43, 8), expected(), strict=True)
        for number, row in enumerate(rows)
    ]
    assert bytes(replies[2].blob) == bytes(due)


async def test_a_session_goes_on_with_what_is_new_from_holder_to_holder(hosts: list[Host]) -> None:
    """Each holder keeps what it read, so z of the new bytes is all that travels."""

    def step(end: int, told: int, *, seed: int = 3) -> list[ChainRequest]:
        token, made = secrets.token_bytes(16), []
        for block in range(3):
            wanted = SessionRequest(
                session=b"n" * 16,
                block=block,
                digest=MANIFEST.genesis_digest(block),
                embedding_digest=MANIFEST.genesis_digest(EMBEDDING),
                at=told,
                new=TEXT[told:end],
                first=end - 1,
                check=text_check(TEXT[:told]),
                seed=seed,
            )
            made.append(ChainRequest(wanted, token, None if block == 2 else hosts[block + 1].peer_id))
        assert all(ChainRequest.parse(wanted.to_body()) == wanted for wanted in made)
        return made

    for told, end in ((0, 8), (8, 9), (9, 13)):
        *_, reply = await asyncio.gather(*(ask(hosts, wanted) for wanted in step(end, told)))
        z = sweep_noise(3, 0, end, DIM)[None]
        table = MANIFEST.verify_genesis(EMBEDDING)
        for block in range(3):
            reader = BlockReader(MANIFEST.model, MANIFEST.recipe, block, MANIFEST.verify_genesis(block), table)
            rows, z = reader.sweep_step(np.frombuffer(TEXT[:end], np.uint8)[None], z)
        np.testing.assert_allclose(np.frombuffer(bytes(reply.blob), "<f4"), rows[0, -1], atol=1e-5)
    with pytest.raises(RpcError) as caught:
        await ask(hosts, step(13, 12, seed=4)[0])
    assert caught.value.code == "unknown-session"
    too_long = dataclasses.replace(step(13, 12)[0].sweep, new=TEXT * 3)
    with pytest.raises(RpcError, match="beyond the window"):
        await ask(hosts, ChainRequest(too_long, bytes(16), hosts[1].peer_id))


def test_a_chain_has_a_sweep_or_a_session_and_draws_with_a_sweep_only() -> None:
    digests = MANIFEST.genesis_digest(2), MANIFEST.genesis_digest(EMBEDDING)
    sweep = SweepRequest(2, *digests, (TEXT,), (0,), (0,), 3)
    session = SessionRequest(b"n" * 16, 2, *digests, at=0, new=TEXT, first=12, check=b"", seed=3)
    both = ChainRequest(sweep, bytes(16)).to_body() | ChainRequest(session, bytes(16)).to_body()
    neither = {"token": bytes(16)}
    for body in (both, neither):
        with pytest.raises(MessageError, match="either this or session"):
            ChainRequest.parse(body)
    with pytest.raises(MessageError, match="draw: must not be there"):
        ChainRequest.parse(ChainRequest(session, bytes(16), draw=Draw(1.0)).to_body())
    with pytest.raises(MessageError, match=r"session\.seed: missing"):
        ChainRequest.parse({"token": bytes(16), "session": dataclasses.replace(session, seed=None).to_body()})


async def test_the_calls_may_come_in_any_order(hosts: list[Host]) -> None:
    for _ in range(2 * chains.MAX_EARLY):  # a z that was fetched is not counted against who sent it
        first, middle, last = requests(hosts)
        waiting = asyncio.create_task(ask(hosts, last))
        await ask(hosts, first)  # its z lies at the second holder before anybody asked for it there
        await ask(hosts, middle)
        assert (await waiting).body == {"last": True}


async def test_a_holder_that_nothing_comes_to_says_so_and_forgets(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "WAIT_SECONDS", 0.05)
    _, middle, _ = requests(hosts)
    for _ in range(2):  # the second time its place is free again
        with pytest.raises(RpcError) as caught:
            await ask(hosts, middle)
        assert caught.value.code == "late"


async def test_one_client_cannot_take_all_places(hosts: list[Host], desks: list[ChainDesk]) -> None:
    waiting = [asyncio.create_task(ask(hosts, requests(hosts)[1])) for _ in range(chains.MAX_CHAINS_OF_CLIENT)]
    await has_arrived(desks[1], chains.MAX_CHAINS_OF_CLIENT)
    with pytest.raises(RpcError, match="of yours wait already"):
        await ask(hosts, requests(hosts)[1])
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_who_cannot_hand_z_on_says_that_the_next_one_failed(hosts: list[Host]) -> None:
    first, _, _ = requests(hosts)
    lost = ChainRequest(first.sweep, first.token, hosts[3].peer_id)  # the client itself takes no z
    with pytest.raises(RpcError) as caught:
        await ask(hosts, lost)
    assert caught.value.code == "next-failed" and "unknown-method" in caught.value.text


async def test_nobody_can_have_a_holder_dial_who_holds_no_next_block(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, middle, _ = requests(hosts)
    called: list[str] = []
    monkeypatch.setattr(hosts[0], "call", lambda peer_id, *_, **__: called.append(peer_id))
    for stranger in (Identity.ephemeral().peer_id, hosts[2].peer_id, hosts[0].peer_id):
        with pytest.raises(RpcError) as caught:
            await ask(hosts, ChainRequest(first.sweep, first.token, stranger))
        assert caught.value.code == "next-failed" and "not on record" in caught.value.text
    with pytest.raises(RpcError, match="not on record"):  # told at once, not when z has come
        await ask(hosts, ChainRequest(middle.sweep, middle.token, hosts[3].peer_id))
    assert called == []


async def test_calls_that_do_not_fit_the_chain_are_refused(hosts: list[Host]) -> None:
    first, middle, last = requests(hosts)
    wrong = [
        (hosts[0], ChainRequest(first.sweep, first.token), "next: missing"),
        (hosts[2], ChainRequest(last.sweep, last.token, hosts[0].peer_id), "next: comes from the last block only"),
    ]
    for host, request, why in wrong:
        with pytest.raises(RpcError) as caught:
            await hosts[3].call(host.peer_id, "chain", request.to_body(), timeout=10.0)
        assert caught.value.code == "bad-request" and why in caught.value.text
    with pytest.raises(RpcError) as caught:
        await hosts[3].call(hosts[0].peer_id, "chain", middle.to_body(), timeout=10.0)
    assert caught.value.code == "not-serving"


async def test_a_stranger_s_z_is_bounded_and_can_be_no_other_size_than_is_due(
    hosts: list[Host], desks: list[ChainDesk]
) -> None:
    to = hosts[1].peer_id

    async def send(positions: int, token: bytes, blob: bytes) -> str:
        body = ZArrives(token, positions).to_body()
        try:
            await hosts[3].call(to, "chain.z", body, blob=blob, timeout=10.0)
        except RpcError as error:
            return error.code
        return "taken"

    _, middle, _ = requests(hosts)
    waiting = asyncio.create_task(ask(hosts, middle))
    await has_arrived(desks[1])
    assert await send(1, middle.token, bytes(4 * DIM)) == "bad-request"  # 18 positions are due
    nan = np.full(18 * DIM, np.nan, np.float32).tobytes()
    assert await send(18, middle.token, nan) == "taken"
    with pytest.raises(RpcError, match="not all values are finite"):
        await waiting

    assert await send(2, bytes(16), bytes(4 * 3 * DIM)) == "too-large"
    kept = [await send(1, bytes([number]) * 16, bytes(4 * DIM)) for number in range(1, chains.MAX_EARLY + 2)]
    assert kept == ["taken"] * chains.MAX_EARLY + ["busy"]


async def test_early_z_that_were_let_in_together_are_counted_when_they_are_here(
    hosts: list[Host], desks: list[ChainDesk]
) -> None:
    handler = hosts[1]._server._methods["chain.z"].handler
    bodies = [ZArrives(bytes([number]) * 16, 1).to_body() for number in range(1, chains.MAX_EARLY + 2)]
    # Nothing has arrived yet, so every header passes; the last z is one too many all the same.
    arriving = [handler(Request("sender", "chain.z", body, bytearray(4 * DIM))) for body in bodies]
    answers = await asyncio.gather(*arriving, return_exceptions=True)
    assert [getattr(answer, "code", "taken") for answer in answers] == ["taken"] * chains.MAX_EARLY + ["busy"]
    assert desks[1].waiting == chains.MAX_EARLY


async def test_early_z_of_all_senders_together_take_bounded_room(
    hosts: list[Host], desks: list[ChainDesk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "EARLY_BYTES", 3 * 4 * DIM)
    method = hosts[1]._server._methods["chain.z"]

    async def send(number: int) -> str:
        body = ZArrives(bytes([number]) * 16, 1).to_body()
        try:
            assert method.max_blob(f"sender {number}", body, 4 * DIM) == 4 * DIM
            await method.handler(Request(f"sender {number}", "chain.z", body, bytearray(4 * DIM)))
        except RpcRefused as error:
            return error.code
        return "taken"

    assert [await send(number) for number in range(1, 6)] == ["taken"] * 3 + ["busy"] * 2
    assert desks[1].waiting == 3
    for place in list(desks[1]._places.values()):
        place.is_fetched()  # their calls have come
    assert await send(6) == "taken"


async def test_a_large_z_whose_call_has_gone_meanwhile_is_not_kept(
    hosts: list[Host], desks: list[ChainDesk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "MAX_EARLY_BYTES", 4 * DIM)
    body = ZArrives(bytes(16), 2).to_body()
    with pytest.raises(RpcRefused, match="nobody waits for"):
        await hosts[1]._server._methods["chain.z"].handler(Request("sender", "chain.z", body, bytearray(8 * DIM)))
    assert desks[1].waiting == 0


async def test_an_early_z_that_nobody_asks_for_is_forgotten(
    hosts: list[Host], desks: list[ChainDesk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "EARLY_SECONDS", 0.05)
    for number in range(2 * chains.MAX_EARLY):
        body = ZArrives(bytes([number]) * 16, 1).to_body()
        await hosts[3].call(hosts[1].peer_id, "chain.z", body, blob=bytes(4 * DIM), timeout=10.0)
        await asyncio.sleep(0.1)
    assert desks[1].waiting == 0
