"""What cannot work is refused with one line that says what, where and what to do; nothing is lost or left behind."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from blockswarm.dht.identity import Identity
from blockswarm.peer.local import LocalSwarm
from blockswarm.swarm.manifest import create_manifest
from tests.integration.commands import PROGRAM, Ended, run_command
from tests.integration.small import PATIENCE, next_round, small_model, wait_until

pytestmark = pytest.mark.integration

MANIFEST = create_manifest(name="refusals", size=small_model(2), round_seconds=6.0, now=time.time()).to_toml()
JOIN = ("join", "--manifest", "swarm.toml", "--peers-file", "nobody.txt", "--listen", "/ip4/127.0.0.1/tcp/0")
"""A volunteer that has all it needs, and nobody to talk to."""

MEET = ("join", "--peers-file", "{peers}", "--listen", "/ip4/127.0.0.1/tcp/0")
"""A volunteer of a swarm that runs."""

ODD = str(Path(__file__).with_name("odd_machine.py"))
"""The program on a machine with something wrong; see there."""

Prepare = Callable[[Path, LocalSwarm], object]

USAGE, FAILED = 2, 1
"""Exit codes: the command line, or an input file that it names, is wrong; or anything else is."""


@dataclass(frozen=True)
class Refusal:
    """A command line that must be refused.

    ``{peers}``, ``{address}`` and ``{port}`` in it stand for a running swarm's peers file, and for where its bootstrap
    node listens; ``{volunteer}`` for the state folder of its volunteer.
    """

    command: tuple[str, ...]
    says: tuple[str, ...]
    """What the line must contain; the same names stand for the same things."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files in its folder, besides those that ``JOIN`` names."""
    prepare: Prepare = lambda folder, swarm: None
    program: tuple[str, ...] = PROGRAM
    code: int = USAGE


def key(data: bytes, mode: int) -> Prepare:
    """Puts an identity file into the folder."""

    def prepare(folder: Path, swarm: LocalSwarm) -> None:
        (folder / "my.key").write_bytes(data)
        (folder / "my.key").chmod(mode)

    return prepare


def copy_of_the_volunteers_identity(folder: Path, swarm: LocalSwarm) -> None:
    """As if somebody ran the same peer on a second machine."""
    shutil.copy(swarm.folder / "volunteer-1" / "identity.key", folder / "my.key")


BAD_PEERS = """# our bootstrap nodes
/ip4/1.2.3.4/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN
/ip4/1.2.3.4/tcp/4001
/ip4/1.2.3.4/tcp/70000/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN  # the old one

bootstrap.example.org:4001
"""

REFUSALS = {
    "a manifest that is not TOML": Refusal(
        ("bootstrap", "--manifest", "broken.toml"),
        ("broken.toml: ", "not valid TOML", "at line "),
        {"broken.toml": MANIFEST.replace("[model]", "[model")},
    ),
    "a manifest with an unknown key": Refusal(
        (*JOIN, "--manifest", "typo.toml"),
        ("typo.toml: ", "rounds.secnods", "unknown key", "did you mean 'seconds'"),
        {"typo.toml": MANIFEST.replace("[rounds]", "[rounds]\nsecnods = 5")},
    ),
    "a manifest that was changed after its making": Refusal(
        (*JOIN, "--manifest", "changed.toml", "--block", "0"),
        ("genesis of block 0", "the manifest was edited"),
        {"changed.toml": MANIFEST.replace("seed = 0", "seed = 1")},
        code=FAILED,
    ),
    "no manifest": Refusal(("bootstrap",), ("swarm.toml", "cannot read the manifest", "blockswarm init")),
    "another run than the manifest's": Refusal((*JOIN, "--run", "other-123456789abc"), ("--run", "other-123456789abc")),
    "several bad lines in a peers file": Refusal(
        ("join", "--peers-file", "peers.txt"),
        ("peers.txt:3:", "peers.txt:4:", "peers.txt:6:"),
        {"peers.txt": BAD_PEERS},
    ),
    "a client with a bad peers file": Refusal(
        ("generate", "The ", "--peers-file", "peers.txt"),
        ("peers.txt:3:", "peers.txt:4:", "peers.txt:6:"),
        {"peers.txt": BAD_PEERS},
    ),
    "no peers file": Refusal(("join",), ("bootstrap_peers.txt", "does not exist")),
    "nobody to ask for a manifest": Refusal(
        ("join", "--peers-file", "nobody.txt", "--listen", "/ip4/127.0.0.1/tcp/0"),
        ("nobody.txt names no peer", "blockswarm bootstrap", "--peer"),
    ),
    "data that is not there": Refusal((*JOIN, "--data", "missing.txt"), ("missing.txt", "no such file", "--data")),
    "data shorter than one sequence": Refusal(
        (*JOIN, "--data", "short.txt"), ("short.txt", "20 bytes", "context of 32"), {"short.txt": "x" * 20}
    ),
    "data that is not there, before anybody is asked for a manifest": Refusal(
        ("join", "--peers-file", "stranger.txt", "--data", "missing.txt"),
        ("missing.txt", "no such file"),
        {"stranger.txt": BAD_PEERS.splitlines()[1]},
    ),
    "a device that is not there": Refusal(
        (*MEET, "--device", "cuda:7"), ("--device 'cuda:7' cannot be used", "try --device cpu")
    ),
    "an unknown option": Refusal(("join", "--nonsense"), ("no such option", "see `blockswarm join --help`")),
    "a client with a peers file that names nobody": Refusal(
        ("status", "--peers-file", "nobody.txt"), ("nobody.txt names no peer yet", "blockswarm bootstrap", "--peer")
    ),
    "port 0 announced": Refusal((*JOIN, "--announce", "/ip4/192.0.2.1/tcp/0"), ("--announce", "port 0")),
    "no such port to listen on": Refusal((*JOIN, "--listen", "/ip4/127.0.0.1/tcp/70000"), ("--listen", "70000")),
    "a state folder below a file": Refusal(
        (*JOIN, "--state-dir", "file/state"), ("file/state", "cannot write", "--state-dir"), {"file": ""}, code=FAILED
    ),
    "a state folder nobody can make": Refusal(
        (*JOIN, "--state-dir", "/proc/blockswarm"), ("/proc/blockswarm", "cannot write", "--state-dir"), code=FAILED
    ),
    "a block beyond the model": Refusal((*JOIN, "--block", "2"), ("--block 2", "blocks 0 to 1")),
    "a negative block": Refusal((*JOIN, "--block=-1"), ("--block -1", "from 0")),
    "an identity file others can read": Refusal(
        (*JOIN, "--identity", "my.key"),
        ("my.key", "open to others", "0644", "chmod 600"),
        prepare=key(Identity.ephemeral().to_bytes(), 0o644),
        code=FAILED,
    ),
    "an identity file of something else": Refusal(
        (*JOIN, "--identity", "my.key"),
        ("my.key", "not a libp2p private key"),
        prepare=key(b"\x7fELF" * 17, 0o600),
        code=FAILED,
    ),
    "a truncated identity file": Refusal(
        (*JOIN, "--identity", "my.key"),
        ("my.key", "damaged", "40 bytes instead of 68"),
        prepare=key(Identity.ephemeral().to_bytes()[:40], 0o600),
        code=FAILED,
    ),
    "an event log that cannot be written": Refusal(
        (*JOIN, "--json-log", "no/log"), ("--json-log no/log", "cannot write"), code=FAILED
    ),
    "a model that does not fit into memory": Refusal(
        (*JOIN, "--block", "0"),
        ("one block of refusals-", "MB", "of memory are free"),
        program=(ODD, "little-memory"),
        code=FAILED,
    ),
    "a swarm nobody answers for": Refusal(
        ("status", "--peer", "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"),
        ("127.0.0.1:1: connection refused",),
        code=FAILED,
    ),
    "a port that is taken": Refusal(
        (*JOIN, "--listen", "{address}"), ("--listen {address}", "port {port} is already in use"), code=FAILED
    ),
    "a port that is taken, for a bootstrap node": Refusal(
        ("bootstrap", "--manifest", "swarm.toml", "--listen", "{address}"),
        ("--listen {address}", "port {port} is already in use"),
        code=FAILED,
    ),
    "a run the peers do not know": Refusal(
        (*MEET, "--run", "other-123456789abc"), ("--run other-123456789abc", "know only", "small-"), code=FAILED
    ),
    "a client of a run the peers do not know": Refusal(
        ("status", "--peers-file", "{peers}", "--run", "other-123456789abc"),
        ("other-123456789abc", "small-"),
        code=FAILED,
    ),
    "a clock that is minutes ahead": Refusal(
        MEET, ("this machine's clock is", "s ahead of the swarm's", "NTP"), program=(ODD, "fast-clock"), code=FAILED
    ),
    "an identity that runs already": Refusal(
        (*MEET, "--identity", "{volunteer}/identity.key"),
        ("already running on this machine", "identity.key is in use"),
        code=FAILED,
    ),
    "an identity that runs already elsewhere": Refusal(
        (*MEET, "--identity", "my.key"),
        ("already running elsewhere",),
        prepare=copy_of_the_volunteers_identity,
        code=FAILED,
    ),
    "a state folder that another peer uses": Refusal(
        (*MEET, "--state-dir", "{volunteer}"),
        ("another running peer uses this state folder", "--state-dir"),
        code=FAILED,
    ),
    "a client that measures on a missing file": Refusal(
        ("evaluate", "--peers-file", "{peers}", "--data", "missing.txt"), ("missing.txt", "no such file")
    ),
}


@dataclass(frozen=True)
class Outcome:
    """How a command of `REFUSALS` ended."""

    ended: Ended
    says: tuple[str, ...]
    before: dict[Path, bytes]
    """Files it found, with their content."""


Outcomes = Mapping[str, "Future[Outcome]"]


@pytest.fixture(scope="module")
def swarm(start_swarm: Callable[..., LocalSwarm]) -> LocalSwarm:
    """A bootstrap node and a volunteer."""
    swarm = start_swarm()
    swarm.start_volunteer(0)
    return swarm


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, swarm: LocalSwarm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    """All command lines that tests ask for, run beside each other."""
    asked = [name for name in REFUSALS if any(f"[{name}]" in item.name for item in request.session.items)]
    (volunteer,) = swarm.volunteers()
    volunteer.wait_event("ready", timeout=PATIENCE)
    address = swarm.nodes[0].wait_event("ready", timeout=PATIENCE)["addrs"][0].partition("/p2p/")[0]
    names = {
        "peers": swarm.peers_file,
        "address": address,
        "port": address.rpartition("/")[2],
        "volunteer": swarm.folder / volunteer.name,
    }

    def run(name: str) -> Outcome:
        folder, case = tmp_path_factory.mktemp("refused"), REFUSALS[name]
        contents = {"nobody.txt": "# nobody\n", **case.files}
        if "swarm.toml" in case.command:
            contents["swarm.toml"] = MANIFEST
        for file, text in contents.items():
            (folder / file).write_text(text)
        case.prepare(folder, swarm)
        before = {path: path.read_bytes() for path in folder.iterdir()}
        command = [word.format(**names) for word in case.command]
        ended = run_command(folder, *command, program=case.program)
        return Outcome(ended, tuple(words.format(**names) for words in case.says), before)

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        yield {name: workers.submit(run, name) for name in asked}


@pytest.mark.timeout(900)  # the first one waits for its turn like all others
@pytest.mark.parametrize("name", REFUSALS)
def test_refused_in_one_line(name: str, outcomes: Outcomes) -> None:
    outcome = outcomes[name].result()
    line = outcome.ended.refusal(REFUSALS[name].code)
    for words in outcome.says:
        assert words in line
    assert {path: path.read_bytes() for path in outcome.before} == outcome.before


@pytest.mark.timeout(300)
def test_nobody_who_was_refused_disturbed_the_swarm(swarm: LocalSwarm, outcomes: Outcomes) -> None:
    for outcome in outcomes.values():
        outcome.result()
    (volunteer,) = swarm.volunteers()
    after = next_round(swarm)
    wait_until(
        lambda: volunteer.find("round", lambda event: event["round"] >= after and event["committed"]),
        "round committed after all refusals",
        nodes=swarm.nodes,
    )
