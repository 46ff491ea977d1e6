"""Memory of a worker: measured, and as small as its share of the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockswarm.lab.errors import LabError
from blockswarm.lab.memory import measure_memory
from blockswarm.model.config import RECIPES, SIZES
from blockswarm.model.layout import embedding_layout

MODEL = replace(SIZES["tiny"], dim=48, heads=3, context=32)


@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_a_worker_keeps_its_share_of_the_optimizer_and_the_interface(recipe: str) -> None:
    """At most one B-th of the whole stack's, plus the input tables, interface and output that every block has."""
    block = measure_memory(MODEL, RECIPES[recipe])
    whole = measure_memory(replace(MODEL, blocks=1, layers=MODEL.blocks * MODEL.layers), RECIPES[recipe])
    assert block["gradients"] == block["parameters"]
    ngrams = MODEL.ngram_tables * MODEL.ngram_width * (MODEL.ngram_rows + 48)
    interface = 2 * 4 * (embedding_layout(MODEL).size + (4 * 257 + 16 + 2 * 48 + 4) * 48 + ngrams)
    assert block["optimizer"] <= whole["optimizer"] / MODEL.blocks + interface
    assert 0 < block["resident"] < whole["resident"]


def test_a_model_that_cannot_be_trained_is_told() -> None:
    with pytest.raises(LabError, match="memory cannot be measured"):
        measure_memory(replace(MODEL, heads=5), RECIPES["paper"])
