"""``blockswarm gateway``: the swarm's model for programs that speak to OpenAI's API."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from blockswarm.cli.asking import known_peers
from blockswarm.cli.options import PathType, choosing_run, finding_peers, using_counts
from blockswarm.cli.running import run_until_stopped


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option(
    "--api-key",
    envvar="BLOCKSWARM_API_KEY",
    metavar="KEY",
    help="Key that requests must carry. Everybody on this machine can read a command line: better in the environment, "
    "as BLOCKSWARM_API_KEY, or in a file. [default: none is wanted]",
)
@click.option("--api-key-file", type=PathType, metavar="FILE", help="File with the key; counts before the other two.")
@click.option("--concurrency", type=int, default=16, show_default=True, metavar="N", help="Texts written at a time.")
@click.option(
    "--queue",
    type=int,
    default=64,
    show_default=True,
    metavar="N",
    help="Requests that may wait; further ones get 429.",
)
@click.option(
    "--timeout", type=float, default=120.0, show_default=True, metavar="S", help="Time for one request, all of it."
)
@click.option("--max-tokens", type=int, default=2048, show_default=True, metavar="N", help="Bytes of one text.")
@click.option(
    "--max-prompt-bytes", type=int, default=16384, show_default=True, metavar="N", help="Bytes of one prompt."
)
@click.option(
    "--max-choices", type=int, default=32, show_default=True, metavar="N", help="Texts of one request: prompts times n."
)
@click.option(
    "--max-body-bytes", type=int, default=1048576, show_default=True, metavar="N", help="Bytes of one request's body."
)
@click.option(
    "--draft",
    default="ngram",
    show_default=True,
    metavar="WHO",
    help="Who guesses ahead, as for `blockswarm generate`. Texts are the same.",
)
@using_counts
@finding_peers
@choosing_run
def command(
    host: str,
    port: int,
    api_key: str | None,
    api_key_file: Path | None,
    draft: str,
    counts: Path | None,
    peers_file: Path | None,
    peer: tuple[str, ...],
    run_id: str | None,
    **limits: Any,
) -> int:
    """Serve an OpenAI-compatible HTTP API (/v1/models, /v1/completions) over the swarm's model, until Ctrl-C.

    A token is a byte. /health and /metrics (Prometheus) are there too. It listens on this machine only, unless --host
    says otherwise.

    \b
    Examples:
      blockswarm gateway
      BLOCKSWARM_API_KEY=secret blockswarm gateway --host 0.0.0.0 --port 8080
      curl http://127.0.0.1:8000/v1/models
    """
    from blockswarm.swarm.gateway.key import read_key
    from blockswarm.swarm.gateway.limits import Limits
    from blockswarm.swarm.gateway.server import GatewayConfig, run_gateway

    peers, cache = known_peers(peers_file, peer)
    config = GatewayConfig(
        peers=peers,
        run_id=run_id,
        cache=cache,
        host=host,
        port=port,
        key=read_key(api_key, api_key_file),
        limits=Limits(**limits),
        draft=draft,
        counts=counts,
    )

    async def program(stop: asyncio.Event) -> int:
        return await run_gateway(config, stop, click.echo)

    return run_until_stopped(program)
