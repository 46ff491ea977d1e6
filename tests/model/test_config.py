from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from blockswarm.model.config import RECIPES, SIZES, ModelConfig, Recipe, recipe_name
from blockswarm.model.errors import ModelError


@pytest.mark.parametrize("made", [*SIZES.values(), *RECIPES.values()])
def test_every_named_size_and_recipe_is_valid_and_survives_a_plain_mapping(made: ModelConfig | Recipe) -> None:
    made.validate()
    assert type(made).from_mapping(made.to_mapping()) == made


def test_the_named_sizes_are_those_the_readme_speaks_of() -> None:
    shapes = {name: (c.dim, c.blocks, c.layers, c.context) for name, c in SIZES.items()}
    assert shapes == {"tiny": (96, 3, 2, 128), "small": (256, 3, 4, 256), "base": (512, 3, 4, 256)}


def test_the_paper_recipe_is_the_published_objective() -> None:
    paper = RECIPES["paper"]
    assert (paper.sigma_min, paper.sigma_max, paper.p_mean, paper.p_std) == (1.0, 10.0, -1.2, 1.2)
    assert (paper.sigma_data, paper.overlap, paper.z_zero_share) == (0.5, 0.05, 0.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"colour": 1}, "colour"),
        ({"dim": "96"}, "dim"),
        ({"dim": True}, "dim"),
        ({"dim": 96.0}, "dim"),
        ({"dim": 10**9}, "dim"),
        ({"heads": 5}, "heads"),
        ({"kind": "rnn"}, "kind"),
        ({"context": 1}, "context"),
    ],
)
def test_a_bad_model_field_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        ModelConfig.from_mapping({**SIZES["tiny"].to_mapping(), **change})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sigma_min": 10.0}, "sigma_max"),
        ({"sigma_data": float("nan")}, "sigma_data"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"betas": [0.9]}, "betas"),
        ({"betas": [0.9, 1.0]}, "betas"),
        ({"z_zero_share": 1.5}, "z_zero_share"),
        ({"grad_clip": float("inf")}, "grad_clip"),
    ],
)
def test_a_bad_recipe_field_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        Recipe.from_mapping(change)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ModelError, match="'dim' is missing"):
        ModelConfig.from_mapping({"blocks": 3})


def test_the_rate_rises_through_the_warmup_and_then_stays() -> None:
    recipe = replace(RECIPES["paper"], warmup_samples=100, learning_rate=1e-3)
    assert recipe.rate(96, 50) == pytest.approx(5e-4)
    assert recipe.rate(96, 100) == recipe.rate(96, 10**9) == pytest.approx(1e-3)


def test_the_rate_falls_to_its_final_share_at_the_end_of_training() -> None:
    recipe = replace(RECIPES["paper"], warmup_samples=0, train_samples=1000, learning_rate=1e-3, final_lr_share=0.1)
    rates = [recipe.rate(96, samples) for samples in (0, 500, 1000, 5000)]
    assert rates == pytest.approx([1e-3, 5.5e-4, 1e-4, 1e-4])


def test_without_an_end_the_rate_may_settle_as_one_over_the_root() -> None:
    recipe = replace(RECIPES["paper"], settle_samples=1000, learning_rate=1e-3, final_lr_share=0.1)
    assert recipe.rate(96, 4000) == pytest.approx(5e-4)
    assert recipe.rate(96, 10**9) == pytest.approx(1e-4)


def test_wider_models_learn_at_a_lower_rate() -> None:
    assert RECIPES["default"].peak_rate(192) == pytest.approx(RECIPES["default"].peak_rate(96) / 2)
    assert RECIPES["default"].peak_rate(32) == RECIPES["default"].peak_rate(96)


def test_the_light_modules_import_without_torch() -> None:
    names = ["config", "corpus", "errors", "layout", "mixing", "partition", "sampling", "windows"]
    code = "import sys\n" + "".join(f"import blockswarm.model.{name}\n" for name in names)
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True)


def test_a_recipe_keeps_its_name_wherever_its_training_ends() -> None:
    for name, recipe in RECIPES.items():
        assert recipe_name(replace(recipe, train_samples=5000)) == name
    assert recipe_name(replace(RECIPES["paper"], batch=17)) is None
