"""z from holder to holder: one traversal of the blocks for a whole sweep, the last holder answers the client.

The client has asked every holder of the chain at the same time. So the last one needs no way to the client but the
call that already waits there, and a client behind a router can be answered by somebody it did not ask for z.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from blockswarm.dht.errors import RpcError, RpcRefused
from blockswarm.dht.rpc import Reply, Request
from blockswarm.model.sampling import sample_byte
from blockswarm.peer.batching import joined
from blockswarm.peer.exchange import off_loop
from blockswarm.peer.giving import Registrar, checked
from blockswarm.peer.serving import HANDLER_SECONDS, ServingDesk
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.chain_messages import ChainRequest, ZArrives
from blockswarm.swarm.codec.base import CodecError
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.memory import EARLY_BYTES
from blockswarm.swarm.messages import SweepRequest
from blockswarm.swarm.narrow_z import narrow_size, narrowed, widened

WAIT_SECONDS = 20.0
"""Longest time that a holder waits for z."""

SEND_SECONDS = 15.0
"""Longest time that handing z on may take."""

EARLY_SECONDS = 5.0
"""How long a z is kept that came before the client's call: the two take different ways."""

MAX_CHAINS = 64
"""Traversals that are waited for at a time; each holds one stream of its client's."""

MAX_CHAINS_OF_CLIENT = 16
"""Of one client: as many calls as a client makes to one holder at a time."""

MAX_EARLY = 4
"""Early z that one sender may have lying here."""

MAX_EARLY_BYTES = 4 << 20
"""Largest z that may come early; of all together at most ``EARLY_BYTES``."""


class Sender(Protocol):
    """The part of a host that a chain needs: ``blockswarm.dht.host.Host.call``."""

    async def call(
        self, peer_id: str, method: str, body: Mapping[str, Any], *, blob: Any = ..., timeout: float
    ) -> Reply:
        """Call another peer."""
        ...


@dataclass
class _Place:
    """Where client's call and z meet."""

    z: asyncio.Future[bytearray] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    due: ZArrives | None = None
    """What the client's call says of z; None while only z is here."""
    is_fetched: Callable[[], None] = lambda: None
    """Tells those who keep count of early z that this one waits no longer."""


class ChainDesk:
    """Answers ``chain`` and ``chain.z`` for the block that ``serving`` holds.

    Parameters
    ----------
    manifest : Manifest
        The run.
    serving : ServingDesk
        Computes the steps, in its queue.
    sender : Sender
        Hands z on.
    holders : callable
        ``holders(block)`` gives the peer ids on record as holders of a block: z goes to nobody else, so that no client
        can have us dial a stranger.
    """

    def __init__(
        self,
        manifest: Manifest,
        serving: ServingDesk,
        sender: Sender,
        holders: Callable[[int], Collection[str]],
    ) -> None:
        self._model = manifest.model
        self._serving = serving
        self._sender = sender
        self._holders = holders
        self._places: dict[bytes, _Place] = {}
        self._early: Counter[str] = Counter()
        self._early_bytes = 0
        self._waiting: Counter[str] = Counter()

    def register(self, host: Registrar) -> None:
        """Take the calls of ``host``."""
        host.register("chain", self._chain, timeout=HANDLER_SECONDS)
        host.register("chain.z", self._arrives, max_blob=self._z_size, timeout=HANDLER_SECONDS)

    @property
    def waiting(self) -> int:
        """Traversals of which one half, call or z, is here."""
        return len(self._places)

    async def _chain(self, request: Request) -> Reply:
        wanted = checked(ChainRequest.parse, request.body)
        step = wanted.sweep
        self._serving.check(step)
        last = step.block == self._model.blocks - 1
        if last != (wanted.next is None):
            what = "comes from the last block only" if last else f"missing: block {step.block} is not the last one"
            raise RpcRefused("bad-request", f"next: {what}")
        if wanted.next is not None and wanted.next not in self._holders(step.block + 1):
            raise RpcRefused("next-failed", f"next: not on record here as a holder of block {step.block + 1}")
        z = await self._wait(request.peer_id, wanted) if step.block else bytearray()
        if z and wanted.narrow:
            dim = self._model.dim
            z = await off_loop(4 * step.positions * dim, _widened, z, step.positions, dim)
        answers = await self._serving.sweep(request.peer_id, step, z)
        if wanted.next is not None:
            await self._hand_on(wanted.next, wanted, answers)
            return Reply({"last": False})
        if wanted.draw is not None:
            # Thousands of rows take a third of a second, which the event loop does not have.
            return Reply({"last": True}, await asyncio.to_thread(drawn, wanted, answers))
        return Reply({"last": True}, joined(answers))

    async def _wait(self, client: str, wanted: ChainRequest) -> bytearray:
        """The z that comes under the token of a call."""
        if self._waiting[client] >= MAX_CHAINS_OF_CLIENT:
            raise RpcRefused("busy", f"{MAX_CHAINS_OF_CLIENT} sweeps of yours wait already", {"retry_after": 1.0})
        place = self._place(wanted.token)
        if place.due is not None:
            raise RpcRefused("bad-request", "token: a call with it waits already")
        place.due = ZArrives(wanted.token, wanted.sweep.positions, wanted.narrow)
        place.is_fetched()
        self._waiting[client] += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await place.z
        except TimeoutError:
            raise RpcRefused("late", f"no z came from the block before within {WAIT_SECONDS:g} s") from None
        finally:
            self._places.pop(wanted.token, None)
            self._waiting -= Counter([client])  # drops who has none left

    async def _hand_on(self, to: str, wanted: ChainRequest, z: list[Float32]) -> None:
        body = ZArrives(wanted.token, wanted.sweep.positions, wanted.narrow).to_body()
        size = 4 * wanted.sweep.positions * self._model.dim
        blob = await off_loop(size, _narrowed, z) if wanted.narrow else joined(z)
        try:
            await self._sender.call(to, "chain.z", body, blob=blob, timeout=SEND_SECONDS)
        except RpcError as error:
            raise RpcRefused("next-failed", f"the next holder did not take z: {error.code}") from None

    def _z_size(self, peer_id: str, body: dict[str, Any], size: int) -> int:
        """Bytes of a z; asked before any of them is read."""
        arriving = checked(ZArrives.parse, body)
        place, dim = self._places.get(arriving.token), self._model.dim
        due = narrow_size(arriving.positions, dim) if arriving.narrow else 4 * arriving.positions * dim
        if place is not None and place.due is not None:
            if arriving != place.due:
                raise _another_z(arriving, place.due)
            return due
        self._check_early(peer_id, min(due, size))
        return min(due, MAX_EARLY_BYTES)

    def _check_early(self, sender: str, size: int) -> None:
        if self._early[sender] >= MAX_EARLY:
            raise RpcRefused("busy", f"{MAX_EARLY} z of yours are not asked for yet", {"retry_after": EARLY_SECONDS})
        if self._early_bytes + size > EARLY_BYTES:
            raise RpcRefused("busy", "much z is not asked for yet", {"retry_after": EARLY_SECONDS})

    async def _arrives(self, request: Request) -> Reply:
        arriving = checked(ZArrives.parse, request.body)
        if arriving.token not in self._places:
            # Again: while this one was read, others of the same sender may have come, and the call have gone.
            self._check_early(request.peer_id, len(request.blob))
            if len(request.blob) > MAX_EARLY_BYTES:
                raise RpcRefused("too-large", f"{len(request.blob)} bytes that nobody waits for")
        place = self._place(arriving.token)
        if place.z.done():
            raise RpcRefused("bad-request", "token: its z is here already")
        if place.due is not None and place.due != arriving:
            raise _another_z(arriving, place.due)
        place.z.set_result(request.blob)
        if place.due is None:
            self._keep_early(request.peer_id, arriving.token, place, len(request.blob))
        return Reply({})

    def _keep_early(self, sender: str, token: bytes, place: _Place, size: int) -> None:
        def forget() -> None:
            place.is_fetched()
            del self._places[token]

        self._early[sender] += 1
        self._early_bytes += size
        timer = asyncio.get_running_loop().call_later(EARLY_SECONDS, forget)

        def fetched() -> None:
            timer.cancel()
            self._early_bytes -= size
            self._early[sender] -= 1
            if not self._early[sender]:
                del self._early[sender]

        place.is_fetched = fetched

    def _place(self, token: bytes) -> _Place:
        place = self._places.get(token)
        if place is None:
            if len(self._places) >= MAX_CHAINS:
                raise RpcRefused("busy", f"{MAX_CHAINS} sweeps are waited for already", {"retry_after": 1.0})
            place = self._places[token] = _Place()
        return place


def _another_z(came: ZArrives, due: ZArrives) -> RpcRefused:
    if came.positions != due.positions:
        return RpcRefused("bad-request", f"positions: {came.positions}, {due.positions} are due")
    return RpcRefused("bad-request", f"narrow: {came.narrow}, {due.narrow} is due")


def _narrowed(z: list[Float32]) -> bytes:
    return narrowed(np.concatenate(z))


def _widened(z: bytearray, positions: int, dim: int) -> bytearray:
    if len(z) != (due := narrow_size(positions, dim)):
        raise RpcRefused("bad-request", f"z: {len(z)} bytes, {due} are due")
    try:
        return widened(z, positions, dim)
    except CodecError as error:
        raise RpcRefused("bad-request", f"z: {error}") from None


def drawn(wanted: ChainRequest, answers: list[Float32]) -> bytes:
    """One byte from each row of a traversal's last answer, each with the noise of its place in the text."""
    draw, step = wanted.draw, wanted.sweep
    assert draw is not None and isinstance(step, SweepRequest)
    found = bytearray()
    for start, take, rows in zip(step.starts, step.take, answers, strict=True):
        for number, row in enumerate(rows):
            found.append(
                sample_byte(
                    row,
                    temperature=draw.temperature,
                    top_k=draw.top_k,
                    top_p=draw.top_p,
                    seed=step.seed,
                    position=start + take + number + 1,
                )
            )
    return bytes(found)
