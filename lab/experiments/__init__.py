"""The experiments by name."""

from __future__ import annotations

from blockswarm.lab.experiment import Experiment
from blockswarm.lab.experiments import budget, composition, levers, paper, workers

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for module in (paper, composition, workers, levers, budget)
    for experiment in module.EXPERIMENTS
}
"""Every experiment, in the order in which ``make results`` runs them."""
