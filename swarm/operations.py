"""What a client can be asked to do, in trio: the one implementation behind both its faces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import trio

from blockswarm.dht.records import BlockRecord
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.core import Core
from blockswarm.swarm.counts.fetching import begin_fetch as fetch_counts_beside
from blockswarm.swarm.drafting.fetched_block import begin_fetch
from blockswarm.swarm.errors import DeadlineError, NoHolderError
from blockswarm.swarm.generation import Generation
from blockswarm.swarm.manifest import subject_name
from blockswarm.swarm.one_sweep import OneSweep
from blockswarm.swarm.options import PinChoice, Reading, Writing, read_pin
from blockswarm.swarm.pins import choose_pin
from blockswarm.swarm.readouts import read_all
from blockswarm.swarm.report import CallReport
from blockswarm.swarm.score import RowSheet, Score, ScoreSheet, Spans
from blockswarm.swarm.session import Session

BEST_EFFORT_SECONDS = 5.0
"""Best effort: seconds a byte waits for a block."""

READING_SHARE = 0.25
"""Share of its time that a reading of log-probabilities waits for a block that has holders but no answers: a
measurement prefers late to incomplete."""


@dataclass(frozen=True)
class Holder:
    """One peer on record for a block."""

    peer_id: str
    block: int
    state: str
    round: int
    digest: bytes
    """State it last committed, 32 bytes; empty while it has none."""
    samples_per_second: float
    addrs: tuple[str, ...]
    relayed: bool
    software: str
    age: float
    """Seconds since its record was signed."""
    rounds: tuple[int, ...]
    """Rounds whose states it says it can serve, newest first; empty when it did not answer."""
    banned: bool
    """Whether this client leaves it alone at the moment."""


async def begin(core: Core, prompt: bytes, asked: Writing) -> Generation:
    """Open a session and prepare to write."""
    report = CallReport("generate", asked.readout, seed=asked.drawn_seed)
    patience = BEST_EFFORT_SECONDS if asked.best_effort else None
    alone = asked.readout == "one-sweep"
    drafting = None if alone else await core.shelf.open(asked.drafter, blocks=len(core.asked))
    if asked.drafter == "block" and not alone:
        begin_fetch(core)
    elif asked.drafter == "counts" and not alone:
        fetch_counts_beside(core)
    session = await _bounded(asked.seconds, lambda: open_session(core, asked.pin, patience, report))
    return OneSweep(session, prompt, asked) if alone else Generation(session, prompt, asked, drafting)


async def generate(core: Core, prompt: bytes, asked: Writing) -> tuple[str, CallReport]:
    """The whole text at once, and how it went."""
    generation = await begin(core, prompt, asked)
    return (await generation.whole()).text, generation.report


async def logprobs(core: Core, text: bytes, asked: Reading) -> tuple[Float32, CallReport]:
    """float32 ``[len(text), 256]``, row ``i`` predicting the byte after ``text[: i + 1]``; and how it went."""
    sheet = RowSheet(text)
    report = await _read(core, "logprobs", sheet.text, sheet.rows, sheet.use, asked)
    return sheet.table, report


async def score(
    core: Core, text: bytes, given: bytes, spans: Spans | None, asked: Reading
) -> tuple[Score, CallReport | None]:
    """ln p of the bytes of ``text`` in ``spans``, after ``given``; rows are used up as they come: memory stays flat."""
    sheet = ScoreSheet(text, given, spans)
    if not sheet.rows:
        return sheet.score(), None
    report = await _read(core, "score", sheet.text, sheet.rows, sheet.use, asked)
    return sheet.score(report.missing), report


async def holders(core: Core, fresh: bool) -> dict[int, list[Holder]]:
    """Everybody on record for each block, block 0 first; for the counts too, unless their file is here."""
    await core.survey(fresh=fresh)
    return {
        block: [describe(core, record) for record in core.book.holders(block, serving=False)] for block in core.asked
    }


def describe(core: Core, record: BlockRecord) -> Holder:
    """A holder's record together with what this client has seen of it."""
    offer = core.offers.get(record.peer_id)
    return Holder(
        peer_id=record.peer_id,
        block=record.block,
        state=record.state,
        round=record.round,
        digest=record.digest,
        samples_per_second=record.samples_per_second,
        addrs=record.addrs,
        relayed=record.relayed,
        software=record.software,
        age=max(0.0, core.clock.now() - record.issued),
        rounds=tuple(state.round for state in offer.states) if offer is not None else (),
        banned=core.router.banned(record.peer_id, trio.current_time()),
    )


async def open_session(core: Core, pin: PinChoice, patience: float | None, report: CallReport) -> Session:
    """Choose the states to pin and begin.

    Raises
    ------
    NoHolderError
        When no holder of any block answers.
    """
    await core.look_around()
    chosen = read_pin(pin, core.manifest)
    if chosen is None:
        chosen = choose_pin(core.live_offers(), len(core.blocks))
        if chosen is None:
            await core.survey(fresh=True)
            chosen = choose_pin(core.live_offers(), len(core.blocks))
        if chosen is None:
            raise NoHolderError(0, f"no live holder of any block of {core.manifest.run_id}: is anybody training it?")
    report.pin = chosen.as_json()
    core.stats.last = report
    return Session(core, chosen, fixed=pin is not None, patience=patience, report=report)


async def _read(
    core: Core,
    call: str,
    text: bytes,
    rows: Sequence[tuple[int, int]],
    use: Callable[[int, Float32], None],
    asked: Reading,
) -> CallReport:
    sweep = asked.readout == "sweep"
    report = CallReport(call, asked.readout, seed=asked.seed if sweep else None)
    began = trio.current_time()
    patience = None if sweep else max(BEST_EFFORT_SECONDS, asked.seconds * READING_SHARE)
    session: Session | None = None

    async def work() -> CallReport:
        nonlocal session
        session = await open_session(core, asked.pin, patience, report)
        await read_all(session, text, use, rows=rows, readout=asked.readout, seed=asked.seed, progress=asked.progress)
        report.pin = session.pin.as_json()
        report.seconds = trio.current_time() - began
        return report

    def waiting() -> str:
        blocks = sorted(session.unanswered) if session is not None else []
        if not blocks:
            return "looking for holders"
        total = sum(end - begin for begin, end in rows)
        return f"{report.bytes} of {total} bytes read, waiting for {', '.join(map(subject_name, blocks))}"

    return await _bounded(asked.seconds, work, waiting)


T = TypeVar("T")


async def _bounded(
    seconds: float, work: Callable[[], Awaitable[T]], waiting: Callable[[], str] = lambda: "looking for holders"
) -> T:
    with trio.move_on_after(seconds) as scope:
        result = await work()
    if not scope.cancelled_caught:
        return result
    raise DeadlineError(f"{seconds:g} s were not enough: {waiting()}")
