"""Doing what experiments ask for: every training and every measurement once, several at a time, kept as they end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from blockswarm.lab.errors import LabError
from blockswarm.lab.plan import Plan
from blockswarm.lab.processes import Task, run_tasks
from blockswarm.lab.store import Score, Store
from blockswarm.lab.tasks import do_counting, do_measuring, do_training
from blockswarm.lab.training import Trained
from blockswarm.lab.wants import Source, Step, Want, counts_name
from blockswarm.naming import option


@dataclass(frozen=True)
class Spent:
    """What a training took, apart from its weights."""

    seconds: float
    bytes_sent: int
    watched: list[tuple[int, float]]


class Bench:
    """Trains and measures, ``jobs`` processes at a time.

    Parameters
    ----------
    source : Source
        The text.
    store : Store
        Where results are kept and looked up.
    jobs : int
        Processes.
    threads : int
        CPU threads of each. Part of the result: another number may give other last bits.
    device : str
        As ``BlockLearner`` takes it.
    report : callable, optional
        Gets a :class:`Step` now and then.
    warn : callable, optional
        Gets a line for every damaged file that was found.
    """

    def __init__(
        self,
        source: Source,
        store: Store,
        *,
        jobs: int = 1,
        threads: int = 1,
        device: str = "cpu",
        report: Callable[[Step], None] = lambda _: None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.source, self.store = source, store
        self.text = source.open()
        self._jobs, self._threads, self._device = jobs, threads, device
        self._report, self._warn = report, warn
        self._spent: dict[str, Spent] = {}
        self._scores: dict[str, dict[str, Score]] = {}

    def provide(self, wants: Iterable[Want]) -> None:
        """Train and measure whatever of ``wants`` is not in the store yet.

        Raises
        ------
        LabError
            If a readout does not exist, or the store cannot be written.
        """
        wants = list(wants)
        plans = {plan.key(self.text.corpus.digest): plan for want in wants for plan in want.plans}
        trainings = {key: plan for key, plan in plans.items() if not self._look_up(key)}
        missing = self._missing(wants)
        self._tell_damage()
        self._run((do_training, key, plan) for key, plan in trainings.items())
        if any(want.needs_counts for want in missing.values()):
            # Before several processes want them: they are counted once.
            self._run([(do_counting, counts_name(self.text), None)])
        self._run((do_measuring, key, want) for key, want in missing.items())
        for key in trainings:
            self._look_up(key)
        for key in missing:
            self._scores[key] = self.store.load_scores(key)
        self._tell_damage()

    def _look_up(self, key: str) -> bool:
        """Whether a training is in the store and whole; what it took is remembered, its weights are not."""
        trained = self.store.load_training(key)
        if trained is not None:
            self._spent[key] = Spent(trained.seconds, trained.bytes_sent, trained.watched)
        return trained is not None

    def _tell_damage(self) -> None:
        while self.store.set_aside:
            self._warn(self.store.set_aside.pop(0))

    def score(self, want: Want) -> dict[str, Score]:
        """What `provide` measured, readout by readout."""
        return self._scores[want.key(self.text, self.source)]

    def spent(self, plan: Plan) -> Spent:
        """What a training that `provide` found or made has taken."""
        return self._spent[plan.key(self.text.corpus.digest)]

    def training(self, plan: Plan) -> Trained:
        """What was trained, read from the store.

        Raises
        ------
        LabError
            If it was not provided.
        """
        trained = self.store.load_training(plan.key(self.text.corpus.digest))
        if trained is None:
            raise LabError(
                f"a training is missing from {self.store.folder}; run it again with {option('resume', True)}"
            )
        return trained

    def _missing(self, wants: Sequence[Want]) -> dict[str, Want]:
        readouts: dict[str, tuple[Want, dict[str, None]]] = {}
        for want in wants:
            key = want.key(self.text, self.source)
            names = readouts.setdefault(key, (want, {}))[1]
            names.update(dict.fromkeys(want.readouts))
        missing = {}
        for key, (want, names) in readouts.items():
            kept = self._scores[key] = self.store.load_scores(key)
            left = tuple(name for name in names if name not in kept)
            if left:
                missing[key] = replace(want, readouts=left)
        return missing

    def _run(self, tasks: Iterable[Task]) -> None:
        run_tasks(
            list(tasks),
            source=self.source,
            folder=self.store.folder,
            jobs=self._jobs,
            threads=self._threads,
            device=self._device,
            report=self._report,
        )
