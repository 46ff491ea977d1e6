"""The codecs by name."""

from __future__ import annotations

from typing import Literal

import numpy as np

from blockswarm.swarm.codec.base import Codec, CodecError, Float32
from blockswarm.swarm.codec.blocks import Int4Codec, Int8Codec
from blockswarm.swarm.codec.plain import PlainCodec
from blockswarm.swarm.codec.sparse import SignCodec, TopCodec
from blockswarm.swarm.codec.transform import CosineCodec

Compression = Literal[
    "none",
    "fp16",
    "int8",
    "int4",
    "experimental-sign",
    "experimental-top10",
    "experimental-top1",
    "experimental-dct",
]
"""Every codec; `FOR_RUNS` are those that a manifest may name."""

_CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        PlainCodec("none", "<f4"),
        PlainCodec("fp16", "<f2"),
        Int8Codec(),
        Int4Codec(),
        SignCodec(),
        TopCodec(10),
        TopCodec(1),
        CosineCodec(),
    )
}

NAMES = tuple(_CODECS)
FOR_RUNS = tuple(name for name, codec in _CODECS.items() if codec.exact)
"""Codecs that decode to the same bits everywhere, as the members of a run must: they vote on digests."""


def _codec(name: str) -> Codec:
    codec = _CODECS.get(name)
    if codec is None:
        raise CodecError(f"no codec named {name[:40]!r}; there are {', '.join(NAMES)}")
    return codec


def norm_growth(name: str) -> float:
    """How many times longer (in squared norm) a vector of normal float16 values can be after encoding, at most."""
    return _codec(name).growth


def is_lossless(name: str) -> bool:
    """Whether nothing is lost by encoding."""
    return _codec(name).lossless


def encoded_size(count: int, name: str) -> int:
    """Bytes that ``count`` values take, exactly; known before a byte is made or read."""
    return _codec(name).size(count)


def encode(values: Float32, name: str) -> bytes:
    """A float32 vector as bytes.

    Values that are not finite give bytes that `decode` refuses, or decodes to values that are not finite; so a bad
    update is found, and its sender named, by everyone who receives it.

    Raises
    ------
    CodecError
        For an unknown codec, or something that is no float32 vector.
    """
    codec = _codec(name)
    if values.dtype != np.float32 or values.ndim != 1:
        raise CodecError(f"only float32 vectors are encoded, not {values.dtype} of {values.ndim} dimensions")
    return codec.encode(np.ascontiguousarray(values))


def decode(data: bytes | bytearray | memoryview, count: int, name: str) -> Float32:
    """The ``count`` values that ``data`` means, the same bits on every machine.

    A float32 vector, new or lying where ``data`` lies: to be read, not written to. Integers are exact in float32 and
    each is multiplied once; no mathematical library is involved (those not in `FOR_RUNS` excepted).

    Raises
    ------
    CodecError
        For bytes of another length, scales that are not finite, positions outside the vector, or an unknown codec.
    """
    codec = _codec(name)
    size, expected = memoryview(data).nbytes, codec.size(count)
    if size != expected:
        raise CodecError(f"{count} values in {name} take {expected} bytes, not {size}")
    return codec.decode(data, count)
