"""Which states are believed, and which of several is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockswarm.dht.identity import Identity
from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import CHUNK_BYTES
from blockswarm.swarm.certified import check_certified, heaviest
from blockswarm.swarm.manifest import EMBEDDING, create_manifest
from blockswarm.swarm.messages import StateHead
from blockswarm.swarm.statements import StatementError
from tests.swarm.signing import certify

MODEL = ModelConfig(dim=8, blocks=1, layers=1, heads=2, context=8)
MANIFEST = create_manifest(name="certified", now=0.0, size=MODEL, round_seconds=60.0)
OTHER = create_manifest(name="other", now=0.0, size=MODEL, round_seconds=60.0)
SIGNERS = [Identity.ephemeral() for _ in range(3)]
DIGEST = b"d" * 32
HEAD = StateHead(7, DIGEST, 7000, CHUNK_BYTES // 4, (b"c" * 32,), certify(MANIFEST, SIGNERS, 0, 7, DIGEST, 7000))


def test_a_certificate_must_fit_every_word_of_the_head() -> None:
    check_certified(MANIFEST, 0, HEAD, 7)
    for subject, head in (
        (EMBEDDING, HEAD),
        (0, replace(HEAD, round=8)),
        (0, replace(HEAD, samples=7001)),
        (0, replace(HEAD, digest=b"e" * 32)),
        (0, replace(HEAD, certificate=b"")),
        (0, replace(HEAD, certificate=HEAD.certificate[:-1])),
        (0, replace(HEAD, round=0)),
    ):
        with pytest.raises(StatementError):
            check_certified(MANIFEST, subject, head, 100)
    with pytest.raises(StatementError):
        check_certified(OTHER, 0, HEAD, 7)


def test_a_round_of_the_future_is_not_believed_whoever_signed_it() -> None:
    with pytest.raises(StatementError, match="its round 7 lies in the future"):
        check_certified(MANIFEST, 0, HEAD, 6)


def test_the_genesis_needs_no_certificate_but_must_be_that_of_the_run() -> None:
    head = replace(HEAD, round=0, samples=0, certificate=b"", digest=MANIFEST.genesis_digest(EMBEDDING))
    check_certified(MANIFEST, EMBEDDING, head, 1)
    for wrong in (replace(head, digest=DIGEST), replace(head, samples=1)):
        with pytest.raises(StatementError, match="genesis"):
            check_certified(MANIFEST, EMBEDDING, wrong, 1)


def test_of_several_states_the_one_with_most_samples_then_the_lowest_digest_is_taken() -> None:
    heads = [replace(HEAD, samples=samples, digest=bytes([first]) * 32) for samples, first in ((5, 1), (9, 8), (9, 3))]
    assert heaviest(heads) is heads[2]
