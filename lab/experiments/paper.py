"""The BlockTrain paper's learning tables at our scale: T1 (noise range), T2 (progression), T3 (depth), the long run.

The first three have no n-gram tables, as the paper has none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blockswarm.lab.experiment import Entry, Experiment, Setting, baselines, deep
from blockswarm.lab.memory import measure_memory
from blockswarm.lab.plan import Averaging, blocks_plan, plain_plan

RANGES = ((0.1, 2.0), (0.2, 2.0), (0.5, 2.0), (0.5, 5.0), (1.0, 5.0), (1.0, 10.0))
"""Noise ranges of table T1."""

MLP_SHARE = 2 / 3
"""Width of MLP blocks as a share of the size's: 64 of tiny's 96."""

DEPTH = 12
CUTS = ((12, 1), (6, 2), (4, 3), (3, 4))
"""Blocks and layers of a block in table T3: always ``DEPTH`` layers in all."""


def sigma_range(setting: Setting, seed: int) -> list[Entry]:
    """T1: MLP blocks over six noise ranges."""
    heads = setting.model.heads
    dim = int(setting.model.dim * MLP_SHARE) // (2 * heads) * (2 * heads)
    model = replace(setting.model, kind="mlp", dim=dim)
    rows = []
    for low, high in RANGES:
        recipe = replace(setting.paper, sigma_min=low, sigma_max=high)
        plans = (blocks_plan(model, recipe, setting.steps, seed),)
        for readout in ("sweep", "sweep-corrected", "parallel"):
            label = f"[{low:g}, {high:g}] {readout}"
            rows.append(Entry(label=label, plans=plans, readout=readout, group=readout, facts={"range": [low, high]}))
    plain = plain_plan(model, model.blocks * model.layers, setting.paper, setting.steps, seed)
    rows.append(Entry(label="mlp end-to-end", plans=(plain,), readout="parallel", group="baselines"))
    return [*rows, *baselines(setting, seed)]


def progression(setting: Setting, seed: int) -> list[Entry]:
    """T2: from a direct denoiser to transformer blocks trained long."""
    model, paper, steps = setting.model, setting.paper, setting.steps
    mlp = replace(model, kind="mlp")
    four = replace(model, blocks=4, layers=3)
    three = replace(model, blocks=3, layers=4)
    stages = {
        "direct denoiser (embedding MSE)": blocks_plan(
            mlp, paper, steps, seed, objective="embedding-mse", embedding="frozen"
        ),
        "exact MLP": blocks_plan(mlp, paper, steps, seed),
        "transformer, short": blocks_plan(model, paper, steps // 2, seed),
        "transformer, full (B 4, L 3)": blocks_plan(four, paper, 2 * steps, seed),
        "transformer, long (B 3, L 4)": blocks_plan(three, paper, 4 * steps, seed),
    }
    rows = [
        Entry(label=f"{label} {readout}", plans=(plan,), readout=readout, group=readout)
        for readout in ("sweep", "parallel")
        for label, plan in stages.items()
    ]
    full = plain_plan(model, DEPTH, deep(setting.recipe), 4 * steps, seed)
    rows.append(Entry(label="end-to-end, long (depth 12)", plans=(full,), readout="parallel", group="baselines"))
    return [*rows, *baselines(setting, seed)]


def depth(setting: Setting, seed: int) -> list[Entry]:
    """T3: twelve layers, cut more or less finely."""
    rows = []
    for name, recipe in (("paper", setting.paper), ("default", setting.recipe)):
        for blocks, layers in CUTS:
            model = replace(setting.model, blocks=blocks, layers=layers)
            plans = (blocks_plan(model, recipe, setting.steps, seed),)
            label = f"B {blocks} × L {layers} {name}"
            rows += [
                Entry(label=f"{label} {readout}", plans=plans, readout=readout, group=f"{name} {readout}", x=blocks)
                for readout in ("sweep", "parallel")
            ]
    full = plain_plan(setting.model, DEPTH, deep(setting.recipe), setting.steps, seed)
    rows.append(Entry(label="end-to-end, depth 12", plans=(full,), readout="parallel", group="baselines"))
    return [*rows, *baselines(setting, seed)]


def memory(setting: Setting) -> list[dict[str, Any]]:
    """What one worker of each cut takes, and the whole stack trained end to end."""
    shapes = {f"B {blocks} × L {layers}": (blocks, layers) for blocks, layers in CUTS}
    shapes["end-to-end"] = (1, DEPTH)
    last = list(shapes)[-2:]
    cases = [("AdamW", setting.paper, shape) for shape in shapes]
    cases += [("Muon", replace(setting.paper, optimizer="muon"), shape) for shape in last]
    rows = []
    for name, recipe, shape in cases:
        blocks, layers = shapes[shape]
        found = measure_memory(replace(setting.model, blocks=blocks, layers=layers), recipe)
        columns = {f"{what}, MB": found[what] / 1e6 for what in ("parameters", "optimizer", "resident")}
        rows.append({"one worker of": shape, "optimizer": name, **columns})
    return rows


def long(setting: Setting, seed: int) -> list[Entry]:
    """The paper's long run: three blocks, two replicas of each, many rounds."""
    averaging = Averaging(every=50, replicas=2)
    watch = max(1, setting.steps // 50 // 16)
    rows = []
    for name, recipe in (("default", setting.recipe), ("paper", setting.paper)):
        plans = (blocks_plan(setting.model, recipe, setting.steps, seed, averaging=averaging, watch=watch),)
        rows += [
            Entry(label=f"{name} {readout}", plans=plans, readout=readout, group="three blocks, two replicas")
            for readout in ("parallel", "sweep")
        ]
    return [*rows, *baselines(setting, seed)]


EXPERIMENTS = (
    Experiment(
        name="sigma-range",
        title="Noise range (paper T1)",
        question="How do MLP blocks fare over six noise ranges, read by the paper's sweep and in parallel?",
        entries=sigma_range,
        tables=False,
    ),
    Experiment(
        name="progression",
        title="Progression (paper T2)",
        question="What does each step from a direct denoiser to long-trained transformer blocks bring?",
        entries=progression,
        tables=False,
        steps=200,
    ),
    Experiment(
        name="depth",
        title="Fixed depth, more or fewer blocks (paper T3)",
        question="With twelve layers in all, what does cutting them into more blocks cost, and what does it save?",
        entries=depth,
        tables=False,
        also=memory,
        axis="blocks B (12 layers in all)",
    ),
    Experiment(
        name="long",
        title="The long run",
        question="How does the cross-entropy of three blocks with two replicas each fall over many rounds?",
        entries=long,
        steps=3200,
    ),
)
