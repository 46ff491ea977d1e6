"""How blocks become one model: readouts, what blocks know of z, and relaying hidden states."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from blockswarm.lab.experiment import Entry, Experiment, Setting, baselines, control, deep, without_tables
from blockswarm.lab.measuring import parse, subsets
from blockswarm.lab.plan import Plan, blocks_plan, plain_plan
from blockswarm.lab.results import Figures, summed
from blockswarm.model.layout import block_layout, embedding_layout

ADAMW_RATES = (5e-3, 2e-2)
"""Rates of AdamW: the best one for layers, and the best one for n-gram tables."""

SHARPNESS = (1.02, 1.05, 1.1)
"""Factors on the mean log-probability that are tried."""


def readouts(setting: Setting, seed: int) -> list[Entry]:
    """One stack of the default and one of the paper's recipe, read in every way."""
    model, steps = setting.model, setting.steps
    ours = (blocks_plan(model, setting.recipe, steps, seed),)
    paper = (blocks_plan(model, setting.paper, steps, seed),)
    every = range(model.blocks)
    names = {
        "parallel": "parallel",
        "sweep": "sweep",
        "sweep_corrected": "sweep-corrected",
        "sweep_mean": "sweep-mean",
        "parallel_at_sigma_max": "level-max",
        **{f"parallel_sharpened_{s:g}": f"parallel@{s:g}" for s in SHARPNESS},
        "ngram_mix": "parallel+ngram",
        **{f"block_{b}_alone": f"alone:{b}" for b in every},
        **{f"block_{b}_in_sweep": f"sweep:{b}" for b in every},
        **{name.replace(":", "_blocks_"): name for name in subsets(model.blocks)},
        **{f"block_{b}_true_z": f"true:{b}" for b in every},
    }
    rows = [Entry(label=label, plans=ours, readout=readout, group="default recipe") for label, readout in names.items()]
    for readout in ("parallel", "sweep", "sweep-corrected"):
        label = f"{readout.replace('-', '_')}_paper_recipe"
        rows.append(Entry(label=label, plans=paper, readout=readout, group="paper recipe"))
    rows += _simpler(setting, seed)
    for factor in SHARPNESS:
        label = f"control_sharpened_{factor:g}"
        rows.append(Entry(label=label, plans=control(setting, seed), readout=f"parallel@{factor:g}", group="baselines"))
    return [*rows, *baselines(setting, seed)]


def _simpler(setting: Setting, seed: int) -> list[Entry]:
    """The same comparison as the prototype had it, without n-gram tables; and with its optimizer for all, AdamW."""
    groups = {"without n-gram tables": without_tables(setting)}
    for rate in ADAMW_RATES:
        recipe = replace(setting.recipe, optimizer="adamw", learning_rate=rate)
        groups[f"AdamW {rate:g}"] = replace(setting, recipe=recipe)
    rows = []
    for group, frame in groups.items():
        model, steps = frame.model, frame.steps
        ways: dict[str, tuple[Plan, ...]] = {
            "parallel": (blocks_plan(model, frame.recipe, steps, seed),),
            "end_to_end_full": (plain_plan(model, model.blocks * model.layers, deep(frame.recipe), steps, seed),),
            "control_ensemble": control(frame, seed),
        }
        suffix = group.replace(" ", "_")
        rows += [
            Entry(label=f"{label}_{suffix}", plans=plans, readout="parallel", group=group)
            for label, plans in ways.items()
        ]
    return rows


def derived(figures: Figures) -> dict[str, Any]:
    """The gain of the true z (nats, mean over blocks), and every subset of blocks."""
    by_seed = figures.by_seed()
    blocks = range(figures.settings["model"]["blocks"])
    gain = {
        seed: statistics.fmean(by_seed[f"block_{b}_alone"][seed] - by_seed[f"block_{b}_true_z"][seed] for b in blocks)
        for seed in by_seed["parallel"]
    }
    named: dict[tuple[int, ...], str] = {(b,): f"block_{b}_alone" for b in blocks}
    for name in subsets(len(blocks)):
        _, chosen, _ = parse(name)
        named[chosen] = name.replace(":", "_blocks_")
    named[tuple(blocks)] = "parallel"
    return {
        "true_z_gain": summed(gain),
        "parallel_subsets": [{"blocks": list(chosen), **summed(by_seed[label])} for chosen, label in named.items()],
    }


def leakage(setting: Setting, seed: int) -> list[Entry]:
    """What a block predicts given the true noised target, another row's, pure noise, and nothing."""
    rows = []
    for name, recipe in (("default", setting.recipe), ("paper", setting.paper)):
        plans = (blocks_plan(setting.model, recipe, setting.steps, seed),)
        for kind in ("true", "wrong", "noise", "alone"):
            shown = "zero" if kind == "alone" else kind
            rows += [
                Entry(
                    label=f"{name} block {b}, {shown} z",
                    plans=plans,
                    readout=f"{kind}:{b}",
                    group=f"{name}, {shown} z",
                    x=b,
                )
                for b in range(setting.model.blocks)
            ]
    return [*rows, *baselines(setting, seed)]


def relay(setting: Setting, seed: int) -> list[Entry]:
    """Blocks that also receive the detached last hidden state of the block before."""
    shown = replace(setting.recipe, z_zero_share=1.0, weighting="unit")
    plans = (blocks_plan(setting.model, shown, setting.steps, seed, relay=True),)
    names = [f"alone:{b}" for b in range(setting.model.blocks)]
    rows = [Entry(label=f"relay, after block {n.split(':')[1]}", plans=plans, readout=n, group="relay") for n in names]
    rows.append(Entry(label="relay, average of the blocks", plans=plans, readout="parallel", group="relay"))
    model, steps, depth = setting.model, setting.steps, setting.model.blocks * setting.model.layers
    adamw = replace(setting.recipe, optimizer="adamw")  # what a relay is trained with
    fair: dict[str, tuple[Plan, str]] = {
        "parallel (no relay), AdamW": (blocks_plan(model, adamw, steps, seed), "AdamW"),
        "end-to-end of full depth, AdamW": (plain_plan(model, depth, deep(adamw), steps, seed), "AdamW"),
        "parallel (no relay)": (blocks_plan(model, setting.recipe, steps, seed), "default recipe"),
    }
    rows += [
        Entry(label=label, plans=(plan,), readout="parallel", group=group) for label, (plan, group) in fair.items()
    ]
    return [*rows, *baselines(setting, seed)]


def relay_price(setting: Setting) -> list[dict[str, Any]]:
    """What a worker and a request of each block take in a relay; arithmetic from the shapes, nothing is measured."""
    model, batch = setting.model, setting.recipe.batch
    block = block_layout(model).size + embedding_layout(model).size
    own = block + model.dim**2
    hidden = 4 * batch * model.context * model.dim
    return [
        {
            "block": str(number),
            "own values, gradients and moments, MB": 16 * own / 1e6,
            "blocks before, forward only, MB": 4 * number * own / 1e6,
            "or hidden states fetched, MB a step": (hidden if number else 0) / 1e6,
            "hops to read it": str(number + 1),
        }
        for number in range(model.blocks)
    ]


EXPERIMENTS = (
    Experiment(
        name="readouts",
        title="Readouts",
        question="How should one text be read from blocks that were trained apart?",
        entries=readouts,
        derived=derived,
    ),
    Experiment(
        name="leakage",
        title="What a block knows from z",
        question="How much of a block's local cross-entropy comes from the noised target, and is it lost without?",
        entries=leakage,
        axis="block",
    ),
    Experiment(
        name="relay",
        title="Relay",
        question="What does a block gain from the last hidden state of the block before, and at which price?",
        entries=relay,
        also=relay_price,
    ),
)
