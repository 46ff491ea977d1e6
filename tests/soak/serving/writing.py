"""One cell after another: a text written by the holders, disturbed as planned, compared with plain decoding."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from blockswarm.errors import BlockswarmError
from blockswarm.model.ngram_file import build_ngram_file
from blockswarm.model.sampling import is_settled
from blockswarm.swarm import SwarmClient
from blockswarm.swarm.continuation import EMPTY_PROMPT, Continuation
from blockswarm.swarm.options import Writing
from blockswarm.swarm.policy.drafting import LONGEST_UNANSWERED, DraftPace
from tests.soak.serving.judge import Outcome, first_difference
from tests.soak.serving.plan import Cell
from tests.soak.serving.world import MODEL, World

TIE_NATS = 2e-4
"""A byte that would be another one if a log-probability were off by this much: twice what clients allow for."""

COMMIT_EVERY = 4
"""Pieces of a text after each of which a round is committed, the first time after one."""

PATIENCE = 60.0
"""Seconds for a command of the holders, and for a text."""


class Holders:
    """The process of ``holders.py``."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.soak.serving.holders", str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.started = self._answer()

    def do(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Carry out a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End it, its daemons with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or '{"error": "the holders ended"}')
        if "error" in answer:
            raise RuntimeError(f"holders: {answer['error']}")
        return answer


class Stage:
    """A world with its holders, and two clients of it: one knows sessions, the other has met holders that do not.

    Parameters
    ----------
    world : World
        What is served.
    size : int
        Bytes of a text.
    """

    def __init__(self, world: World, size: int) -> None:
        self._world, self._size = world, size
        self._plain: dict[tuple[Any, ...], bytes] = {}
        self._exits = ExitStack()
        with ExitStack() as exits:
            self._holders = Holders(world.folder)
            exits.callback(self._holders.close)
            self._round: int = self._holders.started["round"]
            counts = world.counts_file if world.counts is not None else None
            self._clients = [
                exits.enter_context(SwarmClient.connect(self._holders.started["peers"], counts=counts))
                for _ in range(2)
            ]
            for client in self._clients:
                _fetch_block(client)
            self._exits = exits.pop_all()

    def close(self) -> None:
        """End everything."""
        self._exits.close()

    def write(self, cell: Cell, prompt: bytes) -> Outcome:
        """One cell; whatever happens is in what it returns."""
        began = time.monotonic()
        outcome = self._compare(cell, prompt, disturbed=True)
        if outcome.differs_at is not None:
            again = self._compare(cell, prompt, disturbed=False)
            outcome = _with(outcome, again="same" if again.differs_at is None and not again.error else "different")
        return _with(outcome, seconds=round(time.monotonic() - began, 3))

    def _compare(self, cell: Cell, prompt: bytes, *, disturbed: bool) -> Outcome:
        asked = {
            "max_bytes": self._size,
            "temperature": cell.temperature,
            "seed": cell.seed,
            "readout": cell.readout,
            "timeout": PATIENCE,
        }
        expected = self._decoded(prompt, asked, self._round)
        client = self._clients[disturbed and cell.disturbance == "recompute"]
        draft = str(self._counted(cell, prompt + expected)) if cell.draft == "file" else cell.draft
        found, error = b"", ""
        try:
            with fixed_length(cell.length):
                disturbing = self._disturbing(cell) if disturbed else iter(())
                next(disturbing, None)
                for piece in client.pieces(prompt, **asked, draft=draft):
                    found += piece.data
                    next(disturbing, None)
        except BlockswarmError as problem:
            error = f"{type(problem).__name__}: {problem}"
        told = self._holders.do("settle")
        if told["round"] != self._round or told["struck"]:
            self._round = told["round"]
            for one in self._clients:
                one.holders()  # what was on record and on offer is no more
        last = client.stats.last
        pin = last.pin if last is not None and last.pin is not None else {}
        rounds = {state["round"] for state in [pin.get("embedding"), *pin.get("blocks", {}).values()] if state}
        if not error and len(rounds) != 1:
            error = f"states of rounds {sorted(rounds)} in one text"
        if not error:
            expected = self._decoded(prompt, asked, rounds.pop())
        return self._judged(cell, prompt, asked, found, expected, error, last, told["struck"])

    def _judged(
        self,
        cell: Cell,
        prompt: bytes,
        asked: Mapping[str, Any],
        found: bytes,
        expected: bytes,
        error: str,
        last: Any,
        struck: int,
    ) -> Outcome:
        place = None if error else first_difference(found, expected)
        counted = {name: getattr(last, name, 0) for name in ("round_trips", "drafted", "accepted", "unsettled")}
        if place is None:
            return Outcome(
                cell.number, len(found), struck=struck, repinned=getattr(last, "repinned", 0), error=error, **counted
            )
        at = (prompt or EMPTY_PROMPT) + expected[:place]
        (round_number,) = {state["round"] for state in last.pin["blocks"].values()}
        writing = Writing(**asked)
        row = self._world.row(Continuation(at, writing, MODEL.context).window(), writing, round_number)
        settled = is_settled(row, tolerance=TIE_NATS, temperature=cell.temperature, seed=cell.seed, position=len(at))
        return Outcome(
            cell.number,
            place + 1,
            struck=struck,
            repinned=last.repinned,
            differs_at=place,
            tie=not settled and place < min(len(found), len(expected)),
            **counted,
        )

    def _disturbing(self, cell: Cell) -> Iterator[None]:
        """What is done before the first piece, and after each one."""
        do, block = self._holders.do, cell.block
        if cell.disturbance == "killed":
            do("kill", block=block, at=cell.step)
        elif cell.disturbance == "recompute":
            do("sessions", kept=False)
        yield
        if cell.disturbance == "swapped":
            for _ in range(2):
                do("end", block=block)
                yield  # the other holder goes on
                do("revive")
        while cell.disturbance == "commits":
            do("commit")
            for _ in range(COMMIT_EVERY):
                yield

    def _decoded(self, prompt: bytes, asked: Mapping[str, Any], round_number: int) -> bytes:
        key = prompt, tuple(asked.items()), round_number
        if key not in self._plain:
            if len(self._plain) > 64:
                self._plain.clear()
            self._plain[key] = self._world.plain(prompt, Writing(**asked), round_number)
        return self._plain[key]

    def _counted(self, cell: Cell, text: bytes) -> Path:
        """An n-gram file from which nearly the very text is drafted: all of it, or with a wrong byte here and there."""
        told = bytearray(text * 4)
        if cell.number % 2:
            told[:: 7 + cell.step] = bytes(len(told[:: 7 + cell.step]))
        path = self._world.folder / f"{cell.number}.ngram"
        path.write_bytes(build_ngram_file(np.frombuffer(bytes(told), np.uint8), order=6))
        return path


@contextmanager
def fixed_length(length: int) -> Iterator[None]:
    """Have drafts be of so many bytes, while there is room; 0: of as many as pay.

    Where several questions may be under way as many are as can be, each with a draft of that length.
    """
    if not length:
        yield
        return

    def whole(self: DraftPace, most: int) -> int:
        return min(most, length)

    def piece(self: DraftPace, most: int, unanswered: int) -> int:
        return min(most, length, LONGEST_UNANSWERED - unanswered)

    with patch.multiple(DraftPace, length=whole, piece=piece):
        yield


def write_all(
    folder: Path, cells: Sequence[Cell], prompts: Sequence[bytes], size: int, done: Mapping[int, Outcome]
) -> Iterator[Outcome]:
    """The outcomes of all ``cells`` but those that are ``done``."""
    for name in dict.fromkeys(cell.world for cell in cells):
        left = [cell for cell in cells if cell.world == name and cell.number not in done]
        if not left:
            continue
        stage = Stage(World.make(folder / name, name, counts=name == "counts"), size)
        try:
            for cell in left:
                yield stage.write(cell, prompts[cell.prompt])
        finally:
            stage.close()


def _fetch_block(client: SwarmClient) -> None:
    """Have the block that clients draft with here before it is needed."""
    deadline = time.monotonic() + PATIENCE
    while not any(event.kind == "drafting" for event in client.events):
        if time.monotonic() > deadline:
            raise RuntimeError("no block to draft with")
        client.generate("x", max_bytes=8, draft="block", seed=0)
        time.sleep(0.05)


def _with(outcome: Outcome, **changes: Any) -> Outcome:
    return Outcome(**{**outcome.__dict__, **changes})
