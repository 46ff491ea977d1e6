"""``blockswarm status``: who holds what."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blockswarm.cli.asking import connected
from blockswarm.cli.options import choosing_run, finding_peers, json_output
from blockswarm.cli.output import print_json

if TYPE_CHECKING:
    from blockswarm.swarm.operations import Holder


@click.command()
@finding_peers
@choosing_run
@json_output
def command(peers_file: Path | None, peer: tuple[str, ...], run_id: str | None, as_json: bool) -> None:
    """Show the run, its blocks, and who trains and serves each.

    \b
    Example:
      blockswarm status
    """
    from blockswarm.swarm.policy.phases import round_in_progress

    with connected(peers_file, peer, run_id) as swarm:
        manifest = swarm.manifest
        holders = swarm.holders()
        current = round_in_progress(time.time(), manifest.genesis_time, manifest.rounds.seconds)
        if as_json:
            blocks = [
                {"block": block, "holders": [{**asdict(one), "digest": one.digest.hex()} for one in listed]}
                for block, listed in holders.items()
            ]
            print_json(
                {
                    "run_id": swarm.run_id,
                    "digest": manifest.digest.hex(),
                    "round": current,
                    "round_seconds": manifest.rounds.seconds,
                    "data": manifest.data.name,
                    "blocks": blocks,
                }
            )
            return
        click.echo(f"{swarm.run_id}: round {current} of {manifest.rounds.seconds:g} s, data {manifest.data.name}")
        for block, listed in holders.items():
            click.echo(f"block {block}:" + ("" if listed else " nobody"))
            for one in listed:
                click.echo(f"  {line(one)}")


def line(one: Holder) -> str:
    """One holder for people."""
    state = f"round {one.round} {one.digest.hex()[:8]}" if one.digest else "no state yet"
    parts = [
        one.peer_id,
        one.state.lower(),
        state,
        f"{one.samples_per_second:.0f} samples/s",
        f"seen {one.age:.0f} s ago",
    ]
    if one.relayed:
        parts.append("relayed")
    if one.state != "OFFLINE" and not one.rounds:
        parts.append("does not answer")
    return ", ".join(parts)
