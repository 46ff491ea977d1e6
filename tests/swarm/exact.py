"""Texts written by holders in memory, and what decoding byte by byte gives: shared by the tests of exactness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import trio
from trio.testing import MockClock

from blockswarm.model.config import ModelConfig
from blockswarm.swarm import operations
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.continuation import Continuation
from blockswarm.swarm.drafting.drafter import Choose
from blockswarm.swarm.drafting.drafting import Drafting
from blockswarm.swarm.generation import Generation
from blockswarm.swarm.manifest import create_manifest
from blockswarm.swarm.options import Writing
from blockswarm.swarm.policy.drafting import DraftPace
from blockswarm.swarm.report import CallReport
from tests.swarm.holding import Model, Swarm

SMALL = ModelConfig(dim=16, blocks=2, layers=1, heads=2, context=32)
"""A context that a text of 48 bytes leaves twice."""

HOLDERS = ("0a", "0b", "1a", "1b")
BYTES = 48
PROMPTS = [b"The ", b"", b"x" * 31, bytes(range(97, 123)) * 3, "Bäume, 数百本の木".encode()]


def small_model() -> Model:
    """Two blocks that are not trained but have opinions, and some of each other's."""
    torch.set_num_threads(1)
    manifest = create_manifest(name="test", now=0.0, size=SMALL, round_seconds=60.0, seed=7)

    def weights(subject: int) -> Float32:
        noise = np.random.default_rng(subject + 1).standard_normal(manifest.parameters(subject))
        return manifest.verify_genesis(subject) + (0.15 * noise).astype(np.float32)

    return Model(manifest, weights)


class Fixed(DraftPace):
    """Drafts of one length."""

    def __init__(self, length: int) -> None:
        super().__init__(2)
        self._fixed = length

    def length(self, most: int) -> int:
        return min(most, self._fixed)

    def piece(self, most: int, unanswered: int) -> int:
        return 0 if unanswered else self.length(most)


class Ahead(Fixed):
    """Drafts of one length, one behind the other as long as no answer is back."""

    def piece(self, most: int, unanswered: int) -> int:
        return self.length(most)


class Scripted:
    """Proposes what stands in a script at the same place, wrong every ``wrong`` bytes; 0: never."""

    heavy = False

    def __init__(self, script: bytes, wrong: int = 0) -> None:
        self._script, self._wrong = script, wrong
        self.told: list[tuple[bytes, int]] = []

    def propose(self, text: bytes, most: int, choose: Choose) -> bytes:
        part = self._script[len(text) : len(text) + most]
        if not self._wrong:
            return part
        return bytes(byte ^ ((len(text) + n) % self._wrong == 0) for n, byte in enumerate(part))

    def learn(self, text: bytes, rows: Float32) -> None:
        self.told.append((text, len(rows)))


def write(
    model: Model,
    prompt: bytes,
    asked: Writing,
    drafting: Callable[[], Drafting | None] = lambda: None,
    spoil: Callable[[Swarm], None] = lambda swarm: None,
    make: Callable[..., Generation] = Generation,
) -> tuple[bytes, CallReport, Swarm]:
    """A text, written by holders in memory, and how it went; virtual time."""

    async def main() -> tuple[bytes, CallReport, Swarm]:
        async with trio.open_nursery() as nursery:
            swarm = Swarm(nursery, model, *HOLDERS)
            report = CallReport("generate", asked.readout, seed=asked.drawn_seed)
            session = await operations.open_session(swarm.core, asked.pin, None, report)
            spoil(swarm)
            generation = make(session, prompt, asked, *filter(None, [drafting()]))
            await generation.whole()
            nursery.cancel_scope.cancel()
        return generation.text, report, swarm

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def plain_text(model: Model) -> Callable[..., bytes]:
    """What decoding byte by byte gives, every window by itself, computed once for each case; prompt and output."""
    known: dict[Any, bytes] = {}

    def text(prompt: bytes, **options: Any) -> bytes:
        key = prompt, tuple(sorted(options.items()))
        if key not in known:
            asked = Writing(**options)
            written = Continuation(prompt, asked, SMALL.context)
            while not written.ended:
                written.add(model.last_row(written.window(), asked.row_readout, asked.drawn_seed))
            known[key] = written.text
        return known[key]

    return text
