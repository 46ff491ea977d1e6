"""What ``blockswarm status`` is made of: records and answers, put together and dated."""

from __future__ import annotations

from typing import Any

from blockswarm.swarm.status import RoundReport, agreement, heldout_ce


def report(round_number: int, digest: bytes, ce: float | None = None) -> RoundReport:
    """A report for tests."""
    return RoundReport("peer", round_number, digest, 2, 640, True, False, ce, 1.0)


def test_a_running_swarm_in_numbers(swarm: Any) -> None:
    found = swarm.client(
        """
        tell(do="kill", holder="2b")
        for name in ("0a", "0b", "1a"):
            tell(do="advance", holder=name)
        from blockswarm.swarm.status import collect
        with SwarmClient.connect(peers) as client:
            status = collect(client)
            async def again():
                async with AsyncSwarmClient.connect(peers) as other:
                    return await other.status()
            twin = asyncio.run(again())
        plain = json.loads(json.dumps(status.as_json()))
        same = [block.live for block in twin.blocks] == [block.live for block in status.blocks]
        result(status=plain, complete=status.complete, same=same)
        """
    )
    status = found["status"]
    assert status["run_id"] == swarm.info["run_id"] and status["complete"] and found["same"]
    zero, one, two = status["blocks"]
    assert [len(block["holders"]) for block in (zero, one, two)] == [2, 2, 2]
    assert [block["live"] for block in (zero, one, two)] == [2, 2, 1]
    assert [(state["round"], state["holders"]) for state in zero["states"]] == [(1, 2), (0, 2)]
    assert [(state["round"], state["holders"]) for state in one["states"]] == [(1, 1), (0, 2)]
    assert zero["round"] == 1 and two["round"] == 0
    assert zero["rounds_behind"] == status["round"] - 2
    assert zero["samples_per_second"] == 200.0
    assert zero["agreement"] == 1.0 and zero["heldout_ce"] == 5.0
    assert {line["peer_id"] for line in zero["reports"]} == {swarm.info["holders"][name] for name in ("0a", "0b")}
    silent = [holder for holder in two["holders"] if not holder["rounds"]]
    assert [holder["peer_id"] for holder in silent] == [swarm.info["holders"]["2b"]]
    assert all(len(bytes.fromhex(state["digest"])) == 32 for state in zero["states"])


def test_a_block_without_a_holder_makes_the_swarm_incomplete(swarm: Any) -> None:
    found = swarm.client(
        """
        tell(do="kill", holder="1a"), tell(do="kill", holder="1b")
        with SwarmClient.connect(peers) as client:
            status = client.status()
        result(complete=status.complete, live=[block.live for block in status.blocks])
        """
    )
    assert found == {"complete": False, "live": [2, 0, 2]}


def test_agreement_is_about_the_newest_round_only() -> None:
    assert agreement(()) is None
    reports = (report(5, b"a"), report(5, b"a"), report(5, b"b"), report(4, b"c"))
    assert agreement(reports) == 2 / 3


def test_held_out_figures_of_the_newest_measured_round_are_averaged() -> None:
    assert heldout_ce((report(5, b"a"),)) is None
    assert heldout_ce((report(6, b"a"), report(5, b"a", 2.0), report(5, b"a", 3.0), report(4, b"a", 9.0))) == 2.5
