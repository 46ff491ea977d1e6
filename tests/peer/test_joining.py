"""Finding a run: what peers say of runs is checked before it counts, or is told to anybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from blockswarm.dht.errors import RpcError
from blockswarm.dht.rpc import Reply
from blockswarm.model.config import ModelConfig
from blockswarm.peer.joining import JoinError, find_manifest
from blockswarm.swarm.manifest import create_manifest

MANIFEST = create_manifest(
    name="demo", now=0.0, size=ModelConfig(dim=8, blocks=2, layers=1, heads=2, context=8), round_seconds=20.0
)
GOOD = {"run_id": MANIFEST.run_id, "digest": MANIFEST.digest}


class Peers:
    """Peers by name, each with what it says of runs and the bytes it calls a manifest."""

    def __init__(self, **peers: tuple[object, bytes]) -> None:
        self._peers = peers

    def connected_peers(self) -> list[str]:
        return list(self._peers)

    async def call(
        self, peer_id: str, method: str, body: Mapping[str, Any], *, max_blob: int = 0, timeout: float
    ) -> Reply:
        runs, manifest = self._peers[peer_id]
        if method == "hello":
            return Reply({"runs": runs})
        if len(manifest) > max_blob:
            raise RpcError("too-large")
        return Reply({}, manifest)

    async def measure_offset(self, peers: object) -> None:
        return None


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([{"run_id": "\x1b[2J", "digest": bytes(32)}], id="a name that drives terminals"),
        pytest.param([{"run_id": "x" * 100_000, "digest": bytes(32)}], id="a name without end"),
        pytest.param([{"run_id": 7, "digest": bytes(32)}, None, "run", {"run_id": MANIFEST.run_id}], id="nonsense"),
        pytest.param({"run_id": MANIFEST.run_id}, id="no list"),
        pytest.param(None, id="nothing"),
    ],
)
async def test_what_is_no_run_does_not_count(runs: object) -> None:
    network = Peers(liar=(runs, b""), honest=([GOOD], MANIFEST.canonical()))
    assert await find_manifest(network, None, tell=lambda _: None) == MANIFEST


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x91" * 60_000, id="lists in lists"),
        pytest.param(b"\xdd\x00\x00\xc3\x50" * 200 + bytes(50_000), id="lists that announce much"),
        pytest.param(MANIFEST.canonical()[:-1] + b"\xc0", id="one byte changed"),
    ],
)
async def test_who_sends_another_manifest_is_passed_over(sent: bytes) -> None:
    network = Peers(liar=([GOOD], sent), honest=([GOOD], MANIFEST.canonical()))
    assert await find_manifest(network, MANIFEST.run_id, tell=lambda _: None) == MANIFEST


async def test_a_run_that_nobody_knows_is_told_with_those_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockswarm.peer.joining.RETRY_SECONDS", 0.0)
    with pytest.raises(JoinError, match=MANIFEST.run_id) as caught:
        await find_manifest(Peers(one=([GOOD], b"")), "other-0123456789ab", tell=lambda _: None)
    assert str(caught.value).isprintable()
