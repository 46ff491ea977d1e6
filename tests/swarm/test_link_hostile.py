"""A holder that breaks the rules of the transport costs a client little, and the next call works or says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROGUE = Path(__file__).with_name("rogue_peer.py")


def met(how: str) -> dict[str, Any]:
    """What a client made of a rogue that behaves like this; in a process that may load py-libp2p."""
    ended = subprocess.run([sys.executable, str(ROGUE), how], capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_bytes_that_nobody_reads_end_the_connection_not_the_memory() -> None:
    found = met("flood_after_the_answer")
    assert found["said"][0] == {"fine": True}
    # The next call dials again; or, if the flood has not all come yet, it meets it where its answer should be.
    assert found["said"][1] == {"fine": True} or found["said"][1][0] in ("protocol", "unreachable")
    assert found["kilobytes"] < 120_000, "400 MB were sent on a stream that had been answered"


@pytest.mark.parametrize("how", ["greeting_without_end", "babble"])
def test_a_greeting_without_end_is_not_listened_to(how: str) -> None:
    found = met(how)
    assert [code for code, _ in found["said"]] == ["unreachable"] * 2
    assert all("says too much" in text for _, text in found["said"])
    assert found["kilobytes"] < 20_000


def test_ten_thousand_streams_towards_a_client_are_turned_away_while_it_is_answered() -> None:
    found = met("streams_without_end")
    assert found["said"] == [{"fine": True}, {"fine": True}]
    assert found["kilobytes"] < 20_000
