"""A model and a text small enough that a whole training takes a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from blockswarm.lab.experiment import Setting
from blockswarm.lab.text import LabText, open_text
from blockswarm.model.config import RECIPES, ModelConfig

torch.set_num_threads(1)

MODEL = ModelConfig(dim=24, blocks=2, layers=1, heads=2, context=32)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.txt, valid.txt and test.txt of sentences that a small model can learn."""
    place = tmp_path_factory.mktemp("text")
    random = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "another", "dog"]
    for name, count in (("train", 4000), ("valid", 700), ("test", 500)):
        text = " ".join(random.choice(words, size=count))
        (place / f"{name}.txt").write_text(text)
    return place


@pytest.fixture(scope="session")
def text(folder: Path) -> LabText:
    """The same, opened."""
    return open_text(str(folder), context=MODEL.context)


@pytest.fixture(scope="session")
def setting() -> Setting:
    """The frame of an experiment on that model."""
    return Setting(model=MODEL, recipe=RECIPES["default"], paper=RECIPES["paper"], steps=8)
