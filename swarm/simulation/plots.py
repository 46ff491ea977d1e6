"""A picture of a simulated swarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blockswarm.pictures import INK, pyplot, save_picture
from blockswarm.swarm.simulation.peers import PURPOSES
from blockswarm.swarm.simulation.simulator import Simulation


def draw(simulation: Simulation, figures: dict[str, Any], path: Path) -> None:
    """Write a PNG of four parts: volunteers, participation, joining, traffic.

    Raises
    ------
    PictureError
        If matplotlib is not installed or the file cannot be written.
    """
    tally, peers, shape = simulation.tally, simulation.world.peers, simulation.shape
    hours = np.arange(1, len(tally.volunteers) + 1) * shape.seconds / 3600.0
    looks = np.linspace(0, hours[-1] if len(hours) else 0, len(tally.coverage))
    figure, axes = pyplot().subplots(2, 2, figsize=(10, 7), layout="constrained")
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
    save_picture(figure, path, dpi=150)
