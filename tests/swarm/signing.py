"""Certificates as replicas make them in a round. Imports nothing of the network stacks."""

from __future__ import annotations

from collections.abc import Sequence

from blockswarm.dht.identity import Identity
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.statements import Certificate, MemberList, Vote


def certify(
    manifest: Manifest, signers: Sequence[Identity], subject: int, round_number: int, digest: bytes, samples: int
) -> bytes:
    """The certificate of a state that all ``signers``, and nobody else, were on the list of and voted for."""
    members = MemberList.make(
        signers[0],
        manifest.digest,
        subject=subject,
        round_number=round_number,
        parent=bytes(32),
        samples={signer.peer_id: 16 for signer in signers},
        reachable={signer.peer_id: True for signer in signers},
    )
    votes = [
        Vote.make(signer, manifest.digest, group=members.group, outcome=bytes(32), digest=digest, samples=samples)
        for signer in signers
    ]
    return Certificate.make(members, votes, manifest.digest).raw
