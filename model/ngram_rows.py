"""Which rows of the hashed n-gram tables stand for the bytes before a position.

A table has far fewer rows than there are n-grams; those that share a row are told apart by the other tables and by the
layers. Integers below 2³¹ times odd numbers below 2³¹, cut to 31 bits: the same on every machine, without overflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Integers = TypeVar("Integers", "Tensor", NDArray[np.int64])

_BITS = (1 << 31) - 1
_STEP = 1_000_003
"""Multiplies the hash before the next byte comes in."""
_SALT = 7919
"""Times the salt, is where the hash begins."""
_MIX = 1_640_531_527
"""Spreads the last byte's bits over all 31 (2³² divided by the golden ratio, less than 2³¹)."""


def ngram_rows(window: Tensor, tables: int, rows: int, *, salt: int) -> Tensor:
    """Rows of all tables for each position.

    Parameters
    ----------
    window : Tensor, int64 ``[…, w]``
        The last bytes up to each position, the newest last, ``w > tables``; 256 = before the start.
    tables : int
        How many.
    rows : int
        In each of them.
    salt : int
        The block's number: n-grams that share a row in one block have rows apart in another, and the average of both
        can tell them apart.

    Returns
    -------
    Tensor, int64 ``[…, tables]``
        Table ``i`` is rows ``i · rows`` to ``(i + 1) · rows`` of the stack and hashes the last ``i + 2`` bytes.
    """
    import torch  # here: those who only read a block do without

    return torch.stack(hashed_rows(window, tables, rows, salt=salt), dim=-1)


def hashed_rows(window: Integers, tables: int, rows: int, *, salt: int) -> list[Integers]:
    """What ``ngram_rows`` gives, one array ``[…]`` for each table, of a tensor or a NumPy array."""
    newest = window.shape[-1] - 1
    key = window[..., newest] + 1 + _SALT * salt
    found = []
    for table in range(tables):
        key = (key * _STEP + window[..., newest - table - 1] + 1) & _BITS
        mixed = ((key ^ (key >> 15)) * _MIX) & _BITS
        found.append((mixed ^ (mixed >> 13)) % rows + table * rows)
    return found
