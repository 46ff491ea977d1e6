"""The demo: a whole swarm on this machine, measured from outside as any client would.

This process only starts, watches and stops others. Cross-entropies, text and the count of holders come from a client in
a child process (`blockswarm.peer.measure`); everything else from the volunteers' event logs.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from blockswarm.errors import UsageError
from blockswarm.model.corpus import Corpus, open_corpus
from blockswarm.naming import option
from blockswarm.peer.demo_score import ReplicaLog, rounds_between, score, traffic, words, words_known
from blockswarm.peer.local import LocalSwarm, model_of
from blockswarm.peer.node import Node

MIN_ROUND_SECONDS, MAX_ROUND_SECONDS = 6.0, 30.0
"""Below the first, the phases of a round leave no time to train while this machine also runs all the others."""
ROUNDS = 12
"""Rounds aimed at in the time given."""
START_SECONDS = 90.0
"""Volunteers get this long to train their first step; all of them import torch on the same cores at once."""
LEAD_SECONDS = 15.0
"""Time until round 1 begins: about what starting takes, so that the first rounds find everyone there."""
MEASURE_SECONDS = 120.0
"""One measurement through the swarm gets this long."""
LATE_SECONDS = 3.0
"""Reports on the last round are waited for this long after its close."""
HELDOUT_BYTES = 4096
"""Held-out text a cross-entropy is measured on."""
PROMPTS = ("The ", "This is ", "If the ")
PIECE_BYTES = 160
"""Bytes generated from each prompt."""
TEMPERATURE = 0.5
WATCH_SECONDS = 0.25


class DemoError(UsageError):
    """The demo cannot run with these options."""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Options of ``blockswarm demo``."""

    peers: int = 6
    """Volunteers."""
    blocks: int = 3
    """Blocks of the model; volunteer ``i`` takes block ``i mod blocks``."""
    seconds: float = 120.0
    """Time to train, from the moment all volunteers do."""
    data: str = "docs"
    """Corpus: ``docs``, a path, or ``hf:<dataset>[:config]``."""
    seed: int = 0
    """Seed of parameters, batches and text."""
    keep_dir: Path | None = None
    """Folder to run in and keep, with manifest, logs and checkpoints; ``None`` is a temporary one."""

    def validate(self) -> None:
        """Raise `DemoError` for the first value that cannot work."""
        if not 1 <= self.blocks <= 16:
            raise DemoError(f"{option('blocks')} {self.blocks}: give 1 to 16")
        if not self.blocks <= self.peers <= 64:
            raise DemoError(f"{option('peers')} {self.peers}: give {self.blocks} (one for each block) to 64")
        if not 30 <= self.seconds <= 86400:
            raise DemoError(f"{option('seconds')} {self.seconds:g}: give 30 (a few rounds) to 86400")

    @property
    def round_seconds(self) -> float:
        """Length of a round, s."""
        return min(max(self.seconds / ROUNDS, MIN_ROUND_SECONDS), MAX_ROUND_SECONDS)


@dataclass(frozen=True)
class DemoResult:
    """What ``--json`` prints. Everything in it was measured in this run."""

    run_id: str
    peers: int
    blocks: int
    seconds: float
    """Time trained, s."""
    total_seconds: float
    """Time from start to end of the whole demo, s."""
    round_seconds: float
    rounds: int
    """Rounds that began after all volunteers trained and closed before they were stopped: those counted."""
    rounds_committed: list[int]
    participation: float
    commit_rate: float
    digest_agreement: float
    words_known: float
    ce_initial: float
    """Parallel readout on held-out text, through the swarm, before the first commit; nats per byte."""
    ce_final: float
    ce_final_sweep: float
    bytes_sent: int
    """By all volunteers in their rounds."""
    bytes_received: int
    text: str
    """Generated pieces, prompts included, one after another."""
    prompts: list[str]
    pieces: list[str]
    """What was generated after each of the prompts."""
    holders: list[int]
    """Holders of every block at the end, counted by the client: those who answered it."""
    killed: list[str]
    """Processes that did not leave by themselves."""
    leftover_processes: int


class Display(Protocol):
    """Where the demo shows what it does."""

    def note(self, text: str) -> None:
        """One line about what happens next."""
        ...

    def update(self, volunteers: list[Node]) -> None:
        """The volunteers have new events, or time has passed."""
        ...

    def progress(self, done: float, total: float) -> None:
        """How many of the seconds of training are over."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


def run_demo(config: DemoConfig, display: Display) -> DemoResult:
    """Run the whole demo and return its figures.

    Raises
    ------
    BlockswarmError
        When an option cannot work, a volunteer does not start, or the swarm cannot be measured. Everything that was
        started is stopped all the same.
    """
    config.validate()
    began = time.time()
    spec = _absolute(config.data)
    model = model_of("tiny", config.blocks)
    corpus = open_corpus(spec, context=model.context)
    swarm = LocalSwarm(
        folder=config.keep_dir,
        model=model,
        round_seconds=config.round_seconds,
        seed=config.seed,
        data="docs" if spec == "docs" else "demo",
        starts_in=LEAD_SECONDS,
    )
    with swarm, ThreadPoolExecutor(1) as measuring:
        return _Demo(config, spec, display, swarm, corpus, measuring).run(began)


class _Demo:
    """One run of the demo; `run` is its story."""

    def __init__(
        self,
        config: DemoConfig,
        spec: str,
        display: Display,
        swarm: LocalSwarm,
        corpus: Corpus,
        measuring: ThreadPoolExecutor,
    ) -> None:
        self._config = config
        self._spec = spec
        self._display = display
        self._swarm = swarm
        self._corpus = corpus
        self._measuring = measuring
        self._ended: set[str] = set()

    def run(self, began: float) -> DemoResult:
        config, swarm = self._config, self._swarm
        self._display.note(f"step 1 of 4: starting a bootstrap node and {config.peers} volunteers in {swarm.folder}")
        swarm.start_bootstrap()
        volunteers = [swarm.start_volunteer(number % config.blocks, data=self._spec) for number in range(config.peers)]
        self._wait("ready", volunteers)
        initial = self._measuring.submit(self._measure, readouts=["parallel"], genesis=True)
        self._wait("training", volunteers)
        trained_from = time.time()
        self._display.note(f"step 2 of 4: all train; rounds of {config.round_seconds:g} s for {config.seconds:g} s")
        self._watch(trained_from + config.seconds, initial)
        before = self._result(initial)
        trained_until = time.time()
        rounds = self._finished_rounds(trained_from, trained_until)

        self._display.note("step 3 of 4: measuring through the swarm")
        after = self._result(
            self._measuring.submit(
                self._measure,
                readouts=["parallel", "sweep"],
                prompts=PROMPTS,
                piece_bytes=PIECE_BYTES,
                temperature=TEMPERATURE,
                seed=self._config.seed,
            )
        )
        logs = [
            ReplicaLog(number % config.blocks, node.events, node.ended_at) for number, node in enumerate(volunteers)
        ]
        judged = score(logs, config.blocks, rounds, swarm.manifest.genesis_time, config.round_seconds)

        self._display.note("step 4 of 4: stopping")
        killed = swarm.stop_all()
        leftover = len(swarm.leftover_processes())
        sent, received = traffic(logs)
        vocabulary = frozenset(
            words((self._corpus.train.tobytes() + self._corpus.heldout.tobytes()).decode(errors="replace"))
        )
        return DemoResult(
            run_id=swarm.manifest.run_id,
            peers=config.peers,
            blocks=config.blocks,
            seconds=round(trained_until - trained_from, 1),
            total_seconds=round(time.time() - began, 1),
            round_seconds=config.round_seconds,
            **asdict(judged),
            words_known=words_known(after["pieces"], vocabulary),
            ce_initial=before["ce"]["parallel"],
            ce_final=after["ce"]["parallel"],
            ce_final_sweep=after["ce"]["sweep"],
            bytes_sent=sent,
            bytes_received=received,
            text="\n".join(prompt + piece for prompt, piece in zip(PROMPTS, after["pieces"], strict=True)),
            prompts=list(PROMPTS),
            pieces=list(after["pieces"]),
            holders=after["holders"],
            killed=killed,
            leftover_processes=leftover,
        )

    def _wait(self, event: str, volunteers: list[Node]) -> None:
        deadline = time.monotonic() + START_SECONDS
        for node in volunteers:
            node.wait_event(event, timeout=max(1.0, deadline - time.monotonic()))
            self._display.update(volunteers)

    def _watch(self, until: float, beside: Future[Any]) -> None:
        """Show progress until then. A volunteer that ends is told about; what fails beside ends the demo."""
        began = time.time()
        while time.time() < until:
            self._display.progress(time.time() - began, until - began)
            self._look()
            if beside.done():
                beside.result()
            time.sleep(WATCH_SECONDS)
        self._display.progress(until - began, until - began)

    def _look(self) -> None:
        volunteers = self._swarm.volunteers()
        for node in volunteers:
            node.poll()
            if not node.running and node.name not in self._ended:
                self._ended.add(node.name)
                self._display.note(f"{node.name} ended: {node.last_words()}")
        self._display.update(volunteers)

    def _finished_rounds(self, begin: float, end: float) -> range:
        """The rounds to judge, after a moment for the reports on the last of them."""
        manifest = self._swarm.manifest
        rounds = rounds_between(manifest.genesis_time, manifest.rounds.seconds, begin, end)
        deadline = time.time() + LATE_SECONDS
        while time.time() < deadline and rounds:
            self._look()
            live = [node for node in self._swarm.volunteers() if node.running]
            if all(node.find("round", lambda event: event["round"] == rounds[-1]) for node in live):
                break
            time.sleep(WATCH_SECONDS)
        return rounds

    def _result(self, future: Future[Any]) -> Any:
        while not future.done():
            self._look()
            time.sleep(WATCH_SECONDS)
        return future.result()

    def _measure(self, **wanted: Any) -> dict[str, Any]:
        """The answer of the measuring child; `blockswarm.peer.measure.Wanted` says what can be asked."""
        request = {"peers_file": str(self._swarm.peers_file), "data": self._spec, "max_bytes": HELDOUT_BYTES, **wanted}
        done = self._swarm.module("blockswarm.peer.measure", given=json.dumps(request), timeout=MEASURE_SECONDS)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def _absolute(spec: str) -> str:
    """A path as one that holds in the swarm's own folder too; other corpora as they are."""
    return spec if spec == "docs" or spec.startswith("hf:") else str(Path(spec).resolve())
