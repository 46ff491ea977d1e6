"""How the gap between blocks and end-to-end training moves with the budget and with depth."""

from __future__ import annotations

from dataclasses import replace

from blockswarm.lab.experiment import Entry, Experiment, Setting, baselines, control, deep
from blockswarm.lab.plan import blocks_plan, plain_plan

BUDGETS = (1, 2, 4)
"""Multiples of the setting's steps."""


def budget(setting: Setting, seed: int) -> list[Entry]:
    """The same rows at growing budgets, for the size's depth and for twice that."""
    rows = []
    for factor in (1, 2):
        model = replace(setting.model, layers=factor * setting.model.layers)
        depth = model.blocks * model.layers
        for times in BUDGETS:
            steps = times * setting.steps
            frame = replace(setting, model=model, steps=steps)
            ways = {
                "parallel": ((blocks_plan(model, setting.recipe, steps, seed),), "parallel"),
                "sweep": ((blocks_plan(model, setting.recipe, steps, seed),), "sweep"),
                "end-to-end": ((plain_plan(model, depth, deep(setting.recipe), steps, seed),), "parallel"),
                "control": (control(frame, seed), "parallel"),
            }
            rows += [
                Entry(
                    label=f"depth {depth}, {steps} steps, {way}",
                    plans=plans,
                    readout=readout,
                    group=f"depth {depth}, {way}",
                    x=steps * setting.recipe.batch * model.context,
                )
                for way, (plans, readout) in ways.items()
            ]
    return [*rows, *baselines(setting, seed)]


EXPERIMENTS = (
    Experiment(
        name="budget",
        title="The gap and the budget",
        question="Does end-to-end training pull ahead as tokens and depth grow?",
        entries=budget,
        axis="bytes trained on by each block",
    ),
)
