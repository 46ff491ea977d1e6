"""Fixtures of the integration tests: swarms of real processes that are gone when their module is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from blockswarm.peer.local import LocalSwarm
from tests.integration.small import small_swarm


@pytest.fixture(scope="module")
def start_swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LocalSwarm]]:
    """Starts small swarms (see `small.small_swarm`); whatever of them still runs ends with the module."""
    swarms: list[LocalSwarm] = []

    def start(**choices: Any) -> LocalSwarm:
        swarm = small_swarm(tmp_path_factory.mktemp("swarm"), **choices)
        swarms.append(swarm)
        return swarm

    yield start
    for swarm in swarms:
        swarm.close()
