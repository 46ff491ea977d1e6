"""Forks: certified lines of one subject that went on apart, found, weighed and merged (docs/protocol.md §10)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blockswarm.clock import Clock
from blockswarm.peer.fork_files import ForkFiles
from blockswarm.peer.fork_points import ForkPoints
from blockswarm.peer.line import Line, LineAsker, Link, rounds_of
from blockswarm.peer.merges import Merges
from blockswarm.peer.merging import Merge, norm_of
from blockswarm.peer.states import State, StateStore
from blockswarm.peer.transfer import Call
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.messages import StateHead
from blockswarm.swarm.policy.acceptance import heavier
from blockswarm.swarm.policy.forks import MergePlan, Weighing, contributions, plan_merge, weigh
from blockswarm.swarm.policy.phases import round_in_progress
from blockswarm.swarm.statements import StatementError

TRACE_SECONDS = 20.0
"""Bound of following another line back to ours."""

REFUSED_ROUNDS = 16
"""A line with more samples than ours that weighs less is left alone for so long. If its replicas have not come over by
then they cannot, and apart for ever is worse than the lighter line."""

KEPT_TRACES = 8
KEPT_BRANCHES = 64

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Traced:
    """What is known of the line of some head."""

    ancestor: bytes = b""
    """Its last state that is also in ours."""
    links: tuple[Link, ...] = ()
    """Its rounds since then, oldest first."""
    problem: str = ""
    """Why no common state is known."""
    bytes: int = 0
    """Fetched to find it."""


@dataclass(frozen=True)
class Fork:
    """Two lines since their common ancestor, ours and another one."""

    ancestor: bytes
    branch: str
    """Our first state after it (hex): names our line, however long it grows."""
    other_branch: str
    own: dict[str, float]
    """Contributions to ours, by identity."""
    weighing: Weighing


@dataclass(frozen=True)
class Judgement:
    """Whether to go over to a state, and whether our line and its split."""

    go: bool
    fork: Fork | None = None
    problem: str = ""


class Forks:
    """Lines, fork points and merges of a volunteer's subjects.

    Parameters
    ----------
    manifest : Manifest
        The run.
    own_id : str
        This peer.
    clock : Clock
        The swarm's time.
    store : StateStore
        The states that are in memory.
    call : Call
        How peers are asked for their lines.
    emit : callable
        Told of forks and merges.
    state_dir : Path, optional
        Where they outlast a restart; without it they are kept in memory.
    """

    def __init__(
        self,
        manifest: Manifest,
        own_id: str,
        clock: Clock,
        store: StateStore,
        *,
        call: Call,
        emit: Callable[[dict[str, Any]], None],
        state_dir: Path | None = None,
    ) -> None:
        self.lines: dict[int, Line] = {}
        """Our line of each subject."""
        self._manifest = manifest
        self._own_id = own_id
        self._clock = clock
        self._emit = emit
        self._asker = LineAsker(call, manifest)
        self._files = ForkFiles(state_dir, manifest) if state_dir is not None else None
        self._points = ForkPoints(manifest, store, clock, self._files)
        self._traced: OrderedDict[bytes, Traced] = OrderedDict()
        self._merges = Merges(self._files, emit)
        self._refused: dict[tuple[int, str], int] = {}  # subject and other branch → round since which
        self._outweighed: dict[tuple[int, str], bytes] = {}  # the same → its newest head

    # -- our line --------------------------------------------------------------------------------------------------

    async def tidy(self, *subjects: int) -> None:
        """Let go of what was kept of any subjects but these."""
        if self._files is not None:
            await asyncio.to_thread(self._files.keep_only, subjects)

    async def begin(self, state: State) -> None:
        """Take up the line that ends in ``state``, with what was kept of it, and a merge that was under way."""
        subject = state.subject
        line: Line | None = None
        if self._files is not None:
            line = await asyncio.to_thread(self._files.read_line, subject)
            await asyncio.to_thread(self._merges.resume, subject)
        if line is None or line.samples_at(state.digest) != state.samples:
            line = Line.beginning(state)
        line.cut_after(state.digest)
        self.lines[subject] = line
        await asyncio.to_thread(self._points.load, subject, line)

    async def committed(self, old: State, new: State) -> None:
        """A round that this peer was in has made ``new`` from ``old``."""
        subject, line = new.subject, self.lines.get(new.subject)
        link = await asyncio.to_thread(Link.open, new.certificate, self._manifest)
        if line is None or line.head != link.parent:
            line = self.lines[subject] = Line.beginning(new)
        else:
            before = line.links[-1].listed if line.links else {}
            line.append(link)
            lost = frozenset(before) - frozenset(link.listed)
            await asyncio.to_thread(self._points.note, old, lost, frozenset(link.listed))
        await self._merges.settled(new)

    async def save(self) -> None:
        """Keep the lines and what is left of merges; called beside every checkpoint. Raises `OSError`."""
        if self._files is not None:
            for subject, line in list(self.lines.items()):
                await asyncio.to_thread(
                    self._files.write_line, subject, line.pack()
                )  # packed here: a round may add to it
                await self._merges.save(subject)

    # -- other lines -----------------------------------------------------------------------------------------------

    def is_news(self, subject: int, digest: bytes) -> bool:
        """Whether a state is neither in our line nor looked into already."""
        line = self.lines.get(subject)
        return line is not None and line.samples_at(digest) is None and digest not in self._traced

    def outweighed(self, subject: int) -> frozenset[bytes]:
        """Newest heads of lines that have more samples than ours and weigh less: they do not make us wait."""
        return frozenset(head for (of, _), head in self._outweighed.items() if of == subject)

    async def examine(self, own: State, head: StateHead, holders: Sequence[str]) -> Judgement:
        """Follow the line of a head that others hold back to ours, and judge it."""
        line = self.lines.get(own.subject)
        needed = own.round > 0 and head.round > 0 and line is not None and line.samples_at(head.digest) is None
        if needed and line is not None and self._traced.get(head.digest, Traced(problem="new")).problem:
            begin = self._asker.bytes_received
            try:
                async with asyncio.timeout(TRACE_SECONDS):
                    links = await self._asker.trace(own.subject, head.digest, head.certificate, line, holders)
                traced = Traced(links[0].parent, tuple(links), bytes=self._asker.bytes_received - begin)
            except StatementError as error:
                traced = Traced(problem=str(error))
            except TimeoutError:
                traced = Traced(problem=f"its line did not come in {TRACE_SECONDS:g} s")
            self._traced[head.digest] = traced
            while len(self._traced) > KEPT_TRACES:
                self._traced.popitem(last=False)
        judgement = self.judge(own, head.digest, head.samples)
        fork = judgement.fork
        if fork is not None and not judgement.go and heavier(head.samples, head.digest, own.samples, own.digest):
            key = (own.subject, fork.other_branch)
            if key not in self._outweighed:
                self._emit(self._event(own, head.round, head.digest, fork, won="own", reason=""))
            self._outweighed[key] = head.digest
            while len(self._outweighed) > KEPT_BRANCHES:
                del self._outweighed[next(iter(self._outweighed))]
        return judgement

    def judge(self, own: State, digest: bytes, samples: int) -> Judgement:
        """Whether a state wins over our newest one, from what is known of its line.

        Without a common ancestor the certified samples of the states decide.
        """
        by_count = heavier(samples, digest, own.samples, own.digest)
        line, traced = self.lines.get(own.subject), self._traced.get(digest)
        if traced is None or line is None or line.head != own.digest:
            return Judgement(by_count)
        if traced.problem:
            return Judgement(by_count, problem=traced.problem)
        before = line.samples_at(traced.ancestor)
        if before is None or traced.ancestor == own.digest:
            return Judgement(by_count)
        ratio = self._manifest.averaging.max_weight_ratio
        links = line.since(traced.ancestor)
        ours = contributions(rounds_of(links, before), ratio)
        theirs = contributions(rounds_of(traced.links, before), ratio)
        weighing = weigh(ours, theirs, own.digest, digest, ratio)
        fork = Fork(traced.ancestor, links[0].digest.hex(), traced.links[0].digest.hex(), ours, weighing)
        go = weighing.other_wins
        if not go and by_count:
            now = self._round()
            while len(self._refused) > KEPT_BRANCHES:
                del self._refused[next(iter(self._refused))]
            go = now - self._refused.setdefault((own.subject, fork.other_branch), now) >= REFUSED_ROUNDS
        return Judgement(go, fork)

    def _round(self) -> int:
        return round_in_progress(self._clock.now(), self._manifest.genesis_time, self._manifest.rounds.seconds)

    # -- going over ------------------------------------------------------------------------------------------------

    async def adopted(self, own: State, new: State) -> None:
        """This peer has gone over from ``own`` to ``new``: take up its line, and open a merge if ours was another."""
        subject, line = new.subject, self.lines.get(new.subject)
        judgement, traced = self.judge(own, new.digest, new.samples), self._traced.get(new.digest)
        await self._merges.settled(new)
        if line is None:
            return
        if traced is not None and not traced.problem and line.samples_at(traced.ancestor) is not None:
            line.cut_after(traced.ancestor)
            for link in traced.links:
                line.append(link)
            await self._merges.cancel(subject, {link.digest.hex() for link in traced.links})
        else:
            await self._go_on_with(line, new)
        self._traced.clear()  # what was found was found against the former line
        for known in (self._refused, self._outweighed):
            for key in [key for key in known if key[0] == subject]:
                del known[key]
        if judgement.fork is not None:
            bytes_fetched = traced.bytes if traced is not None else 0
            await self._open_merge(own, new, judgement.fork, bytes_fetched)
        elif judgement.problem:
            message = f"state of round {new.round} was gone over to without a merge: {judgement.problem}"
            self._emit({"event": "info", "message": message})
        await asyncio.to_thread(self._points.keep_of, subject, self.lines[subject])

    async def _go_on_with(self, line: Line, new: State) -> None:
        """A state whose line was not followed: most often our own candidate, which others certified."""
        link = await asyncio.to_thread(Link.open, new.certificate, self._manifest) if new.certificate else None
        if link is not None and link.parent == line.head:
            line.append(link)
        else:
            self.lines[new.subject] = Line.beginning(new)

    async def merge(self, subject: int, round_number: int) -> Merge | None:
        """The merge of which a round may take a share."""
        merge = await self._merges.open(subject, round_number)
        line = self.lines.get(subject)
        if merge is None or line is None:
            return merge
        # A restart may have brought us back to the lost line for a while.
        lost = any(line.samples_at(bytes.fromhex(name)) is not None for name in merge.branches)
        return None if lost else merge

    async def note_merge(self, subject: int) -> bool:
        """Keep what a round has taken, before it is sent; whether it could be kept."""
        return await self._merges.note(subject)

    async def _open_merge(self, own: State, new: State, fork: Fork, bytes_fetched: int) -> None:
        subject, plan, norm = own.subject, None, 0.0
        former = self._merges.of(subject)
        ancestor = await asyncio.to_thread(self._points.values, subject, fork.ancestor)
        if fork.branch in self._merges.begun(subject):
            reason = "this peer has brought in its work of that line before"
        elif ancestor is None:
            reason = "the state before the fork is not here any more"
        else:
            values, plan, norm = await asyncio.to_thread(
                _work_of, own.values, ancestor, new.values, fork, self._own_id, former
            )
            reason = plan.reason
            if not reason:
                await self._merges.begin(subject, values, self._round(), fork.branch)
        event = self._event(own, new.round, new.digest, fork, won="other", reason=reason)
        if plan is not None:
            event |= {"line_share": plan.line_share, "own_share": plan.own_share, "clip": plan.clip, "norm": norm}
        self._emit(event | {"bytes": bytes_fetched})

    def _event(
        self, own: State, round_number: int, digest: bytes, fork: Fork, *, won: str, reason: str
    ) -> dict[str, Any]:
        weighing = fork.weighing
        return {
            "event": "fork",
            "subject": own.subject,
            "ancestor": fork.ancestor.hex(),
            "won": won,
            "own": own.digest.hex(),
            "own_round": own.round,
            "own_samples": round(weighing.own),
            "other": digest.hex(),
            "other_round": round_number,
            "other_samples": round(weighing.other),
            "merging": won == "other" and not reason,
            "reason": reason,
        }


def _work_of(
    own: Float32, ancestor: Float32, new: Float32, fork: Fork, own_id: str, former: Merge | None
) -> tuple[Float32, MergePlan, float]:
    """What is ours of the work of a lost line, as a change of the state, with what is left of an earlier merge."""
    values = own - ancestor
    norm = norm_of(values)
    plan = plan_merge(fork.weighing, fork.own, own_id, own_norm=norm, other_norm=norm_of(new - ancestor))
    if not plan.reason:
        values *= np.float32(plan.factor)
        if former is not None:
            values += np.float32(former.left) * former.values
    return values, plan, norm * plan.factor
