"""The floors of the house, read from the source: who may import whom, and what may be imported where.

model and dht know nothing of each other; swarm stands on both; peer on those; lab (experiments) on model, swarm and
peer; cli on all. Nothing imports upward.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("blockswarm", "model", "dht", "swarm", "peer", "lab", "cli")

MAY_IMPORT = {
    "blockswarm": set(),
    "model": {"foundation"},
    "dht": {"foundation"},
    "swarm": {"foundation", "model", "dht"},
    "peer": {"foundation", "model", "dht", "swarm"},
    "lab": {"foundation", "model", "swarm", "peer"},
    "cli": {"foundation", "model", "dht", "swarm", "peer", "lab"},
}

HIVEMIND_FILES = {"dht/hivemind_parts.py"}
"""The one place that imports hivemind; what the light client uses of dht must never lead there."""
HIVEMIND_USERS = (
    "blockswarm.dht.host",
    "blockswarm.dht.directory",
    "blockswarm.peer.peer",
    "blockswarm.peer.bootstrap",
)
LIBP2P_USERS = (
    "blockswarm.swarm.client",
    "blockswarm.cli.generate",
    "blockswarm.cli.gateway",
    "blockswarm.swarm.gateway.server",
    "blockswarm.cli.evaluate",
    "blockswarm.cli.export",
    "blockswarm.cli.status",
)
LIGHT = ("blockswarm.dht.records", "blockswarm.dht.identity", "blockswarm.swarm", "blockswarm.swarm.manifest",
         "blockswarm.swarm.local_model", "blockswarm.swarm.model_writer", "blockswarm.swarm.evaluation",
         "blockswarm.swarm.simulation.simulator", "blockswarm.swarm.simulation.plan", "blockswarm.cli.simulate",
         "blockswarm.cli.main", "blockswarm.peer.demo", "blockswarm.peer.local")  # fmt: skip
PICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "joblib", "marshal"}
MAX_LINES = 400


def sources(*packages: str) -> list[Path]:
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names a module imports, anywhere in it; ``from a import b`` gives both ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported(path: Path) -> set[str]:
    return set(imports(ast.parse(path.read_text())))


def floors(modules: set[str]) -> set[str]:
    """The floors of this house that the dotted names stand on."""
    ours = {module.split(".")[1] for module in modules if module.startswith("blockswarm.")}
    return {part if part in MAY_IMPORT else "foundation" for part in ours}


def top_levels(path: Path) -> set[str]:
    return {module.split(".")[0] for module in imported(path)}


def test_the_reader_of_imports_sees_every_form() -> None:
    text = "import a.b\nfrom c import d\ndef f():\n    from blockswarm.peer.console import Console\n"
    found = set(imports(ast.parse(text)))
    assert {"a.b", "c", "c.d", "blockswarm.peer.console"} <= found
    assert floors(found) == {"peer"}


@pytest.mark.parametrize("package", [package for package in PACKAGES if package != "blockswarm"])
def test_nothing_imports_upward(package: str) -> None:
    wrong = {
        name(path): up for path in sources(package) if (up := floors(imported(path)) - {package, *MAY_IMPORT[package]})
    }
    assert not wrong


def test_the_foundation_stands_on_nothing() -> None:
    # __main__ is the front door itself: `python -m blockswarm` is the command.
    paths = [path for path in sources("blockswarm") if path.name != "__main__.py"]
    assert not {name(path): up for path in paths if (up := floors(imported(path)) - {"foundation"})}


def test_hivemind_is_imported_only_where_the_host_is() -> None:
    users = {name(path) for path in sources(*PACKAGES) if "hivemind" in top_levels(path)}
    assert users <= HIVEMIND_FILES


def loaded(module: str) -> set[str]:
    """The heavy packages that importing ``module`` loads, in a process of its own."""
    code = f"import sys, {module}\nprint(*({{'torch', 'hivemind', 'libp2p'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", LIGHT)
def test_what_everybody_imports_loads_nothing_heavy(module: str) -> None:
    assert loaded(module) == set()


@pytest.mark.parametrize("module", LIBP2P_USERS)
def test_the_light_client_needs_neither_torch_nor_hivemind(module: str) -> None:
    assert loaded(module) <= {"libp2p"}


@pytest.mark.parametrize("module", HIVEMIND_USERS)
def test_a_peer_never_loads_the_light_clients_stack(module: str) -> None:
    # Both register the same protobuf symbols: one process can hold one of them.
    assert "hivemind" in loaded(module)
    assert "libp2p" not in loaded(module)


def test_libp2p_is_imported_only_by_the_light_clients_link() -> None:
    users = {name(path) for path in sources(*PACKAGES) if "libp2p" in top_levels(path)}
    assert users <= {"swarm/link.py", "swarm/connection.py"}


def test_the_model_knows_no_network() -> None:
    network = {"hivemind", "libp2p", "socket", "asyncio", "trio", "msgpack", "multiaddr"}
    assert not {name(path): up for path in sources("model") if (up := top_levels(path) & network)}


def test_no_pickle_anywhere() -> None:
    assert not [name(path) for path in sources(*PACKAGES, "tests", "benchmarks") if top_levels(path) & PICKLING]


def test_files_can_be_read_in_one_sitting() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in sources(*PACKAGES, "tests", "benchmarks")}
    assert not {path: lines for path, lines in lengths.items() if lines > MAX_LINES}
