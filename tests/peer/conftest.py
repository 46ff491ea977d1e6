"""Tests on the network in memory need no real time; those over real hosts, and all others, keep the usual loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.peer.wires import Wires
from tests.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    on_wires = any(value is Wires for value in vars(item.getparent(pytest.Module).obj).values())
    return {"virtual": VirtualTimeLoop} if on_wires else {"real": asyncio.new_event_loop}
