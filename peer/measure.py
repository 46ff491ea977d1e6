"""Measurements of the demo's swarm by an ordinary client: ``python -m blockswarm.peer.measure``.

It is a process of its own because the client's network stack should count neither as the demo's nor as a volunteer's.
Reads one JSON object (`Wanted`) from standard input, connects once, and prints one JSON object with the answers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from blockswarm.errors import BlockswarmError
from blockswarm.swarm.evaluation import evaluate, take_sample

if TYPE_CHECKING:
    from blockswarm.model.mixing import Readout
    from blockswarm.swarm.client import SwarmClient

T = TypeVar("T")

ATTEMPTS = 3
"""Times each measurement is tried: holders may still be announcing themselves, or be slow on a loaded machine."""
PAUSE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to measure."""

    peers_file: str
    data: str
    """Corpus whose held-out part is used."""
    max_bytes: int
    """Most held-out text."""
    readouts: list[Readout]
    """Readouts to measure the cross-entropy of."""
    genesis: bool = False
    """Measure the states training began with."""
    prompts: tuple[str, ...] = ()
    """Texts to continue."""
    piece_bytes: int = 0
    temperature: float = 0.5
    seed: int = 0
    """Seed of the first text; each further one has the next."""


def measure(wanted: Wanted) -> dict[str, Any]:
    """``{"ce": {readout: nats/byte}, "pieces": [text after each prompt], "holders": [how many, per block]}``."""
    from blockswarm.swarm.client import SwarmClient

    with _patiently(lambda: SwarmClient.connect(wanted.peers_file)) as swarm:
        context = swarm.manifest.model.context
        sample = take_sample(wanted.data, context=context, max_bytes=wanted.max_bytes)
        pin = "genesis" if wanted.genesis else None
        ce = {
            readout: _patiently(partial(evaluate, swarm, sample, readout=readout, pin=pin))
            for readout in wanted.readouts
        }
        with ThreadPoolExecutor(max(1, len(wanted.prompts))) as pool:
            writing = [
                pool.submit(_patiently, partial(_continue, swarm, wanted, index))
                for index in range(len(wanted.prompts))
            ]
            pieces = [piece.result() for piece in writing]
        status = _patiently(swarm.status)
        return {
            "ce": {readout: result.score.nats_per_byte for readout, result in ce.items()},
            "pieces": pieces,
            "holders": [block.live for block in status.blocks],
        }


def _continue(swarm: SwarmClient, wanted: Wanted, index: int) -> str:
    return swarm.generate(
        wanted.prompts[index],
        max_bytes=wanted.piece_bytes,
        temperature=wanted.temperature,
        # The noise depends on seed and position alone: one seed would make all pieces end alike.
        seed=wanted.seed + index,
    )


def _patiently(action: Callable[[], T]) -> T:
    for _ in range(ATTEMPTS - 1):
        try:
            return action()
        except BlockswarmError as error:
            print(f"trying again: {error}", file=sys.stderr)
            time.sleep(PAUSE_SECONDS)
    return action()


def main() -> int:
    """Measure what standard input asks for; a failure is one line on standard error and exit code 1."""
    try:
        answer = measure(Wanted(**json.load(sys.stdin)))
    except BlockswarmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
