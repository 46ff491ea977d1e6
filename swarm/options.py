"""What a caller may ask of the client, checked before anything is asked of the swarm."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from blockswarm.model.mixing import Readout
from blockswarm.model.sampling import check_sampling
from blockswarm.naming import option
from blockswarm.swarm.deadline import Deadline, check_timeout
from blockswarm.swarm.errors import ArgumentError
from blockswarm.swarm.manifest import EMBEDDING, Manifest
from blockswarm.swarm.messages import StateName
from blockswarm.swarm.pins import Pin

WritingReadout = Readout | Literal["one-sweep"]
"""Writing can also have all bytes drawn in one traversal, to measure it; see ``blockswarm.swarm.one_sweep``."""

PinChoice = str | Pin | Mapping[str, Any] | None
"""``None`` (what most holders have), ``"genesis"``, a :class:`Pin`, or its ``as_json()``."""

Progress = Callable[[int, int], None]

DRAFTERS = ("none", "ngram", "counts", "block")
"""Drafters that are no file; see ``blockswarm.swarm.drafting.shelf``."""

MAX_SEED = 2**63 - 1
"""Seeds travel as signed 64-bit integers."""


class WritingOptions(TypedDict, total=False):
    """Keyword arguments of ``generate`` and ``stream``; see :meth:`blockswarm.swarm.client.SwarmClient.generate`."""

    max_bytes: int
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    stop: str | bytes | Sequence[str | bytes]
    best_effort: bool
    readout: WritingReadout
    draft: str | Path
    timeout: float | Deadline
    pin: PinChoice


class ReadingOptions(TypedDict, total=False):
    """Keyword arguments of ``logprobs`` and ``score``; see :meth:`blockswarm.swarm.client.SwarmClient.logprobs`."""

    readout: Readout
    seed: int
    timeout: float | Deadline
    pin: PinChoice
    progress: Progress | None


@dataclass(frozen=True, kw_only=True)
class Writing:
    """A generation as asked for; raises a ``UsageError`` naming an option out of range."""

    max_bytes: int = 64
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: str | bytes | Sequence[str | bytes] = ()
    best_effort: bool = False
    readout: WritingReadout = "parallel"
    draft: str | Path = "ngram"
    """Who guesses ahead; see ``blockswarm.swarm.drafting.shelf``."""
    timeout: float | Deadline = 120.0
    """For the whole text."""
    pin: PinChoice = None
    rows: bool = False
    """Whether each piece comes with the log-probabilities its bytes were drawn from."""
    seconds: float = field(init=False)
    """What ``timeout`` came to when this was made."""

    def __post_init__(self) -> None:
        check_sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        if not isinstance(self.max_bytes, int) or self.max_bytes < 0:
            raise ArgumentError(f"{option('max_bytes')} {self.max_bytes!r}: must be a whole number, 0 or more")
        # Drawn here, once, so that it can be reported; 32 bits are easy to type again.
        object.__setattr__(self, "seed", secrets.randbelow(2**32) if self.seed is None else _seed(self.seed))
        if self.readout != "one-sweep":
            _readout(self.readout)
        if self.drafter not in DRAFTERS and not Path(self.drafter).is_file():
            names = ", ".join(DRAFTERS)
            raise ArgumentError(f"{option('draft')} {self.drafter!r}: must be {names}, or an n-gram file that is there")
        object.__setattr__(self, "seconds", check_timeout(self.timeout))

    @property
    def stops(self) -> tuple[bytes, ...]:
        """The stop strings as bytes, the longest first, empty ones left out."""
        marks = [self.stop] if isinstance(self.stop, str | bytes) else self.stop
        return tuple(sorted(filter(None, map(as_bytes, marks)), key=len, reverse=True))

    @property
    def row_readout(self) -> Readout:
        """Where rows come from: those of ``one-sweep`` come from a sweep."""
        return "sweep" if self.readout == "one-sweep" else self.readout

    @property
    def drafter(self) -> str:
        """One of ``DRAFTERS``, or the path of an n-gram file."""
        return str(self.draft)

    @property
    def drawn_seed(self) -> int:
        """The seed, given or drawn."""
        return self.seed or 0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Log-probabilities as asked for; raises :class:`ArgumentError` naming an option out of range."""

    readout: Readout = "parallel"
    seed: int = 0
    timeout: float | Deadline = 600.0
    pin: PinChoice = None
    progress: Progress | None = None
    seconds: float = field(init=False)
    """What ``timeout`` came to when this was made."""

    def __post_init__(self) -> None:
        _readout(self.readout)
        _seed(self.seed)
        object.__setattr__(self, "seconds", check_timeout(self.timeout))


def as_bytes(text: str | bytes) -> bytes:
    """Text as UTF-8 bytes; bytes as they are."""
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes | bytearray | memoryview):
        return bytes(text)
    raise ArgumentError(f"text must be str or bytes, is {type(text).__name__}")


def read_pin(pin: PinChoice, manifest: Manifest) -> Pin | None:
    """The states a user asked for; None when the choice is left to the client.

    Raises
    ------
    ArgumentError
        When ``pin`` is none of the accepted forms.
    """
    if pin is None or isinstance(pin, Pin):
        return pin
    blocks = range(manifest.model.blocks)
    if pin == "genesis":
        return Pin(
            StateName(0, manifest.genesis_digest(EMBEDDING)),
            {block: StateName(0, manifest.genesis_digest(block)) for block in blocks},
        )
    try:
        if isinstance(pin, str):
            raise ValueError(repr(pin))
        states = {int(block): _state_name(state) for block, state in pin["blocks"].items()}
        if set(states) != set(blocks):
            raise ValueError(f"it names blocks {sorted(states)}")
        return Pin(_state_name(pin["embedding"]), states)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArgumentError(
            f"pin: must be 'genesis' or a pin as in stats.last.pin, naming all {len(blocks)} blocks ({error})"
        ) from error


def _state_name(state: Mapping[str, Any]) -> StateName:
    digest = bytes.fromhex(state["digest"])
    if len(digest) != 32:
        raise ValueError("a digest has 64 hex digits")
    return StateName(int(state["round"]), digest)


def _readout(readout: str) -> None:
    if readout not in ("parallel", "sweep"):
        raise ArgumentError(f"{option('readout')} {readout!r}: must be 'parallel' or 'sweep'")


def _seed(seed: int) -> int:
    if not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise ArgumentError(f"{option('seed')} {seed!r}: must be a whole number from 0 to 2^63 - 1")
    return seed
