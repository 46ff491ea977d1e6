"""What a client can be asked to do, in trio: the one implementation behind both its faces."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import trio

from blockswarm.dht.records import BlockRecord
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.core import Core
from blockswarm.swarm.errors import ClientError, DeadlineError, NoHolderError
from blockswarm.swarm.generation import EMPTY_PROMPT, Generation
from blockswarm.swarm.options import PinChoice, Reading, Writing, read_pin
from blockswarm.swarm.pins import choose_pin
from blockswarm.swarm.readouts import read_all
from blockswarm.swarm.report import CallReport
from blockswarm.swarm.session import Session

BEST_EFFORT_SECONDS = 5.0
"""Best effort: seconds a byte waits for a block."""

READING_SHARE = 0.25
"""Share of its time that a reading of log-probabilities waits for a block that has holders but no answers: a
measurement prefers late to incomplete."""


@dataclass(frozen=True)
class Score:
    """How well the swarm predicts a text.

    Attributes
    ----------
    log_prob : float
        Sum of the natural-log probabilities of the scored bytes.
    bytes : int
        Number of bytes scored.
    missing : tuple of int
        Blocks the figure was computed without, at least in part.
    """

    log_prob: float
    bytes: int
    missing: tuple[int, ...] = ()

    @property
    def nats_per_byte(self) -> float:
        """Cross-entropy in nats per byte; ``nan`` for an empty text."""
        return -self.log_prob / self.bytes if self.bytes else math.nan


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
    session = await _bounded(asked.timeout, lambda: open_session(core, asked.pin, patience, report))
    return Generation(session, prompt, asked)


async def generate(core: Core, prompt: bytes, asked: Writing) -> tuple[str, CallReport]:
    """The whole text at once, and how it went."""
    generation = await begin(core, prompt, asked)
    pieces: list[str] = []
    while (piece := await generation.next_piece()) is not None:
        pieces.append(piece)
    return "".join(pieces), generation.report


async def logprobs(
    core: Core,
    text: bytes,
    asked: Reading,
) -> tuple[Float32, CallReport]:
    """float32 ``[len(text), 256]``, row ``i`` predicting the byte after ``text[: i + 1]``; and how it went."""
    if not text:
        raise ClientError("log-probabilities of an empty text: give at least one byte")
    table = np.empty((len(text), 256), dtype=np.float32)

    def use(first: int, rows: Float32) -> None:
        table[first : first + len(rows)] = rows

    report = await _read(core, "logprobs", text, use, asked)
    return table, report


async def score(
    core: Core,
    text: bytes,
    given: bytes,
    asked: Reading,
) -> tuple[Score, CallReport | None]:
    """Sum of the log-probabilities of ``text`` after ``given``; rows are used up as they come, so memory stays flat."""
    given = given or EMPTY_PROMPT
    whole = np.frombuffer(given + text, dtype=np.uint8)
    if not text:
        return Score(0.0, 0), None
    total = 0.0

    def use(first: int, rows: Float32) -> None:
        nonlocal total
        begin = max(first, len(given) - 1)
        kept = rows[begin - first :]
        targets = whole[begin + 1 : begin + 1 + len(kept)]
        total += float(kept[np.arange(len(targets)), targets].sum(dtype=np.float64))

    # The row of the last byte predicts what nobody asks for.
    report = await _read(core, "score", whole[:-1].tobytes(), use, asked)
    return Score(total, len(text), tuple(report.missing)), report


async def holders(core: Core, fresh: bool) -> dict[int, list[Holder]]:
    """Everybody on record for each block, block 0 first."""
    await core.survey(fresh=fresh)
    return {
        block: [describe(core, record) for record in core.book.holders(block, serving=False)] for block in core.blocks
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
    await core.survey()
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
    use: Callable[[int, Float32], None],
    asked: Reading,
) -> CallReport:
    sweep = asked.readout == "sweep"
    report = CallReport(call, asked.readout, seed=asked.seed if sweep else None)
    began = trio.current_time()
    patience = None if sweep else max(BEST_EFFORT_SECONDS, asked.timeout * READING_SHARE)
    session: Session | None = None

    async def work() -> CallReport:
        nonlocal session
        session = await open_session(core, asked.pin, patience, report)
        await read_all(session, text, use, readout=asked.readout, seed=asked.seed, progress=asked.progress)
        report.pin, report.bytes = session.pin.as_json(), len(text)
        report.seconds = trio.current_time() - began
        return report

    def waiting() -> str:
        blocks = sorted(session.unanswered) if session is not None else []
        return f"waiting for {', '.join(f'block {block}' for block in blocks)}" if blocks else "looking for holders"

    return await _bounded(asked.timeout, work, waiting)


T = TypeVar("T")


async def _bounded(
    seconds: float, work: Callable[[], Awaitable[T]], waiting: Callable[[], str] = lambda: "looking for holders"
) -> T:
    with trio.move_on_after(seconds) as scope:
        result = await work()
    if not scope.cancelled_caught:
        return result
    raise DeadlineError(f"{seconds:g} s were not enough: {waiting()}")
