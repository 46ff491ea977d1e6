"""A volunteer's post: one block, its states, the thread that trains it, and what it serves to others."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from blockswarm.dht.identity import Identity
from blockswarm.model.corpus import Corpus, batches, heldout_windows
from blockswarm.peer.catchup import CatchUp
from blockswarm.peer.chain import ChainDesk
from blockswarm.peer.checkpoint import Checkpoint
from blockswarm.peer.config import PeerConfig
from blockswarm.peer.connection import Connection, Emit
from blockswarm.peer.desk import Desk
from blockswarm.peer.download import TransferError
from blockswarm.peer.forks import Forks
from blockswarm.peer.giving import serve_states
from blockswarm.peer.heads import Head, claim_of
from blockswarm.peer.hosting import Hosting
from blockswarm.peer.line import serve_lines
from blockswarm.peer.live import LiveWeights
from blockswarm.peer.serving import ServingDesk
from blockswarm.peer.shelf import latest_round
from blockswarm.peer.states import State, StateStore
from blockswarm.peer.trainer import Learner, Trainer
from blockswarm.peer.transfer import StateFetcher
from blockswarm.peer.volunteer import Volunteer
from blockswarm.swarm.certified import heaviest as heaviest_head
from blockswarm.swarm.manifest import EMBEDDING, Manifest, subject_name
from blockswarm.swarm.policy.acceptance import heavier
from blockswarm.swarm.policy.asking import donors_for
from blockswarm.swarm.policy.turns import answering_rate

FETCH_SECONDS = 600.0
"""Bound of one attempt to fetch a state; the next one resumes where it stopped."""

TELL_SECONDS = 2.0
TOLD_APART = 4
"""Holders of a line that loses to ours who are told, and for how long at most."""

HELDOUT_WINDOWS = 8
"""Held-out sequences a volunteer measures its block on after every round; a client measures in full."""


@dataclass(frozen=True)
class Post:
    """A manned block. Made by `take_post`."""

    block: int
    store: StateStore
    trainer: Trainer[Learner]
    volunteer: Volunteer
    serving: ServingDesk
    serving_thread: ThreadPoolExecutor

    @property
    def samples_per_second(self) -> float:
        """Training throughput."""
        return self.volunteer.live.samples_per_second

    async def stop(self) -> None:
        """End both threads, within bounds."""
        await self.volunteer.stop()
        self.serving.close()
        self.serving_thread.shutdown(wait=False, cancel_futures=True)
        await self.trainer.stop()

    async def checkpoint(self) -> Checkpoint:
        """Everything needed to go on from here later."""
        theta, embedding = await self.trainer.run(lambda learner: learner.read())
        return Checkpoint(
            block=self.volunteer.live.head(self.block),
            embedding=self.volunteer.live.head(EMBEDDING),
            theta=theta,
            live_embedding=embedding,
            pending={subject: ledger.pending for subject, ledger in self.volunteer.live.ledgers.items()},
        )


class HolderSource:
    """Newer states, from the holders on record (and whoever is known to be ahead)."""

    def __init__(self, connection: Connection, forks: Forks) -> None:
        self._call, self._own_id = connection.host.call, connection.host.peer_id
        self._view = connection.view
        self._forks = forks
        self._latest_round = partial(latest_round, connection.manifest, connection.clock)
        self._fetcher = StateFetcher(connection.host.call, connection.manifest, self._latest_round)

    async def newer(self, own: State, heads: list[Head]) -> State | None:
        """The verified state that is offered and wins over ``own``; raises `TransferError`.

        Usually that is the heaviest. Where its line and ours have split, the lines are weighed; holders of one that
        loses to ours are told, and one with fewer samples that wins over ours is taken of those in ``heads``.
        """
        ahead = [head.peer_id for head in heads]
        holders = donors_for(self._own_id, ahead, self._view.holders(own.subject), turn=self._latest_round())
        if not holders:
            return None
        offers, problems = await self._fetcher.offers(own.subject, holders)
        if not offers:
            told = "; ".join(f"{peer_id}: {reason}" for peer_id, reason in list(problems.items())[:4])
            raise TransferError(f"no holder on record gives the state of {subject_name(own.subject)}: {told}")
        told_of = {head.peer_id for head in heads}
        candidates = {
            offer.head.digest: offer.head
            for offer in offers
            if offer.peer_id in told_of or heavier(offer.head.samples, offer.head.digest, own.samples, own.digest)
        }
        while candidates:
            best = heaviest_head(list(candidates.values()))
            del candidates[best.digest]
            givers = [offer.peer_id for offer in offers if offer.head.digest == best.digest]
            judgement = await self._forks.examine(own, best, givers)
            if judgement.go:
                digest = best.digest if judgement.fork is not None else None
                return await self._fetcher.fetch(own.subject, holders, seconds=FETCH_SECONDS, digest=digest)
            if judgement.fork is not None:
                await self._tell_apart(own, givers)
        return None

    async def _tell_apart(self, own: State, peers: list[str]) -> None:
        """Tell holders of a line that loses to ours: what they hold has more samples, so they would not ask."""
        body = {"subject": own.subject, "apart": True, **claim_of(own, proven=True)}
        calls = (self._call(peer_id, "round.news", body, timeout=TELL_SECONDS) for peer_id in peers[:TOLD_APART])
        await asyncio.gather(*calls, return_exceptions=True)  # who does not hear it now is told after the next round


async def obtain_states(
    connection: Connection,
    block: int,
    resumed: Checkpoint | None,
    source: HolderSource,
    emit: Emit,
    *,
    store: StateStore,
    forks: Forks,
) -> None:
    """The newest states of the block and the embedding: from others, else from the checkpoint, else the genesis."""
    await forks.tidy(block, EMBEDDING)
    for subject in (block, EMBEDDING):
        if resumed is not None:
            own = resumed.embedding if subject == EMBEDDING else resumed.block
        else:
            own = await asyncio.to_thread(State.genesis, connection.manifest, subject)
        store.commit(own)
        await forks.begin(own)
        begin = connection.clock.now()
        try:
            state = await source.newer(own, [])
        except TransferError as error:
            emit({"event": "warning", "message": str(error)})
            continue
        if state is None:
            continue
        store.commit(state)
        await forks.adopted(own, state)
        emit(
            {
                "event": "state",
                "subject": subject,
                "round": state.round,
                "digest": state.digest.hex(),
                "samples": state.samples,
                "seconds": connection.clock.now() - begin,
            }
        )


def take_post(
    connection: Connection,
    identity: Identity,
    config: PeerConfig,
    corpus: Corpus,
    store: StateStore,
    resumed: Checkpoint | None,
    source: HolderSource,
    forks: Forks,
    *,
    block: int,
    emit: Emit,
    committed: Callable[[], None],
) -> Post:
    """Start the training thread on the states in ``store`` and offer the block to others."""
    host, manifest = connection.host, connection.manifest
    steps = manifest.rounds.local_steps
    trainer = Trainer(
        _learner_maker(manifest, corpus, block, store, resumed, config, batch_seed(config.seed, host.peer_id)),
        local_steps=None if isinstance(steps, str) else steps,
    )
    trainer.start()
    desk = Desk(host.peer_id, manifest, connection.clock, store.head)
    desk.meter.declared = config.bandwidth
    desk.register(host)
    hosting = Hosting(manifest, connection.clock, desk)
    hosting.register(host)
    serve_states(host, store)
    serve_lines(host, forks.lines)
    # Certified states never change, so answers need not wait for a training step: they have a thread of their own, with
    # its share of the time.
    serving_thread = ThreadPoolExecutor(1, thread_name_prefix="serving")
    loop = asyncio.get_running_loop()
    serving = ServingDesk(
        manifest,
        store,
        lambda work: loop.run_in_executor(serving_thread, work),
        connection.clock,
        block=block,
        share=lambda: answering_rate(config.serve_share, trainer.pace()) if trainer.training else 1.0,
    )
    serving.register(host)
    ChainDesk(manifest, serving, host, connection.view.everyone).register(host)

    live = LiveWeights(block, manifest, connection.clock, store, trainer)
    catch_up = CatchUp(live, source, connection.clock, emit=emit, adopted=committed, forks=forks)
    desk.on_news = catch_up.hear
    desk.is_other_line = forks.is_news
    desk.line = forks.lines.get
    volunteer = Volunteer(
        manifest=manifest,
        identity=identity,
        clock=connection.clock,
        caller=host,
        desk=desk,
        trainer=trainer,
        live=live,
        catch_up=catch_up,
        forks=forks,
        view=connection.view,
        emit=emit,
        committed=committed,
        heldout=heldout_windows(corpus, manifest.model.context, HELDOUT_WINDOWS),
        hosting=hosting,
    )
    if resumed is not None:
        for state in (resumed.block, resumed.embedding):
            if store.head(state.subject) is state:  # else the pending work was on a state that others have left behind
                live.ledgers[state.subject].pending = resumed.pending.get(state.subject, 0.0)
    return Post(block, store, trainer, volunteer, serving, serving_thread)


def batch_seed(chosen: int | None, peer_id: str) -> int:
    """The seed of a volunteer's batches and noise: the chosen one, else its own from its peer id."""
    return chosen if chosen is not None else int.from_bytes(hashlib.sha256(peer_id.encode()).digest()[:6], "big")


def _learner_maker(
    manifest: Manifest,
    corpus: Corpus,
    block: int,
    store: StateStore,
    resumed: Checkpoint | None,
    config: PeerConfig,
    seed: int,
) -> Callable[[], Learner]:
    def head(subject: int) -> State:
        state = store.head(subject)
        if state is None:
            raise LookupError(f"no state of subject {subject}")
        return state

    def start_values(subject: int) -> npt.NDArray[np.float32]:
        """The live weights of the checkpoint if they belong to the newest state, else that state."""
        state = head(subject)
        if resumed is not None and state is resumed.block:
            return resumed.theta
        if resumed is not None and state is resumed.embedding:
            return resumed.live_embedding
        return state.values

    def make() -> Learner:
        from blockswarm.model.learner import BlockLearner  # torch: seconds to import, and not needed to join

        learner = BlockLearner(
            manifest.model,
            manifest.recipe,
            block,
            start_values(block),
            start_values(EMBEDDING),
            batches=batches(corpus, seed, manifest.recipe.batch, manifest.model.context),
            seed=seed,
            device=config.device,
            threads=config.threads,
            precision=config.precision,
            compiled=config.compiled,
        )
        learner.set_certified(head(block).samples)
        return learner

    return make
