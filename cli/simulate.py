"""``blockswarm simulate``: see what happens before it does."""

from __future__ import annotations

import click

from blockswarm.cli.simulate_learning import learning
from blockswarm.cli.simulate_swarm import swarm


@click.group()
def command() -> None:
    """Simulate: nothing is sent, and every figure says that it is simulated.

    \b
    Example:
      blockswarm simulate swarm --peers 1000 --hours 1
      blockswarm simulate learning --regime wan-mid
    """


command.add_command(swarm)
command.add_command(learning)
