"""The post of a volunteer that owns the n-gram counts: it gets their file, serves it and its rows, trains nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from blockswarm.errors import BlockswarmError
from blockswarm.files import write_atomically
from blockswarm.model.corpus import read_text, split
from blockswarm.model.layout import COUNTS
from blockswarm.model.ngram import NgramModel
from blockswarm.naming import option
from blockswarm.peer.config import ConfigError, PeerConfig
from blockswarm.peer.connection import Connection, Emit
from blockswarm.peer.counts_desk import CountsDesk, counts_state
from blockswarm.peer.download import TransferError
from blockswarm.peer.giving import serve_states
from blockswarm.peer.shelf import latest_round
from blockswarm.peer.states import StateStore
from blockswarm.peer.transfer import StateFetcher
from blockswarm.swarm.counts.files import CountsError, build_counts, file_name, open_counts
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.manifest_fields import Counts
from blockswarm.swarm.policy.phases import round_in_progress

FETCH_SECONDS = 600.0
"""Bound of one attempt to fetch the file; the next one resumes where it stopped."""

ATTEMPTS = 3


@dataclass(frozen=True)
class CountsPost:
    """The counts, manned. Made by `take_counts_post`."""

    store: StateStore
    serving: CountsDesk
    block: int = COUNTS
    samples_per_second: float = 0.0

    async def stop(self) -> None:
        """Answer nothing more."""
        self.serving.stop()


async def take_counts_post(connection: Connection, config: PeerConfig, emit: Emit) -> CountsPost:
    """Get the counts, and offer them to others.

    Raises
    ------
    ConfigError
        When a file or text that was given is not that of the run's counts, or none was given and nobody has them.
    TransferError
        When those who have them do not give them.
    """
    wanted = connection.manifest.counts
    assert wanted is not None  # checked with the block
    model = await _obtain(connection, config, wanted, emit)
    store = StateStore(connection.clock)
    store.commit(await asyncio.to_thread(counts_state, model))
    serving = CountsDesk(model, connection.clock)
    serve_states(connection.host, store)
    serving.register(connection.host)
    return CountsPost(store, serving)


async def rounds_over(manifest: Manifest, connection: Connection, rounds: int | None) -> None:
    """Return when so many rounds have closed, as for a volunteer who trains; never where no number was given."""
    if rounds is None:
        await asyncio.Event().wait()
        return
    seconds = manifest.rounds.seconds
    current = round_in_progress(connection.clock.now(), manifest.genesis_time, seconds)
    await connection.clock.sleep_until(manifest.genesis_time + seconds * (max(current, 1) + rounds - 1))


async def _obtain(connection: Connection, config: PeerConfig, wanted: Counts, emit: Emit) -> NgramModel:
    if config.counts is not None:
        return await asyncio.to_thread(_given, config.counts, wanted)
    path = config.state_dir / "counts" / file_name(wanted)
    if path.exists():
        try:
            return await asyncio.to_thread(open_counts, path, wanted)
        except CountsError as error:
            emit({"event": "warning", "message": f"{error}; taking them from others"})
    await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
    holders = await connection.view.look_again(COUNTS)
    if not holders and config.data is not None:
        emit({"event": "info", "message": f"nobody serves the counts yet: counting {config.data}"})
        await asyncio.to_thread(_build, config.data, connection.manifest, path)
    elif not holders:
        given, text = option("counts", "FILE"), option("data", "SPEC")
        raise ConfigError(
            f"nobody on record has the counts yet: give their file with {given}, or their text with {text}"
        )
    else:
        await _fetch(connection, path, emit)
    return await asyncio.to_thread(open_counts, path, wanted)


def _given(path: Path, wanted: Counts) -> NgramModel:
    try:
        return open_counts(path, wanted)
    except CountsError as error:
        raise ConfigError(f"{option('counts')} {error}") from error


async def _fetch(connection: Connection, path: Path, emit: Emit) -> None:
    """The file, from several holders at once; what an earlier attempt or run has brought is not fetched again."""
    part = path.with_suffix(".part")
    fetcher = StateFetcher(
        connection.host.call,
        connection.manifest,
        partial(latest_round, connection.manifest, connection.clock),
        files={COUNTS: part},
    )
    begin = connection.clock.now()
    for attempt in range(ATTEMPTS):
        try:
            await fetcher.fetch(COUNTS, connection.view.holders(COUNTS), seconds=FETCH_SECONDS)
            break
        except TransferError as error:
            if attempt + 1 == ATTEMPTS:
                raise
            emit({"event": "warning", "message": str(error)})
            await connection.view.look_again(COUNTS)
    part.replace(path)
    digest = connection.manifest.genesis_digest(COUNTS).hex()
    seconds = connection.clock.now() - begin
    emit({"event": "state", "subject": COUNTS, "round": 0, "digest": digest, "samples": 0, "seconds": seconds})


def _build(spec: str, manifest: Manifest, path: Path) -> None:
    """Count a text, its training part or else all of it, into the file that the manifest names."""
    wanted = manifest.counts
    assert wanted is not None
    text = read_text(spec)
    data = build_counts(split(text, spec, context=manifest.model.context).train, wanted)
    if data is None:
        data = build_counts(np.frombuffer(text, np.uint8), wanted)
    if data is None:
        raise ConfigError(
            f"{option('data')} {spec}: counted, it does not give the counts of {manifest.run_id}; give their file with "
            f"{option('counts', 'FILE')}"
        )
    try:
        write_atomically(path, data)
    except OSError as error:
        raise BlockswarmError(f"{path}: cannot be written: {error.strerror}") from error
