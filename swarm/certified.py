"""What a state must come with to be believed, and which of several is taken (docs/protocol.md §8 and §10)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.messages import StateHead
from blockswarm.swarm.policy.acceptance import heavier
from blockswarm.swarm.statements import Certificate, StatementError


def check_certified(manifest: Manifest, subject: int, head: StateHead, latest_round: int) -> None:
    """Check that a quorum signed the state ``head`` is about, or that it is the genesis. Verifies a signature per vote.

    Parameters
    ----------
    manifest : Manifest
        The run.
    subject : int
        Block, or the embedding.
    head : StateHead
        What was offered.
    latest_round : int
        The newest round that can have been committed by now.

    Raises
    ------
    StatementError
        With what does not fit.
    """
    check_round(head.round, latest_round)
    if head.round == 0:
        if head.digest != manifest.genesis_digest(subject) or head.samples != 0:
            raise StatementError("its round 0 is not the genesis of this run")
        return
    check_certificate(
        manifest, subject, round_number=head.round, digest=head.digest, samples=head.samples, raw=head.certificate
    )


def check_round(round_number: int, latest_round: int) -> None:
    """Raise `StatementError` for a round after ``latest_round``: nobody can have committed it, whoever signed it."""
    if round_number > latest_round:
        raise StatementError(f"its round {round_number} lies in the future")


def check_certificate(
    manifest: Manifest, subject: int, *, round_number: int, digest: bytes, samples: int, raw: bytes
) -> Certificate:
    """The certificate in ``raw``, if it is one of exactly this state.

    Raises
    ------
    StatementError
        With what does not fit.
    """
    try:
        certificate = Certificate.open(raw, manifest.digest)
    except StatementError as error:
        raise StatementError(f"its certificate cannot be used: {error}") from error
    members = certificate.members
    claimed = (subject, round_number, digest, samples)
    if (members.subject, members.round, certificate.digest, certificate.samples) != claimed:
        raise StatementError("its certificate is of another state")
    return certificate


def heaviest(heads: Sequence[StateHead]) -> StateHead:
    """The state to take of several: most certified samples, on a tie the lower digest."""
    return reduce(lambda best, one: one if heavier(one.samples, one.digest, best.samples, best.digest) else best, heads)
