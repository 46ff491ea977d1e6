"""Getting certified states out of a swarm, through the client's own link: verified, from several holders, in trio.

As volunteers do among themselves (docs/protocol.md §8): holders are asked for the head of a subject, the heaviest
believable one is taken, and its chunks are pulled from everyone who has it. The chunk digests are bound to the state's
before the first byte comes, so a wrong chunk costs its sender, never the state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import trio

from blockswarm.dht.errors import RpcError
from blockswarm.model.layout import CHUNK_BYTES
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.certified import check_certified, heaviest
from blockswarm.swarm.core import Core
from blockswarm.swarm.errors import ClientError, MessageError, NoHolderError, UntrustedAnswerError
from blockswarm.swarm.link import short, words
from blockswarm.swarm.manifest import EMBEDDING
from blockswarm.swarm.messages import ChunkRequest, HeadRequest, StateHead
from blockswarm.swarm.policy.phases import round_in_progress
from blockswarm.swarm.race import drain, race
from blockswarm.swarm.statements import StatementError
from blockswarm.swarm.subjects import block_word, subject_name

HEAD_SECONDS = 8.0
"""Seconds a holder gets to say which state it has."""

HEAD_GRACE = 1.5
"""Seconds left to the others after the first answer: one dead holder must not delay all."""

MAX_ASKED = 12
"""Holders asked for the head of one subject; more would only tell the same."""

IN_FLIGHT = 4
"""Chunks of one state under way at a time."""

CHUNK_SECONDS = 120.0
"""Seconds one chunk may take; long before, a rival is asked for it."""

FIRST_PATIENCE = 10.0
"""Seconds of silence after which another holder is asked for a chunk as well, while no chunk has arrived yet."""

LEAST_PATIENCE = 5.0
SLOW_FACTOR = 3.0
"""Afterwards: this many times what a chunk usually takes, and never less than ``LEAST_PATIENCE`` seconds."""

PASSES = 4
"""Times all holders are tried for one chunk before the state counts as lost."""

PAUSE = 0.5
"""Seconds before the second of these passes, doubled for each further one."""


class LostStateError(ClientError):
    """Nobody gives a state any more that was offered a moment ago."""


@dataclass
class Offered:
    """A believable state of one subject, and who may give it."""

    subject: int
    head: StateHead
    donors: Sequence[str]
    """Those that offered it, then those that are ahead of it but may have kept it."""
    problems: dict[str, str] = field(default_factory=dict)
    """Peer id → why it has no part in it."""


async def find(core: Core, subject: int) -> Offered:
    """The heaviest certified state of ``subject`` that live holders offer.

    Raises
    ------
    NoHolderError
        When nobody holds the block.
    ClientError
        When nobody offers the embedding.
    """
    heads, problems = await _ask_heads(core, subject, _holders(core, subject))
    if not heads:
        raise _nobody(subject, problems)
    best = heaviest(list(heads.values()))
    ranked = sorted(heads, key=lambda peer: heads[peer].digest != best.digest)
    return Offered(subject, best, ranked, problems)


async def fetch(core: Core, offered: Offered, arrived: Callable[[int], None]) -> Float32:
    """The values of a state, float32 ``[n]``, every chunk checked; the caller bounds the time.

    Parameters
    ----------
    core : Core
        The swarm.
    offered : Offered
        From `find`.
    arrived : callable
        Called with the number of bytes of each chunk that has come.

    Raises
    ------
    LostStateError
        When no holder gives it any more; a newer one may be found.
    UntrustedAnswerError
        When its values are not finite.
    """
    head = offered.head
    data = bytearray(4 * head.values)

    async def keep(index: int, chunk: bytes) -> None:
        data[index * CHUNK_BYTES : index * CHUNK_BYTES + len(chunk)] = chunk
        arrived(len(chunk))

    await fetch_chunks(core, offered, range(len(head.chunks)), keep)
    values = np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise UntrustedAnswerError(f"the certified state of {subject_name(offered.subject)} is not finite")
    return values


async def fetch_chunks(
    core: Core, offered: Offered, wanted: Iterable[int], keep: Callable[[int, bytes], Awaitable[None]]
) -> None:
    """Fetch the chunks ``wanted`` of a state from everybody who has it; each is handed to ``keep`` when it is verified.

    Raises
    ------
    LostStateError
        When no holder gives the state any more.
    """
    chunks = _Chunks(core, offered)

    async def work(index: int) -> None:
        await keep(index, await chunks.get(index))

    await drain(wanted, work, workers=IN_FLIGHT)


class _Chunks:
    """The chunks of one state, and what its donors are worth."""

    def __init__(self, core: Core, offered: Offered) -> None:
        self._core = core
        self._subject, self._head, self._donors = offered.subject, offered.head, offered.donors
        self._problems: dict[str, str] = {}
        self._banned: set[str] = set()
        self._usual: float | None = None  # seconds a chunk takes

    async def get(self, index: int) -> bytes:
        """Chunk ``index`` from whoever gives it."""
        for number in range(PASSES):
            usable = [donor for donor in self._donors if donor not in self._banned]
            turn = index % max(1, len(usable))  # all donors share the work
            outcome = await race(
                [*usable[turn:], *usable[:turn]], lambda peer: self._ask(peer, index), lambda _: self._patience
            )
            if outcome.won is not None:
                return outcome.won.result
            if len(self._banned) == len(self._donors):
                break
            await trio.sleep(PAUSE * 2**number)
        raise LostStateError(
            f"no holder gives the state of {subject_name(self._subject)} of round {self._head.round} any more "
            f"({_told(self._problems)})"
        )

    @property
    def _patience(self) -> float:
        return FIRST_PATIENCE if self._usual is None else max(LEAST_PATIENCE, SLOW_FACTOR * self._usual)

    async def _ask(self, peer: str, index: int) -> bytes:
        core, began = self._core, trio.current_time()
        size = self._head.chunk_bytes(index)
        try:
            reply = await core.link.call(
                peer,
                "state.chunk",
                ChunkRequest(self._subject, self._head.digest, index).to_body(),
                run=core.manifest.digest,
                max_blob=size,
                timeout=CHUNK_SECONDS,
            )
        except RpcError as error:
            self._problems[peer] = words(error)
            if error.code not in ("timeout", "unreachable", "busy"):
                self._banned.add(peer)  # it will not have the state in a minute either
            raise
        if len(reply.blob) != size or hashlib.sha256(reply.blob).digest() != self._head.chunks[index]:
            self._banned.add(peer)
            self._problems[peer] = f"sent a wrong chunk {index}"
            core.stats.refused_answers += 1
            core.router.failed(peer, now=trio.current_time(), kind="untrusted")
            text = f"{short(peer)} sent a wrong chunk of the state of {subject_name(self._subject)}"
            core.notify("refused", text, peer_id=peer)
            raise UntrustedAnswerError(text)
        seconds = trio.current_time() - began
        self._usual = seconds if self._usual is None else 0.7 * self._usual + 0.3 * seconds
        return reply.blob


def holding(core: Core, subject: int) -> Sequence[int]:
    """Blocks whose holders have states of ``subject``: that one; every volunteer has the embedding, so for it all."""
    return core.blocks if subject == EMBEDDING else (subject,)


def _holders(core: Core, subject: int) -> list[str]:
    peers = core.book.peers(holding(core, subject))
    return core.router.order(peers, work=1, now=trio.current_time())[:MAX_ASKED]


async def _ask_heads(core: Core, subject: int, peers: Sequence[str]) -> tuple[dict[str, StateHead], dict[str, str]]:
    """Believable heads, and why the others have none; one that is silent is waited for only as long as all are."""
    heads: dict[str, StateHead] = {}
    problems: dict[str, str] = {}
    send, receive = trio.open_memory_channel[str](len(peers))

    async def ask(peer: str) -> None:
        try:
            heads[peer] = await _head(core, subject, peer)
        except RpcError as error:
            problems[peer] = words(error)
        except (MessageError, StatementError) as error:
            problems[peer] = str(error)
            core.stats.refused_answers += 1
            core.notify("refused", f"{short(peer)} ({subject_name(subject)}): {error}", peer_id=peer)
        send.send_nowait(peer)

    deadline = trio.current_time() + HEAD_SECONDS + 1.0
    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(ask, peer)
        for _ in peers:
            with trio.move_on_at(deadline) as scope:
                await receive.receive()
            if scope.cancelled_caught:
                break
            if heads:
                deadline = min(deadline, trio.current_time() + HEAD_GRACE)
        nursery.cancel_scope.cancel()
    return heads, problems | {peer: "did not answer in time" for peer in peers if peer not in {*heads, *problems}}


async def _head(core: Core, subject: int, peer: str) -> StateHead:
    manifest = core.manifest
    body = HeadRequest(subject).to_body()
    reply = await core.link.call(peer, "state.head", body, run=manifest.digest, timeout=HEAD_SECONDS)
    head = StateHead.parse(reply.body, values=manifest.parameters(subject), momentum=manifest.momentum_of(subject))
    latest = round_in_progress(core.clock.now(), manifest.genesis_time, manifest.rounds.seconds)
    # Verifies a signature per vote, of which there may be hundreds.
    await trio.to_thread.run_sync(check_certified, manifest, subject, head, latest)
    return head


def _nobody(subject: int, problems: Mapping[str, str]) -> ClientError:
    found = f" ({_told(problems)})" if problems else ""
    if subject == EMBEDDING:
        return ClientError(f"nobody gives the state of the embedding{found}: is anybody training this run?")
    return NoHolderError(
        subject,
        f"no live holder of {subject_name(subject)}{found}: wait for a volunteer, or serve it with `blockswarm join "
        f"--block {block_word(subject)}`",
    )


def _told(problems: Mapping[str, str]) -> str:
    shown = [f"{short(peer)}: {reason}" for peer, reason in list(problems.items())[:4]]
    more = len(problems) - len(shown)
    return "; ".join([*shown, f"and {more} more"] if more > 0 else shown) or "nobody was asked"
