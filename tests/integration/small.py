"""Small swarms of real processes, and what their logs say. Used by all tests of this folder.

Blocks are tiny and replicas make a fixed number of steps a round, so that several fit on two busy cores: what is
tested here is what they agree on. All waiting is for events; the only clock is the swarm's own, and it goes slower
where the machine is busy with other things.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockswarm.files import write_atomically
from blockswarm.model.config import ModelConfig
from blockswarm.peer.local import LOOPBACK, LocalSwarm
from blockswarm.peer.node import POLL_SECONDS, Launch, Node
from blockswarm.peer.wording import Event
from blockswarm.swarm.manifest import EMBEDDING, create_manifest
from blockswarm.swarm.policy.phases import RoundTimes, next_round_to_join, times_of
from tests.pace import slowness

FAULTY = (str(Path(__file__).with_name("faulty.py")),)
"""The program of volunteers that can be told to fail; see there."""

PATIENCE = 150.0
"""Seconds any single event may take to come on a machine that is busy with other things."""

ROUND_SECONDS = 5.0
PHASES = {"meet": 1.0, "scatter": 0.5, "decide": 0.5, "gather": 0.5, "commit": 0.8}
"""Rhythm on an idle machine. Who asks for a certificate after a failed round is back in time for the next one."""

SLOWEST = 4.0
"""Rounds are at most this many times longer than on an idle machine."""


def small_model(blocks: int = 1) -> ModelConfig:
    """A transformer of some ten thousand parameters a block."""
    return ModelConfig(kind="transformer", dim=32, blocks=blocks, layers=1, heads=2, context=32)


def small_swarm(
    folder: Path,
    *,
    blocks: int = 1,
    starts_in: float = 0.0,
    slower: float = 1.0,
    listen: str = LOOPBACK,
    launch: Launch = subprocess.Popen,
    **choices: Any,
) -> LocalSwarm:
    """A swarm with its bootstrap node running.

    Parameters
    ----------
    folder : Path
        Working folder.
    blocks : int
        Blocks of the model.
    starts_in : float
        Rounds until the first one begins.
    slower : float
        How many times longer than usual rounds are, for networks with delays.
    listen, launch
        Of the bootstrap node, see `LocalSwarm.start_bootstrap`.
    **choices
        For the manifest.
    """
    # On an idle machine the phases are ten times longer than what happens in them: some of that is to spare.
    pace = slower * min(SLOWEST, max(1.0, slowness() / 2.5))
    lengths = {phase: round(pace * seconds, 3) for phase, seconds in PHASES.items()}
    seconds = round(pace * ROUND_SECONDS, 3)
    choices = {"round_seconds": seconds, "phases": lengths, "local_steps": 4, "seed": 1, **choices}
    now = time.time() + starts_in * seconds
    manifest = create_manifest(name="small", now=now, size=small_model(blocks), **choices)
    swarm = LocalSwarm(folder=folder, manifest=manifest, seed=1)
    try:
        swarm.start_bootstrap(wait=PATIENCE, listen=listen, launch=launch)
    except BaseException:
        swarm.close()
        raise
    return swarm


def round_times(swarm: LocalSwarm, number: int) -> RoundTimes:
    """The moments of a round."""
    rounds = swarm.manifest.rounds
    return times_of(number, swarm.manifest.genesis_time, rounds.seconds, rounds.lengths)


def next_round_after(swarm: LocalSwarm, moment: float) -> int:
    """The first round that is still training at ``moment``, in Unix seconds."""
    rounds = swarm.manifest.rounds
    return next_round_to_join(moment, swarm.manifest.genesis_time, rounds.seconds, rounds.lengths)


def next_round(swarm: LocalSwarm) -> int:
    """The first round that will still be training in half a second: what is done now is done in time for it."""
    return next_round_after(swarm, time.time() + 0.5)


def peer_id(node: Node) -> str:
    """Its peer id; waits until it is ready."""
    return str(node.wait_event("ready", timeout=PATIENCE)["peer_id"])


def peer_ids(nodes: Iterable[Node]) -> list[str]:
    """Sorted peer ids."""
    return sorted(peer_id(node) for node in nodes)


def round_of(node: Node, number: int, subject: int = 0) -> Event:
    """What a volunteer reports of a round; waits for it."""
    return node.wait_event(
        "round", lambda event: (event["round"], event["subject"]) == (number, subject), timeout=PATIENCE
    )


def rounds_of(nodes: Iterable[Node], number: int, subject: int = 0) -> list[Event]:
    """What several volunteers report of the same round."""
    return [round_of(node, number, subject) for node in nodes]


def wait_until(condition: Callable[[], Any], what: str, *, nodes: Sequence[Node] = ()) -> Any:
    """The first true value of ``condition``; fails with the story of ``nodes`` when it takes too long."""
    deadline = time.monotonic() + PATIENCE
    while True:
        for node in nodes:
            assert node.running, f"{node.name} ended before {what}: {node.last_words()}\n{story(nodes)}"
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"no {what} within {PATIENCE:g} s\n{story(nodes)}"
        time.sleep(POLL_SECONDS)


def wait_together(nodes: Sequence[Node], *, after: int = 0) -> int:
    """The first round past ``after`` that all ``nodes``, and nobody else, committed in one group, for every subject."""
    ids = peer_ids(nodes)

    def common() -> int | None:
        for node in nodes:
            node.poll()
        rounds = sorted({event["round"] for event in _reports(nodes[0]) if event["round"] > after})
        return next((number for number in rounds if _is_together(nodes, ids, number)), None)

    return int(wait_until(common, "round of all together", nodes=nodes))


def _is_together(nodes: Sequence[Node], ids: list[str], number: int) -> bool:
    for subject in (0, EMBEDDING):
        events = [event for node in nodes for event in _reports(node, number, subject)]
        if len(events) != len(nodes) or len({event["digest"] for event in events}) != 1:
            return False
        if not all(event["committed"] and sorted(event["members"]) == ids for event in events):
            return False
    return True


def _reports(node: Node, number: int | None = None, subject: int | None = None) -> list[Event]:
    rounds = [event for event in node.events if event["event"] == "round"]
    return [event for event in rounds if number in (None, event["round"]) and subject in (None, event["subject"])]


def committed_digests(nodes: Iterable[Node]) -> dict[tuple[int, int], set[str]]:
    """(subject, round) → the digests that any of ``nodes`` reports as committed; more than one would be a fork."""
    found: dict[tuple[int, int], set[str]] = {}
    for node in nodes:
        node.poll()
        for event in _reports(node):
            if event["committed"]:
                found.setdefault((event["subject"], event["round"]), set()).add(event["digest"])
    return found


def story(nodes: Iterable[Node]) -> str:
    """What the volunteers reported, one line an event, for messages of failed tests."""
    lines = []
    for node in nodes:
        node.poll()
        for event in node.events:
            name = event["event"]
            if name == "round":
                words = f"{event['round']}/{event['subject']} " + (
                    f"{'lone ' if event['lone'] else ''}{event['digest'][:8]}"
                    if event["committed"]
                    else f"not committed: {event.get('reason')}"
                )
                words += f" of {len(event['members'])}, rejected {event['rejected']}, problems {event['problems']}"
            elif name == "phase":
                words = f"{event['round']} {event['phase']}"
            else:
                words = str({key: value for key, value in event.items() if key not in ("event", "time")})
            lines.append(f"{event['time']:.2f} {node.name} {name} {words[:400]}")
    return "\n".join(sorted(lines))


def arm(swarm: LocalSwarm, fault: str, place: int, *, at: str = "") -> int:
    """Let the volunteer in a place of the next round's list have a fault (see ``faulty.py``); the round's number."""
    number = next_round(swarm)
    words = json.dumps({"round": number, "place": place, "fault": fault, "at": at})
    write_atomically(swarm.folder / "fault.json", words.encode())
    return number


@dataclass
class Replicas:
    """A swarm of one block, and those of its volunteers that should be running."""

    swarm: LocalSwarm
    nodes: list[Node] = field(default_factory=list)
    asleep: tuple[Node, int] | None = None
    """A volunteer that is stopped, and the round it was stopped in."""

    def start(self, count: int) -> None:
        """Start newcomers that can be told to fail; returns at once."""
        self.nodes += [self.swarm.start_volunteer(0, program=FAULTY) for _ in range(count)]

    def stop(self, *leaving: Node) -> None:
        """Let some leave as after Ctrl-C, at the same time, once they are up."""
        peer_ids(leaving)
        for node in leaving:
            node.kill(signal.SIGINT)
        for node in leaving:
            assert node.wait_ended(PATIENCE) == 0, story([node])
            self.nodes.remove(node)

    def bring(self, count: int) -> list[Node]:
        """Exactly ``count`` replicas that have committed together: newcomers are started, surplus ones leave."""
        self.nodes = [node for node in self.nodes if node.running]
        self.start(count - len(self.nodes))
        self.stop(*self.nodes[count:])
        wait_together(self.nodes)
        return list(self.nodes)

    def check_one_line(self) -> None:
        """Whatever happened: no two volunteers, dead ones included, ever committed different states of one round."""
        volunteers = self.swarm.volunteers()
        forks = {where: digests for where, digests in committed_digests(volunteers).items() if len(digests) > 1}
        told = [
            f"{node.name} committed {event['round']}/{event['subject']} {event['digest'][:8]} on {event['parent'][:8]} "
            f"with {len(event['members'])}"
            for node in volunteers
            for event in _reports(node)
            if event["committed"] and (event["subject"], event["round"]) in forks
        ]
        assert not forks, f"forks: {'; '.join(sorted(set(told)))}\n{story(volunteers)}"
