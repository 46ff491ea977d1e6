"""Claims of newer states: nobody is believed to be ahead without a quorum's certificate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockswarm.peer.states import State
from blockswarm.swarm.certified import check_certificate, check_round
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.fields import Body, Optional, octets
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.messages import MAX_CERTIFICATE_BYTES, ROUND, SAMPLES
from blockswarm.swarm.policy.acceptance import heavier
from blockswarm.swarm.statements import StatementError

CLAIM = Body(
    head=Optional(octets(32)),
    head_round=Optional(ROUND, 0),
    head_samples=Optional(SAMPLES, 0),
    certificate=Optional(octets(most=MAX_CERTIFICATE_BYTES), b""),
    out_until=Optional(ROUND, 0),
)
"""How a peer names its newest state: in the answer to a meet message, and as news.

``out_until`` is of the answer alone: the asker's updates had to be refused, and it is kept out until that round.
"""


class ClaimRefused(Exception):
    """The claim is malformed or its certificate proves something else; the text says what."""


@dataclass(frozen=True)
class Head:
    """A certified state of a subject that a peer holds and that outweighs ours."""

    peer_id: str
    round: int
    digest: bytes
    samples: int
    parent: bytes = b""
    """Digest of the state it was made from."""


def claim_of(state: State, *, proven: bool) -> dict[str, Any]:
    """The body that names ``state``; with its certificate if it must be ``proven``."""
    claim: dict[str, Any] = {"head": state.digest, "head_round": state.round, "head_samples": state.samples}
    return claim | {"certificate": state.certificate} if proven else claim


def newer_head(
    manifest: Manifest, own: State, peer_id: str, body: Mapping[str, Any], *, latest_round: int, lighter: bool = False
) -> Head | None:
    """The head that ``peer_id`` claims, if it outweighs ``own``; ``None`` if not. Verifies a signature per vote.

    Parameters
    ----------
    manifest : Manifest
        The run.
    own : State
        Our newest state of the subject.
    peer_id : str
        Who makes the claim.
    body : mapping
        The claim, see `CLAIM`.
    latest_round : int
        The newest round that can have been committed by now.
    lighter : bool
        Whether one with fewer samples is of interest, too: of two lines the one with more does not always win.

    Raises
    ------
    ClaimRefused
        When the claim is malformed, or claims more than its certificate proves.
    """
    try:
        claim = CLAIM.read(body)
        head = Head(peer_id, claim["head_round"], claim["head"] or b"", claim["head_samples"])
        outweighs = heavier(head.samples, head.digest, own.samples, own.digest)
        if not head.digest or not (outweighs or lighter):
            return None
        check_round(head.round, latest_round)
        certificate = check_certificate(
            manifest,
            own.subject,
            round_number=head.round,
            digest=head.digest,
            samples=head.samples,
            raw=claim["certificate"],
        )
    except (MessageError, StatementError) as error:
        raise ClaimRefused(f"claims a newer state without proof: {error}") from error
    return dataclasses.replace(head, parent=certificate.members.parent)
