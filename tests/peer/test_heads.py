"""Who claims to be ahead is believed as far as a certificate goes."""

from __future__ import annotations

import pytest

from blockswarm.dht.identity import Identity
from blockswarm.model.config import ModelConfig
from blockswarm.peer.heads import ClaimRefused, Head, claim_of, newer_head
from blockswarm.peer.states import State
from blockswarm.swarm.manifest import create_manifest
from tests.swarm.signing import certify

MODEL = ModelConfig(dim=8, blocks=1, layers=1, heads=2, context=8)
MANIFEST = create_manifest(name="heads", now=0.0, size=MODEL, round_seconds=60.0)
SIGNERS = [Identity.ephemeral() for _ in range(3)]
OWN = State.genesis(MANIFEST, 0)


def certified(round_number: int, samples: int) -> State:
    certificate = certify(MANIFEST, SIGNERS, 0, round_number, OWN.digest, samples)
    return State.make(0, round_number, OWN.values.copy(), samples=samples, certificate=certificate)


NEWER = certified(7, 7000)


def test_a_proven_state_that_outweighs_ours_is_a_head() -> None:
    head = newer_head(MANIFEST, OWN, "peer", claim_of(NEWER, proven=True), latest_round=7)
    assert head == Head("peer", 7, NEWER.digest, 7000, parent=bytes(32))
    assert newer_head(MANIFEST, NEWER, "peer", claim_of(OWN, proven=True), latest_round=7) is None


def test_one_with_fewer_samples_is_a_head_where_another_line_may_win_all_the_same() -> None:
    heavier = State.make(0, 8, NEWER.values.copy(), samples=8000)
    body = claim_of(NEWER, proven=True)
    assert newer_head(MANIFEST, heavier, "peer", body, latest_round=8) is None
    head = newer_head(MANIFEST, heavier, "peer", body, latest_round=8, lighter=True)
    assert head is not None and head.samples == 7000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head_samples": 7001}, "its certificate is of another state"),
        ({"head": b"e" * 32}, "its certificate is of another state"),
        ({"certificate": b""}, "its certificate cannot be used"),
        ({"head_round": 8}, "its round 8 lies in the future"),
        ({"head": b"short"}, "head"),
    ],
)
def test_more_than_the_certificate_proves_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ClaimRefused, match=f"claims a newer state without proof: {words}"):
        newer_head(MANIFEST, OWN, "peer", claim_of(NEWER, proven=True) | change, latest_round=7)


def test_a_certified_state_of_a_future_round_is_refused_too() -> None:
    with pytest.raises(ClaimRefused, match="its round 7 lies in the future"):
        newer_head(MANIFEST, OWN, "peer", claim_of(NEWER, proven=True), latest_round=6)
