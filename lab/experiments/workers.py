"""Several workers on one block: T6 (shared training), replicas and outer steps, compressed updates."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from blockswarm.lab.experiment import Entry, Experiment, Setting, baselines
from blockswarm.lab.plan import Averaging, blocks_plan
from blockswarm.swarm.codec import Compression, encoded_size


def shared(setting: Setting, seed: int) -> list[Entry]:
    """T6: two replicas of each block against one, by the peers' own averaging."""
    rows = []
    for name, recipe in (("default", setting.recipe), ("paper", setting.paper)):
        for replicas in (1, 2):
            averaging = Averaging(every=25, replicas=replicas)
            plans = (blocks_plan(setting.model, recipe, setting.steps, seed, averaging=averaging),)
            rows += [
                Entry(
                    label=f"{name}, {replicas * setting.model.blocks} workers, {readout}",
                    plans=plans,
                    readout=readout,
                    group=f"{name} {readout}",
                    x=replicas,
                )
                for readout in ("parallel", "sweep")
            ]
    return [*rows, *baselines(setting, seed)]


def replicas(setting: Setting, seed: int) -> list[Entry]:
    """Replicas, local steps, outer steps, participation, and forgetting the optimizer's averages."""
    ways = {
        "plain mean": Averaging(),
        "Nesterov .5, rate .7": Averaging(momentum=0.5, rate=0.7),
        "Nesterov .9, rate .7": Averaging(momentum=0.9, rate=0.7),
        "Nesterov .9, rate .3": Averaging(momentum=0.9, rate=0.3),
        "participation .83": Averaging(participation=0.83),
        "participation .50": Averaging(participation=0.50),
        "optimizer's averages forgotten": Averaging(fresh_optimizer=True),
    }
    cases = [(1, 25, "plain mean"), (4, 25, "plain mean"), (2, 10, "plain mean"), (2, 100, "plain mean")]
    cases += [(2, 25, way) for way in ways] + [(4, 25, "Nesterov .5, rate .7")]
    rows = []
    for count, every, way in cases:
        averaging = replace(ways[way], every=every, replicas=count)
        plan = blocks_plan(setting.model, setting.recipe, setting.steps, seed, averaging=averaging)
        label = f"K {count}, H {every}, {way}"
        rows.append(
            Entry(label=label, plans=(plan,), readout="parallel", group=f"K {count}", facts={"replicas": count})
        )
    return [*rows, *baselines(setting, seed)]


def compression(setting: Setting, seed: int) -> list[Entry]:
    """Two replicas of each block whose updates travel encoded; what encoding loses is carried into the next round."""
    rows = []
    for codec in get_args(Compression):
        averaging = Averaging(every=25, replicas=2, compression=codec)
        plan = blocks_plan(setting.model, setting.recipe, setting.steps, seed, averaging=averaging)
        size = encoded_size(100_000, codec) / encoded_size(100_000, "none")
        facts = {"share_of_fp32_bytes": round(size, 4)}
        rows.append(Entry(label=codec, plans=(plan,), readout="parallel", group="two replicas", x=size, facts=facts))
    return [*rows, *baselines(setting, seed)]


EXPERIMENTS = (
    Experiment(
        name="shared",
        title="Shared training (paper T6)",
        question="Do two replicas of each block, averaged as peers average, learn what one worker learns?",
        entries=shared,
        axis="replicas of each block",
    ),
    Experiment(
        name="replicas",
        title="Replicas, rounds and outer steps",
        question="What do more replicas, longer rounds, outer momentum and missing updates do?",
        entries=replicas,
    ),
    Experiment(
        name="compression",
        title="Compressed updates",
        question="How few bytes can an update take before learning suffers?",
        entries=compression,
        axis="bytes on the wire, as a share of float32",
    ),
)
