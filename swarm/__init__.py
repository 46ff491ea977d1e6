"""What all peers agree on, and the swarm seen from outside: manifest, messages, policies, client, model folders.

``SwarmClient``, ``AsyncSwarmClient`` and ``LocalModel`` load on first use: peers must not import the client's network
stack next to their own, and a model in a folder needs no network at all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockswarm.swarm.client import AsyncSwarmClient, SwarmClient
    from blockswarm.swarm.deadline import Deadline
    from blockswarm.swarm.local_model import LocalModel

__all__ = ["AsyncSwarmClient", "Deadline", "LocalModel", "SwarmClient"]

_HOMES = {
    "AsyncSwarmClient": "client",
    "Deadline": "deadline",
    "LocalModel": "local_model",
    "SwarmClient": "client",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
