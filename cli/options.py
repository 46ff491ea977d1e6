"""Options that several commands share, and the types that read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

PEERS_FILE = Path("bootstrap_peers.txt")
STATE_ROOT = Path(".blockswarm")
"""Holds a folder for each peer started here."""

Function = TypeVar("Function", bound=Callable[..., Any])

PathType = click.Path(path_type=Path)

_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*(k|m|g)?(bit|b)(?:ps|it/s|/s)?", re.IGNORECASE)
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def block_number(value: str) -> int | None:
    """``auto`` (None), the number of a block, or ``counts``, as a click type."""
    if value == "auto":
        return None
    if value == "counts":
        from blockswarm.model.layout import COUNTS

        return COUNTS
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither 'auto' nor 'counts' nor a number") from None


def bandwidth(value: str) -> float:
    """``20mbit`` or ``2.5MB`` as bytes per second, as a click type: ``bit`` counts bits, ``B`` bytes."""
    match = _BANDWIDTH.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a rate such as 20mbit or 2.5MB")
    number, factor, unit = match.groups()
    return float(number) * _FACTORS[(factor or "").lower()] / (8 if unit.lower() == "bit" else 1)


def seeds(value: str) -> tuple[int, ...]:
    """``0,1,2`` as numbers, each once, as a click type."""
    try:
        found = tuple(dict.fromkeys(int(part) for part in value.split(",")))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers such as 0,1,2") from None
    if not found or min(found) < 0:
        raise click.BadParameter(f"{value!r}: give at least one seed, none below 0")
    return found


def finding_peers(function: Function) -> Function:
    """``--peers-file`` and ``--peer``: where the swarm is found."""
    for option in (
        click.option(
            "--peer",
            "peer",
            multiple=True,
            metavar="MULTIADDR",
            help="A peer to start from, besides the file. Repeatable.",
        ),
        click.option(
            "--peers-file",
            type=PathType,
            metavar="FILE",
            help=f"File of peers to start from, one multiaddr a line. [default: {PEERS_FILE}, unless --peer is given]",
        ),
    ):
        function = option(function)
    return function


def choosing_run(function: Function) -> Function:
    """``--run``: which of the swarms the peers know."""
    return click.option("--run", "run_id", metavar="ID", help="Run to use, if the peers know several.")(function)


def using_counts(function: Function) -> Function:
    """``--counts``: the run's n-gram counts, where their file is here."""
    return click.option(
        "--counts",
        type=PathType,
        metavar="FILE",
        help="File of the run's n-gram counts: then no holder is asked for them. [default: what was fetched before]",
    )(function)


def choosing_model(function: Function) -> Function:
    """``--checkpoint``: a model folder instead of a swarm, and how it is computed; else where the swarm is found."""
    for option in (
        choosing_run,
        finding_peers,
        click.option(
            "--threads",
            type=click.IntRange(1),
            metavar="N",
            help="With --checkpoint: CPU threads; more than one helps large models on an idle machine. [default: 1]",
        ),
        using_counts,
        click.option("--device", metavar="NAME", help="With --checkpoint: torch device. [default: cuda or cpu]"),
        click.option(
            "--checkpoint",
            type=PathType,
            metavar="FOLDER",
            help="A model folder, as written by `blockswarm export`, instead of the swarm; needs no network.",
        ),
    ):
        function = option(function)
    return function


def hosting(function: Function) -> Function:
    """Options of everything that listens: identity, addresses, state, log."""
    for option in (
        click.option("--quiet", is_flag=True, help="No progress on the terminal."),
        click.option("--json-log", metavar="FILE|-", help="Write one JSON object per event; - for standard output."),
        click.option(
            "--announce",
            multiple=True,
            metavar="MULTIADDR",
            help="Address others should use. Repeatable. [default: those listened on]",
        ),
        click.option(
            "--listen",
            multiple=True,
            metavar="MULTIADDR",
            help="Address to listen on. Repeatable. [default: /ip4/0.0.0.0/tcp/0, a free port]",
        ),
        click.option("--identity", type=PathType, metavar="FILE", help="Identity file. [default: in the state folder]"),
        click.option(
            "--state-dir",
            type=PathType,
            metavar="DIR",
            help=f"Folder for identity and checkpoints. [default: the first free one in {STATE_ROOT}]",
        ),
    ):
        function = option(function)
    return function


def learning_on(function: Function) -> Function:
    """``--size`` and ``--data``: what an experiment trains, and on what."""
    for option in (
        click.option(
            "--data",
            default="docs",
            show_default=True,
            metavar="SPEC",
            help="docs, a file or folder, hf:<dataset>, or a folder with train.txt, valid.txt and test.txt.",
        ),
        click.option(
            "--size",
            default="tiny",
            show_default=True,
            help="tiny, small, base (the paper's shapes, for a GPU), or smoke (a trial run of seconds).",
        ),
    ):
        function = option(function)
    return function


def working_in_processes(function: Function) -> Function:
    """``--jobs`` and ``--threads``: how much of this machine an experiment takes."""
    for option in (
        click.option(
            "--threads", type=click.IntRange(1, 256), default=1, show_default=True, help="CPU threads of each."
        ),
        click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes at work."),
    ):
        function = option(function)
    return function


json_output = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def peers_from(peers_file: Path | None, peer: tuple[str, ...]) -> tuple[str, ...]:
    """Addresses of both options, the file's first; the default file is read only if no peer is given. May be empty."""
    from blockswarm.dht.peers_file import read_peers_file

    given = parsed_peers(peer)
    if peers_file is None and given:
        return given
    return (*read_peers_file(peers_file or PEERS_FILE), *given)


def parsed_peers(peer: tuple[str, ...]) -> tuple[str, ...]:
    """The addresses of ``--peer``, checked."""
    from blockswarm.dht.addresses import parse_multiaddr
    from blockswarm.dht.errors import AddressError

    try:
        return tuple(parse_multiaddr(address, need_peer=True) for address in peer)
    except AddressError as error:
        raise AddressError(f"--peer {error}") from None


def state_dir_from(state_dir: Path | None, prefix: str) -> Path:
    """The folder that was named, or the first free default one; held by this process from here on."""
    from blockswarm.peer.state_dir import claim_free_state_dir, claim_state_dir

    return claim_free_state_dir(STATE_ROOT, prefix) if state_dir is None else claim_state_dir(state_dir)
