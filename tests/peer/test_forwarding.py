"""A peer passes calls on to those it is connected to, and to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from blockswarm.dht.errors import RpcError, RpcRefused
from blockswarm.dht.host import Host
from blockswarm.dht.rpc import Reply, Request
from blockswarm.peer.forwarding import FORWARDED, MAX_FORWARDED, MAX_OF_CALLER, serve_forwarding
from tests.methods import Methods
from tests.peer.hosts import running_hosts


@pytest.fixture
async def three() -> AsyncIterator[list[Host]]:
    """A client, a relay, and a holder that the relay is connected to."""
    async with running_hosts(3, bytes(32)) as hosts:
        _, relay, holder = hosts

        async def logprobs(request: Request) -> Reply:
            if request.body.get("no"):
                raise RpcRefused("busy", "later", {"retry_after": 2.0})
            return Reply({"seen": request.body, "from": request.peer_id}, bytes(request.blob) * 2)

        holder.register("logprobs", logprobs, max_blob=1000)
        holder.register("hello", logprobs)
        serve_forwarding(relay)
        await relay.connect(holder.addresses()[0])
        relay.met(holder.peer_id)
        yield hosts


async def ask(
    hosts: list[Host], to: str, method: str, body: dict[str, Any], blob: bytes = b"", most: int = 100
) -> Reply:
    wrapped = {"to": to, "method": method, "body": body, "max_blob": most}
    return await hosts[0].call(hosts[1].peer_id, "forward", wrapped, blob=blob, max_blob=most, timeout=10.0)


async def test_the_answer_is_the_holders_and_so_is_its_refusal(three: list[Host]) -> None:
    _, relay, holder = three
    reply = await ask(three, holder.peer_id, "logprobs", {"a": [1, b"x"]}, b"ab")
    assert reply.body == {"seen": {"a": [1, b"x"]}, "from": relay.peer_id} and bytes(reply.blob) == b"abab"
    with pytest.raises(RpcError) as caught:
        await ask(three, holder.peer_id, "logprobs", {"no": 1})
    assert (caught.value.code, caught.value.text, caught.value.detail) == ("busy", "later", {"retry_after": 2.0})


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"method": "hello"}, "bad-request"),  # not what clients ask of holders
        ({"method": "forward"}, "bad-request"),  # no chains of relays
        ({"to": "not a peer"}, "bad-request"),
        ({"body": [1]}, "bad-request"),
        ({"max_blob": MAX_FORWARDED + 1}, "bad-request"),
        ({"more": 1}, "bad-request"),
    ],
)
async def test_only_what_clients_ask_of_holders_is_passed_on(
    three: list[Host], change: dict[str, Any], code: str
) -> None:
    wrapped: dict[str, Any] = {"to": three[2].peer_id, "method": FORWARDED[0], "body": {}, "max_blob": 0}
    with pytest.raises(RpcError) as caught:
        await three[0].call(three[1].peer_id, "forward", wrapped | change, timeout=10.0)
    assert caught.value.code == code


async def test_nobody_is_dialed_for_a_stranger_and_larger_answers_than_agreed_do_not_pass(three: list[Host]) -> None:
    with pytest.raises(RpcError) as caught:
        await ask(three, three[1].peer_id, "logprobs", {})
    assert caught.value.code == "not-connected"
    with pytest.raises(RpcError) as caught:
        await ask(three, three[2].peer_id, "logprobs", {}, b"x" * 80, most=100)
    assert caught.value.code == "too-large"


async def test_one_caller_cannot_keep_all_others_out(three: list[Host]) -> None:
    _, relay, holder = three
    held = asyncio.Event()

    async def states(request: Request) -> Reply:
        await held.wait()
        return Reply({})

    holder.register("states", states)
    methods = recorded(relay)
    wrapped = {"to": holder.peer_id, "method": "states", "body": {}, "max_blob": 0}
    calls = [asyncio.create_task(methods.ask("greedy", "forward", wrapped)) for _ in range(MAX_OF_CALLER)]
    for _ in range(MAX_OF_CALLER):  # each begins when the loop comes round to it
        await asyncio.sleep(0)
    assert busy(methods, "greedy", wrapped) and not busy(methods, "another", wrapped)
    held.set()
    await asyncio.gather(*calls)
    assert not busy(methods, "greedy", wrapped)


def recorded(relay: Host) -> Methods:
    """What a host is given that stands where ``relay`` does."""

    class Kept(Methods):
        connected_peers = staticmethod(relay.connected_peers)
        call = staticmethod(relay.call)

    kept = Kept()
    serve_forwarding(kept)
    return kept


def busy(methods: Methods, caller: str, body: dict[str, Any]) -> bool:
    try:
        methods.check_size(caller, "forward", body, 0)
    except RpcRefused as refused:
        return refused.code == "busy"
    return False
