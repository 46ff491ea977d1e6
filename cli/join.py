"""``blockswarm join``: volunteer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Literal

import click

from blockswarm.cli import options
from blockswarm.cli.options import PathType
from blockswarm.cli.running import run_until_stopped


@click.command()
@click.option(
    "--block",
    type=options.block_number,
    default="auto",
    show_default=True,
    metavar="auto|N|counts",
    help="Block to train; auto takes the neediest. counts serves the run's n-gram counts and trains nothing.",
)
@options.finding_peers
@options.choosing_run
@click.option(
    "--manifest", type=PathType, metavar="FILE", help="Manifest of the swarm. [default: asked from the peers]"
)
@click.option(
    "--data", metavar="SPEC", help="Corpus: docs, a file or folder, or hf:<dataset>[:config]. [default: the manifest's]"
)
@click.option(
    "--counts",
    type=PathType,
    metavar="FILE",
    help="With --block counts: their file, if it is here. [default: fetched from others, or counted from --data]",
)
@click.option(
    "--threads",
    type=int,
    metavar="N",
    help="Threads for training; give 1 when several volunteers share the machine. [default: all cores]",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--precision",
    type=click.Choice(["auto", "fp32", "bf16"]),
    default="auto",
    show_default=True,
    help="Of matrix products; auto is bf16 on a GPU. On a CPU bf16 pays for large models only.",
)
@click.option(
    "--compile",
    "compiled",
    is_flag=True,
    help="Train through torch.compile: half a minute to begin, a C++ compiler, 75 MB more; then a tenth faster.",
)
@click.option("--seed", type=int, help="Seed of this volunteer's batches. [default: from its peer id]")
@click.option("--rounds", type=int, metavar="N", help="Leave after N rounds. [default: stay]")
@click.option(
    "--bandwidth",
    type=options.bandwidth,
    metavar="RATE",
    help="Upload rate you give, such as 20mbit. [default: not declared]",
)
@click.option(
    "--serve-share",
    type=float,
    default=0.5,
    show_default=True,
    metavar="SHARE",
    help="Share that answers may have of the processor time that they and training take, above 0 to 1.",
)
@options.hosting
def command(
    block: int | None,
    peers_file: Path | None,
    peer: tuple[str, ...],
    run_id: str | None,
    manifest: Path | None,
    data: str | None,
    counts: Path | None,
    threads: int | None,
    device: str,
    precision: Literal["auto", "fp32", "bf16"],
    compiled: bool,
    seed: int | None,
    rounds: int | None,
    bandwidth: float | None,
    serve_share: float,
    state_dir: Path | None,
    identity: Path | None,
    listen: tuple[str, ...],
    announce: tuple[str, ...],
    json_log: str | None,
    quiet: bool,
) -> int:
    """Volunteer: take a block, train it with its other replicas, and serve it. Ctrl-C leaves in good order.

    \b
    Examples:
      blockswarm join --block auto
      blockswarm join --block 1 --data my-texts/ --threads 2 --rounds 20
      blockswarm join --block counts
    """
    from blockswarm.peer.config import PeerConfig

    peers = options.peers_from(peers_file, peer)
    config = PeerConfig(
        state_dir=state_dir or options.STATE_ROOT,
        block=block,
        peers=peers,
        peers_file=peers_file or (None if peer else options.PEERS_FILE),
        run_id=run_id,
        manifest=manifest,
        data=data,
        counts=counts,
        identity=identity,
        listen=listen or PeerConfig.listen,
        announce=announce,
        threads=threads,
        device=device,
        precision=precision,
        compiled=compiled,
        seed=seed,
        rounds=rounds,
        bandwidth=bandwidth,
        serve_share=serve_share,
        json_log=json_log,
        quiet=quiet,
    )
    config.validate()
    # Only now, because it makes the folder: a mistake leaves nothing behind.
    config = replace(config, state_dir=options.state_dir_from(state_dir, "peer"))

    async def program(stop: asyncio.Event) -> int:
        from blockswarm.peer.peer import run_volunteer

        return await run_volunteer(config, stop)

    return run_until_stopped(program)
