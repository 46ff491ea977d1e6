"""The model that is served: small, trained a little, and another one after every round. Known to holders and judge.

Imports neither libp2p nor hivemind: the holders' process has the one, the client's the other.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from blockswarm.model.config import RECIPES, ModelConfig
from blockswarm.model.corpus import batches, open_corpus
from blockswarm.model.layout import block_layout, embedding_layout
from blockswarm.model.learner import BlockLearner
from blockswarm.model.mixing import mix_counts, mix_log_probs, sweep_noise, without_veto
from blockswarm.model.ngram import NgramModel
from blockswarm.model.ngram_file import build_ngram_file
from blockswarm.model.readout import BlockReader
from blockswarm.swarm.chunks import Chunk
from blockswarm.swarm.continuation import Continuation
from blockswarm.swarm.manifest import EMBEDDING, Manifest, create_manifest
from blockswarm.swarm.manifest_fields import Counts
from blockswarm.swarm.options import Writing

Float32 = NDArray[np.float32]

MODEL = ModelConfig(dim=32, blocks=2, layers=1, heads=2, context=32)
TRAINING_STEPS = 300
ROUND_SAMPLES = 640
STEP_OF_A_ROUND = 0.01
"""How far a round moves the weights (standard deviation): enough for other texts."""

COUNTS_WEIGHT = 0.4
COUNTED_BYTES = 200_000


class World:
    """A run: its manifest, and the values of every state of every round.

    Parameters
    ----------
    folder : Path
        Made by `make`.
    """

    def __init__(self, folder: Path) -> None:
        told = json.loads((folder / "world.json").read_text())
        self.folder = folder
        self.counts: NgramModel | None = None
        section = None
        if told["counts"]:
            self.counts = NgramModel.open(self.counts_file)
            section = Counts(
                digest=self.counts.digest.hex(),
                bytes=self.counts.size,
                order=self.counts.header.order,
                weight=COUNTS_WEIGHT,
            )
        self.manifest: Manifest = create_manifest(
            name=told["name"], now=0.0, size=MODEL, round_seconds=60.0, seed=7, counts=section
        )
        stored = np.load(folder / "trained.npz")
        self._made: dict[int, list[BlockReader]] = {}  # of the round asked for last
        self._trained: dict[int, Float32] = {subject: stored[str(subject)] for subject in (EMBEDDING, 0, 1)}

    @property
    def counts_file(self) -> Path:
        """The run's n-gram counts, where it has some."""
        return self.folder / "counts.ngram"

    @classmethod
    def make(cls, folder: Path, name: str, *, counts: bool) -> World:
        """Train, and write it all into ``folder``; the same every time."""
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "trained.npz", **{str(subject): values for subject, values in _trained().items()})
        if counts:
            text = open_corpus("docs", context=MODEL.context).train[:COUNTED_BYTES]
            (folder / "counts.ngram").write_bytes(build_ngram_file(text, order=5))
        (folder / "world.json").write_text(json.dumps({"name": name, "counts": counts}))
        return cls(folder)

    def values(self, subject: int, round_number: int) -> Float32:
        """The state of ``subject`` that a round commits."""
        trained = self._trained[subject]
        noise = np.random.default_rng([round_number, subject + 1]).standard_normal(trained.size)
        return trained + np.float32(STEP_OF_A_ROUND) * noise.astype(np.float32)

    def plain(self, prompt: bytes, asked: Writing, round_number: int) -> bytes:
        """What decoding byte by byte gives, every window computed by itself; without the prompt."""
        text = Continuation(prompt, asked, MODEL.context)
        begin = len(text.text)
        while not text.ended:
            text.add(self.row(text.window(), asked, round_number))
        return text.text[begin:]

    def row(self, chunk: Chunk, asked: Writing, round_number: int) -> Float32:
        """The row that plain decoding takes the next byte from, float32 ``[256]``."""
        readers = self._readers(round_number)
        window = np.frombuffer(chunk.windows[0], np.uint8)[None]
        if asked.row_readout == "sweep":
            z: Float32 | None = sweep_noise(asked.drawn_seed, chunk.starts[0], window.shape[1], MODEL.dim)[None]
            for reader in readers:
                assert z is not None
                rows, z = reader.sweep_step(window, z)
            return without_veto(rows[0, -1:])[0]
        mixed = mix_log_probs([without_veto(reader.log_probs(window)[0, -1:]) for reader in readers])[0]
        if self.counts is None:
            return mixed
        return mix_counts(mixed, without_veto(self.counts.next_log_probs(chunk.windows[0])), COUNTS_WEIGHT)

    def _readers(self, round_number: int) -> list[BlockReader]:
        if round_number not in self._made:
            table, recipe = self.values(EMBEDDING, round_number), self.manifest.recipe
            self._made = {
                round_number: [
                    BlockReader(MODEL, recipe, block, self.values(block, round_number), table)
                    for block in range(MODEL.blocks)
                ]
            }
        return self._made[round_number]


def _trained() -> dict[int, Float32]:
    """Each block trained with an embedding of its own, of which the mean is taken, as volunteers do."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    recipe, corpus = RECIPES["default"], open_corpus("docs", context=MODEL.context)
    found, tables = {}, []
    for block in range(MODEL.blocks):
        learner = BlockLearner(
            MODEL,
            recipe,
            block,
            block_layout(MODEL).genesis(7, block),
            embedding_layout(MODEL).genesis(7, EMBEDDING),
            batches=batches(corpus, block, recipe.batch, MODEL.context),
            seed=block,
            device="cpu",
            threads=1,
        )
        for _ in range(TRAINING_STEPS):
            learner.step()
        theta, table = learner.read()
        found[block] = theta.copy()
        tables.append(table.copy())
    return {**found, EMBEDDING: np.mean(tables, axis=0, dtype=np.float32)}
