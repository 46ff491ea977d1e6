"""A `SwarmClient` in a process of its own, which does what it reads from standard input; `clients.Client` drives it.

The tests' own process cannot be a client: it has hivemind loaded, and libp2p may not be in the same process.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from blockswarm.swarm import SwarmClient
from blockswarm.swarm.errors import NoHolderError, SwarmError


class Session:
    """What can be asked for; every method is one request."""

    def __init__(self, swarm: SwarmClient) -> None:
        self._swarm = swarm
        self._pieces: Iterator[str] = iter(())

    def generate(self, prompt: str, **options: Any) -> str:
        return self._swarm.generate(prompt, **options)

    def begin(self, prompt: str, **options: Any) -> None:
        """Begin a text that `more` continues."""
        self._pieces = iter(self._swarm.stream(prompt, **options))

    def more(self, characters: int | None = None) -> str:
        """At least so many more characters of the text, or all that is left."""
        text = ""
        for piece in self._pieces:
            text += piece
            if characters is not None and len(text) >= characters:
                break
        return text

    def logprobs(self, text: str, **options: Any) -> list[list[float]]:
        table: list[list[float]] = self._swarm.logprobs(text, **options).tolist()
        return table

    def score(self, text: str, **options: Any) -> float:
        return self._swarm.score(text, **options).nats_per_byte

    def export(self, folder: str, **options: Any) -> dict[str, Any]:
        return self._swarm.export(folder, **options).as_json()


def answer(session: Session, line: str) -> dict[str, Any]:
    """The result of one request, or how it failed."""
    asked = json.loads(line)
    try:
        return {"result": getattr(session, asked.pop("do"))(**asked)}
    except SwarmError as error:
        block = error.block if isinstance(error, NoHolderError) else None
        return {"error": type(error).__name__, "text": str(error), "block": block}


def main(peers: list[str]) -> None:
    """Connect to ``peers`` (a peers file, or addresses) and answer requests until there are no more."""
    with SwarmClient.connect(peers[0] if len(peers) == 1 else peers, timeout=60) as swarm:
        print(json.dumps({"result": swarm.run_id}), flush=True)
        session = Session(swarm)
        for line in sys.stdin:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                given = answer(session, line)
            last = swarm.stats.last
            given["warnings"] = [str(warning.message) for warning in heard]
            given["last"] = None if last is None else dataclasses.asdict(last)
            given["events"] = [dataclasses.asdict(event) for event in swarm.events]
            print(json.dumps(given), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
