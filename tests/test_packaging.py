"""What others get when they install blockswarm: one package under its own name, and a command."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("model", "dht", "swarm", "peer", "lab", "cli")


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files in the wheel, built from a copy so that no build leftovers land in the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            target = folder / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*command, "--wheel-dir", folder, folder / "source"], check=True, timeout=100)
    (wheel,) = folder.glob("blockswarm-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_installs_only_blockswarm_and_its_metadata(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top.partition("-")[0] for top in tops} == {"blockswarm"}
    assert all(top == "blockswarm" or top.endswith(".dist-info") for top in tops)
    assert not [name for name in wheel_names if "test" in name]


def test_the_wheel_holds_every_module(wheel_names: list[str]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--", "*.py"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split()
    expected = {f"blockswarm/{name}" for name in tracked if name.split("/")[0] in PACKAGES}
    expected |= {name for name in tracked if name.startswith("blockswarm/")}
    data = subprocess.run(["git", "ls-files", "--", "lab/*.toml"], cwd=ROOT, capture_output=True, check=True, text=True)
    expected |= {f"blockswarm/{name}" for name in data.stdout.split()}
    assert expected <= set(wheel_names)
    assert "blockswarm/py.typed" in wheel_names


def test_the_wheel_brings_the_command(wheel_names: list[str]) -> None:
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel_names)


def test_every_dependency_is_pinned_for_our_own_environment() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {
        line.split("==")[0].strip().lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert not [need for need in wanted if need.split(">=")[0].lower() not in pins]


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs" / "dependencies.md").read_text()
    extras = [need for group in project["optional-dependencies"].values() for need in group]
    assert not [need for need in [*project["dependencies"], *extras] if f"`{need.split('>=')[0]}`" not in text]
