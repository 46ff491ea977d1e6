"""What peers sign in a round: forged, foreign and malformed statements are refused; a certificate proves a quorum."""

import dataclasses
import tracemalloc

import msgpack
import pytest

from blockswarm.dht.identity import Identity
from blockswarm.swarm.contribution import MAX_CONTRIBUTION_BYTES, Contribution
from blockswarm.swarm.statements import (
    MAX_STATEMENT_BYTES,
    Averaged,
    Certificate,
    Counted,
    Decision,
    MemberList,
    Outcome,
    Statement,
    StatementError,
    Vote,
    make,
    open_statement,
)

RUN, OTHER_RUN = b"r" * 32, b"o" * 32
LEADER, SECOND, THIRD, STRANGER = (Identity.ephemeral() for _ in range(4))


def listed(*identities: Identity) -> MemberList:
    return MemberList.make(
        identities[0],
        RUN,
        subject=0,
        round_number=3,
        parent=b"p" * 32,
        samples={identity.peer_id: 10 for identity in identities},
        reachable={identity.peer_id: True for identity in identities},
    )


def vote(identity: Identity, members: MemberList, *, digest: bytes = b"d" * 32, samples: int = 30) -> Vote:
    return Vote.make(identity, RUN, group=members.group, outcome=b"o" * 32, digest=digest, samples=samples)


def test_a_statement_opened_by_anyone_says_who_made_it():
    members = listed(LEADER, SECOND)
    opened = MemberList.parse(open_statement("list", RUN, members.statement.raw))
    assert opened == members
    assert opened.members == (LEADER.peer_id, SECOND.peer_id)


@pytest.mark.parametrize("change", ["payload", "signature", "signer", "kind", "run"])
def test_any_change_breaks_the_signature(change: str):
    raw = listed(LEADER, SECOND).statement.raw
    envelope = msgpack.unpackb(raw)
    kind, run = ("vote", RUN) if change == "kind" else ("list", OTHER_RUN if change == "run" else RUN)
    if change == "payload":
        envelope["p"] = envelope["p"].replace(b"\x03", b"\x04", 1)
    if change == "signature":
        envelope["s"] = bytes(64)
    if change == "signer":
        envelope["k"] = STRANGER.peer_id
    with pytest.raises(StatementError):
        open_statement(kind, run, msgpack.packb(envelope))


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"x" * (MAX_STATEMENT_BYTES + 1), msgpack.packb([1]), None, 7])
def test_garbage_is_one_clear_error(raw: object):
    with pytest.raises(StatementError):
        open_statement("list", RUN, raw)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda e: msgpack.packb(dict(reversed(e.items()))), id="other order"),
        pytest.param(lambda e: msgpack.packb(e | {"x": 1}), id="one key more"),
        pytest.param(lambda e: b"\x84\xa1k\xc0" + msgpack.packb(e)[1:], id="a key twice"),
        pytest.param(lambda e: msgpack.packb(e).replace(b"\xa1k", b"\xd9\x01k", 1), id="a longer length"),
        pytest.param(lambda e: msgpack.packb(e).replace(b"\xc4\x40", b"\xc5\x00\x40", 1), id="longer bytes"),
    ],
)
def test_who_passes_a_statement_on_cannot_give_it_another_hash(other):
    raw = listed(LEADER, SECOND).statement.raw
    envelope = msgpack.unpackb(raw)
    assert msgpack.unpackb(other(envelope))["s"] == envelope["s"] and other(envelope) != raw
    with pytest.raises(StatementError, match="another form"):
        open_statement("list", RUN, other(envelope))


@pytest.mark.parametrize("kind", ["statement", "payload", "certificate"])
def test_lists_in_lists_are_refused_without_taking_room(kind: str):
    flood = b"\x82\xa1k" + b"\xdc\x04\x00" * 500 + b"\xc0" * 50_000
    if kind == "payload":
        flood = msgpack.packb({"k": LEADER.peer_id, "p": flood, "s": bytes(64)})
    tracemalloc.start()
    try:
        with pytest.raises(StatementError):
            Certificate.open(flood, RUN) if kind == "certificate" else open_statement("list", RUN, flood)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_reasons_reach_no_terminal_as_they_were_written():
    read = Decision.parse(signed("decision", decision(rejected=[["peer\x1b[2J", "late\x1b]0;x\x07\n" * 100]])))
    (peer_id, reason), *_ = read.rejected.items()
    assert peer_id.isprintable() and reason.isprintable() and len(reason) <= 200


def signed(kind: str, payload: dict) -> Statement:
    return make(kind, RUN, payload, LEADER)


def decision(**changes: object) -> dict:
    return {"group": b"g" * 32, "accepted": [], "rejected": [], "clips": [], "parts": [[0, 4.0]]} | changes


def outcome(**changes: object) -> dict:
    groups = [[0, b"d" * 32, 16.0], [1, b"e" * 32, 8.0]]
    return {"group": b"g" * 32, "groups": groups, "parts": [[0, b"h" * 32, [0, 1]]]} | changes


def test_an_outcome_says_which_groups_count_with_which_weight_and_which_of_them_are_in_each_part():
    read = Outcome.parse(signed("outcome", outcome(parts=[[0, b"h" * 32, [0, 1]], [5, b"i" * 32, [1]]])))
    assert read.counted == {0: Counted(b"d" * 32, 16.0), 1: Counted(b"e" * 32, 8.0)}
    assert read.parts == {0: Averaged(b"h" * 32, (0, 1)), 5: Averaged(b"i" * 32, (1,))}


def test_a_decision_says_who_is_in_with_which_weight_and_whose_update_is_shortened():
    read = Decision.parse(signed("decision", decision(accepted=[["a", 16.0], ["b", 8.0]], clips=[["b", 0.25]])))
    assert read.weights == {"a": 16.0, "b": 8.0} and read.clips == {"b": 0.25} and read.parts == {0: 4.0}


@pytest.mark.parametrize(
    ("parse", "payload"),
    [
        (MemberList.parse, {"subject": 0, "round": 1, "parent": b"p" * 32, "members": []}),
        (MemberList.parse, {"subject": 0, "round": 1, "parent": b"p" * 32, "members": [[STRANGER.peer_id, [1, True]]]}),
        (MemberList.parse, {"subject": 0, "round": 1, "parent": b"p", "members": [[LEADER.peer_id, [1, True]]]}),
        (MemberList.parse, {"subject": 0, "round": 1, "parent": b"p" * 32, "members": [[LEADER.peer_id, [-1, True]]]}),
        (
            MemberList.parse,
            {"subject": 0, "round": 1, "parent": b"p" * 32, "members": [[LEADER.peer_id, [1, True]]] * 2},
        ),
        (Decision.parse, decision(accepted=[["a", float("nan")]])),
        (Decision.parse, decision(accepted=[["a", -1.0]])),
        (Decision.parse, decision(parts=["0"])),
        (Decision.parse, decision(parts=[[0, float("inf")]])),
        (Decision.parse, decision(parts=[[256, 1.0]])),
        (Decision.parse, decision(parts=[[0, 1.0], [0, 2.0]])),
        (Decision.parse, decision(accepted=[["a", 1.0]], clips=[["b", 0.5]])),
        (Decision.parse, decision(accepted=[["a", 1.0]], clips=[["a", 1.5]])),
        (Decision.parse, decision(accepted=[["a", 1.0]], clips=[["a", 0.0]])),
        (Decision.parse, decision(accepted=[["a", 1.0]], clips=[["a", float("nan")]])),
        (Outcome.parse, outcome(parts=[[0, b"short", [0]]])),
        (Outcome.parse, outcome(parts=[[0, b"h" * 32, [0]], [0, b"h" * 32, [0]]])),
        (Outcome.parse, outcome(parts=[[0, b"h" * 32, []]])),
        (Outcome.parse, outcome(parts=[[0, b"h" * 32, [0, 2]]])),
        (Outcome.parse, outcome(parts=[[0, b"h" * 32, [1, 0]]])),
        (Outcome.parse, outcome(parts=[[0, b"h" * 32, [0, 0]]])),
        (Outcome.parse, outcome(groups=[[0, b"d" * 32, float("nan")]])),
        (Outcome.parse, outcome(groups=[[0, b"d" * 32, 0.0]])),
        (Outcome.parse, outcome(groups=[[0, b"d", 1.0]])),
        (Vote.parse, {"group": b"g" * 32, "outcome": b"o" * 32, "digest": b"d" * 32, "samples": -1}),
        (Vote.parse, {"group": b"g" * 32, "outcome": b"o" * 32, "digest": b"d" * 32, "samples": True}),
    ],
)
def test_a_signed_statement_with_impossible_content_is_refused(parse, payload):
    with pytest.raises(StatementError):
        parse(signed("any", payload))


def test_a_certificate_holds_equal_votes_of_more_than_half_of_its_list():
    members = listed(LEADER, SECOND, THIRD)
    certificate = Certificate.make(members, [vote(LEADER, members), vote(THIRD, members)], RUN)
    again = Certificate.open(certificate.raw, RUN)
    assert again.digest == b"d" * 32 and again.samples == 30 and not again.lone
    assert again.voters == tuple(sorted([LEADER.peer_id, THIRD.peer_id]))


def test_a_list_of_one_certifies_itself_and_is_marked():
    members = listed(LEADER)
    assert Certificate.make(members, [vote(LEADER, members)], RUN).lone


@pytest.mark.parametrize("flaw", ["too few", "stranger", "twice", "different digests", "other group", "other run"])
def test_anything_less_than_a_quorum_of_equal_votes_is_no_certificate(flaw: str):
    members = listed(LEADER, SECOND, THIRD)
    votes = [vote(LEADER, members), vote(SECOND, members)]
    if flaw == "too few":
        votes = votes[:1]
    if flaw == "stranger":
        votes[1] = vote(STRANGER, members)
    if flaw == "twice":
        votes[1] = votes[0]
    if flaw == "different digests":
        votes[1] = vote(SECOND, members, digest=b"e" * 32)
    if flaw == "other group":
        votes[1] = dataclasses.replace(vote(SECOND, listed(LEADER, SECOND)))
    raw = msgpack.packb({"list": members.statement.raw, "votes": [entry.statement.raw for entry in votes]})
    with pytest.raises(StatementError):
        Certificate.open(raw, OTHER_RUN if flaw == "other run" else RUN)


def late_work(identity: Identity = STRANGER, *, round_number: int = 3) -> Contribution:
    return Contribution.make(
        identity,
        RUN,
        subject=0,
        round_number=round_number,
        base_round=1,
        base=b"b" * 32,
        samples=40,
        values=b"v" * 32,
    )


def with_guests(guests: dict[str, tuple[int, bytes]]) -> MemberList:
    members = listed(LEADER, SECOND)
    return MemberList.make(
        LEADER,
        RUN,
        subject=0,
        round_number=3,
        parent=b"p" * 32,
        samples=members.samples,
        reachable=members.reachable,
        guests=guests,
    )


def test_a_list_passes_on_what_its_contributors_have_signed_and_one_without_any_is_as_it_always_was():
    late = late_work()
    members = with_guests({late.peer_id: (1, late.statement.raw)})
    assert MemberList.parse(open_statement("list", RUN, members.statement.raw)) == members
    position, raw = members.guests[STRANGER.peer_id]
    assert position == 1 and Contribution.open(raw, RUN) == late
    assert "guests" not in listed(LEADER, SECOND).statement.payload


@pytest.mark.parametrize("case", ["member", "sponsor", "long", "two of one sponsor"])
def test_a_list_whose_contributors_cannot_be_is_refused(case: str):
    raw = late_work().statement.raw
    guests = {
        "member": {SECOND.peer_id: (0, raw)},
        "sponsor": {STRANGER.peer_id: (2, raw)},
        "long": {STRANGER.peer_id: (0, raw + bytes(MAX_CONTRIBUTION_BYTES))},
        "two of one sponsor": {f"guest{index}": (0, raw) for index in range(2)},
    }[case]
    with pytest.raises(StatementError, match="contributor"):
        with_guests(guests)


def test_a_contribution_is_read_only_as_its_signer_wrote_it_for_this_run():
    raw = late_work().statement.raw
    assert len(raw) <= MAX_CONTRIBUTION_BYTES
    with pytest.raises(StatementError, match="signature"):
        Contribution.open(raw, OTHER_RUN)
    with pytest.raises(StatementError, match="at most"):
        Contribution.open(raw + bytes(MAX_CONTRIBUTION_BYTES), RUN)
    with pytest.raises(StatementError, match="out of range"):
        late_work(round_number=-1)
