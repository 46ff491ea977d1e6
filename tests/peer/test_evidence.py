"""Signed statements that do not fit their list are refused before anything is written down."""

from __future__ import annotations

import pytest

from blockswarm.dht.identity import Identity
from blockswarm.peer.evidence import EntryRefused, check_decision, check_outcome, mean_problem
from blockswarm.swarm.policy.grouping import Seats
from blockswarm.swarm.statements import Averaged, Counted, Decision, MemberList, Outcome

RUN = b"r" * 32
PEERS = [Identity.ephemeral() for _ in range(6)]
"""Two groups of three: the even places and the odd ones."""
NAMES = [identity.peer_id for identity in PEERS]
STRANGER = Identity.ephemeral()
LIST = MemberList.make(
    PEERS[0],
    RUN,
    subject=0,
    round_number=1,
    parent=b"p" * 32,
    samples=dict.fromkeys(NAMES, 10),
    reachable=dict.fromkeys(NAMES, True),
)
SEATS = Seats(6 * 64, (True,) * 6, 3)


def decision(signer: Identity, **changes: object) -> Decision:
    fields = {"group": LIST.group, "weights": {NAMES[0]: 10.0}, "rejected": {}, "clips": {}, "parts": {0: 4.0, 2: 4.0}}
    return Decision.make(signer, RUN, **(fields | changes))


EVEN = decision(PEERS[0])
ODD = decision(PEERS[1], weights={NAMES[1]: 10.0, NAMES[3]: 10.0}, parts={1: 4.0, 3: 4.0, 5: 4.0})


def outcome(signer: Identity = PEERS[0], **changes: object) -> Outcome:
    fields = {
        "group": LIST.group,
        "counted": {0: Counted(EVEN.statement.hash, 10.0), 1: Counted(ODD.statement.hash, 20.0)},
        "parts": {0: Averaged(b"h" * 32, (0, 1)), 5: Averaged(b"i" * 32, (1,))},
    }
    return Outcome.make(signer, RUN, **(fields | changes))


def test_the_signer_of_a_decision_says_which_group_it_is_about():
    assert check_decision(LIST, SEATS, EVEN) == 0
    assert check_decision(LIST, SEATS, ODD) == 1
    assert check_decision(LIST, SEATS, decision(PEERS[2])) == 0  # the second in its group's order


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (decision(PEERS[4]), "not-leader"),
        (decision(STRANGER), "not-leader"),
        (decision(PEERS[0], group=b"x" * 32), "other-group"),
        (decision(PEERS[0], weights={NAMES[1]: 10.0}), "not-listed"),
        (decision(PEERS[0], weights={STRANGER.peer_id: 10.0}), "not-listed"),
        (decision(PEERS[0], parts={1: 4.0}), "not-listed"),
        (decision(PEERS[0], weights={NAMES[0]: 11.0}), "contradiction"),
        (decision(PEERS[0], weights={}), "contradiction"),
    ],
)
def test_a_decision_is_of_a_groups_first_two_and_speaks_of_its_members_alone(made: Decision, code: str):
    with pytest.raises(EntryRefused) as caught:
        check_decision(LIST, SEATS, made)
    assert caught.value.code == code


def test_an_outcome_is_taken_with_all_decisions_known_or_with_none():
    check_outcome(LIST, SEATS, outcome(), {0: EVEN, 1: ODD}, own_group=0)
    check_outcome(LIST, SEATS, outcome(PEERS[1]), {}, own_group=1)


OTHER_ODD = decision(PEERS[3], weights={NAMES[1]: 10.0}, parts={1: 4.0})


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (outcome(PEERS[2]), "not-leader"),
        (outcome(group=b"x" * 32), "not-leader"),
        (outcome(parts={}), "not-listed"),
        (outcome(counted={2: Counted(b"d" * 32, 1.0)}, parts={0: Averaged(b"h" * 32, (2,))}), "not-listed"),
        (outcome(parts={6: Averaged(b"h" * 32, (0,))}), "not-listed"),
        (outcome(parts={4: Averaged(b"h" * 32, (0,))}), "not-listed"),  # its reducer is not in the group's decision
        (outcome(counted={0: Counted(EVEN.statement.hash, 31.0), 1: Counted(b"d" * 32, 1.0)}), "contradiction"),
        (outcome(counted={0: Counted(EVEN.statement.hash, 9.0), 1: Counted(b"d" * 32, 1.0)}), "contradiction"),
        (outcome(counted={0: Counted(b"d" * 32, 1.0), 1: Counted(b"d" * 32, 1.0)}), "other-decision"),
    ],
)
def test_an_outcome_that_the_list_cannot_have_or_that_contradicts_a_decision_is_refused(made: Outcome, code: str):
    with pytest.raises(EntryRefused) as caught:
        check_outcome(LIST, SEATS, made, {0: EVEN}, own_group=0)
    assert caught.value.code == code


def test_under_which_of_its_decisions_another_group_counts_is_not_ours_to_say():
    check_outcome(LIST, SEATS, outcome(), {0: EVEN, 1: OTHER_ODD}, own_group=0)
    with pytest.raises(EntryRefused, match="another decision"):
        check_outcome(LIST, SEATS, outcome(), {0: EVEN, 1: OTHER_ODD}, own_group=1)


def test_with_one_group_an_outcome_needs_the_decision_it_builds_on():
    with pytest.raises(EntryRefused, match="not here"):
        check_outcome(
            LIST,
            Seats(6 * 64, (True,) * 6, 6),
            outcome(counted={0: Counted(b"d" * 32, 1.0)}, parts={0: Averaged(b"h" * 32, (0,))}),
            {},
            own_group=0,
        )


def test_a_mean_is_finite_and_no_longer_than_the_longest_update_in_it():
    assert mean_problem(4.0, 4.0, 1.0) == "" and mean_problem(4.0, None, 1.0) == ""
    assert "finite" in mean_problem(float("nan"), None, 1.0)
    assert "longer" in mean_problem(4.5, 4.0, 1.0) and mean_problem(4.5, 4.0, 1.5) == ""
