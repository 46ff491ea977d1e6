"""A slow volunteer at work: it trains for as long as it needs, and a member brings its update in.

See docs/protocol.md §6.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcError
from blockswarm.dht.identity import Identity
from blockswarm.dht.rpc import Reply
from blockswarm.peer.allreduce import open_part
from blockswarm.peer.catchup import CatchUp
from blockswarm.peer.exchange import Caller, off_loop
from blockswarm.peer.forms import OUTCOME_OF
from blockswarm.peer.hosting import PIECE_BYTES
from blockswarm.peer.live import LiveWeights
from blockswarm.peer.states import State
from blockswarm.peer.trainer import Learner, Trainer
from blockswarm.swarm.codec import encode
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.manifest import Manifest, subject_name
from blockswarm.swarm.policy.contributing import age_of, age_problem, training_seconds
from blockswarm.swarm.policy.leader import leader_order
from blockswarm.swarm.policy.phases import RoundTimes, next_round_to_join, times_of

log = logging.getLogger(__name__)

CALL_SECONDS = 10.0
"""A sponsor that does not answer a short message for so long is given up."""

PIECE_SECONDS = 30.0
"""Time for one piece to arrive: 64 KiB at 17 kbit/s."""

OUTCOME_SECONDS = 3.0
"""How long after a round's close a sponsor is asked what came of it: a vote may be waited for as long as half of it."""

POLL_SECONDS = 0.1
LEAST_NOTICE = 0.5
"""A round whose training ends sooner is left to the next one: the word would come too late."""


@dataclass
class Parcel:
    """An update of one subject on its way into a round."""

    base: State
    data: bytes
    """Encoded as the manifest says."""
    decoded: npt.NDArray[np.float32]
    """What the average will contain of it."""
    samples: int

    @property
    def subject(self) -> int:
        return self.base.subject

    @property
    def hash(self) -> bytes:
        """How it is named."""
        return hashlib.sha256(self.data).digest()


class Refused(Exception):
    """A sponsor does not take an update, or does not answer; the text says why."""


@dataclass(kw_only=True)
class Contributor:
    """What a volunteer does instead of rounds while its step and upload do not fit one."""

    manifest: Manifest
    identity: Identity
    clock: Clock
    caller: Caller
    trainer: Trainer[Learner]
    live: LiveWeights
    catch_up: CatchUp
    members: Callable[[int], tuple[str, ...]]
    """Subject → replicas that make its rounds, as on record."""
    emit: Callable[[dict[str, Any]], None]
    upload_seconds: float = 0.0
    """Time that sending the block's whole encoded update took; 0 while unknown."""

    async def cycle(self) -> None:
        """Go over to the newest states, train, hand the updates to a sponsor, and see them into a round.

        Every wait is bounded: an update is given up when it is too old, and its work carried onto the next states.
        """
        await self.catch_up.refresh()
        async with AsyncExitStack() as stack:
            self.catch_up.deaf = True
            stack.callback(setattr, self.catch_up, "deaf", False)
            for subject in self.live.subjects:  # what lies on the way is an update of just this state
                await stack.enter_async_context(self.catch_up.locks[subject])
            await self._train()
            parcels = await self._pack()
            for sponsor in self._sponsors() if parcels else []:
                there = [parcel for parcel in parcels if await self._upload(sponsor, parcel)]
                if there:
                    await self._see_through(sponsor, there)
                    return
        await asyncio.sleep(self.manifest.rounds.seconds / 4)  # nobody took them; the work stays pending

    async def _train(self) -> None:
        """Wait until enough has been trained, and at least one step."""
        begin, steps = self.clock.now(), self.trainer.steps
        seconds = training_seconds(self.trainer.step_seconds, self.upload_seconds, self.manifest.rounds.seconds)
        while self.trainer.steps == steps or self.clock.now() < begin + seconds:
            if not self.trainer.training:  # its fixed number of steps is done; a snapshot gives the next ones
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _pack(self) -> list[Parcel]:
        """The updates as they travel; none when training diverged."""
        snapshot = await self.live.snapshot()
        parcels = []
        for subject in self.live.subjects:
            base = self.live.head(subject)
            delta = snapshot.values[subject] - base.values
            if not await off_loop(delta.nbytes, lambda delta: bool(np.isfinite(delta).all()), delta):
                await self.live.restart(self.live.subjects)
                message = f"training diverged: the weights of {subject_name(subject)} were not finite; starting again"
                self.emit({"event": "warning", "message": message})
                return []
            if snapshot.samples[subject] > 0:
                data, decoded = await off_loop(delta.nbytes, self._encoded, delta)
                parcels.append(Parcel(base, data, decoded, snapshot.samples[subject]))
        return parcels

    def _encoded(self, delta: npt.NDArray[np.float32]) -> tuple[bytes, npt.NDArray[np.float32]]:
        compression = self.manifest.averaging.compression
        data = encode(delta, compression)
        return data, open_part(data, len(delta), compression)[0]

    def _sponsors(self) -> list[str]:
        """Members that may bring our updates in: in an order that changes, so that none gets all of them."""
        number = self._next_round().round
        members = set(self.members(self.live.block)) - {self.identity.peer_id}
        digest = hashlib.sha256(self.manifest.digest + self.identity.peer_id.encode()).digest()
        return leader_order(members, run_digest=digest, subject=self.live.block, round_number=number)

    async def _upload(self, sponsor: str, parcel: Parcel) -> bool:
        """Bring an update to a sponsor; whether it has arrived."""
        try:
            await self._send(sponsor, parcel)
        except Refused as error:
            self._tell(parcel, sponsor, counted=False, reason=str(error))
            return False
        return True

    async def _send(self, sponsor: str, parcel: Parcel) -> None:
        begin = self.clock.now()
        opened = await self._call(
            sponsor,
            "contribute.open",
            {
                "subject": parcel.subject,
                "base_round": parcel.base.round,
                "base": parcel.base.digest,
                "base_samples": parcel.base.samples,
                "certificate": parcel.base.certificate,
                "values": len(parcel.decoded),
                "hash": parcel.hash,
            },
            CALL_SECONDS,
        )
        have = opened.body.get("have")
        if type(have) is not int or not 0 <= have <= len(parcel.data) or have % PIECE_BYTES * (have < len(parcel.data)):
            raise Refused("it answered with nonsense")
        for index in range(-(-have // PIECE_BYTES), -(-len(parcel.data) // PIECE_BYTES)):
            if problem := age_problem(self._next_round().round, parcel.base.round):
                raise Refused(f"the upload took too long: {problem}")
            piece = parcel.data[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
            body = {"subject": parcel.subject, "hash": parcel.hash, "index": index}
            await self._call(sponsor, "contribute.piece", body, PIECE_SECONDS, blob=piece)
        if parcel.subject == self.live.block and have == 0:
            self.upload_seconds = self.clock.now() - begin

    async def _see_through(self, sponsor: str, parcels: list[Parcel]) -> None:
        """Sign for one round after another until the block's update is in, or too old.

        The embedding's goes along; one that is not in by then stays pending, and is part of the next.
        """
        left = list(parcels)
        while left and left[0] is parcels[0]:  # the block stands first
            times = self._next_round()
            signed = [parcel for parcel in left if await self._sign(sponsor, parcel, times.round)]
            if not signed:
                return
            await self.clock.sleep_until(times.close)
            answered = await asyncio.gather(*(self._outcome(sponsor, parcel, times) for parcel in signed))
            left = [parcel for parcel, again in zip(signed, answered, strict=True) if again]

    async def _sign(self, sponsor: str, parcel: Parcel, number: int) -> bool:
        """Give our word that the update may enter a round; whether the sponsor took it."""
        word = Contribution.make(
            self.identity,
            self.manifest.digest,
            subject=parcel.subject,
            round_number=number,
            base_round=parcel.base.round,
            base=parcel.base.digest,
            samples=parcel.samples,
            values=parcel.hash,
        )
        problem = age_problem(number, parcel.base.round)
        try:
            if not problem:
                await self._call(sponsor, "contribute.sign", {"contribution": word.statement.raw}, CALL_SECONDS)
        except Refused as error:
            problem = str(error)
        if problem:
            self._tell(parcel, sponsor, counted=False, reason=problem)
        return not problem

    async def _outcome(self, sponsor: str, parcel: Parcel, times: RoundTimes) -> bool:
        """Learn what came of a round; whether the update should be signed for the next one.

        If nobody can tell, it may be in a certified state: it is given up, so that it never counts twice.
        """
        until = times.close + OUTCOME_SECONDS
        body = {"subject": parcel.subject, "round": times.round}
        answer: dict[str, Any] = {"known": False, "counted": False, "reason": "its sponsor cannot tell"}
        while not answer["known"] and self.clock.now() < until:
            try:
                reply = await self._call(sponsor, "contribute.outcome", body, OUTCOME_SECONDS)
                answer = OUTCOME_OF.read(reply.body)
            except (Refused, MessageError) as error:
                answer = {"known": False, "counted": False, "reason": str(error)}
            if not answer["known"]:
                await asyncio.sleep(2 * POLL_SECONDS)
        self._tell(parcel, sponsor, counted=answer["counted"], reason=answer["reason"], number=times.round)
        if answer["counted"] or not answer["known"]:
            await self.live.hand_over(parcel.subject, parcel.decoded, parcel.samples)
            return False
        return True

    def _tell(self, parcel: Parcel, sponsor: str, *, counted: bool, reason: str, number: int | None = None) -> None:
        number = self._next_round().round if number is None else number
        self.emit(
            {
                "event": "contribution",
                "subject": parcel.subject,
                "round": number,
                "base_round": parcel.base.round,
                "age": max(0, age_of(number, parcel.base.round)),
                "samples": parcel.samples,
                "sponsor": sponsor,
                "counted": counted,
                "reason": reason,
                "bytes": len(parcel.data),
                "upload_seconds": round(self.upload_seconds, 2),
                "step_seconds": round(self.trainer.step_seconds, 3),
            }
        )

    async def _call(
        self, sponsor: str, method: str, body: Mapping[str, Any], seconds: float, blob: bytes = b""
    ) -> Reply:
        try:
            async with asyncio.timeout(seconds + 0.5):
                return await self.caller.call(sponsor, method, body, blob=blob, timeout=seconds)
        except (RpcError, TimeoutError) as error:
            raise Refused(f"{method}: {error or 'no answer'}") from None

    def _next_round(self) -> RoundTimes:
        """The first round that our word can still be given for."""
        rounds, genesis = self.manifest.rounds, self.manifest.genesis_time
        number = next_round_to_join(self.clock.now() + LEAST_NOTICE, genesis, rounds.seconds, rounds.lengths)
        return times_of(number, genesis, rounds.seconds, rounds.lengths)
