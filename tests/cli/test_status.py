"""What ``blockswarm status`` says to people."""

from __future__ import annotations

from dataclasses import replace

from blockswarm.cli.status import lines
from blockswarm.model.layout import COUNTS
from blockswarm.swarm.operations import Holder
from blockswarm.swarm.status import BlockStatus, SwarmStatus

HOLDER = Holder(
    peer_id="12D3KooWabc",
    block=0,
    state="TRAINING",
    round=19,
    digest=bytes.fromhex("3f40735e") + bytes(28),
    samples_per_second=40.2,
    addrs=("/ip4/192.0.2.7/tcp/4001",),
    relayed=False,
    software="blockswarm 0.1.0",
    age=4.0,
    rounds=(19, 18),
    banned=False,
)
BLOCK = BlockStatus(
    block=0,
    holders=(HOLDER,),
    live=1,
    states=(),
    round=19,
    rounds_behind=0,
    samples_per_second=40.2,
    agreement=1.0,
    heldout_ce=1.85,
    reports=(),
)
NOBODY = replace(
    BLOCK, block=1, holders=(), live=0, round=None, samples_per_second=0.0, agreement=None, heldout_ce=None
)


def status(*blocks: BlockStatus) -> SwarmStatus:
    return SwarmStatus("demo-0a1b", bytes(32), "docs", 20, 10.0, 0.0, blocks, ())


def test_a_block_in_training_and_one_nobody_holds() -> None:
    assert lines(status(BLOCK, NOBODY)) == [
        "demo-0a1b: round 20 of 10 s, data docs",
        "block 0: 1 live, round 19, 40 samples/s, held-out CE 1.850",
        "  12D3KooWabc, training, round 19 3f40735e, 40 samples/s",
        "block 1: nobody serves it",
    ]


def test_who_serves_the_counts_of_a_run_comes_after_the_blocks() -> None:
    serves = replace(HOLDER, block=COUNTS, state="SERVING", round=0, samples_per_second=0.0, rounds=(0,))
    counts = replace(BLOCK, block=COUNTS, holders=(serves,), live=1)
    assert lines(replace(status(BLOCK), counts=counts))[-2:] == [
        "counts: 1 live",
        "  12D3KooWabc, serving, round 0 3f40735e",
    ]
    nobody = replace(status(BLOCK), counts=replace(NOBODY, block=COUNTS))
    assert lines(nobody)[-1] == "counts: nobody serves them"
    assert not nobody.complete


def test_replicas_that_differ_and_a_holder_that_is_silent_are_pointed_out() -> None:
    silent = replace(HOLDER, rounds=(), relayed=True, digest=b"")
    text = lines(status(replace(BLOCK, holders=(silent,), agreement=0.5)))
    assert text[1].endswith("only 50% of its replicas agree")
    assert text[2].endswith("no state yet, 40 samples/s, relayed, does not answer (seen 4 s ago)")


def test_who_said_goodbye_is_not_called_silent() -> None:
    assert "answer" not in lines(status(replace(BLOCK, holders=(replace(HOLDER, state="OFFLINE", rounds=()),))))[2]
