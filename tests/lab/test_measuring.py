"""Readouts of a trained stack: each is what a reader of the same blocks would say, and none sees what it must not."""

from __future__ import annotations

import numpy as np
import pytest

from blockswarm.lab.errors import LabError
from blockswarm.lab.measuring import SWEEP_SEED, Stack, measure, subsets
from blockswarm.lab.plan import blocks_plan, plain_plan
from blockswarm.lab.text import LabText
from blockswarm.lab.training import Trained, train
from blockswarm.model.config import RECIPES
from blockswarm.model.mixing import mix_log_probs, sweep_noise
from blockswarm.model.ngram import NgramModel
from blockswarm.model.ngram_file import build_ngram_file
from blockswarm.model.readout import BlockReader
from tests.lab.conftest import MODEL
from tests.model.reference import mix_with, next_byte_log_probs

RECIPE = RECIPES["default"]
PLAN = blocks_plan(MODEL, RECIPE, 12, 0)


@pytest.fixture(scope="module")
def trained(text: LabText) -> Trained:
    return train(PLAN, text)


@pytest.fixture(scope="module")
def readers(trained: Trained) -> list[BlockReader]:
    """The same blocks, read as a holder reads them."""
    return [
        BlockReader(MODEL, PLAN.recipe, b, theta, table)
        for b, (theta, table) in enumerate(zip(trained.thetas, trained.embeddings, strict=True))
    ]


def test_the_parallel_readout_is_what_holders_and_client_compute(
    text: LabText, trained: Trained, readers: list[BlockReader]
) -> None:
    some = text.test[:500]
    ours = measure(Stack([(PLAN, trained)]), some, ["parallel", "alone:1"])
    theirs = next_byte_log_probs(lambda x, _: mix_log_probs([r.log_probs(x) for r in readers]), some, MODEL.context)
    assert ours["parallel"] == pytest.approx(theirs, abs=1e-5)
    alone = next_byte_log_probs(lambda x, _: readers[1].log_probs(x), some, MODEL.context)
    assert ours["alone:1"] == pytest.approx(alone, abs=1e-5)


def test_the_sweep_is_what_holders_and_client_compute(
    text: LabText, trained: Trained, readers: list[BlockReader]
) -> None:
    some = text.test[:500]

    def sweep(windows: np.ndarray, starts: np.ndarray) -> np.ndarray:
        z = np.stack([sweep_noise(SWEEP_SEED, int(s), windows.shape[1], MODEL.dim) for s in starts])
        for reader in readers:
            rows, stepped = reader.sweep_step(windows, z)
            z = z if stepped is None else stepped
        return rows

    ours = measure(Stack([(PLAN, trained)]), some, ["sweep"])["sweep"]
    assert ours == pytest.approx(next_byte_log_probs(sweep, some, MODEL.context), abs=1e-4)


def test_how_many_windows_are_computed_together_changes_nothing(text: LabText, trained: Trained) -> None:
    stack, some = Stack([(PLAN, trained)]), text.test[:300]
    one, many = (measure(stack, some, ["parallel", "sweep"], at_once=n) for n in (1, 50))
    for name in one:
        assert one[name] == pytest.approx(many[name], abs=1e-4)


def test_only_the_true_z_knows_the_byte(text: LabText, trained: Trained) -> None:
    """The positive control: a readout that is given the noised target uses it; the others cannot."""
    rows = measure(Stack([(PLAN, trained)]), text.test, ["alone:1", "true:1", "wrong:1", "noise:1"])
    mean = {name: log_probs.mean() for name, log_probs in rows.items()}
    assert mean["true:1"] > mean["alone:1"] + 0.01
    assert mean["wrong:1"] < mean["true:1"] - 0.05
    assert mean["noise:1"] < mean["true:1"] - 0.05


def test_a_later_byte_changes_no_earlier_prediction(text: LabText, trained: Trained) -> None:
    names = ["parallel", "sweep", "sweep-corrected", "level-max"]
    some = text.test[:60].copy()
    before = measure(Stack([(PLAN, trained)]), some, names)
    some[50] ^= 1
    after = measure(Stack([(PLAN, trained)]), some, names)
    for name in names:
        # The byte at 50 itself is predicted by row 49, and is context from row 50 on.
        assert after[name][:49] == pytest.approx(before[name][:49], abs=1e-5)
        assert after[name][49] != before[name][49]


def test_several_models_are_averaged_but_have_no_sweep(text: LabText) -> None:
    plans = [plain_plan(MODEL, 1, RECIPE, 4, seed) for seed in (0, 1)]
    stack = Stack([(plan, train(plan, text)) for plan in plans])
    rows = measure(stack, text.test[:200], ["parallel", "alone:0", "alone:1"])
    assert rows["parallel"].mean() >= (rows["alone:0"] + rows["alone:1"]).mean() / 2
    with pytest.raises(LabError, match="no readout 'sweep'"):
        measure(stack, text.test[:200], ["sweep"])


def test_counts_are_mixed_in_with_the_weight_that_fits(
    text: LabText, trained: Trained, readers: list[BlockReader]
) -> None:
    counts = NgramModel(build_ngram_file(text.corpus.train, order=5))
    stack = Stack([(PLAN, trained)])
    stack.mix_in(counts, text.corpus.heldout[:1000])
    some = text.test[:400]
    ours = measure(stack, some, ["parallel+ngram", "parallel"])

    def mixed(x: np.ndarray, _: np.ndarray) -> np.ndarray:
        return mix_with(mix_log_probs([r.log_probs(x) for r in readers]), counts.log_probs(x), stack.counts_weight)

    assert ours["parallel+ngram"] == pytest.approx(next_byte_log_probs(mixed, some, MODEL.context), abs=1e-4)
    assert ours["parallel+ngram"].mean() > ours["parallel"].mean()


def test_readouts_that_do_not_exist_are_refused(text: LabText, trained: Trained) -> None:
    for name in ("alone:2", "parallel:0+7", "guess", "alone:x", "parallel+ngram"):
        with pytest.raises(LabError, match="readout"):
            measure(Stack([(PLAN, trained)]), text.test[:100], [name])


def test_subsets_leave_out_single_blocks_and_the_whole() -> None:
    assert subsets(3) == ["parallel:0+1", "parallel:0+2", "parallel:1+2"]
    assert subsets(2) == []
