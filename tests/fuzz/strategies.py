"""Inputs for targets as Hypothesis strategies, and a list of those that are meant to hurt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from blockswarm.dht.packing import PackingError, pack, unpack
from tests.fuzz.target import MIB, Target
from tests.fuzz.tokens import TOKENS


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """A good input with a few changes: bytes replaced, pieces cut out, repeated, or put in from `TOKENS`."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, min(16, len(data) - place)))
        piece = data[place : place + size]
        new = draw(
            st.sampled_from(TOKENS) | st.binary(max_size=4) | st.just(b"") | st.sampled_from([piece * 2, piece * 9])
        )
        data = data[:place] + new + data[place + size :]
        if draw(st.integers(0, 9)) == 0:
            data = data[: draw(st.integers(0, len(data)))]
    return data


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([-1, 0, 1, 2**31, 2**53, 2**63, 2**64 - 1])
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from([b"d" * 32, bytes(64), "12D3KooWGRUZNiRz5ZbmKM6qPUbCBM46jCf7Jyd3RTcDpwmWqBTX", "\x1b[2J", "nan"])
)


def typed(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Where inputs are msgpack: those of the seeds' keys, holding anything; the byte before them, if any, stays."""
    keys, prefixes = {"x"}, {b""}
    for seed in seeds:
        for prefix in (b"", seed[:1]):
            try:
                value = unpack(seed[len(prefix) :], max_bytes=MIB)
            except PackingError:
                continue
            keys |= set(_keys(value))
            prefixes.add(prefix)
    values = st.recursive(
        _scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(sorted(keys)), inner, max_size=6),
        max_leaves=12,
    )
    return st.tuples(st.sampled_from(sorted(prefixes)), values).map(lambda parts: parts[0] + pack(parts[1]))


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(inner)


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    """Everything that is tried on a target."""
    seeds = target.seeds()
    return st.binary(max_size=200) | mutated(seeds) | mutated(seeds) | typed(seeds)


def hostile(target: Target) -> Iterator[tuple[str, bytes]]:
    """Inputs that announce, nest or repeat as much as fits; alone, and in the middle of good ones."""
    size = target.longest
    floods = {
        "lists in lists": b"\x91" * size,
        "long lists in lists": b"\xdd\x00\x00\xc3\x50" * 1020 + b"\xc0" * (size - 5100),
        "maps in maps": b"\x81\xa1a" * (size // 3),
        "long maps in maps": b"\xdf\x00\x00\xc3\x50\xa1a" * 1020 + b"\xc0" * (size - 7140),
        "empty maps": (b"\xdc\xff\xff" + b"\x80" * 0xFFFF) * (size // 0x10002),
        "empty lists": b"\xdd" + (size - 5).to_bytes(4, "big") + b"\x90" * (size - 5),
        "small numbers": b"\xdd" + (size - 5).to_bytes(4, "big") + bytes(size - 5),
        "one long text": b"\xdb" + (size - 5).to_bytes(4, "big") + b"a" * (size - 5),
        "one long text of controls": b"\xdb" + (size - 5).to_bytes(4, "big") + b"\x1b" * (size - 5),
        "a text that ends too soon": b"\xdb\xff\xff\xff\xff" + b"a" * 100,
        "the same key again and again": b"\xde\x4e\x20" + b"\xa1a\xc0" * 20_000,
        "zeros": bytes(size),
        "ones": b"\xff" * size,
        "newlines": b"\n" * size,
        "short lines": b"x\n" * (size // 2),
        "dots": b"a" + b".a" * (size // 2 - 1),
        "brackets": b"[" * size,
        "braces": b'{"a":' * (size // 5),
        "digits": b"a=" + b"9" * (size - 2),
        "hexadecimal digits": b"a=0x" + b"f" * (size - 4),
        "quotes": b'"' * size,
        "slashes": b"/" * size,
    }
    seeds = target.seeds()
    longest = max(seeds, key=len)
    for name, flood in floods.items():
        yield name, flood[:size]
        yield f"{name}, after a good beginning", (longest[: len(longest) // 2] + flood)[:size]
        yield f"{name}, after a good one", (longest + flood)[:size]
    for number, seed in enumerate(seeds):
        yield f"seed {number}, again and again", (seed * (1 + size // max(1, len(seed))))[:size]
        for token in TOKENS:
            yield f"seed {number} with {token!r}", seed[: len(seed) // 2] + token + seed[len(seed) // 2 :]
