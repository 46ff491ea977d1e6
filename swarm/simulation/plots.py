"""A picture of a simulated swarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blockswarm.swarm.errors import SwarmError
from blockswarm.swarm.simulation.peers import PURPOSES
from blockswarm.swarm.simulation.simulator import Simulation

INK = ("#1b4965", "#c1440e", "#4f772d", "#7b2d8b")


class PlotError(SwarmError):
    """The picture cannot be drawn or written."""


def require_matplotlib() -> None:
    """Raise `PlotError` before hours of work rather than after them."""
    _pyplot()


def draw(simulation: Simulation, figures: dict[str, Any], path: Path) -> None:
    """Write a PNG of four parts: volunteers, participation, joining, traffic.

    Raises
    ------
    PlotError
        If matplotlib is not installed or the file cannot be written.
    """
    pyplot = _pyplot()
    tally, peers, shape = simulation.tally, simulation.world.peers, simulation.shape
    hours = np.arange(1, len(tally.volunteers) + 1) * shape.seconds / 3600.0
    looks = np.linspace(0, hours[-1] if len(hours) else 0, len(tally.coverage))
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    figure.suptitle(
        f"Simulated: {simulation.size:,} volunteers, scenario {simulation.scenario.name}, seed {simulation.seed}"
    )
    there, share, joining, traffic = axes.flat
    there.plot(hours, tally.volunteers, color=INK[0], label="volunteers")
    there.plot(hours, tally.training, color=INK[2], label="training")
    there.set(xlabel="hours", ylabel="volunteers", ylim=(0, None))
    there.legend(frameon=False)
    share.plot(hours, tally.participation, color=INK[1], label="participation")
    share.plot(looks, tally.coverage, color=INK[3], label="coverage")
    share.set(xlabel="hours", ylabel="share", ylim=(0, 1.05))
    share.legend(frameon=False)
    waited = np.sort((peers.first_commit - peers.joined)[~peers.warm & np.isfinite(peers.first_commit)])
    joining.plot(waited, np.arange(1, len(waited) + 1) / max(figures["joined"], 1), color=INK[0])
    joining.set(xlabel="seconds from join to first commit", ylabel="share of newcomers", ylim=(0, 1.05))
    if len(waited) and waited[0] > 0:
        joining.set_xscale("log")
    volume = figures["gb_per_peer_day"]
    place = np.arange(len(PURPOSES))
    traffic.barh(place - 0.2, [volume[name]["sent"] for name in PURPOSES], 0.4, color=INK[0], label="sent")
    traffic.barh(place + 0.2, [volume[name]["received"] for name in PURPOSES], 0.4, color=INK[1], label="received")
    traffic.set(yticks=place, yticklabels=PURPOSES, xlabel="GB a volunteer and day")
    traffic.legend(frameon=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=150, format="png")
    except OSError as error:
        raise PlotError(f"{path}: cannot write the picture: {error.strerror}") from error
    finally:
        pyplot.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise PlotError("pictures need matplotlib: pip install 'blockswarm[experiments]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
