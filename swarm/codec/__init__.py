"""How an update's values travel: encodings every peer decodes to the same float32 bits.

``none``, ``fp16``, ``int8`` and ``int4`` are what swarms use; names that begin with ``experimental-`` are for
comparison. The bytes are written down in ``docs/protocol.md``.
"""

from blockswarm.swarm.codec.base import CodecError
from blockswarm.swarm.codec.feedback import ErrorFeedback
from blockswarm.swarm.codec.registry import (
    FOR_RUNS,
    NAMES,
    Compression,
    decode,
    encode,
    encoded_size,
    is_lossless,
    norm_growth,
)

__all__ = [
    "FOR_RUNS",
    "NAMES",
    "CodecError",
    "Compression",
    "ErrorFeedback",
    "decode",
    "encode",
    "encoded_size",
    "is_lossless",
    "norm_growth",
]
