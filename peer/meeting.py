"""Meet: the replicas of a subject that take part in a round find each other and agree on one list.

See docs/protocol.md §6.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from blockswarm.peer.book import EntryRefused
from blockswarm.peer.exchange import Exchange, RoundFailed
from blockswarm.peer.heads import CLAIM, ClaimRefused, Head, newer_head
from blockswarm.peer.roll import Presence
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.policy.acceptance import quorum
from blockswarm.swarm.policy.grouping import choose_members
from blockswarm.swarm.policy.leader import leader_order
from blockswarm.swarm.statements import MAX_GUESTS, MAX_MEMBERS, MemberList

PROPOSE_AFTER = 0.5
"""Share of the meeting after which the first in order stops waiting for replicas that do not answer."""

PROPOSE_AFTER_ALIVE = 0.75
"""The same for replicas that answered, and so are alive, but have not said that they take part."""

TAKE_OVER_STEP = 0.1
"""Share of the meeting between one candidate's turn and the next one's."""

PRECEDED_STEP = 0.05
"""Share of the meeting that a candidate waits for a silent replica before it in order, besides its turn.

Half a step: who has not heard of that replica does not wait, and must not have its turn together with who does.
"""

PRECEDED_STEP = 0.05
"""Share of the meeting that a candidate waits for a silent replica before it in order, besides its turn.

Half a step: who has not heard of that replica does not wait, and must not have its turn together with who does.
"""

LAST_TURN = 0.95
"""Nobody's turn comes later than this share of the meeting."""

OVERSLEPT_SHARE = 0.1
"""Share of the meeting by which a peer that wakes late has not listened: what came meanwhile is still unread."""

LAST_LOOK_SHARE = 0.15
"""Share of the meeting that a replica about to commit alone gives those who answered to say where they stand now."""

RETRY_SECONDS = 0.3
"""Pause before a replica that could not be reached is told again."""


def meet_body(exchange: Exchange) -> dict[str, Any]:
    """The message that says: I take part in this round, from this state, with this much work."""
    return {
        "subject": exchange.book.subject,
        "round": exchange.times.round,
        "parent": exchange.parent.digest,
        "samples": exchange.samples,
        "reachable": exchange.reachable,
        "up": exchange.line.up,
        "down": exchange.line.down,
    } | ({"guests": [guest.contribution.statement.raw for guest in exchange.guests]} if exchange.guests else {})


async def meet(exchange: Exchange) -> MemberList:
    """Meet the other replicas and return the list this peer is in.

    Everyone tells every replica on record (and whoever calls meanwhile) that it takes part. The first of those present,
    in the round's leader order, signs the list: at once when all replicas on record have spoken, at half time when some
    do not answer, and later when one answers that may still take part. The next in order takes its turn when no list
    came. Whoever learns of a heavier state does not propose. Peers whose updates had to be refused lately are not
    listed, and are told so; whom more than half of those that answer keep out sits the round out. So does who is not
    understood by more than answer, when its turn to propose has come.

    Who knows of nobody looks at the records again, and who is left alone asks those that answered once more: two that
    commit alone at the same time are a fork. Who may have lost touch with the others proposes no list of itself alone,
    and neither does who has not listened for half a meeting to replicas that are, as far as it knows, there.

    Raises
    ------
    RoundFailed
        When no list was agreed on in time, or this peer's state is behind.
    """
    book, times = exchange.book, exchange.times
    exchange.require_before(times.meet_end, "meeting")
    begin = min(exchange.clock.now(), times.train_end)
    guests = tuple(guest.contribution for guest in exchange.guests)
    own = Presence(exchange.parent.digest, exchange.samples, exchange.reachable, exchange.line, guests)
    book.note_presence(exchange.own_id, own)
    if not exchange.replicas:
        exchange.look = exchange.send(_look_again(exchange))
        exchange.look.add_done_callback(lambda _: book.notify())
    told: set[str] = set()
    asked_last = False
    exchange.listens_since = exchange.clock.now()
    while book.members is None:
        for peer_id in ({*exchange.replicas} | book.heard) - told - {exchange.own_id}:
            told.add(peer_id)
            exchange.send(_tell(exchange, peer_id))
        if exchange.ahead:
            newest = max(exchange.ahead, key=lambda head: head.samples)
            raise RoundFailed(f"this peer is behind: {newest.peer_id} holds round {newest.round}")
        turn = _own_turn(exchange, begin)
        if exchange.clock.now() >= turn:
            if _is_alone(exchange) and exchange.answered and not asked_last:
                asked_last = True
                await _ask_last(exchange)
                continue
            if 2 * len(exchange.kept_out_by) > len(exchange.answered):
                until = max(exchange.kept_out_by.values())
                raise RoundFailed(f"kept out until round {until}: the others had to refuse this peer's updates")
            if 2 * len(exchange.not_understood_by) > len(exchange.answered):
                # It may hear some of them: its list would be one beside theirs.
                words = next(iter(exchange.not_understood_by.values()))
                raise RoundFailed(f"the others do not understand this peer: {words}")
            exchange.require_before(times.meet_end, "the list")
            await _propose(exchange)
            break
        news, wakes = _Watch(exchange), min(turn, times.meet_end)
        await book.wait(news.came, exchange.left(wakes))
        if exchange.clock.now() - wakes > OVERSLEPT_SHARE * (times.meet_end - times.train_end):
            exchange.listens_since = exchange.clock.now()
        if book.members is None and exchange.clock.now() > times.meet_end:
            if _waits_for_others(exchange):
                raise RoundFailed("nobody was met, and this peer may have lost touch with those that are there")
            raise RoundFailed("no list was agreed on before the meeting ended")
    return book.require_members()


async def _look_again(exchange: Exchange) -> None:
    """Alone on record: others may have come since the records were read, or be just about to train."""
    exchange.replicas = await exchange.look_again()


async def _ask_last(exchange: Exchange) -> None:
    """Ask those that answered, and take no part with us, whether they have committed a newer state meanwhile."""
    span = exchange.times.meet_end - exchange.times.train_end
    until = min(exchange.times.meet_end, exchange.clock.now() + LAST_LOOK_SHARE * span)
    asked = [exchange.send(_ask(exchange, peer_id, until=until)) for peer_id in exchange.answered]
    await asyncio.wait(asked, timeout=exchange.left(until))  # checking what they claim takes time, too


class _Watch:
    """Whether anything a meeting depends on has changed since this was made."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._seen = self._state()

    def _state(self) -> tuple[int, ...]:
        exchange, book = self._exchange, self._exchange.book
        sizes = len(book.present), len(book.heard), len(exchange.ahead), len(exchange.problems), len(exchange.answered)
        return (book.members is not None, exchange.looking, *sizes)

    def came(self) -> bool:
        return self._state() != self._seen


async def _tell(exchange: Exchange, peer_id: str) -> None:
    """Tell one peer that we take part, again if it cannot be reached yet; its answer says where it stands."""
    half_time = _propose_at(exchange, 0, alive=False)
    while not await _ask(exchange, peer_id, until=exchange.times.meet_end):
        exchange.book.notify()
        if exchange.clock.now() + RETRY_SECONDS > half_time:
            return
        await asyncio.sleep(RETRY_SECONDS)


async def _ask(exchange: Exchange, peer_id: str, *, until: float) -> bool:
    """Tell one peer that we take part and note where it stands; whether it answered."""
    reply = await exchange.call(peer_id, "round.meet", meet_body(exchange), until=until)
    if reply is None:
        return False
    exchange.problems.pop(peer_id, None)
    exchange.not_understood_by.pop(peer_id, None)
    exchange.answered.add(peer_id)
    try:
        if out_until := CLAIM.read(reply.body)["out_until"]:
            exchange.kept_out_by[peer_id] = out_until
        head = await asyncio.to_thread(_read_claim, exchange, peer_id, reply.body)
    except (ClaimRefused, MessageError) as error:
        exchange.problems[peer_id] = str(error)
        head = None
    if head is not None:
        lost = not {head.digest, head.parent}.isdisjoint(exchange.outweighed)
        (exchange.apart if lost else exchange.ahead).append(head)
    exchange.book.notify()
    return True


def _read_claim(exchange: Exchange, peer_id: str, body: dict[str, Any]) -> Head | None:
    return newer_head(exchange.manifest, exchange.parent, peer_id, body, latest_round=exchange.times.round)


def _with_our_parent(exchange: Exchange) -> list[str]:
    """Those present that build on our state, ourselves included, without those that are kept out."""
    out = exchange.standing.out(exchange.times.round).keys() - {exchange.own_id}
    present = exchange.book.present.items()
    return [peer_id for peer_id, entry in present if entry.parent == exchange.parent.digest and peer_id not in out]


def _is_alone(exchange: Exchange) -> bool:
    return len(_with_our_parent(exchange)) == 1


def _candidates(exchange: Exchange) -> list[str]:
    """Who could be in the list with us, in the round's order."""
    return leader_order(
        _with_our_parent(exchange),
        run_digest=exchange.manifest.digest,
        subject=exchange.book.subject,
        round_number=exchange.times.round,
    )


def _waits_for_others(exchange: Exchange) -> bool:
    """Whether we are alone and must not commit so: out of touch with the others, or too late or asleep to hear them.

    Of replicas that could not be reached there is nothing to hear. After the last turn they no longer tell: a call to
    one that is silent ends with the meeting, too.
    """
    if not _is_alone(exchange):
        return False
    last = _moment(exchange, LAST_TURN)
    over = bool(exchange.replicas) and exchange.clock.now() > last
    return not exchange.may_be_alone or (_heard_at(exchange) > last and (over or bool(_unheard(exchange))))


def _unheard(exchange: Exchange) -> set[str]:
    """Replicas on record of which we may still hear that they take part, or have committed without us."""
    elsewhere = exchange.book.present.keys() | exchange.standing.out(exchange.times.round).keys()
    return set(exchange.replicas) - set(exchange.problems) - (exchange.answered & elsewhere)


def _heard_at(exchange: Exchange) -> float:
    """When this peer will have listened for about half of a meeting: from half time on, that is the last turn."""
    return exchange.listens_since + _moment(exchange, LAST_TURN) - _moment(exchange, PROPOSE_AFTER)


def _own_turn(exchange: Exchange, begin: float) -> float:
    """When this peer proposes a list, as things stand."""
    if _waits_for_others(exchange):
        return math.inf
    candidates = _candidates(exchange)
    rank = candidates.index(exchange.own_id)
    silent = set(exchange.replicas) - set(exchange.book.present) - set(exchange.standing.out(exchange.times.round))
    # Alone although others are, or may be, on record: they get their time to answer or to call, before a lone commit.
    deserted = len(candidates) == 1 and (exchange.looking or bool(exchange.replicas))
    if rank == 0 and not deserted and not silent - set(exchange.problems):
        return begin
    turn = _propose_at(
        exchange, rank, alive=bool(silent & exchange.answered), preceded=_may_be_preceded(exchange, silent)
    )
    return max(turn, _heard_at(exchange)) if deserted and _unheard(exchange) else turn


def _may_be_preceded(exchange: Exchange, silent: set[str]) -> bool:
    """Whether a silent replica on record comes before the first we hear: others may hear it, and its list goes first.

    If both proposed at half time, each without the other, half of the members could follow either, and both lists be
    certified.
    """
    first, *_ = leader_order(
        {*_with_our_parent(exchange), *(silent - set(exchange.problems))},
        run_digest=exchange.manifest.digest,
        subject=exchange.book.subject,
        round_number=exchange.times.round,
    )
    return first in silent


def _propose_at(exchange: Exchange, rank: int, *, alive: bool, preceded: bool = False) -> float:
    share = (PROPOSE_AFTER_ALIVE if alive else PROPOSE_AFTER) + rank * TAKE_OVER_STEP + preceded * PRECEDED_STEP
    return _moment(exchange, min(LAST_TURN, share))


def _moment(exchange: Exchange, share: float) -> float:
    """When so much of the meeting is over."""
    return exchange.times.train_end + share * (exchange.times.meet_end - exchange.times.train_end)


def _guests(exchange: Exchange, names: list[str]) -> dict[str, tuple[int, Contribution]]:
    """The contributors that a list brings in, with the positions of their sponsors: each once, and none that we know
    to be refused."""
    book = exchange.book
    offers = [
        (position, guest)
        for position, peer_id in enumerate(names)
        for guest in book.present[peer_id].guests[:1]
        if guest.peer_id not in book.present and (guest.subject, guest.round) == (book.subject, book.round)
    ]
    chosen: dict[str, tuple[int, Contribution]] = {}
    for position, guest in offers:
        if problem := book.guest_problem(guest):
            exchange.problems[guest.peer_id] = f"{problem} (brought in by {names[position]})"
        elif len(chosen) < MAX_GUESTS:
            chosen.setdefault(guest.peer_id, (position, guest))
    return chosen


async def _propose(exchange: Exchange) -> None:
    """Sign the list, take it ourselves, and get the others' acknowledgements."""
    book, times = exchange.book, exchange.times
    names = choose_members(
        {peer_id: book.present[peer_id].reachable for peer_id in _candidates(exchange)},
        leader=exchange.own_id,
        group_size=exchange.manifest.rounds.group_size,
        limit=MAX_MEMBERS,
    )
    if not any(book.present[peer_id].reachable for peer_id in names):
        raise RoundFailed("no replica that takes part can be reached by the others")
    guests = _guests(exchange, names)
    members = MemberList.make(
        exchange.identity,
        exchange.manifest.digest,
        subject=book.subject,
        round_number=times.round,
        parent=exchange.parent.digest,
        samples={peer_id: book.present[peer_id].samples for peer_id in names},
        reachable={peer_id: book.present[peer_id].reachable for peer_id in names},
        lines={peer_id: book.present[peer_id].line for peer_id in names},
        guests={peer_id: (position, guest.statement.raw) for peer_id, (position, guest) in guests.items()},
    )
    try:
        book.accept_list(members, [guest for _, guest in guests.values()])
    except EntryRefused:  # another leader's list came first
        return
    replies = exchange.broadcast(names, "round.list", {"list": members.statement.raw}, until=times.meet_end)
    acknowledged = 1
    for task in replies:
        acknowledged += await task is not None
    if acknowledged < quorum(len(names)):
        raise RoundFailed(f"only {acknowledged} of {len(names)} listed replicas acknowledged the list")
