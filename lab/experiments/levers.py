"""One change at a time: what moves the parallel readout, and what it does to the sweep and to end-to-end training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blockswarm.lab.experiment import Entry, Experiment, Setting, baselines, deep, without_tables
from blockswarm.lab.plan import Plan, blocks_plan, plain_plan
from blockswarm.model.config import ModelConfig, Recipe

READOUTS = ("parallel", "sweep", "true:0")


def levers(setting: Setting, seed: int) -> list[Entry]:
    """Each lever from the same start: the paper's recipe with z = 0 in half of the sequences, no n-gram tables."""
    start = replace(setting.paper, z_zero_share=0.5)
    model, steps = without_tables(setting).model, setting.steps
    recipes: dict[str, dict[str, Any]] = {
        "start: paper, z = 0 in half": {},
        "z = 0 in none": {"z_zero_share": 0.0},
        "z = 0 in 3/4": {"z_zero_share": 0.75},
        "z = 0 in 7/8": {"z_zero_share": 0.875},
        "z = 0 in all (no denoiser)": {"z_zero_share": 1.0},
        "σ_data 1 (logit scale 1)": {"sigma_data": 1.0},
        "weight 1 instead of w(σ)": {"weighting": "unit"},
        "σ from [2, 20]": {"sigma_min": 2.0, "sigma_max": 20.0},
        "σ from a flat law": {"p_std": 5.0},
        "no overlap": {"overlap": 0.0},
        "rate 3e-3": {"learning_rate": 3e-3},
        "rate 8e-3": {"learning_rate": 8e-3},
        "betas .9, .95": {"betas": (0.9, 0.95)},
        "Muon .02": {"optimizer": "muon", "muon_rate": 0.02},
        "Muon .04": {"optimizer": "muon", "muon_rate": 0.04},
        "Muon .06": {"optimizer": "muon", "muon_rate": 0.06},
        "Muon .04, z = 0 in 3/4": {"optimizer": "muon", "muon_rate": 0.04, "z_zero_share": 0.75},
        "Muon .04, z = 0 in 7/8": {"optimizer": "muon", "muon_rate": 0.04, "z_zero_share": 0.875},
        "rate ends at 0": {"final_lr_share": 0.0},
    }
    tables: dict[str, tuple[ModelConfig, Recipe]] = {
        f"n-gram tables {count}, rate {rate:g}": (
            replace(setting.model, ngram_tables=count),
            replace(start, learning_rate=rate),
        )
        for count, rate in ((3, 5e-3), (5, 5e-3), (5, 2e-2), (5, 4e-2))
    }
    plans: dict[str, Plan] = {
        name: blocks_plan(model, replace(start, **changes), steps, seed) for name, changes in recipes.items()
    }
    plans |= {
        "EMA .98": blocks_plan(model, start, steps, seed, ema=0.98),
        "own embedding": blocks_plan(model, start, steps, seed, embedding="own"),
        "frozen embedding": blocks_plan(model, start, steps, seed, embedding="frozen"),
        "same batches for all blocks": blocks_plan(model, start, steps, seed, same_batches=True),
        "previous bytes 1": blocks_plan(replace(model, previous_bytes=1), start, steps, seed),
        "previous bytes 5": blocks_plan(replace(model, previous_bytes=5), start, steps, seed),
        **{name: blocks_plan(shape, recipe, steps, seed) for name, (shape, recipe) in tables.items()},
    }
    rows = [
        Entry(label=f"{name}: {readout}", plans=(plan,), readout=readout, group=f"blocks, {readout}")
        for readout in READOUTS
        for name, plan in plans.items()
    ]
    # What is not about the objective must be offered to end-to-end training too.
    full = model.blocks * model.layers
    fair: dict[str, Plan] = {
        "rate 2e-3": plain_plan(model, full, replace(start, learning_rate=2e-3), steps, seed),
        "rate 3e-3": plain_plan(model, full, replace(start, learning_rate=3e-3), steps, seed),
        "rate 8e-3": plain_plan(model, full, replace(start, learning_rate=8e-3), steps, seed),
        "betas .9, .95": plain_plan(model, full, replace(start, betas=(0.9, 0.95)), steps, seed),
        "σ_data 1 (logit scale 1)": plain_plan(model, full, replace(start, sigma_data=1.0), steps, seed),
        "Muon .01": plain_plan(model, full, replace(start, optimizer="muon", muon_rate=0.01), steps, seed),
        "Muon .02": plain_plan(model, full, replace(start, optimizer="muon", muon_rate=0.02), steps, seed),
        "Muon .03": plain_plan(model, full, replace(start, optimizer="muon", muon_rate=0.03), steps, seed),
        "Muon .04": plain_plan(model, full, replace(start, optimizer="muon", muon_rate=0.04), steps, seed),
        "rate ends at 0": plain_plan(model, full, replace(start, final_lr_share=0.0), steps, seed),
        "EMA .98": plain_plan(model, full, start, steps, seed, ema=0.98),
        "previous bytes 5": plain_plan(replace(model, previous_bytes=5), full, start, steps, seed),
        **{name: plain_plan(shape, full, recipe, steps, seed) for name, (shape, recipe) in tables.items()},
    }
    rows += [
        Entry(label=f"end-to-end, {name}", plans=(plan,), readout="parallel", group="end-to-end of full depth")
        for name, plan in fair.items()
    ]
    # B blocks have B sets of tables. Would a deep model with as many values in its own be as good?
    own, deeper = setting.model, deep(setting.recipe)
    tabled: dict[str, ModelConfig] = {
        "as one block has": own,
        "rows × B": replace(own, ngram_rows=own.blocks * own.ngram_rows),
        "width × B": replace(own, ngram_width=own.blocks * own.ngram_width),
    }
    rows += [
        Entry(
            label=f"end-to-end, default recipe, n-gram tables: {name}",
            plans=(plain_plan(shape, full, deeper, steps, seed),),
            readout="parallel",
            group="end-to-end with more tables",
        )
        for name, shape in tabled.items()
    ]
    return [*rows, *baselines(setting, seed)]


EXPERIMENTS = (
    Experiment(
        name="levers",
        title="Levers, one at a time",
        question="Which single change brings the parallel readout nearest to averaged plain models?",
        entries=levers,
        chooses=True,
    ),
)
