"""Bytes as OpenAI's tokens: their names, their places in the text, and their log-probabilities."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import numpy as np

from blockswarm.swarm.answers import Float32

DIGITS = 6
"""Decimals of a log-probability; float32 has no more."""


def token_name(byte: int) -> str:
    r"""The character of an ASCII byte; ``bytes:\xe2`` for others, as OpenAI writes tokens that are no whole text."""
    return chr(byte) if byte < 0x80 else f"bytes:\\x{byte:02x}"


class TokenLog:
    """Writes the ``logprobs`` objects of one text, part by part.

    Parameters
    ----------
    top : int
        How many of the likeliest bytes are told for each; the byte itself is always among them.
    """

    def __init__(self, top: int) -> None:
        self._top = top
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, data: bytes, rows: Float32 | Sequence[Float32 | None]) -> dict[str, Any]:
        """The object for the bytes ``data``.

        Parameters
        ----------
        data : bytes
            Follows what was written before.
        rows : float32 ``[len(data), 256]``, or a sequence with None
            Natural-log probabilities of each; None where there are none, as of the first byte of a text.
        """
        offsets, values, tops = [], [], []
        for byte, row in zip(data, rows, strict=True):
            # A byte within a character stands where the character does.
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(bytes([byte])))
            values.append(None if row is None else round(float(row[byte]), DIGITS))
            tops.append(None if row is None else self._likeliest(byte, row))
        return {
            "tokens": [token_name(byte) for byte in data],
            "token_logprobs": values,
            "top_logprobs": tops if self._top else None,
            "text_offset": offsets,
        }

    def _likeliest(self, byte: int, row: Float32) -> dict[str, float]:
        best = [int(one) for one in np.argsort(-row, kind="stable")[: self._top]]
        return {token_name(one): round(float(row[one]), DIGITS) for one in dict.fromkeys([*best, byte])}
