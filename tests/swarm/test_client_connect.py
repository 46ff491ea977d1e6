"""Finding a swarm: what is believed, what is refused, and how it ends when there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_peers_come_from_a_file_a_list_or_one_address(swarm: Any, tmp_path: Path) -> None:
    file = tmp_path / "bootstrap_peers.txt"
    dead = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWGS8hdDYPnTSAQVY3h8p1L4gcMG3FveaNhv9uWaaUewhn"
    file.write_text(f"# first one is dead\n{dead}\n{swarm.info['peers'][0]}\n")
    found = swarm.client(
        f"""
        runs = []
        for source in ({str(file)!r}, peers, peers[0], info["addresses"]["1a"]):
            with SwarmClient.connect(source) as client:
                runs.append(client.run_id)
                known = client.known_peers
        result(runs=runs, known=known)
        """
    )
    assert found["runs"] == [swarm.info["run_id"]] * 4
    assert set(swarm.info["addresses"]["0a"]) <= set(found["known"])


def test_nobody_there_is_one_line_with_the_reason_of_each_peer(swarm: Any) -> None:
    found = swarm.client(
        """
        me = peers[0].split("/p2p/")
        other = info["addresses"]["0a"][0].split("/p2p/")
        said = []
        for source in ("/ip4/127.0.0.1/tcp/1/p2p/" + me[1], me[0] + "/p2p/" + other[1], []):
            try:
                SwarmClient.connect(source, timeout=5)
            except ClientError as error:
                said.append(str(error))
        try:
            SwarmClient.connect(["/ip4/127.0.0.1/tcp/1"])
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        result(said=said, threads=threading.active_count())
        """
    )
    refused, stranger, empty, malformed = found["said"]
    assert "connection refused" in refused
    assert "another peer lives there" in stranger
    assert "names no peer" in empty
    assert malformed.startswith("AddressError") and "/p2p/PEER" in malformed
    assert found["threads"] == 1


def test_a_process_that_has_imported_hivemind_is_told_why_it_cannot_be_a_client(swarm: Any) -> None:
    found = swarm.client(
        """
        sys.modules["hivemind"] = sys
        try:
            SwarmClient.connect(peers)
        except ClientError as error:
            result(said=str(error), threads=threading.active_count())
        """
    )
    assert "a process of its own" in found["said"]
    assert found["threads"] == 1


def test_forged_records_are_counted_and_nobody_is_dialled_for_them(swarm: Any) -> None:
    swarm.do("boot", how="forge")
    found = swarm.client(
        """
        with SwarmClient.connect(peers) as client:
            text = client.generate("The ", max_bytes=5)
            holders = [holder.peer_id for block in client.holders().values() for holder in block]
            result(holders=holders, refused=client.stats.refused_records, kinds=kinds(client),
                   texts=[event.text for event in client.events])
        """
    )
    assert sorted(found["holders"]) == sorted(swarm.info["holders"].values())
    assert found["refused"] >= 2
    assert set(found["kinds"]) == {"refused"}
    assert any("not signed by its owner" in text or "canonical" in text for text in found["texts"])


def test_a_manifest_that_is_not_the_announced_one_is_refused(swarm: Any) -> None:
    swarm.do("boot", how="lie")
    found = swarm.client(
        """
        try:
            SwarmClient.connect(peers)
        except ManifestError as error:
            result(said=str(error))
        """
    )
    assert "SHA-256 is not the announced" in found["said"] and swarm.info["run_id"] in found["said"]


def test_several_runs_and_none_named_lists_them(new_swarm: Callable[..., Any]) -> None:
    swarm = new_swarm()
    second = swarm.do("boot", how="second-run")["run_id"]
    found = swarm.client(
        """
        try:
            SwarmClient.connect(peers)
        except ClientError as error:
            said = [str(error)]
        try:
            SwarmClient.connect(peers, run="nobody-123")
        except ConnectError as error:
            said.append(str(error))
        with SwarmClient.connect(peers, run=info["run_id"]) as client:
            digest = client.manifest.digest.hex()
        with SwarmClient.connect(peers, run=digest) as client:
            result(said=said, run=client.run_id)
        """
    )
    several, unknown = found["said"]
    assert swarm.info["run_id"] in several and second in several and "run=" in several
    assert "nobody-123" in unknown and second in unknown
    assert found["run"] == swarm.info["run_id"]


def test_a_dead_bootstrap_node_does_not_matter_once_connected(new_swarm: Callable[..., Any], tmp_path: Path) -> None:
    swarm = new_swarm("0a", "1a", "2a")
    found = swarm.client(
        f"""
        cache = {str(tmp_path / "known.json")!r}
        with SwarmClient.connect(peers, cache=cache) as client:
            tell(do="boot", how="kill")
            text = client.generate("The ", max_bytes=10, seed=1)
            holders = {{block: len(found) for block, found in client.holders().items()}}
            known = client.known_peers
        with SwarmClient.connect(known) as client:
            assert client.generate("The ", max_bytes=10, seed=1) == text
        try:
            SwarmClient.connect(peers)
        except ConnectError as error:
            said = str(error)
        with SwarmClient.connect(peers, cache=cache) as client:
            result(said=said, same=client.generate("The ", max_bytes=10, seed=1) == text, holders=holders)
        """
    )
    assert "connection refused" in found["said"]
    assert found["same"]
    assert found["holders"] == {"0": 1, "1": 1, "2": 1}


def test_a_laptop_whose_clock_is_off_by_an_hour_still_sees_the_swarm(swarm: Any) -> None:
    found = swarm.client(
        """
        import time as real
        now = real.time
        real.time = lambda: now() + 3600
        with SwarmClient.connect(peers) as client:
            text = client.generate("The ", max_bytes=5, seed=1)
            result(kinds=kinds(client), texts=[event.text for event in client.events])
        """
    )
    assert "clock" in found["kinds"]
    assert any("off by +3600" in text or "off by +3599" in text for text in found["texts"])
