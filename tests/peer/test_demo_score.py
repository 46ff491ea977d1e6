"""The demo's figures, from event logs small enough to count by hand."""

from __future__ import annotations

import pytest

from blockswarm.peer.demo_score import ReplicaLog, rounds_between, score, traffic, words, words_known
from blockswarm.peer.wording import Event
from blockswarm.swarm.manifest import EMBEDDING

GENESIS, SECONDS = 1000.0, 10.0


def report(number: int, *, block: int = 0, digest: str = "aa", accepted: int = 2, committed: bool = True) -> Event:
    return {
        "event": "round",
        "round": number,
        "subject": block,
        "accepted": ["peer"] * accepted,
        "committed": committed,
        "digest": digest,
        "bytes_sent": 100,
        "bytes_received": 200,
    }


def judge(*logs: ReplicaLog, blocks: int = 1, rounds: range = range(1, 3)) -> tuple[list[int], float, float, float]:
    result = score(logs, blocks, rounds, GENESIS, SECONDS)
    return result.rounds_committed, result.participation, result.commit_rate, result.digest_agreement


@pytest.mark.parametrize(
    ("begin", "end", "rounds"),
    [
        (990.0, 1020.0, [1, 2]),  # ready before round 1 begins
        (1000.0, 1020.0, [1, 2]),
        (1000.1, 1020.0, [2]),  # round 1 had begun
        (1000.0, 1019.9, [1]),  # round 2 had not closed
        (1010.0, 1045.0, [2, 3, 4]),
        (1000.0, 1005.0, []),
    ],
)
def test_rounds_count_from_their_beginning_to_their_close(begin: float, end: float, rounds: list[int]) -> None:
    assert list(rounds_between(GENESIS, SECONDS, begin, end)) == rounds


def test_when_everything_goes_well() -> None:
    logs = [ReplicaLog(0, [report(1), report(2)]) for _ in range(2)]
    assert judge(*logs) == ([2], 1.0, 1.0, 1.0)


def test_an_update_left_out_lowers_participation_alone() -> None:
    logs = [ReplicaLog(0, [report(1, accepted=1), report(2)]) for _ in range(2)]
    assert judge(*logs) == ([2], 0.75, 1.0, 1.0)


def test_a_round_without_commit_accepted_nobody() -> None:
    logs = [ReplicaLog(0, [report(1), report(2, committed=False)]) for _ in range(2)]
    assert judge(*logs) == ([1], 0.5, 0.5, 1.0)


def test_replicas_that_differ_after_a_commit_disagree() -> None:
    logs = [ReplicaLog(0, [report(1), report(2)]), ReplicaLog(0, [report(1), report(2, digest="bb")])]
    assert judge(*logs) == ([2], 1.0, 1.0, 0.5)


def test_a_live_replica_that_reports_nothing_disagrees() -> None:
    logs = [ReplicaLog(0, [report(1), report(2)]), ReplicaLog(0, [report(1)])]
    assert judge(*logs)[3] == 0.5


def test_a_dead_replica_is_not_waited_for() -> None:
    logs = [
        ReplicaLog(0, [report(1), report(2, accepted=1)]),
        ReplicaLog(0, [report(1)], ended_at=GENESIS + 1.5 * SECONDS),
    ]
    assert judge(*logs) == ([2], 1.0, 1.0, 1.0)


def test_blocks_are_judged_apart() -> None:
    logs = [ReplicaLog(0, [report(1), report(2)]), ReplicaLog(1, [report(1, block=1, accepted=1)])]
    committed, participation, commit_rate, agreement = judge(*logs, blocks=2)
    assert (committed, commit_rate, agreement) == ([2, 1], 0.75, 1.0)
    assert participation == 0.75  # a lone replica can be accepted once a round


def test_nothing_happened() -> None:
    assert judge(ReplicaLog(0, []), rounds=range(1, 1)) == ([0], 0.0, 0.0, 0.0)


def test_traffic_adds_up_blocks_and_embedding() -> None:
    logs = [ReplicaLog(0, [report(1), {**report(1), "subject": EMBEDDING}, {"event": "training"}])] * 2
    assert traffic(logs) == (400, 800)


def test_words_are_runs_of_letters() -> None:
    assert words("It's the 2nd `Class`, isn't-it?") == ["it", "s", "the", "nd", "class", "isn", "t", "it"]


def test_words_known_leaves_out_a_word_cut_by_the_limit() -> None:
    known = frozenset({"the", "class"})
    assert words_known(["the class of the clas"], known) == 0.75
    assert words_known(["the class.", "the xyzzy "], known) == 0.75
    assert words_known(["123"], known) == 0.0
