"""What happened in a round, as one flat event for people, machines and the directory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from blockswarm.dht.records import ProgressRecord
from blockswarm.peer.round import RoundResult
from blockswarm.peer.states import State
from blockswarm.swarm.manifest import Manifest

if TYPE_CHECKING:
    from blockswarm.peer.live import Snapshot


def round_event(
    result: RoundResult, snapshot: Snapshot, manifest: Manifest, head: State, heldout_ce: float | None
) -> dict[str, Any]:
    """The round's report as an event: figures in SI units, digests in hex, cross-entropies in nats per byte.

    ``head`` is the state held as the round ended: what was fetched since is no result of it.
    """
    event: dict[str, Any] = {
        "event": "round",
        "run_id": manifest.run_id,
        "subject": result.subject,
        "round": result.round,
        "met": result.met,
        "members": result.members,
        "accepted": result.accepted,
        "rejected": result.rejected,
        "contributed": result.contributed,
        "clipped": result.clipped,
        "kept_out": result.kept_out,
        "late": [peer_id for peer_id, reason in result.rejected.items() if reason == "late"],
        "committed": result.state is not None,
        "lone": result.lone,
        "own_accepted": result.sent is not None,
        "parent": result.parent.hex(),
        "digest": head.digest.hex(),
        "state_round": head.round,
        "samples": snapshot.samples[result.subject],
        "certified_samples": head.samples,
        "loss": snapshot.loss,
        "heldout_ce": heldout_ce,
        "samples_per_s": snapshot.trained / snapshot.seconds,
        "busy_share": round(min(1.0, snapshot.busy / snapshot.seconds), 4),
        "bytes_sent": result.bytes_sent,
        "bytes_saved": result.bytes_saved,
        "bytes_received": result.bytes_received,
        "phases_ms": result.phases_ms,
        "problems": result.problems,
        "next_round_at": manifest.genesis_time + (result.round + 1) * manifest.rounds.seconds,
    }
    if result.merged is not None:
        share = result.merged
        event["merge"] = {
            "sent": share.amount,
            "accepted": share.merged,
            "left": share.merge.left,
            "norm": abs(share.merged) * share.merge.norm,
        }
    if result.failure:
        event["reason"] = result.failure
    return event


def progress_record(
    event: dict[str, Any], *, run_id: str, peer_id: str, issued: float, expires: float
) -> ProgressRecord:
    """The part of a round's report that goes into the directory."""
    ce = event["heldout_ce"]
    return ProgressRecord(
        run_id=run_id,
        subject=event["subject"],
        peer_id=peer_id,
        round=event["round"],
        digest=bytes.fromhex(event["digest"]),
        accepted=tuple(event["accepted"][:64]),
        samples=event["samples"],
        certified=event["committed"],
        lone=event["lone"],
        heldout_ce=None if ce is None or not math.isfinite(ce) else ce,
        issued=issued,
        expires=expires,
    )
