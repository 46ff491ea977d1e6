"""A scenario is read strictly: whatever is wrong is named, with its file and field, all at once."""

from pathlib import Path

import pytest

from blockswarm.errors import UsageError
from blockswarm.swarm.simulation.parts import ScenarioError
from blockswarm.swarm.simulation.scenario import (
    BUILT_IN,
    Scenario,
    check_workers,
    read_scenario,
    scenario_from,
)


def test_a_file_may_say_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "night.toml"
    path.write_text(
        "[nat]\nshare = 0.5\n[day]\nstart_hour = 2.0\n[[departures]]\nat = 0.5\nshare = 0.3\n[start]\nshares = [1, 2]\n"
    )
    scenario = scenario_from(str(path))
    assert (scenario.name, scenario.nat.share, scenario.nat.relayed) == ("night", 0.5, Scenario().nat.relayed)
    assert scenario.departures[0].share == 0.3
    assert scenario.start.shares == (1.0, 2.0)


def test_built_in_scenarios_have_names() -> None:
    assert scenario_from("loss") is BUILT_IN["loss"]
    assert {"home", "loss", "partition", "liars", "rush", "lab"} <= set(BUILT_IN)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sesions]\n", "sesions: unknown key (did you mean 'sessions'?)"),
        ("[network]\nup_mbits = 3\n", "network.up_mbits: unknown key (did you mean 'up_mbit'?)"),
        ("[network.up_mbit]\nmedian = -1.0\n", "network.up_mbit.median: must be greater than 0, is -1.0"),
        ("[clients]\nper_peer_hour = -2.0\n", "clients.per_peer_hour: must be greater than or equal to 0, is -2.0"),
        ("[[departures]]\nat = 0.5\nsahre = 0.1\n", "departures.0.sahre: unknown key (did you mean 'share'?)"),
        ("[start]\nshares = [1.0, 0.0]\n", "start.shares.1: must be greater than 0, is 0.0"),
        ("[liars]\nkind = 'loud'\n", "liars.kind: must be 'long', 'nan', 'samples' or 'silent', is 'loud'"),
        ("[liars]\nshare = nan\n", "liars.share"),
        ("[liars\n", "not valid TOML"),
        ("\xff", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_field(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ScenarioError) as refused:
        scenario_from(str(path))
    assert str(refused.value).startswith(f"{path}: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, UsageError)


def test_a_missing_file_names_the_built_in_ones() -> None:
    with pytest.raises(ScenarioError, match=r"nowhere.toml: No such file .* one of home, loss"):
        scenario_from("nowhere.toml")


@pytest.mark.parametrize(
    ("peers", "said"),
    [(3, "volunteers.1.block: 7 for a model of 3 blocks"), (1, "volunteers: 2 are described, but there are 1 peers")],
)
def test_a_volunteer_without_a_place_is_refused(peers: int, said: str) -> None:
    scenario = read_scenario({"volunteers": [{"block": 0}, {"block": 7}]})
    with pytest.raises(ScenarioError, match=f"mine.toml: {said}"):
        check_workers(scenario, peers=peers, blocks=3, source="mine.toml")


@pytest.mark.parametrize(
    ("peers", "shares", "said"),
    [
        (2, None, "peers: 2 for a model of 3 blocks; block 2 has no worker"),
        (9, (1.0, 1.0), "start.shares: 2 shares for a model of 3 blocks; block 2 has no worker"),
        (9, (1.0, 1.0, 1.0, 1.0), "start.shares: 4 shares for a model of 3 blocks"),
        (9, (100.0, 1.0, 100.0), "start.shares: of 9 peers block 1 has no worker"),
    ],
)
def test_a_block_without_workers_is_refused(peers: int, shares: tuple[float, ...] | None, said: str) -> None:
    scenario = read_scenario({"start": {"shares": list(shares)}} if shares else {})
    with pytest.raises(ScenarioError, match=f"mine.toml: {said}"):
        check_workers(scenario, peers=peers, blocks=3, source="mine.toml")


def test_two_volunteers_are_not_one_peer() -> None:
    one = {"peer_id": "12D3KooWabcdefghijk"}
    scenario = read_scenario({"volunteers": [one, {}, one]})
    with pytest.raises(ScenarioError, match=r"volunteers\.2\.peer_id: is that of volunteers\.0 as well"):
        check_workers(scenario, peers=3, blocks=3, source="mine.toml")
