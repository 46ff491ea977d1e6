"""One cell of the matrix on a running swarm: the faulty round, the repair, and a round without a fault after it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults.injection import Fault
from tests.faults.swarm import Replica, Results, Swarm
from tests.faults.table import CELLS, name_of

GRACE_SECONDS = 2.0
"""Nobody may end a round later than this after its close."""

TRIES = 40
"""Rounds without a fault in which a replica gets to lead twice, so that it has something to replay."""


@dataclass
class Outcome:
    """What a cell showed."""

    name: str
    committed: bool
    """Whether the honest replicas committed the faulty round itself."""
    calm: list[bool]
    """Of each round without a fault that came after it: whether everyone committed it."""
    said: list[str]
    """What the honest ones' reports and logs say of the culprit."""
    latest: float
    """Seconds after the close at which the last of them was through; negative before it."""
    broken: list[str] = field(default_factory=list)
    """Promises that were not kept; empty for a cell that passed."""


async def run_cell(swarm: Swarm, fault: Fault) -> Outcome:
    """Run a cell and judge it."""
    expected = CELLS[fault]
    calm: list[bool] = []
    number = await _prepare(swarm, fault, calm)
    order = swarm.order(number)
    # The second in order may take over from the leader, so a faulty member is the third; a cut line ends at its next.
    victim, beyond = (order[0], order[1]) if fault.role == "leader" else (order[2], order[3])
    results = await swarm.one_round(number, fault, victim, beyond)
    cut = fault.kind == "cut link"
    honest = [replica for replica in order if cut or replica is not victim]
    culprits = [victim, beyond] if cut else [victim]
    said = [text for replica in honest for culprit in culprits for text in _said(replica, culprit, number, results)]
    await swarm.bring_back(fault, victim)
    await swarm.repair()
    digests = {replica.state.digest for replica in honest}
    states = [results[replica.id][0].state for replica in honest]
    lines = {state.digest for state in states if state is not None}
    committed = 2 * sum(state is not None for state in states) > len(order) if cut else None not in states
    latest = max(results[replica.id][1] for replica in honest)
    swarm.heal()
    after = await swarm.one_round(swarm.next_round())
    calm.append(all(result.state is not None for result, _ in after.values()))
    await swarm.repair()

    outcome = Outcome(name_of(fault), committed, calm, said, latest)
    outcome.broken += [f"{len(digests)} states afterwards"] if len(digests) > 1 else []
    if len(lines) > 1 and not expected.may_fork:
        places = {replica.id: place for place, replica in enumerate(order)}
        lists = {place: [places[member] for member in results[peer_id][0].members] for peer_id, place in places.items()}
        outcome.broken.append(f"{len(lines)} states were committed; the lists, by place in the order: {lists}")
    outcome.broken += [f"the last was through {latest:.1f} s after the close"] if latest > GRACE_SECONDS else []
    if committed != expected.commits:
        failures = [results[replica.id][0].failure for replica in honest]
        outcome.broken.append(f"committed: {committed}, expected: {expected.commits}; {failures}")
    if expected.named and not any(re.search(expected.named, text) for text in said):
        outcome.broken.append(f"nobody said of the culprit {expected.named!r}, but: {sorted(set(said))}")
    return outcome


async def _prepare(swarm: Swarm, fault: Fault, calm: list[bool]) -> int:
    """The number of the round to come, in which the victim has what it needs."""
    number = swarm.next_round()
    if fault.kind != "replay":
        return number
    for _ in range(TRIES):
        order = swarm.order(number)
        victim = order[0] if fault.role == "leader" else order[2]
        if fault.method in {**victim.line.before, **victim.line.sent}:
            break
        result = await swarm.one_round(number)
        calm.append(all(entry.state is not None for entry, _ in result.values()))
        number = swarm.next_round()
    return number


def _said(replica: Replica, culprit: Replica, number: int, results: Results) -> Iterator[str]:
    """What one replica's report of the round says of another one, and what its log does by now."""
    if replica is culprit:
        return
    result = results[replica.id][0]
    yield from (found[culprit.id] for found in (result.rejected, result.problems) if culprit.id in found)
    for book in replica.desk._books.values():  # what the log says is kept here, too
        if book.round <= number and culprit.id in book.refusals:
            yield book.refusals[culprit.id]
