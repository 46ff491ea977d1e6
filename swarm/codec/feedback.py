"""Error feedback: what an encoding lost of one update is added to the next (Seide et al. 2014)."""

from __future__ import annotations

import numpy as np

from blockswarm.swarm.codec.base import CodecError, Float32
from blockswarm.swarm.codec.registry import decode, encode


class ErrorFeedback:
    """The residual of one sender's vector.

    A running peer needs none of this: its live weights keep whatever the average does not contain of its update
    (``peer/ledger.py``). This is the same bookkeeping where there are none, as in `benchmarks/codec.py`.

    Parameters
    ----------
    count : int
        Length of the vectors.
    name : str
        The codec.
    decay : float
        Factor on the residual before it is added; under 1 with ``experimental-dct`` it is DeMo's momentum.

    Attributes
    ----------
    residual : ndarray of float32, shape [count]
        What has not been sent yet.
    """

    def __init__(self, count: int, name: str, *, decay: float = 1.0) -> None:
        self.residual: Float32 = np.zeros(count, dtype=np.float32)
        self._name = name
        self._decay = np.float32(decay)

    def encode(self, values: Float32) -> bytes:
        """Encode ``values`` and the residual together; what is lost becomes the new residual.

        Raises
        ------
        CodecError
            When the sum cannot be encoded (it is not finite, or of another length); the residual stays as it was.
        """
        if values.shape != self.residual.shape:
            raise CodecError(f"an update of {values.shape} values for a residual of {self.residual.shape}")
        total = values + self._decay * self.residual
        data = encode(total, self._name)
        with np.errstate(invalid="ignore"):
            lost = total - decode(data, len(total), self._name)
        if not np.isfinite(lost).all():
            raise CodecError(f"an update that is not finite in {self._name} cannot be fed back")
        self.residual = lost
        return data
