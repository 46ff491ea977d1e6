"""docs/simulator.md explains every column, and its example of a regime can be read."""

from __future__ import annotations

import re
from pathlib import Path

from blockswarm.lab.learning.regime import regime_from
from blockswarm.lab.learning.results import Row

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "simulator.md").read_text()


def test_every_column_is_explained() -> None:
    own = {"regime", "policy", "seed", "seconds", "curve"}
    assert [name for name in Row.__dataclass_fields__ if name not in own and f"`{name}`" not in PAGE] == []


def test_the_example_of_a_regime_is_one(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    path = tmp_path / "example.toml"
    path.write_text(example[1])
    assert regime_from(str(path)).workers == (2, 1, 1)
