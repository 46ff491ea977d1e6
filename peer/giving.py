"""What a peer gives strangers: the manifest of its run and its certified states, named by digest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.rpc import BlobLimit, Handler, Reply, Request
from blockswarm.peer.states import State, StateStore
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.messages import ChunkRequest, HeadRequest, ManifestRequest

T = TypeVar("T")


class Registrar(Protocol):
    """The part of a host that serving needs: ``blockswarm.dht.host.Host.register``."""

    def register(
        self, method: str, handler: Handler, *, max_blob: BlobLimit = ..., run_bound: bool = ..., timeout: float = ...
    ) -> None:
        """Answer calls of ``method``."""
        ...


def serve_manifest(host: Registrar, manifest: Manifest) -> None:
    """Answer ``manifest``: newcomers ask before they belong to the run."""

    async def answer(request: Request) -> Reply:
        wanted = checked(ManifestRequest.parse, request.body)
        if wanted.run_id != manifest.run_id:
            raise RpcRefused("unknown-run", f"this peer is in {manifest.run_id}")
        return Reply({}, manifest.canonical())

    host.register("manifest", answer, run_bound=False)


def serve_states(host: Registrar, store: StateStore) -> None:
    """Answer ``state.head`` and ``state.chunk`` from the states in ``store``."""

    def find(subject: int, digest: bytes | None) -> State:
        state = store.head(subject) if digest is None else store.get(subject, digest)
        if state is None:
            raise RpcRefused("unknown-state", f"this peer does not have that state of subject {subject}")
        return state

    async def head(request: Request) -> Reply:
        wanted = checked(HeadRequest.parse, request.body)
        return Reply(find(wanted.subject, wanted.digest).head.to_body())

    async def chunk(request: Request) -> Reply:
        wanted = checked(ChunkRequest.parse, request.body)
        state = find(wanted.subject, wanted.digest)
        count = len(state.chunks) + len(state.momentum_chunks)
        if wanted.index >= count:
            raise RpcRefused("bad-request", f"index: the state has {count} chunks")
        return Reply({}, state.chunk(wanted.index))

    host.register("state.head", head)
    host.register("state.chunk", chunk)


def checked(read: Callable[[Any], T], given: Any) -> T:
    """``read(given)``, mostly a body; what is wrong with what a stranger gave is told to the stranger."""
    try:
        return read(given)
    except MessageError as error:
        raise RpcRefused("bad-request", str(error)) from None
