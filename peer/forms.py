"""Bodies of the messages of a round, with the bounds of every field (docs/protocol.md §6)."""

from __future__ import annotations

from blockswarm.swarm.contribution import MAX_CONTRIBUTION_BYTES
from blockswarm.swarm.fields import Body, Optional, flag, integer, listed, number, octets, peer_id, text
from blockswarm.swarm.messages import MAX_CERTIFICATE_BYTES, ROUND, SAMPLES
from blockswarm.swarm.policy.contributing import MOST_HOSTED
from blockswarm.swarm.policy.parts import MAX_RATE
from blockswarm.swarm.statements import MAX_GUESTS, MAX_MEMBERS, MAX_REASON, MAX_STATEMENT_BYTES

statement = octets(least=1, most=MAX_STATEMENT_BYTES)
where = {"subject": integer(-1, 255), "round": integer(1, 2**48)}

contribution = octets(least=1, most=MAX_CONTRIBUTION_BYTES)
rate = integer(0, MAX_RATE)

MEET = Body(
    **where,
    parent=octets(32),
    samples=integer(0, 2**48),
    reachable=flag(),
    up=rate,
    down=rate,
    guests=Optional(listed(contribution, most=MOST_HOSTED), ()),
)
NEWS = Body(
    subject=integer(-1, 255),
    head=octets(32),
    head_round=ROUND,
    head_samples=SAMPLES,
    certificate=octets(most=MAX_CERTIFICATE_BYTES),
    apart=Optional(flag(), False),
)
LIST = Body(list=statement)
PART = Body(**where, list=statement, values=integer(1, 2**40), of=Optional(peer_id()))
REPORT = Body(
    **where,
    group=octets(32),
    senders=listed(
        Body(peer=peer_id(), norm2=number(0.0, 1e300), problem=text(most=MAX_REASON)),
        most=MAX_MEMBERS + MAX_GUESTS,
    ),
)
DECISION = Body(**where, decision=statement)
SUM = Body(**where, part=integer(0, MAX_MEMBERS - 1), decision=statement)
RESULT = Body(
    **where,
    group=octets(32),
    part=integer(0, MAX_MEMBERS - 1),
    counted=listed(Body(group=integer(0, MAX_MEMBERS - 1), decision=octets(32)), most=MAX_MEMBERS),
    decision=Optional(statement),
)
FETCH = Body(**where, hash=octets(32))
OUTCOME = Body(**where, outcome=statement, decision=Optional(statement))
VOTE = Body(**where, vote=statement, outcome=Optional(statement))
CERTIFICATE = Body(**where)

CONTRIBUTE_OPEN = Body(
    subject=integer(-1, 255),
    base_round=ROUND,
    base=octets(32),
    base_samples=SAMPLES,
    certificate=octets(most=MAX_CERTIFICATE_BYTES),
    values=integer(1, 2**40),
    hash=octets(32),
)
CONTRIBUTE_PIECE = Body(subject=integer(-1, 255), hash=octets(32), index=integer(0, 2**24))
CONTRIBUTE_SIGN = Body(contribution=contribution)
CONTRIBUTE_OUTCOME = Body(**where)
OUTCOME_OF = Body(known=flag(), counted=flag(), reason=text(most=MAX_REASON))
"""What a sponsor answers to the last one."""
