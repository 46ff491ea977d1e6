"""An experiment's model, saved: the commands that read model folders say what the experiment measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blockswarm.lab.checkpoint import save_stack
from blockswarm.lab.errors import LabError
from blockswarm.lab.measuring import Stack, measure
from blockswarm.lab.plan import blocks_plan
from blockswarm.lab.text import LabText
from blockswarm.lab.training import train
from blockswarm.model.config import RECIPES
from blockswarm.model.scoring import score_of
from blockswarm.swarm import LocalModel
from tests.lab.conftest import MODEL

PLAN = blocks_plan(MODEL, RECIPES["default"], 10, 3)


def test_the_folder_gives_the_experiments_figures(text: LabText, tmp_path: Path) -> None:
    trained = train(PLAN, text)
    save_stack(tmp_path / "model", "trial", PLAN, trained, data="words")
    measured = measure(Stack([(PLAN, trained)]), text.test, ["parallel", "sweep"])
    with LocalModel.open(tmp_path / "model") as model:
        for readout in ("parallel", "sweep"):
            score = model.score(text.test[1:].tobytes(), given=text.test[:1].tobytes(), readout=readout)
            ours = score_of(measured[readout]).nats_per_byte
            assert -score.log_prob / score.bytes == pytest.approx(ours, abs=1e-5)


def test_a_model_without_a_shared_table_cannot_be_saved(text: LabText, tmp_path: Path) -> None:
    plan = replace(PLAN, embedding="own")
    with pytest.raises(LabError, match="one shared embedding"):
        save_stack(tmp_path / "model", "trial", plan, train(replace(plan, steps=1), text), data="words")


def test_nothing_is_written_over(text: LabText, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    trained = train(replace(PLAN, steps=1), text)
    with pytest.raises(Exception, match="holds"):
        save_stack(tmp_path, "trial", PLAN, trained, data="words")
    assert (tmp_path / "mine.txt").read_text() == "kept"
    assert np.isfinite(trained.thetas[0]).all()
