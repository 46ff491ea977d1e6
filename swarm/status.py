"""The state of a swarm as a client sees it: who holds what, how far training is, how fresh all of that is.

Everything here comes from signed records and from what holders themselves answer; nothing is asked of a coordinator,
for there is none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from blockswarm.dht.records import ProgressRecord
from blockswarm.swarm.core import Core
from blockswarm.swarm.errors import ClientError
from blockswarm.swarm.holders import gather
from blockswarm.swarm.manifest import COUNTS, EMBEDDING
from blockswarm.swarm.operations import Holder, describe
from blockswarm.swarm.policy.phases import round_in_progress

if TYPE_CHECKING:
    from blockswarm.swarm.client import SwarmClient


@dataclass(frozen=True)
class RoundReport:
    """A replica's report on its last decided round."""

    peer_id: str
    round: int
    digest: bytes
    """State of the subject after the round, 32 bytes."""
    accepted: int
    """Replicas whose update is in it."""
    samples: int
    """Training samples behind it."""
    certified: bool
    lone: bool
    """Whether the replica was the only one on record."""
    heldout_ce: float | None
    """Held-out cross-entropy of this block alone, nats per byte; None when it was not measured."""
    age: float
    """Seconds since the report was signed."""


@dataclass(frozen=True)
class HeldState:
    """One state that can be served at the moment."""

    round: int
    digest: bytes
    holders: int
    """Live holders that have it."""


@dataclass(frozen=True)
class BlockStatus:
    """One block of the model."""

    block: int
    holders: tuple[Holder, ...]
    """Everybody on record, those that left included until their record ends."""
    live: int
    """Holders that answered and can serve."""
    states: tuple[HeldState, ...]
    """What they can serve, newest first."""
    round: int | None
    """Round of the newest of these."""
    rounds_behind: int | None
    """Rounds closed since then."""
    samples_per_second: float
    """Training speed of all its replicas together."""
    agreement: float | None
    """Share of the replicas reporting the newest round that report the same digest for it."""
    heldout_ce: float | None
    """Mean of the held-out cross-entropies reported for the newest round that has one, nats per byte."""
    reports: tuple[RoundReport, ...]
    """Last round reports, newest first."""


@dataclass(frozen=True)
class SwarmStatus:
    """A swarm at one moment."""

    run_id: str
    digest: bytes
    """SHA-256 of the manifest."""
    data: str
    round: int
    """Round in progress by the swarm's clock."""
    round_seconds: float
    time: float
    """Unix seconds, by the swarm's clock."""
    blocks: tuple[BlockStatus, ...]
    embedding: tuple[RoundReport, ...]
    """Last round reports of the shared embedding."""
    counts: BlockStatus | None = None
    """The run's n-gram counts, if it has any: who serves them."""

    @property
    def complete(self) -> bool:
        """Whether every block has a live holder, and the counts have one, so that text can be written."""
        return all(part.live for part in (*self.blocks, self.counts) if part is not None)

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON: digests in hex."""
        plain: dict[str, Any] = _plain(asdict(self) | {"complete": self.complete})
        return plain


def collect(client: SwarmClient) -> SwarmStatus:
    """The state of the swarm ``client`` is connected to, asked anew."""
    return client.status()


async def survey(core: Core) -> SwarmStatus:
    """The same, in the client's own thread: directory, holders and reports are asked side by side."""
    manifest = core.manifest
    subjects = [EMBEDDING, *core.blocks]
    survey_all = partial(core.survey, fresh=True, blocks=manifest.served)
    answers = await gather([survey_all, *(partial(core.book.progress, s) for s in subjects)])
    reports: dict[int, list[ProgressRecord]] = {}
    for subject, answer in zip(subjects, answers[1:], strict=True):
        if isinstance(answer, Exception) and not isinstance(answer, ClientError):
            raise answer
        reports[subject] = [] if isinstance(answer, Exception) else answer  # nobody to ask: nothing is known
    now = core.clock.now()
    current = round_in_progress(now, manifest.genesis_time, manifest.rounds.seconds)
    return SwarmStatus(
        run_id=manifest.run_id,
        digest=manifest.digest,
        data=manifest.data.name,
        round=current,
        round_seconds=manifest.rounds.seconds,
        time=now,
        counts=None if manifest.counts is None else _block(core, COUNTS, [], now, current),
        blocks=tuple(_block(core, block, reports[block], now, current) for block in core.blocks),
        embedding=_reports(reports[EMBEDDING], now),
    )


def _block(core: Core, block: int, records: list[ProgressRecord], now: float, current: int) -> BlockStatus:
    holders = tuple(describe(core, record) for record in core.book.holders(block, serving=False))
    offers = core.live_offers(block)
    held = Counter(name for offer in offers for name in set(offer.states))
    states = tuple(
        HeldState(name.round, name.digest, count)
        for name, count in sorted(held.items(), key=lambda item: (item[0].round, item[1]), reverse=True)
    )
    newest = states[0].round if states else None
    reports = _reports(records, now)
    return BlockStatus(
        block=block,
        holders=holders,
        live=sum(1 for offer in offers if offer.states),
        states=states,
        round=newest,
        rounds_behind=None if newest is None or block == COUNTS else max(0, current - 1 - newest),
        samples_per_second=sum(holder.samples_per_second for holder in holders if holder.state == "TRAINING"),
        agreement=agreement(reports),
        heldout_ce=heldout_ce(reports),
        reports=reports,
    )


def agreement(reports: tuple[RoundReport, ...]) -> float | None:
    """Share of the replicas reporting the newest round that hold its most common digest; None without reports."""
    if not reports:
        return None
    newest = max(report.round for report in reports)
    digests = Counter(report.digest for report in reports if report.round == newest)
    return max(digests.values()) / digests.total()


def heldout_ce(reports: tuple[RoundReport, ...]) -> float | None:
    """Mean held-out cross-entropy of the newest round for which somebody measured it, nats per byte."""
    measured = [(report.round, report.heldout_ce) for report in reports if report.heldout_ce is not None]
    if not measured:
        return None
    newest = max(number for number, _ in measured)
    values = [value for number, value in measured if number == newest]
    return sum(values) / len(values)


def _reports(records: list[ProgressRecord], now: float) -> tuple[RoundReport, ...]:
    return tuple(
        RoundReport(
            peer_id=record.peer_id,
            round=record.round,
            digest=record.digest,
            accepted=len(record.accepted),
            samples=record.samples,
            certified=record.certified,
            lone=record.lone,
            heldout_ce=record.heldout_ce,
            age=max(0.0, now - record.issued),
        )
        for record in sorted(records, key=lambda record: (-record.round, record.peer_id))
    )


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
