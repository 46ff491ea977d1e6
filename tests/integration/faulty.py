"""The ``blockswarm`` command with faults built in, run by tests in place of it: ``python faulty.py join …``.

It is the real program until the file ``fault.json`` in its working folder names a round to come and a ``peer``, or a
``place`` in that round's list of members. That one volunteer then does in that round what the file says:

``nan``, ``huge``, ``short``, ``reshaped``
    It sends parts of its update that are not finite, a thousand times too large, cut short, or said to be of another
    vector. Only what it sends is altered; it goes on as well as it can.
``SIGKILL``, ``SIGSTOP``
    It sends itself this signal: when the phase ``at`` begins, or, if ``at`` is a message, when the first of the other
    members has taken that message and the second has not.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from blockswarm.cli.main import main
from blockswarm.dht.rpc import Reply
from blockswarm.peer.exchange import Exchange
from blockswarm.peer.volunteer import Volunteer
from blockswarm.swarm.codec import Compression, decode, encode
from blockswarm.swarm.manifest import EMBEDDING

FILE = Path("fault.json")

Body = dict[str, Any]


def _times(factor: float, blob: bytes, values: int, compression: Compression) -> bytes:
    return encode(decode(blob, values, compression) * np.float32(factor), compression)


ALTERATIONS: dict[str, Callable[[Body, bytes, int, Compression], tuple[Body, bytes]]] = {
    "nan": lambda body, blob, values, compression: (body, _times(float("nan"), blob, values, compression)),
    "huge": lambda body, blob, values, compression: (body, _times(1000.0, blob, values, compression)),
    "short": lambda body, blob, *_: (body, blob[:-8]),
    "reshaped": lambda body, blob, *_: ({**body, "values": body["values"] + 64}, blob),
}


def fault_of(exchange: Exchange) -> dict[str, Any]:
    """The fault this volunteer shall have in this round; empty for none."""
    members = exchange.book.members
    if members is None or exchange.book.subject == EMBEDDING or not FILE.exists():
        return {}
    fault: dict[str, Any] = json.loads(FILE.read_text())
    if fault["round"] != exchange.times.round:
        return {}
    if exchange.own_id != fault.get("peer", members.members[fault.get("place", 0)]):
        return {}
    return fault


def strike(fault: dict[str, Any]) -> None:
    """Send ourselves the signal; after a SIGSTOP this returns once we are continued."""
    os.kill(os.getpid(), signal.Signals[fault["fault"]])


def main_with_faults() -> None:
    """Wrap what sends and what begins phases, and run the command."""
    call, exchange_of = Exchange.call, Volunteer._exchange
    struck: dict[int, asyncio.Event] = {}

    async def faulty_call(
        self: Exchange, peer_id: str, method: str, body: Body, *, blob: bytes = b"", **limits: Any
    ) -> Reply | None:
        fault = fault_of(self)
        if alter := ALTERATIONS.get(fault.get("fault", "")):
            if method == "round.part":
                begin, end = self.book.seats.slice_of(self.book.require_members().members.index(peer_id))
                body, blob = alter(body, blob, end - begin, self.manifest.averaging.compression)
        elif fault.get("at") == method:
            if event := struck.get(id(self)):
                await event.wait()
            else:
                event = struck[id(self)] = asyncio.Event()
                reply = await call(self, peer_id, method, body, blob=blob, **limits)
                strike(fault)
                event.set()
                return reply
        return await call(self, peer_id, method, body, blob=blob, **limits)

    def faulty_exchange(self: Volunteer, *arguments: Any) -> Exchange:
        exchange = exchange_of(self, *arguments)
        on_phase = exchange.on_phase

        def begin(name: str) -> None:
            on_phase(name)
            fault = fault_of(exchange)
            if fault.get("at") == name:
                strike(fault)

        exchange.on_phase = begin
        return exchange

    with patch.object(Exchange, "call", faulty_call), patch.object(Volunteer, "_exchange", faulty_exchange):
        main()


if __name__ == "__main__":
    main_with_faults()
