"""``blockswarm status``: who holds what, and how training goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from blockswarm.cli.asking import connected
from blockswarm.cli.options import choosing_run, finding_peers, json_output
from blockswarm.cli.output import print_json

if TYPE_CHECKING:
    from blockswarm.swarm.operations import Holder
    from blockswarm.swarm.status import BlockStatus, SwarmStatus


@click.command()
@finding_peers
@choosing_run
@json_output
def command(peers_file: Path | None, peer: tuple[str, ...], run_id: str | None, as_json: bool) -> None:
    """Show the run, its blocks, how training goes, and who trains and serves each block.

    \b
    Example:
      blockswarm status
    """
    with connected(peers_file, peer, run_id) as swarm:
        status = swarm.status()
    if as_json:
        print_json(status.as_json())
    else:
        click.echo("\n".join(lines(status)))


def lines(status: SwarmStatus) -> list[str]:
    """The status for people."""
    text = [f"{status.run_id}: round {status.round} of {status.round_seconds:g} s, data {status.data}"]
    for block in status.blocks:
        text.append(f"block {block.block}: {_progress(block)}")
        text += [f"  {_holder(one)}" for one in block.holders]
    if status.counts is not None:
        live = status.counts.live
        text.append(f"counts: {f'{live} live' if live else 'nobody serves them'}")
        text += [f"  {_holder(one)}" for one in status.counts.holders]
    return text


def _progress(block: BlockStatus) -> str:
    if not block.live:
        return "nobody serves it"
    parts = [f"{block.live} live", f"round {block.round}", f"{block.samples_per_second:.0f} samples/s"]
    if slow := sum(one.state == "CONTRIBUTING" for one in block.holders):
        parts.append(f"{slow} contributor{'' if slow == 1 else 's'}")
    if block.heldout_ce is not None:
        parts.append(f"held-out CE {block.heldout_ce:.3f}")
    if block.agreement is not None and block.agreement < 1:
        parts.append(f"only {block.agreement:.0%} of its replicas agree")
    return ", ".join(parts)


def _holder(one: Holder) -> str:
    from blockswarm.model.layout import COUNTS

    parts = [one.peer_id, one.state.lower()]
    parts.append(f"round {one.round} {one.digest.hex()[:8]}" if one.digest else "no state yet")
    if one.block != COUNTS:
        parts.append(f"{one.samples_per_second:.0f} samples/s")
    if one.relayed:
        parts.append("relayed")
    if one.state != "OFFLINE" and not one.rounds:
        parts.append(f"does not answer (seen {one.age:.0f} s ago)")
    return ", ".join(parts)
