"""One block of the model: bytes and a noisy target in, a denoised target and byte logits out.

    h = bytes(x_t) + bytes'(x_{t-1}) + …  +  ngrams_in(ngrams(x_{t-1} x_t), …)  +  z_in(c_in · z)  +  time(c_noise)
    h = layers(h)                                    causal attention, or the window of kind "mlp"; then an MLP 4x
    ẑ = c_out · out(norm(h)) + c_skip · z            EDM preconditioning
    logits = scale · ẑ · Eᵀ                          E: the shared table, rows of length 1

Row t sees bytes 0 … t. z_t is a noisy copy of byte t+1, so z_j for j < t tells row t nothing it does not see anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from blockswarm.model.config import VOCABULARY, ModelConfig
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import TIME_FREQUENCIES, block_layout, embedding_layout
from blockswarm.model.ngram_rows import ngram_rows
from blockswarm.model.precondition import c_in, c_noise, c_out, c_skip

ROTARY_BASE = 1000.0
"""Longest rotary wavelength is about 2π times this many bytes."""


@dataclass
class Cache:
    """What a block remembers of one window that it reads piece by piece; made by ``Block.open``."""

    line: Tensor
    """``reach`` times "before the start" (256), then the bytes read, int64 ``[reach + context]``."""
    keys: Tensor
    """Rotated keys, ``[layers, heads, context, dim / heads]``, filled up to ``length``."""
    values: Tensor
    """Values, as ``keys``."""
    length: int = 0
    """Bytes read so far."""

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` bytes."""
        self.length = min(self.length, length)


@dataclass(frozen=True)
class Continued:
    """Pieces of several windows, one after another in one line: what is computed row by row is computed for all of
    them in one go, and only attention looks at each window by itself."""

    caches: Sequence[Cache]
    """The windows; each at most once."""
    sizes: Sequence[int]
    """Bytes that each of them is continued by, at least one."""

    def spans(self) -> Iterator[tuple[Cache, slice, int]]:
        """Each window with its rows in the line, and the length it will have."""
        begin = 0
        for cache, size in zip(self.caches, self.sizes, strict=True):
            yield cache, slice(begin, begin + size), cache.length + size
            begin += size


class Block:
    """A block and its copy of the shared embedding over one flat buffer ``[θ | embedding]``.

    Every weight is a view of ``flat``; with ``train`` every gradient is a view of ``grad``. So one array operation
    updates, averages or clips the whole, and no weight is ever copied to be read or sent.
    """

    def __init__(
        self, config: ModelConfig, sigma_data: float, flat: Tensor, *, number: int, train: bool = False
    ) -> None:
        """Lay the weights over ``flat``.

        Parameters
        ----------
        config : ModelConfig
            Shape of the block.
        sigma_data : float
            σ_data of the preconditioning.
        flat : Tensor, float32 ``[block_layout.size + embedding_layout.size]``
            θ, then the embedding table. Not copied.
        number : int
            Which block of the model this is: each hashes n-grams in a way of its own.
        train : bool
            Whether to keep gradients.
        """
        theta, table = block_layout(config), embedding_layout(config)
        if flat.dtype != torch.float32 or flat.shape != (theta.size + table.size,):
            raise ModelError(f"block buffer is {flat.dtype}{list(flat.shape)}, not float32[{theta.size + table.size}]")
        self.config = config
        self.number = number
        self.sigma_data = sigma_data
        self.flat = flat
        self.grad = torch.zeros_like(flat) if train else None
        self.weights: dict[str, Tensor] = {}
        for layout, base in ((theta, 0), (table, theta.size)):
            for entry in layout.entries:
                part = slice(base + entry.offset, base + entry.offset + entry.size)
                weight = flat[part].view(entry.shape)
                if self.grad is not None:
                    weight = weight.detach().requires_grad_()
                    weight.grad = self.grad[part].view(entry.shape)
                self.weights[entry.name] = weight
        device = flat.device
        self._tables = torch.arange(1 + config.previous_bytes, device=device).flip(0) * (VOCABULARY + 1)
        # Wavelengths from a few times the whole (small) range of ln(σ)/4 down to an eighth of it.
        self._frequencies = math.pi * torch.arange(1, TIME_FREQUENCIES + 1, device=device, dtype=torch.float32) / 2
        self._rotary = _rotary_table(config, device)

    @property
    def reach(self) -> int:
        """How many earlier bytes the input of a row looks at directly."""
        window = self.config.mlp_window if self.config.kind == "mlp" else 1
        return max(self.config.previous_bytes, self.config.ngram_tables, window - 1)

    def table(self) -> Tensor:
        """E: the shared embedding with rows of length 1, ``[256, dim]``."""
        return F.normalize(self.weights["table"], dim=1)

    def logits(self, zhat: Tensor, table: Tensor) -> Tensor:
        """Byte logits ``[n, t, 256]`` of denoised targets ``zhat`` ``[n, t, dim]``.

        The learned scale starts at 1/σd², which makes the evidence c_skip · z count as it should: z·e/(σ² + σd²).
        """
        return F.linear(zhat, table * (self.weights["log_scale"].exp() / self.sigma_data**2))

    def denoise(self, x: Tensor, z: Tensor | None, sigma: Tensor, windows: Continued | None = None) -> Tensor:
        """The denoised target ẑ of every row.

        Parameters
        ----------
        x : Tensor, uint8 or int64 ``[n, t]``
            Bytes; with ``windows``, those that continue each of them, ``[1, sum of sizes]``.
        z : Tensor, float32 ``[n, t, dim]``, or None
            Noisy targets; None stands for z = 0.
        sigma : Tensor, float32 ``[n]``
            Noise level of each sequence.
        windows : Continued, optional
            Windows read so far; ``x`` is read on from there, and remembered.

        Returns
        -------
        Tensor, float32 ``[n, t, dim]``

        Raises
        ------
        ModelError
            If a window would be longer than the model's context.
        """
        n = len(x)
        longest = max(stop for _, _, stop in windows.spans()) if windows else x.shape[1]
        if longest > self.config.context:
            raise ModelError(f"window of {longest} bytes is longer than the model's context {self.config.context}")
        turns = self._rotary[_positions(x, windows)]
        w = self.weights
        level = sigma.view(n, 1, 1)
        angles = c_noise(sigma)[:, None] * self._frequencies
        time = F.linear(torch.cat([angles.sin(), angles.cos()], dim=1), w["time"])
        h = self._read_bytes(x, windows) + time[:, None]
        if z is not None:
            h = h + F.linear(z * c_in(level, self.sigma_data), w["z_in"])
        for layer in range(self.config.layers):
            if self.config.kind == "transformer":
                h = h + self._attend(layer, h, turns, windows)
            a = F.linear(self._norm(h, f"{layer}.mlp_norm"), w[f"{layer}.mlp_in"])
            h = h + F.linear(F.relu(a, inplace=True), w[f"{layer}.mlp_out"])
        for cache, _, stop in windows.spans() if windows else ():
            cache.length = stop
        zhat = self._read_out(h).float() * c_out(level, self.sigma_data)
        return zhat if z is None else zhat + c_skip(level, self.sigma_data) * z

    def open(self) -> Cache:
        """An empty cache for a window that is read piece by piece."""
        c, flat = self.config, self.flat
        shape = (c.layers if c.kind == "transformer" else 0, c.heads, c.context, c.dim // c.heads)
        line = torch.full((self.reach + c.context,), VOCABULARY, dtype=torch.int64, device=flat.device)
        return Cache(line, flat.new_empty(shape), flat.new_empty(shape))

    def _norm(self, h: Tensor, name: str) -> Tensor:
        return F.layer_norm(h, h.shape[-1:], self.weights[name])

    def _read_out(self, h: Tensor) -> Tensor:
        """F: the last hidden state projected to the embedding's space, ``[n, t, dim]``."""
        return F.linear(self._norm(h, "out_norm"), self.weights["out"])

    def _read_bytes(self, x: Tensor, windows: Continued | None) -> Tensor:
        """Sum of the input tables, those of n-grams and, kind ``mlp``, the projected window, ``[n, t, dim]``."""
        n, t = x.shape
        recent = 1 + self.config.previous_bytes
        lines = self._lines(x.long(), windows)
        # One lookup for all tables: row t gathers (x_{t-p}, …, x_t), each in its own table.
        rows = _last_bytes(lines, self.reach, recent) + self._tables
        h = F.embedding_bag(rows.reshape(n * t, recent), self.weights["bytes"], mode="sum").view(n, t, -1)
        if tables := self.config.ngram_tables:
            last = _last_bytes(lines, self.reach, tables + 1)
            rows = ngram_rows(last, tables, self.config.ngram_rows, salt=self.number)
            seen = F.embedding(rows, self.weights["ngrams"]).view(n, t, -1)
            h = h + F.linear(seen, self.weights["ngrams_in"])
        if self.config.kind == "mlp":
            window = _last_bytes(lines, self.reach, self.config.mlp_window)
            seen = F.embedding(window, self.weights["window_bytes"]).view(n, t, -1)
            h = h + F.linear(seen, self.weights["window_in"])
        return h

    def _lines(self, x: Tensor, windows: Continued | None) -> list[Tensor]:
        """``x`` with the ``reach`` bytes before it: all sequences in one, or each continued window by itself."""
        if windows is None:
            return [F.pad(x, (self.reach, 0), value=VOCABULARY)]
        lines = []
        for cache, span, stop in windows.spans():
            cache.line[self.reach + cache.length : self.reach + stop] = x[0, span]
            lines.append(cache.line[None, cache.length : self.reach + stop])
        return lines

    def _attend(self, layer: int, h: Tensor, turns: Tensor, windows: Continued | None) -> Tensor:
        """Causal self-attention with rotary positions, ``[n, t, dim]``."""
        n, t, d = h.shape
        heads = self.config.heads
        qkv = F.linear(self._norm(h, f"{layer}.attention_norm"), self.weights[f"{layer}.qkv"])
        # Queries and keys turn with their position; values are turned by nothing, cheaper than cutting them off.
        pairs = torch.view_as_complex(qkv.float().view(n, t, 3, heads, -1, 2))
        turned = torch.view_as_real(pairs * turns).flatten(-2).to(qkv.dtype)
        q, k, v = (part.transpose(1, 2) for part in turned.unbind(2))
        if windows is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            parts = []
            for cache, span, stop in windows.spans():
                cache.keys[layer, :, cache.length : stop] = k[0, :, span]
                cache.values[layer, :, cache.length : stop] = v[0, :, span]
                keys, values = cache.keys[layer, None, :, :stop], cache.values[layer, None, :, :stop]
                # Row i of the new ones may see everything read before and the new ones up to itself.
                size = stop - cache.length
                mask = None if size == 1 else _causal(size, stop, h.device)
                parts.append(F.scaled_dot_product_attention(q[:, :, span], keys, values, attn_mask=mask))
            out = torch.cat(parts, dim=2)
        return F.linear(out.transpose(1, 2).reshape(n, t, d), self.weights[f"{layer}.attention_out"])


def _positions(x: Tensor, windows: Continued | None) -> slice | Tensor:
    """Where in its window every row stands."""
    if windows is None:
        return slice(x.shape[1])
    return torch.cat([torch.arange(cache.length, stop, device=x.device) for cache, _, stop in windows.spans()])


def _last_bytes(lines: list[Tensor], reach: int, width: int) -> Tensor:
    """The last ``width`` bytes that every row sees, its own last, ``[n, t, width]``."""
    found = [line[:, reach - width + 1 :].unfold(1, width, 1) for line in lines]
    return found[0] if len(found) == 1 else torch.cat(found, dim=1)


def _causal(size: int, stop: int, device: torch.device) -> Tensor:
    """Which of ``stop`` positions the last ``size`` of them may see, bool ``[size, stop]``."""
    return torch.ones(size, stop, dtype=torch.bool, device=device).tril(stop - size)


def _rotary_table(config: ModelConfig, device: torch.device) -> Tensor:
    """Unit complex numbers by which position p turns each pair of (query, key, value); the value's are one.

    Shape ``[context, 3, 1, dim / heads / 2]``, complex64.
    """
    half = config.dim // config.heads // 2
    speed = ROTARY_BASE ** -(torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(config.context, dtype=torch.float64)[:, None] * speed
    angle = torch.stack([angle, angle, torch.zeros_like(angle)], dim=1)[:, :, None]
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64).to(device)
