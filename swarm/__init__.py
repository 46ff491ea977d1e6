"""What all peers agree on, and the swarm seen from outside: manifest, messages, policies, client.

``SwarmClient`` and ``AsyncSwarmClient`` load on first use, so that peers, which must not import the client's network
stack next to their own, can import everything else here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockswarm.swarm.client import AsyncSwarmClient, SwarmClient

__all__ = ["AsyncSwarmClient", "SwarmClient"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from blockswarm.swarm import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
