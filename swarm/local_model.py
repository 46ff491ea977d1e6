"""A model on this machine, read from a folder, with the face of the swarm's client. Needs torch and no network.

>>> from blockswarm.swarm import LocalModel
>>> model = LocalModel.open("demo-0123456789ab")
>>> print(model.generate("The ", max_bytes=64, seed=1))

The same prompt, options and seed give the text that the swarm gives when it is pinned to the same states.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np

from blockswarm.model.scoring import cut_windows
from blockswarm.naming import option
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.continuation import Continuation
from blockswarm.swarm.errors import ArgumentError, DeadlineError
from blockswarm.swarm.manifest import EMBEDDING, Manifest
from blockswarm.swarm.model_folder import SavedModel, read_model_folder
from blockswarm.swarm.options import PinChoice, Reading, ReadingOptions, Writing, WritingOptions, as_bytes, read_pin
from blockswarm.swarm.pins import Pin
from blockswarm.swarm.report import CallReport, ClientStats
from blockswarm.swarm.score import RowSheet, Score, ScoreSheet, Spans

if TYPE_CHECKING:
    from blockswarm.model.whole import WholeModel


class LocalModel:
    """A model whose blocks are all on this machine. Made by :meth:`open`, or from a `SavedModel`.

    Parameters
    ----------
    saved : SavedModel
        Manifest and states.
    device : str
        Torch device; ``auto`` takes a CUDA device if there is one, else the CPU.
    """

    def __init__(self, saved: SavedModel, *, device: str = "auto") -> None:
        # Not ``saved`` itself: the device has its own copy of the values.
        self._manifest, self._pin = saved.manifest, saved.pin
        counts = saved.manifest.counts
        if counts is not None and saved.counts is None:
            raise ArgumentError(f"{saved.manifest.run_id}: the model has n-gram counts, and they were not given")
        self._counts, self._weight = saved.counts, counts.weight if counts is not None else 0.0
        self._device = device
        self._stats = ClientStats()
        self._model = self._load(lambda subject: saved.states[subject].values)
        self._genesis: WholeModel | None = None

    @classmethod
    def open(cls, folder: str | Path, *, device: str = "auto", threads: int | None = None) -> Self:
        """Read a model folder, as ``blockswarm export`` writes it.

        Parameters
        ----------
        folder : str or Path
            The folder.
        device : str
            Torch device; ``auto`` takes a CUDA device if there is one, else the CPU.
        threads : int, optional
            CPU threads for torch, in the whole process; by default those it has. Where other programs are at work, one
            is several times faster than as many as there are cores.

        Raises
        ------
        GivenFolderError
            Naming the file and what is wrong with it.
        ManifestError
            When its ``swarm.toml`` is no manifest.
        ModelError
            When there is no such device.
        """
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        return cls(read_model_folder(folder), device=device)

    @property
    def manifest(self) -> Manifest:
        """What the swarm that trained the model agreed on."""
        return self._manifest

    @property
    def whole(self) -> WholeModel:
        """The model itself: its readouts as functions of windows."""
        return self._model

    @property
    def run_id(self) -> str:
        """The run the model is from."""
        return self.manifest.run_id

    @property
    def pin(self) -> Pin:
        """The names of the model's states: ``SwarmClient.generate(…, pin=model.pin)`` asks the swarm for the same."""
        return self._pin

    @property
    def stats(self) -> ClientStats:
        """Bytes generated so far, and how the latest call went."""
        return copy.deepcopy(self._stats)

    def generate(self, prompt: str | bytes = "", **options: Unpack[WritingOptions]) -> str:
        """Text that follows ``prompt``; see :meth:`blockswarm.swarm.client.SwarmClient.generate`.

        ``best_effort`` changes nothing here, since no block is missing; ``pin`` is ``"genesis"`` or the model's own.

        Raises
        ------
        DeadlineError
            When the time is up.
        ClientError
            When an option is out of range, or states are asked for that are not in the folder.
        """
        return "".join(self.stream(prompt, **options))

    def stream(self, prompt: str | bytes = "", **options: Unpack[WritingOptions]) -> Iterator[str]:
        """The same text in pieces, each as soon as it is certain."""
        asked = Writing(**options)
        if asked.readout == "one-sweep":
            raise ArgumentError(
                f"{option('readout', 'one-sweep')} measures the lines between a swarm's holders: a folder has none"
            )
        pin, model = self._choose(asked.pin)
        return self._pieces(as_bytes(prompt), asked, pin, model)

    def logprobs(self, text: str | bytes, **options: Unpack[ReadingOptions]) -> Float32:
        """Float32 ``[len, 256]``; see :meth:`blockswarm.swarm.client.SwarmClient.logprobs`."""
        sheet = RowSheet(as_bytes(text))
        self._read("logprobs", sheet.text, sheet.rows, sheet.use, Reading(**options))
        return sheet.table

    def score(
        self,
        text: str | bytes,
        *,
        given: str | bytes = b"",
        spans: Spans | None = None,
        **options: Unpack[ReadingOptions],
    ) -> Score:
        """How likely ``text`` is; see :meth:`blockswarm.swarm.client.SwarmClient.score`."""
        sheet = ScoreSheet(as_bytes(text), as_bytes(given), spans)
        asked = Reading(**options)
        if sheet.rows:
            self._read("score", sheet.text, sheet.rows, sheet.use, asked)
        return sheet.score()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    def _load(self, values: Callable[[int], Float32]) -> WholeModel:
        from blockswarm.model.whole import Expert, WholeModel

        model, recipe = self.manifest.model, self.manifest.recipe
        blocks = [values(block) for block in range(model.blocks)]
        expert = None if self._counts is None else Expert(self._counts, self._weight)
        return WholeModel(model, recipe, blocks, values(EMBEDDING), self._device, expert=expert)

    def _choose(self, choice: PinChoice) -> tuple[Pin, WholeModel]:
        """The states asked for: the folder's own, or those training began with, which anyone can compute."""
        wanted = read_pin(choice, self.manifest)
        if wanted is None or wanted == self.pin:
            return self.pin, self._model
        if wanted != read_pin("genesis", self.manifest):
            raise ArgumentError("pin: this folder holds other states; leave it out, or give 'genesis'")
        if self._genesis is None:
            self._genesis = self._load(self.manifest.verify_genesis)
        return wanted, self._genesis

    def _pieces(self, prompt: bytes, asked: Writing, pin: Pin, model: WholeModel) -> Generator[str, None, None]:
        report = self._stats.last = CallReport("generate", asked.readout, seed=asked.drawn_seed, pin=pin.as_json())
        text = Continuation(prompt, asked, self.manifest.model.context)
        predict = model.next_byte_predictor(asked.row_readout, asked.drawn_seed)
        while not text.ended:
            began = time.perf_counter()  # only work counts: a reader may take his time between two pieces
            window = text.window()
            text.add(predict(np.frombuffer(window.windows[0], dtype=np.uint8), window.starts[0]))
            self._stats.generated_bytes += 1
            report.bytes += 1
            report.seconds += time.perf_counter() - began
            if report.first_byte_seconds is None:
                report.first_byte_seconds = report.seconds
            report.finish_reason = text.finish_reason
            if piece := text.release().text:
                yield piece
            if report.seconds > asked.seconds and not text.ended:
                raise DeadlineError(
                    f"{asked.seconds:g} s were not enough: {text.written} of {asked.max_bytes} bytes written"
                )
        report.finish_reason = text.finish_reason

    def _read(self, call: str, text: bytes, rows: Spans, use: Callable[[int, Float32], None], asked: Reading) -> None:
        """Compute the ranges ``rows`` of rows of ``text``, and hand them on piece by piece."""
        pin, model = self._choose(asked.pin)
        seed = asked.seed if asked.readout == "sweep" else None
        report = self._stats.last = CallReport(call, asked.readout, seed=seed, pin=pin.as_json())
        predict, context = model.predictor(asked.readout, asked.seed), self.manifest.model.context
        data = np.frombuffer(text, dtype=np.uint8)
        began = time.perf_counter()
        total = sum(end - begin for begin, end in rows)
        for first, end in rows:
            for windows, starts, take in cut_windows(data[:end], context, model.windows_at_once, first):
                found = predict(windows, starts)[:, take:].reshape(-1, 256)
                use(first, found)
                first += len(found)
                report.bytes += len(found)
                report.seconds = time.perf_counter() - began
                if asked.progress is not None:
                    asked.progress(report.bytes, total)
                if report.seconds > asked.seconds and report.bytes < total:
                    raise DeadlineError(f"{asked.seconds:g} s were not enough: {report.bytes} of {total} bytes read")
