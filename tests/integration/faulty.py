"""The ``blockswarm`` command with faults built in, run by tests in place of it: ``python faulty.py join …``.

It is the real program until the file ``fault.json`` in its working folder names a round to come and a ``peer``, or a
``place`` in that round's list of members. That one volunteer then does in that round what the file says:

``nan``, ``huge``, ``short``, ``reshaped``
    It sends parts of its update that are not finite, a thousand times too large, cut short, or said to be of another
    vector. Only what it sends is altered; it goes on as well as it can.
``SIGKILL``, ``SIGSTOP``
    It sends itself this signal: when the phase ``at`` begins, or, if ``at`` is a message, when the first of the other
    members has taken that message and the second has not.

A file with a ``cell`` names one of the fault matrix (``tests/faults``), which ``peer`` has; ``beyond`` is the other end
of a line that is cut.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
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

sys.path.append(str(Path(__file__).resolve().parents[2]))  # last: there is a folder named blockswarm beside `tests`
from tests.faults.injection import BEGINS, SIGNALS, Fault, Line
from tests.faults.table import CELLS, name_of

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
    if fault["round"] != exchange.times.round or "cell" in fault:
        return {}
    if exchange.own_id != fault.get("peer", members.members[fault.get("place", 0)]):
        return {}
    return fault


def cell_of(exchange: Exchange) -> tuple[Fault | None, str]:
    """The cell of the matrix that concerns this volunteer in this round, and to whom its line is to be cut."""
    if exchange.book.subject == EMBEDDING or not FILE.exists():
        return None, ""
    words: dict[str, Any] = json.loads(FILE.read_text())
    if words["round"] != exchange.times.round or "cell" not in words:
        return None, ""
    ends = [words["peer"], words["beyond"]]
    fault = next(fault for fault in CELLS if name_of(fault) == words["cell"])
    if exchange.own_id not in (ends if fault.kind == "cut link" else ends[:1]):
        return None, ""
    return fault, next(end for end in ends if end != exchange.own_id)


def with_line(exchange: Exchange, lines: dict[str, Line]) -> None:
    """Put a line of the matrix between a round and its host; it lives as long as the process, for replays."""
    if exchange.book.subject == EMBEDDING:
        return
    fault, beyond = cell_of(exchange)
    if exchange.own_id not in lines:
        compression = exchange.manifest.averaging.compression
        lines[exchange.own_id] = Line(
            exchange.caller, exchange.identity, exchange.manifest.digest, compression, exchange.clock
        )
    line = lines[exchange.own_id]
    line.caller = exchange.caller
    line.begin(fault, exchange.times, exchange.book)
    exchange.caller = line
    if fault is None:
        return
    on_phase = exchange.on_phase

    def begin(name: str) -> None:
        on_phase(name)
        if name != BEGINS[fault.phase]:
            return
        if fault.kind in SIGNALS:
            os.kill(os.getpid(), signal.Signals[SIGNALS[fault.kind]])
        elif fault.kind == "cut link":
            line.cut_from.add(beyond)

    exchange.on_phase = begin


def strike(fault: dict[str, Any]) -> None:
    """Send ourselves the signal; after a SIGSTOP this returns once we are continued."""
    os.kill(os.getpid(), signal.Signals[fault["fault"]])


def main_with_faults() -> None:
    """Wrap what sends and what begins phases, and run the command."""
    call, exchange_of = Exchange.call, Volunteer._exchange
    struck: dict[int, asyncio.Event] = {}
    lines: dict[str, Line] = {}

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

    async def faulty_exchange(self: Volunteer, *arguments: Any) -> Exchange:
        exchange = await exchange_of(self, *arguments)
        with_line(exchange, lines)
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
