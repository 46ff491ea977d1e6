"""A volunteer that can be reached through a relay only serves light clients all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockswarm.peer.local import LocalSwarm
from blockswarm.swarm import SwarmClient
from tests.integration.small import PATIENCE, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_text_comes_from_a_holder_whose_only_address_leads_through_the_bootstrap_node(
    start_swarm: Callable[..., LocalSwarm],
) -> None:
    swarm = start_swarm()
    entrance = swarm.peers_file.read_text().split()[-1]
    volunteer = swarm.start_volunteer(0, "--announce", f"{entrance}/p2p-circuit")
    volunteer.wait_event("training", timeout=PATIENCE)
    with SwarmClient.connect(swarm.peers_file, timeout=60) as client:

        def is_found() -> bool:
            (holder,) = client.holders().get(0, [None])
            return holder is not None and bool(holder.rounds)

        wait_until(is_found, "holder that says what it serves", nodes=[volunteer])
        (holder,) = client.holders()[0]
        assert holder.relayed and all("/p2p-circuit" in address for address in holder.addrs)
        for readout in ("parallel", "sweep"):
            text = client.generate("The ", max_bytes=8, seed=1, readout=readout)
            assert client.stats.last is not None and client.stats.last.bytes == 8
            pin = client.stats.last.pin
            assert client.generate("The ", max_bytes=8, seed=1, readout=readout, pin=pin) == text
