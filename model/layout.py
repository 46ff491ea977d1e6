"""Where each weight lives in the flat float32 vector of a subject, how it starts, and how its bytes are named.

A *subject* is a block (0 … B-1) or the shared embedding (``EMBEDDING``). Its whole state is one contiguous float32
vector, so that deltas, averages and checkpoints are single-array operations. Everyone must begin from the same bytes:
``Layout.genesis`` uses only integer arithmetic and exact or correctly rounded float32 operations, no libm.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.config import VOCABULARY, ModelConfig
from blockswarm.model.errors import ModelError

EMBEDDING = -1
"""Subject number of the shared embedding table."""

COUNTS = 256
"""Subject number of the n-gram counts: one more than the highest a block can have. A model has at most 256 blocks."""

CHUNK_BYTES = 1 << 20
"""States are hashed and sent in pieces of this many bytes; the last one may be shorter."""

TIME_FREQUENCIES = 8
"""Sine and cosine pairs that describe c_noise to a block."""

OUT_GAIN = 3.0
"""Where the scale of the last norm starts. Logits need a long ẑ (table rows have length 1); this lets it grow fast."""

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Entry:
    """One named tensor in a flat vector."""

    name: str
    shape: tuple[int, ...]
    offset: int
    """Index of its first value."""
    spread: float
    """Genesis values are uniform in (−spread, spread) around ``centre``."""
    centre: float = 0.0

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The ordered entries of one subject's flat vector."""

    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Number of float32 values in the vector."""
        return self.entries[-1].offset + self.entries[-1].size

    def views(self, flat: Float32) -> dict[str, Float32]:
        """Each entry of ``flat`` (float32 ``[size]``) under its name, shaped; views, not copies.

        Raises
        ------
        ModelError
            If ``flat`` is not float32 of this layout's size.
        """
        check_vector(flat, self.size, "state")
        return {e.name: flat[e.offset : e.offset + e.size].reshape(e.shape) for e in self.entries}

    def genesis(self, seed: int, subject: int) -> Float32:
        """The state everyone starts from, bit-identical on every machine.

        Raw Philox output, keyed by (seed, subject, entry name), gives 24-bit integers k; a value is
        ``(2k + 1 − 2²⁴) · 2⁻²⁴ · spread``: the first two steps are exact in float32, the last is one rounding.

        Parameters
        ----------
        seed : int
            The run's seed.
        subject : int
            Block number or ``EMBEDDING``; blocks of one run start differently.

        Returns
        -------
        ndarray, float32 ``[size]``
        """
        flat = np.zeros(self.size, dtype=np.float32)
        for entry in self.entries:
            part = flat[entry.offset : entry.offset + entry.size]
            if entry.spread:
                raw = philox("genesis", seed, subject, entry.name).random_raw(entry.size)
                centred = (raw >> np.uint64(39)).astype(np.int32) | 1
                part[:] = (centred - (1 << 24)).astype(np.float32) * np.float32(2.0**-24 * entry.spread)
            part += np.float32(entry.centre)
        return flat


def philox(purpose: str, *parts: object, counter: int = 0) -> np.random.Philox:
    """A counter-based random bit generator whose key is a hash of ``purpose`` and ``parts``; raw bits are portable."""
    text = "\0".join(["blockswarm", purpose, *(str(part) for part in parts)])
    key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
    return np.random.Philox(key=key, counter=counter)


def _build(rows: list[tuple[str, tuple[int, ...], float, float]]) -> Layout:
    entries, offset = [], 0
    for name, shape, spread, centre in rows:
        entries.append(Entry(name, shape, offset, spread, centre))
        offset += math.prod(shape)
    return Layout(tuple(entries))


def _linear(outputs: int, inputs: int) -> float:
    """Spread of a uniform law with variance 1 / inputs; ``outputs`` only documents the shape at the call."""
    del outputs
    return math.sqrt(3.0 / inputs)


def block_layout(config: ModelConfig) -> Layout:
    """The entries of one block's own weights θ (float32), in storage order.

    ``bytes`` holds ``1 + previous_bytes`` stacked tables of 257 rows: the row of a byte, and row 256 for "before the
    start of the window". Their values start with variance one: tables half as large, or twice, learned more slowly.
    ``ngrams`` holds the hashed tables one after the other, ``ngrams_in`` projects a row of each to ``dim``.
    ``z_in`` and ``out`` start at zero, so an untrained block ignores z and predicts uniformly; so do ``ngrams``:
    most of their rows are met too rarely to unlearn a random start.
    """
    d = config.dim
    tables = 1 + config.previous_bytes
    rows: list[tuple[str, tuple[int, ...], float, float]] = [
        ("bytes", (tables * (VOCABULARY + 1), d), math.sqrt(3.0), 0.0),
        *_ngram_entries(config),
        ("z_in", (d, d), 0.0, 0.0),
        ("time", (d, 2 * TIME_FREQUENCIES), 0.1, 0.0),
    ]
    if config.kind == "mlp":
        width = mlp_byte_width(config)
        rows.append(("window_bytes", (VOCABULARY + 1, width), math.sqrt(3.0), 0.0))
        rows.append(("window_in", (d, config.mlp_window * width), _linear(d, config.mlp_window * width), 0.0))
    for layer in range(config.layers):
        if config.kind == "transformer":
            rows.append((f"{layer}.attention_norm", (d,), 0.0, 1.0))
            rows.append((f"{layer}.qkv", (3 * d, d), _linear(3 * d, d), 0.0))
            rows.append((f"{layer}.attention_out", (d, d), _linear(d, d) / math.sqrt(2 * config.layers), 0.0))
        rows.append((f"{layer}.mlp_norm", (d,), 0.0, 1.0))
        rows.append((f"{layer}.mlp_in", (4 * d, d), _linear(4 * d, d), 0.0))
        rows.append((f"{layer}.mlp_out", (d, 4 * d), _linear(d, 4 * d) / math.sqrt(2 * config.layers), 0.0))
    rows.append(("out_norm", (d,), 0.0, OUT_GAIN))
    rows.append(("out", (d, d), 0.0, 0.0))
    rows.append(("log_scale", (1,), 0.0, 0.0))
    return _build(rows)


def _ngram_entries(config: ModelConfig) -> list[tuple[str, tuple[int, ...], float, float]]:
    count, width = config.ngram_tables, config.ngram_width
    if not count:
        return []
    return [
        ("ngrams", (count * config.ngram_rows, width), 0.0, 0.0),
        ("ngrams_in", (config.dim, count * width), _linear(config.dim, count * width), 0.0),
    ]


def layer_matrices(config: ModelConfig) -> list[Entry]:
    """The entries of a block that are matrices inside its layers, in storage order."""
    return [entry for entry in block_layout(config).entries if "." in entry.name and len(entry.shape) == 2]


def mlp_byte_width(config: ModelConfig) -> int:
    """Values that describe one byte of the window of a block of kind ``mlp``."""
    return max(8, config.dim // 4)


def embedding_layout(config: ModelConfig) -> Layout:
    """The shared embedding table E, float32 ``[256, dim]``; stored as learned, normalised where it is used."""
    return _build([("table", (VOCABULARY, config.dim), math.sqrt(3.0 / config.dim), 0.0)])


def layout_of(config: ModelConfig, subject: int) -> Layout:
    """The layout of ``subject``: ``EMBEDDING`` or a block number.

    Raises
    ------
    ModelError
        If the model has no such subject.
    """
    if subject == EMBEDDING:
        return embedding_layout(config)
    if not 0 <= subject < config.blocks:
        raise ModelError(f"subject {subject} does not exist: the model has blocks 0 to {config.blocks - 1}")
    return block_layout(config)


def check_vector(flat: Float32, size: int, what: str) -> None:
    """Raise ``ModelError`` unless ``flat`` is a float32 vector of ``size`` values."""
    if flat.dtype != np.float32 or flat.shape != (size,):
        raise ModelError(f"{what} is {flat.dtype}{list(flat.shape)}, expected float32[{size}]")


def bytes_chunk_digests(data: memoryview) -> list[bytes]:
    """SHA-256 (32 bytes each) of every ``CHUNK_BYTES`` piece of ``data``."""
    return [hashlib.sha256(data[start : start + CHUNK_BYTES]).digest() for start in range(0, len(data), CHUNK_BYTES)]


def _bytes_of(flat: Float32) -> memoryview:
    # "<f4" copies only on a big-endian machine.
    return np.ascontiguousarray(flat, dtype="<f4").view(np.uint8).data


def chunk_digests(flat: Float32) -> list[bytes]:
    """SHA-256 (32 bytes each) of every ``CHUNK_BYTES`` piece of the little-endian float32 bytes of ``flat``."""
    return bytes_chunk_digests(_bytes_of(flat))


def digest_of_chunks(chunks: Sequence[bytes], momentum: Sequence[bytes] = ()) -> bytes:
    """The name of a state, 32 bytes, from the chunk digests of its values and of its outer momentum, if it has one.

    It is the SHA-256 over the chunk digests of the values; with a momentum, the SHA-256 over that and the same of the
    momentum. So whoever has the values alone needs 32 bytes more to check them.
    """
    return with_momentum(_joined(chunks), _joined(momentum) if momentum else b"")


def with_momentum(values_digest: bytes, momentum_digest: bytes) -> bytes:
    """The name of a state from those of its values and of its momentum, 32 bytes each; empty where it has none."""
    return hashlib.sha256(values_digest + momentum_digest).digest() if momentum_digest else values_digest


def _joined(chunks: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"".join(chunks)).digest()


def state_digest(flat: Float32, momentum: Float32 | None = None) -> bytes:
    """The name of a state with these values, and this outer momentum if it has one; see `digest_of_chunks`."""
    return digest_of_chunks(chunk_digests(flat), () if momentum is None else chunk_digests(momentum))
