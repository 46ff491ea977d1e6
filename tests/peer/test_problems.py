"""A round's report names whoever sent what had to be refused, or did not do its part."""

from __future__ import annotations

from typing import Any

import pytest

from blockswarm.swarm.policy.leader import leader_order
from tests.peer.test_round import one_digest, updates
from tests.peer.wires import Replica, Wires

Body = dict[str, Any]


def in_place(wires: Wires, number: int, place: int) -> Replica:
    """The replica with this place in a round's order."""
    order = leader_order(wires.ids, run_digest=wires.manifest.digest, subject=0, round_number=number)
    return wires.replicas[order[place]]


@pytest.mark.parametrize(
    ("method", "change", "told"),
    [
        ("round.report", {"group": b"\x55" * 32}, "refused its round.report: the report is of another group"),
        ("round.part", {"list": b"not the list"}, "refused its round.part: the part is of another list"),
        ("round.report", None, "did not report on its part in time"),
        ("round.decision", None, "did not decide in time"),
    ],
)
async def test_the_others_name_the_culprit(method: str, change: Body | None, told: str) -> None:
    wires = Wires(3)
    number = wires.next_round()
    culprit = in_place(wires, number, 0 if method == "round.decision" else 2)

    def alter(sent: str, body: Body, blob: bytes) -> tuple[Body, bytes]:
        return (body | change if change and sent == method else body), blob

    if change:
        culprit.alter = alter
    else:
        own = culprit.identity.peer_id
        stopped = (method, "round.result", "round.outcome") if method == "round.decision" else (method,)
        wires.lost |= {(own, other, lost) for other in wires.ids for lost in stopped}
    results = await wires.round(updates(wires), number=number)
    honest = [
        result for replica, result in zip(wires.replicas.values(), results, strict=True) if replica is not culprit
    ]
    one_digest(honest)
    for result in honest:
        assert told in result.problems[culprit.identity.peer_id]
        assert all("wrong length" not in reason for reason in result.rejected.values())


async def test_a_replica_on_another_state_is_named() -> None:
    wires = Wires(3)
    wires[2].silent = True
    deltas = updates(wires)
    first = await wires.round(deltas)
    assert (
        "did not answer the meeting" in first[0].problems[wires.ids[2]]
        or "round.meet" in first[0].problems[wires.ids[2]]
    )
    wires[2].silent = False
    second = await wires.round(deltas)
    one_digest(second[:2])
    assert all("takes part from another state" in result.problems[wires.ids[2]] for result in second[:2])
