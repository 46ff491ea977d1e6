"""``blockswarm simulate``: see what happens before it does."""

from __future__ import annotations

import click

from blockswarm.cli.simulate_swarm import swarm


@click.group()
def command() -> None:
    """Simulate: nothing is trained or sent, and every figure says that it is simulated.

    \b
    Example:
      blockswarm simulate swarm --peers 1000 --hours 1
    """


command.add_command(swarm)
