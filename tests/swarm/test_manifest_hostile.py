"""A manifest from somebody who means no good: refused in one short line, in little memory and time."""

from __future__ import annotations

import re
import time
import tracemalloc
from typing import Any

import msgpack
import pytest

from blockswarm.model.config import ModelConfig
from blockswarm.swarm.errors import ManifestError
from blockswarm.swarm.manifest import Manifest, create_manifest

MANIFEST = create_manifest(
    name="demo", now=0.0, size=ModelConfig(dim=8, blocks=2, layers=1, heads=2, context=8), round_seconds=20.0
)


def with_raw(key: str, value: bytes) -> bytes:
    """The canonical bytes with other bytes in place of one value."""
    mapping = MANIFEST.to_mapping()
    fields = ((name, value if name == key else msgpack.packb(mapping[name])) for name in sorted(mapping))
    return bytes([0x80 | len(mapping)]) + b"".join(msgpack.packb(name) + packed for name, packed in fields)


@pytest.mark.parametrize("key", ["name", "seed", "model", "genesis"])
@pytest.mark.parametrize("depth", [20, 1000, 60_000])
def test_lists_in_lists_are_refused_however_deep(key: str, depth: int) -> None:
    with pytest.raises(ManifestError, match="not the bytes of a manifest"):
        Manifest.from_canonical(with_raw(key, b"\x91" * depth + b"\xc0"))


@pytest.mark.parametrize(
    "line", ["a" + ".a" * 30_000 + " = 1", "[a" + ".a" * 30_000 + "]", "a = {b" + ".b" * 30_000 + " = 1}"]
)
def test_a_key_of_thousands_of_parts_is_refused_before_it_is_read(line: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ManifestError, match="full of dots"):
            Manifest.from_toml(MANIFEST.to_toml() + line)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", ["0x" + "f" * 5000, "9" * 4000, "9" * 5000, "-0x0" + "1" * 9000])
@pytest.mark.parametrize("field", ["protocol = 1", "seed = 7", "dim = 16", "batch = 8", "group_size = 16"])
def test_a_number_of_thousands_of_digits_is_refused_in_one_short_line(field: str, value: str) -> None:
    text = MANIFEST.to_toml()
    name = field.split()[0]
    edited_text = re.sub(rf"(?m)^{name} = \S+", f"{name} = {value}", text)
    assert edited_text != text
    with pytest.raises(ManifestError) as caught:
        Manifest.from_toml(edited_text)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({f"{n:04x}": 0 for n in range(9000)}, id="unknown sections"),
        pytest.param({"model": {f"{n:04x}": 0 for n in range(9000)}}, id="unknown keys"),
        pytest.param({"genesis": {"embedding": "0" * 64, "blocks": ["x"] * 20_000}}, id="blocks without end"),
        pytest.param({"genesis": {"embedding": "0" * 64, "blocks": [0] * 49_000}}, id="blocks of the wrong kind"),
        pytest.param({"k" * 60_000: 0}, id="a long key"),
    ],
)
def test_a_manifest_full_of_problems_costs_little_and_tells_a_few(changes: dict[str, Any]) -> None:
    data = msgpack.packb(MANIFEST.to_mapping() | changes)
    began = time.process_time()
    with pytest.raises(ManifestError) as caught:
        Manifest.from_canonical(data)
    assert time.process_time() - began < 2.0  # 12 s when all of them were told
    assert len(str(caught.value)) < 5000


def test_what_a_stranger_calls_a_key_reaches_no_terminal() -> None:
    for changes in ({"\x1b[2J": 0}, {"model": MANIFEST.model.to_mapping() | {"\x1b[2J": 0}}):
        with pytest.raises(ManifestError) as caught:
            Manifest.from_canonical(msgpack.packb(MANIFEST.to_mapping() | changes))
        assert str(caught.value).isprintable()
