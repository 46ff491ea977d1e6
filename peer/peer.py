"""One volunteer, assembled: from the options to a running peer, and back down in under five seconds."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any, NoReturn, TypeVar

from blockswarm.clock import SystemClock
from blockswarm.dht.directory import Directory
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.dht.records import BlockRecord
from blockswarm.errors import BlockswarmError
from blockswarm.model.corpus import Corpus
from blockswarm.peer import joining
from blockswarm.peer.checkpoint import Checkpoint, CheckpointError, CheckpointFolder
from blockswarm.peer.checks import Inputs, read_inputs
from blockswarm.peer.config import PeerConfig
from blockswarm.peer.connection import Connection, connect, daemon_died, start_host
from blockswarm.peer.console import Console, log_to, open_console
from blockswarm.peer.counts_post import CountsPost, rounds_over, take_counts_post
from blockswarm.peer.footprint import release_startup_pages
from blockswarm.peer.forks import Forks
from blockswarm.peer.lag import LagMeter
from blockswarm.peer.post import HolderSource, Post, obtain_states, take_post
from blockswarm.peer.report import progress_record
from blockswarm.peer.run_announcer import keep_run_announced
from blockswarm.peer.state_dir import claim_state_dir
from blockswarm.peer.states import StateStore
from blockswarm.peer.tasks import Supervisor, first_of
from blockswarm.peer.trainer import Learner, Trainer
from blockswarm.peer.view import LOOKUP_SECONDS, RECORD_SECONDS, SOFTWARE, Announcer
from blockswarm.swarm.manifest import COUNTS, EMBEDDING
from blockswarm.swarm.policy.placement import replicas_on_record, should_move

log = logging.getLogger(__name__)
T = TypeVar("T")

CHECKPOINT_SECONDS = 30.0
"""Least time between two checkpoints while running; one more is written on leaving."""

GOODBYE_SECONDS = 1.0
LAST_SAVE_SECONDS = 2.0
MOST_PROGRESS_SECONDS = 600.0
"""Longest life of a progress record; records that reach further into the future are refused."""


async def run_volunteer(config: PeerConfig, stop: asyncio.Event) -> int:
    """Run a volunteer until ``stop`` is set or its rounds are done; the exit code.

    Raises
    ------
    BlockswarmError
        When it cannot start, or cannot go on; one line for the user.
    """
    config.validate()
    claim_state_dir(config.state_dir)
    with open_console(json_log=config.json_log, quiet=config.quiet) as console, log_to(console):
        peer = Peer(config, console)
        try:
            code = await peer.run(stop)
        finally:
            await peer.close()
        console.emit({"event": "left", "state_dir": str(config.state_dir)})
        return code


class Peer:
    """A volunteer's parts in the order they come to life: host, connection, post.

    Parameters
    ----------
    config : PeerConfig
        The options.
    console : Console
        Where events go.
    """

    def __init__(self, config: PeerConfig, console: Console) -> None:
        self.config = config
        self.console = console
        self.clock = SystemClock()
        self.identity = Identity.load_or_create(config.identity or config.state_dir / "identity.key")
        self.checkpoints = CheckpointFolder(config.state_dir)
        self.supervisor = Supervisor(self._task_failed)
        self.state = "JOINING"
        self.block: int | None = config.block
        self.host: Host | None = None
        self.connection: Connection | None = None
        self.announcer: Announcer | None = None
        self.post: Post | CountsPost | None = None
        self.lag = LagMeter()
        self._checkpoint_due = asyncio.Event()

    def _task_failed(self, name: str, error: BaseException) -> None:
        self.console.emit({"event": "warning", "message": f"{name}: {str(error) or type(error).__name__}"})

    # -- running ---------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> int:
        """Join, train and serve until told to stop, the rounds are done, or something essential ends."""
        try:
            await first_of(self._live(), stop.wait())
        except BlockswarmError as error:
            self.console.emit({"event": "stopped", "reason": str(error), "failed": True})
            raise
        self.console.emit({"event": "stopped", "reason": "" if stop.is_set() else "all rounds are done"})
        return 0

    async def _live(self) -> None:
        inputs = await asyncio.to_thread(read_inputs, self.config)
        self.host = await start_host(self.config, self.identity, self.clock)
        self.host.describe = self._describe
        await first_of(self._volunteer(self.host, inputs), daemon_died(self.host))

    async def _volunteer(self, host: Host, inputs: Inputs) -> None:
        """Enter the swarm and work in it."""
        connection = await connect(host, self.config, inputs.manifest, self.clock, self.console.emit)
        self.connection = connection
        self.announcer = Announcer(connection.directory, self._record, self.clock)
        if connection.counts_only:
            await self._serve_counts(connection, self.announcer)
            return
        corpus = await asyncio.to_thread(inputs.take_corpus, connection.manifest)
        resumed = await self._resume(connection)
        self.block = await self._choose_block(connection, self.announcer, resumed)
        self.supervisor.forever("looking for other peers", lambda: connection.view.keep_fresh(lambda: self.block))
        self._keep_announced(connection, self.announcer)
        self.supervisor.forever("saving checkpoints", self._keep_saving)
        self.supervisor.forever("measuring the event loop", self.lag.watch)
        await self._work(connection, corpus, resumed)

    def _keep_announced(self, connection: Connection, announcer: Announcer) -> None:
        host, manifest = connection.host, connection.manifest
        self.supervisor.forever("announcing", announcer.keep_announced)
        runs = Directory(host, manifest.run_id, self.clock)  # its own: they wait for one another's writes
        self.supervisor.forever(
            "announcing the run", lambda: keep_run_announced(runs, host, manifest, self.clock, always=False)
        )

    async def _serve_counts(self, connection: Connection, announcer: Announcer) -> None:
        """Own the n-gram counts, until the rounds are done."""
        self.block = COUNTS
        await announcer.announce()
        self._keep_announced(connection, announcer)
        self.post = await take_counts_post(connection, self.config, self.console.emit)
        self.state = "SERVING"
        announcer.changed()
        self._tell_ready(connection, COUNTS)
        release_startup_pages()
        await rounds_over(connection.manifest, connection, self.config.rounds)

    async def _work(self, connection: Connection, corpus: Corpus, resumed: Checkpoint | None) -> None:
        """Man one block after another, until the rounds are done; usually the first one to the end."""
        rounds_left = self.config.rounds
        while self.block is not None:
            block = self.block
            if resumed is not None and resumed.block.subject != block:
                former = resumed.block.subject
                self._set_aside(f"block {block} needs this peer more than block {former}, whose checkpoint is here")
                resumed = None
            store, host, emit = StateStore(connection.clock), connection.host, self.console.emit
            forks = Forks(
                connection.manifest,
                host.peer_id,
                connection.clock,
                store,
                call=host.call,
                emit=emit,
                state_dir=self.config.state_dir,
            )
            source = HolderSource(connection, forks)
            await obtain_states(connection, block, resumed, source, emit, store=store, forks=forks)
            post = self.post = take_post(
                connection,
                self.identity,
                self.config,
                corpus,
                store,
                resumed,
                source,
                forks,
                block=block,
                emit=self._round_event,
                committed=self._committed,
            )
            self._tell_ready(connection, block)
            training = post.volunteer.run(
                rounds_left,
                on_training=self._trains,
                on_trained=self._serves,
                on_role=self._changes_role,
                wish_to_move=self._wish_to_move if self.config.block is None else None,
            )
            target = await first_of(training, _trainer_failed(post.trainer))
            if target is None:
                return
            rounds_left = None if rounds_left is None else rounds_left - post.volunteer.rounds_done
            await self._leave_post(post, target)
            resumed = None

    def _trains(self) -> None:
        release_startup_pages()
        self.state = "TRAINING"
        self._committed()

    def _changes_role(self, contributor: bool) -> None:
        release_startup_pages()
        self.state = "CONTRIBUTING" if contributor else "TRAINING"
        self._committed()

    def _serves(self) -> None:
        self.state = "SERVING"
        self._committed()

    def _tell_ready(self, connection: Connection, block: int) -> None:
        self.console.emit(
            {
                "event": "ready",
                "peer_id": connection.host.peer_id,
                "addrs": connection.host.addresses(),
                "block": block,
                "run_id": connection.manifest.run_id,
            }
        )

    def _wish_to_move(self, number: int) -> int | None:
        """The block that needs this peer more than its own does, as of round ``number``; usually none."""
        if self.connection is None or self.block is None:
            return None
        return should_move(
            self.connection.manifest.model.blocks,
            replicas_on_record(self.connection.view.records(), self.clock.now()),
            own_id=self.identity.peer_id,
            own_block=self.block,
            turn=number,
        )

    async def _leave_post(self, post: Post, target: int) -> None:
        message = f"moving from block {post.block} to block {target}, which needs it more"
        self.console.emit({"event": "info", "message": message})
        self.state, self.block, self.post = "JOINING", target, None
        await post.stop()
        self._set_aside(f"the work on block {post.block} is done")
        if self.announcer is not None:
            await self.announcer.announce()

    async def _resume(self, connection: Connection) -> Checkpoint | None:
        found = await asyncio.to_thread(self.checkpoints.load_newest, connection.manifest)
        for reason in found.skipped:
            self.console.emit({"event": "warning", "message": f"a checkpoint was passed over: {reason}"})
        checkpoint = found.checkpoint
        if checkpoint is None and found.skipped:
            self._set_aside("none of the checkpoints here can be used")
        elif checkpoint is not None and self.config.block not in (None, checkpoint.block.subject):
            self._set_aside(f"the checkpoint here is of block {checkpoint.block.subject}, so it is not used")
            return None
        return checkpoint

    def _set_aside(self, why: str) -> None:
        """No checkpoint is overwritten by another block's or run's: what is not gone on from stays beside."""
        folder = self.checkpoints.set_aside()
        if folder is not None:
            self.console.emit({"event": "info", "message": f"{why}; it is kept in {folder}"})

    async def _choose_block(self, connection: Connection, announcer: Announcer, resumed: Checkpoint | None) -> int:
        async def announce(block: int) -> None:
            self.block = block
            await announcer.announce()

        if self.config.block is not None:
            await asyncio.gather(connection.view.refresh(), announcer.announce())
            return self.config.block
        return await joining.choose(
            connection.manifest,
            self.identity.peer_id,
            records=connection.view.records,
            refresh=connection.view.refresh,
            announce=announce,
            now=self.clock.now,
            prefer=resumed.block.subject if resumed else None,
            rng=random.Random(self.identity.peer_id),
        )

    # -- what others learn of us -----------------------------------------------------------------------------------

    def _describe(self) -> dict[str, Any]:
        manifest = self.connection.manifest if self.connection else None
        head = self.post.store.head(self.post.block) if self.post else None
        return {
            "runs": [{"run_id": manifest.run_id, "digest": manifest.digest}] if manifest else [],
            "block": self.block,
            "state": self.state,
            "round": head.round if head else None,
        }

    def _record(self, issued: float, expires: float) -> BlockRecord:
        if self.connection is None or self.block is None:
            raise BlockswarmError("there is nothing to announce before a block is chosen")
        host, post = self.connection.host, self.post
        head = post.store.head(post.block) if post else None
        embedding = post.store.head(EMBEDDING if isinstance(post, Post) else COUNTS) if post else None
        return BlockRecord(
            run_id=self.connection.manifest.run_id,
            block=self.block,
            peer_id=host.peer_id,
            state=self.state,
            round=head.round if head else 0,
            digest=head.digest if head else b"",
            embedding_digest=embedding.digest if embedding else b"",
            samples_per_second=post.samples_per_second if post else 0.0,
            serving_rps=post.serving.requests_per_second if post else 0.0,
            addrs=tuple(host.addresses()),
            relayed=host.relayed,
            software=SOFTWARE,
            issued=issued,
            expires=expires,
        )

    def _committed(self) -> None:
        if self.announcer is not None:
            self.announcer.changed()
        self._checkpoint_due.set()

    def _round_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "round" and event["subject"] != EMBEDDING:
            event |= {"loop_lag_p99_ms": self.lag.take()}  # once a round, and both subjects share it
            if isinstance(self.post, Post):
                event |= {"serving": self.post.serving.figures()}
        self.console.emit(event)
        if event["event"] == "round" and self.connection is not None:
            self.supervisor.once("publishing progress", self._publish(self.connection, event))

    async def _publish(self, connection: Connection, event: dict[str, Any]) -> None:
        now = self.clock.now()
        life = min(MOST_PROGRESS_SECONDS, max(RECORD_SECONDS, 3 * connection.manifest.rounds.seconds))
        record = progress_record(
            event, run_id=connection.manifest.run_id, peer_id=self.identity.peer_id, issued=now, expires=now + life
        )
        async with asyncio.timeout(LOOKUP_SECONDS):
            await connection.directory.announce_progress(record)

    # -- keeping and leaving ---------------------------------------------------------------------------------------

    async def _keep_saving(self) -> None:
        while True:
            await self._checkpoint_due.wait()
            self._checkpoint_due.clear()
            try:
                await self._save()
            except CheckpointError as error:  # a full disk must not stop the training
                self.console.emit({"event": "error", "message": str(error)})
            except OSError as error:
                message = f"what a merge would need is not kept: {error.strerror or error}"
                self.console.emit({"event": "error", "message": message})
            await asyncio.sleep(CHECKPOINT_SECONDS)

    async def _save(self) -> None:
        if isinstance(self.post, Post) and self.connection is not None:
            checkpoint = await self.post.checkpoint()
            await asyncio.to_thread(self.checkpoints.save, checkpoint, self.connection.manifest)
            await self.post.volunteer.forks.save()

    async def close(self) -> None:
        """Say goodbye, save, and end every part; whatever hangs is given up in time."""
        await self.supervisor.stop()
        self.state = "OFFLINE"
        await asyncio.gather(self._say_goodbye(), self._save_last())
        if self.post is not None:
            await self.post.stop()
        if self.host is not None:
            await self.host.stop()

    async def _say_goodbye(self) -> None:
        if self.announcer is not None and self.block is not None:
            await self.announcer.goodbye(GOODBYE_SECONDS)

    async def _save_last(self) -> None:
        try:
            async with asyncio.timeout(LAST_SAVE_SECONDS):
                await self._save()
        except (BlockswarmError, OSError) as error:  # TimeoutError is an OSError
            why = str(error) or f"it took longer than {LAST_SAVE_SECONDS:g} s"
            self.console.emit({"event": "error", "message": f"the last checkpoint was not written: {why}"})


async def _trainer_failed(trainer: Trainer[Learner]) -> NoReturn:
    try:
        await asyncio.shield(trainer.failed)
    except BlockswarmError:
        raise
    except Exception as error:
        raise BlockswarmError(f"training failed: {error}") from error
    raise BlockswarmError("the training thread has ended")
