"""What a volunteer and a bootstrap operator can set, checked in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from blockswarm.dht.addresses import check_listen
from blockswarm.errors import UsageError
from blockswarm.model.layout import COUNTS
from blockswarm.naming import option
from blockswarm.swarm.options import MAX_SEED

DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


class ConfigError(UsageError):
    """An option has a value that cannot work; the message names the option."""


@dataclass(frozen=True, kw_only=True)
class PeerConfig:
    """One volunteer: ``blockswarm join``."""

    state_dir: Path
    """Folder of this volunteer's identity, lock and checkpoints; made when missing."""
    block: int | None = None
    """Block to own, or ``COUNTS``; ``None`` lets placement choose (``--block auto``)."""
    peers: tuple[str, ...] = ()
    """Multiaddrs of peers to start from, each ending in ``/p2p/<peer id>``."""
    peers_file: Path | None = None
    """Where ``peers`` were read from, for the message when it names nobody."""
    run_id: str | None = None
    """Run to join; needed when the peers know several and no manifest is given."""
    manifest: Path | None = None
    """Manifest file; ``None`` fetches it from the swarm by run id."""
    data: str | None = None
    """Corpus to train on; ``None`` takes the manifest's."""
    counts: Path | None = None
    """File of the run's n-gram counts, for who serves them; ``None`` fetches it from others."""
    identity: Path | None = None
    """Identity file; ``None`` is ``identity.key`` in the state folder, made when missing."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Multiaddrs to listen on; port 0 takes a free one."""
    announce: tuple[str, ...] = ()
    """Multiaddrs others should use; empty announces what the host listens on."""
    threads: int | None = None
    """Threads for training; ``None`` is the number of cores."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N``."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of matrix products in training; ``auto`` is bf16 on a GPU and fp32 on a CPU."""
    compiled: bool = False
    """Train through ``torch.compile``."""
    seed: int | None = None
    """Seed of this volunteer's own batches; ``None`` derives one from its peer id."""
    rounds: int | None = None
    """Leave after this many rounds; ``None`` stays."""
    bandwidth: float | None = None
    """Declared uplink in bytes per second; ``None`` is undeclared."""
    serve_share: float = 0.5
    """Share that answers may have of the processor time that they and training take together; above 0, at most 1."""
    json_log: str | None = None
    """File (or ``-``) for one JSON object per event."""
    quiet: bool = False
    """No progress on the terminal."""

    def validate(self) -> None:
        """Raise a `UsageError` for the first value that cannot work, whatever the run and the machine."""
        if self.block is not None and self.block < 0:
            raise ConfigError(f"{option('block')} {self.block}: blocks are numbered from 0")
        if self.counts is not None and self.block not in (None, COUNTS):
            raise ConfigError(f"{option('counts')}: is for who serves the counts: give {option('block', 'counts')}")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise ConfigError(f"{option('threads')} {self.threads}: give a number from 1 to 1024")
        if not DEVICE.fullmatch(self.device):
            raise ConfigError(f"{option('device')} {self.device}: give auto, cpu, cuda or cuda:N")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"{option('seed')} {self.seed}: give a number from 0 to 2^63 - 1")
        if self.rounds is not None and self.rounds < 1:
            raise ConfigError(f"{option('rounds')} {self.rounds}: give at least 1")
        if self.bandwidth is not None and self.bandwidth <= 0:
            raise ConfigError(f"{option('bandwidth')}: must be above zero, for example 20mbit")
        if not 0.0 < self.serve_share <= 1.0:
            raise ConfigError(f"{option('serve_share')} {self.serve_share:g}: give a number above 0 and at most 1")
        if not self.listen:
            raise ConfigError(f"{option('listen')}: give at least one address")
        check_listen(self.listen)


@dataclass(frozen=True, kw_only=True)
class BootstrapConfig:
    """One bootstrap node: ``blockswarm bootstrap``. It knows the swarm and its manifest, and trains nothing."""

    state_dir: Path
    """Folder of the node's identity and lock; made when missing."""
    manifest: Path = Path("swarm.toml")
    """Manifest to serve; it must exist by the time the node runs (``--init`` makes it)."""
    peers_file: Path | None = None
    """File to write the node's own address to."""
    peers: tuple[str, ...] = ()
    """Other bootstrap nodes to join."""
    identity: Path | None = None
    """Identity file; ``None`` is ``identity.key`` in the state folder."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Multiaddrs to listen on."""
    announce: tuple[str, ...] = ()
    """Multiaddrs others should use."""
    json_log: str | None = None
    """File (or ``-``) for one JSON object per event."""
    quiet: bool = field(default=False)
    """No lines on the terminal."""
