"""A volunteer's events in words, and the folding of what repeats."""

from __future__ import annotations

import pytest

from blockswarm.peer.wording import Event, Folder, describe, format_bytes, format_ce, short_id, together
from blockswarm.swarm.manifest import EMBEDDING

ROUND: Event = {
    "event": "round",
    "round": 41,
    "subject": 2,
    "met": ["a", "b", "c"],
    "accepted": ["a", "b"],
    "rejected": {"12D3KooWLateLate": "late"},
    "committed": True,
    "lone": False,
    "digest": "1a2b3c4d5e6f",
    "heldout_ce": 2.1344,
    "samples_per_s": 812.4,
    "bytes_sent": 1_234_567,
    "bytes_received": 999,
}


def test_a_round_is_one_line_with_all_a_person_asks() -> None:
    assert describe(ROUND) == (
        "round 41, block 2: 2 others met, 2 updates accepted · committed 1a2b3c4d · held-out CE 2.134 · 812 samples/s"
        " · up 1.2 MB, down 999 B · left out: …teLate (late)"
    )


def test_a_lone_round_says_that_nobody_else_was_there() -> None:
    line = describe({**ROUND, "met": ["a"], "accepted": ["a"], "rejected": {}, "lone": True})
    assert line is not None
    assert line.startswith("alone this round: no other replica of block 2 in round 41 · committed 1a2b3c4d")


@pytest.mark.parametrize(
    ("met", "accepted", "words"),
    [
        (["a"], ["a"], "nobody else met, 1 update accepted"),
        (["a", "b"], ["b"], "1 other met, 1 update accepted"),
        (["a", "b", "c"], [], "2 others met, no updates accepted"),
        ([], [], "nobody else met, no updates accepted"),
    ],
)
def test_a_peer_does_not_count_itself_among_those_it_met(met: list[str], accepted: list[str], words: str) -> None:
    assert together({"met": met, "accepted": accepted}) == words


def test_a_round_without_commit_says_why() -> None:
    line = describe({**ROUND, "committed": False, "reason": "no decision in time"})
    assert line is not None and "not committed (no decision in time)" in line


def test_the_embeddings_rounds_are_for_machines() -> None:
    assert describe({**ROUND, "subject": EMBEDDING}) is None


def test_a_newcomer_reads_where_it_is_reachable() -> None:
    event = {
        "event": "ready",
        "run_id": "demo-0a1b",
        "peer_id": "12D3KooWabc",
        "block": 1,
        "addrs": ["/ip4/a", "/ip4/b"],
    }
    assert describe(event) == "ready: demo-0a1b as 12D3KooWabc, block 1, reachable at /ip4/a and 1 more"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"event": "error", "message": "no space left"}, "error: no space left"),
        ({"event": "warning", "message": "slow", "repeated": 7}, "warning: slow (repeated 7 times)"),
        (
            {"event": "trained", "block": 2, "samples": 12000},
            "training of block 2 has ended with 12000 samples: serving it",
        ),
        ({"event": "stopped", "reason": "all rounds are done"}, "leaving: all rounds are done"),
        ({"event": "stopped", "reason": ""}, "leaving"),
        ({"event": "stopped", "reason": "p2pd was killed", "failed": True}, None),
        ({"event": "left", "state_dir": ".blockswarm/peer-1"}, "left; state kept in .blockswarm/peer-1"),
        ({"event": "state", "subject": 1, "round": 4, "digest": "aabbccddee", "seconds": 1.25},
         "state of block 1: round 4, aabbccdd, fetched in 1.2 s"),
        ({"event": "news", "message": "something new"}, "something new"),
        ({"event": "news"}, None),
    ],
)  # fmt: skip
def test_other_events(event: Event, line: str | None) -> None:
    assert describe(event) == line


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2.5e9, "2.5 GB"), (3e12, "3.0 TB")]
)
def test_byte_counts(count: float, text: str) -> None:
    assert format_bytes(count) == text


def test_a_missing_figure_is_a_dash() -> None:
    assert format_ce(None) == format_ce(float("nan")) == "–"
    assert format_ce(2.0) == "2.000"


def test_peer_ids_are_told_apart_by_their_ends() -> None:
    assert short_id("12D3KooWGqXxZ9ZKQ") == "…xZ9ZKQ"
    assert short_id("abc") == "abc"


def message(text: str) -> Event:
    return {"event": "warning", "message": text}


def test_a_repeated_message_is_shown_once_then_counted() -> None:
    folder = Folder(seconds=60)
    assert folder.feed(message("peer gone"), now=0.0) == [message("peer gone")]
    assert [folder.feed(message("peer gone"), now=float(second)) for second in range(1, 60)] == [[]] * 59
    # The period is over: the count is due, and the sixtieth repeat opens the next period.
    assert folder.feed(message("peer gone"), now=60.0) == [{**message("peer gone"), "repeated": 59}]
    assert folder.flush() == [{**message("peer gone"), "repeated": 1}]


def test_counts_come_out_with_whatever_happens_next() -> None:
    folder = Folder(seconds=60)
    for _ in range(3):
        folder.feed(message("peer gone"), now=0.0)
    assert folder.feed(ROUND, now=61.0) == [{**message("peer gone"), "repeated": 2}, ROUND]


def test_after_a_quiet_period_a_message_is_news_again() -> None:
    folder = Folder(seconds=60)
    folder.feed(message("peer gone"), now=0.0)
    assert folder.feed(message("peer gone"), now=100.0) == [message("peer gone")]


def test_different_messages_and_events_without_one_never_fold() -> None:
    folder = Folder(seconds=60)
    events = [message("one"), message("two"), {"event": "error", "message": "one"}, ROUND, ROUND]
    assert [folder.feed(event, now=0.0) for event in events] == [[event] for event in events]


def test_memory_stays_bounded_when_every_message_differs() -> None:
    folder = Folder(seconds=60, limit=8)
    folder.feed(message("first"), now=0.0)
    folder.feed(message("first"), now=0.0)
    shown = [event for number in range(100) for event in folder.feed(message(str(number)), now=0.0)]
    assert {**message("first"), "repeated": 1} in shown
    assert len(folder._seen) == 8


FORK = {
    "event": "fork",
    "subject": 0,
    "ancestor": "aa" * 32,
    "own": "bb" * 32,
    "own_round": 7,
    "own_samples": 96,
    "other": "cc" * 32,
    "other_round": 9,
    "other_samples": 192,
}


def test_a_fork_tells_both_lines_which_one_wins_and_what_is_merged() -> None:
    lines = "ours (bbbbbbbb, round 7, 96 samples since) against another (cccccccc, round 9, 192)"
    lost = FORK | {"won": "other", "merging": True, "reason": ""}
    merge = {"line_share": 0.5, "own_share": 0.5, "clip": 1.0, "norm": 2.0}
    assert describe(lost | merge) == (
        f"fork of block 0 after aaaaaaaa: {lines}; theirs wins, "
        "25 % of the work of ours is this peer's to merge (norm 2)"
    )
    plain = lost | {"merging": False, "reason": "the state before the fork is not here any more"}
    assert str(describe(plain)).endswith("nothing of ours is merged: the state before the fork is not here any more")
    assert str(describe(FORK | {"won": "own", "merging": False, "reason": ""})).endswith("; ours wins")
    ended = {"event": "merged", "subject": 0, "share": 1.0, "how": "done"}
    assert describe(ended) == "merge of the lost line of block 0: 100 % of our share is in (done)"


def test_a_contributor_reads_what_it_is_why_and_what_became_of_its_work() -> None:
    role = {"event": "role", "contributor": True, "step_seconds": 40.0, "upload_seconds": 12.0, "round_seconds": 30.0}
    assert describe(role) == (
        "contributor: a step takes 40.0 s and an upload 12.0 s, a round 30 s; from now on this peer trains over "
        "several rounds, and another brings its updates in"
    )
    assert str(describe(role | {"contributor": False})).startswith("member again: a step takes 40.0 s")
    work = {"event": "contribution", "subject": 2, "base_round": 5, "round": 8, "age": 2, "samples": 64}
    work |= {"sponsor": "12D3KooWSponsor", "counted": True, "bytes": 1_234_567}
    assert describe(work) == (
        "contribution to block 2, from round 5: brought into round 8 by …ponsor, 2 rounds old · 64 samples · up 1.2 MB"
    )
    assert "not in round 8 by …ponsor (busy)" in str(describe(work | {"counted": False, "reason": "busy"}))
    assert describe(work | {"subject": EMBEDDING}) is None
    line = describe({**ROUND, "contributed": {"12D3KooWSlowSlow": 2}})
    assert line is not None and "contributed: …owSlow (2 rounds old)" in line
