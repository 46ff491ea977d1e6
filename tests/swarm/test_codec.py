"""Encodings of updates: everyone who decodes the same bytes holds the same float32 bits."""

import numpy as np
import pytest

from blockswarm.swarm.codec import decode, encode, encoded_size

VALUES = np.array([0.0, -0.0, 1.0, 1e-3, -2.5e-5, 3e-8, 65504.0], dtype=np.float32)


@pytest.mark.parametrize(("compression", "size"), [("none", 4), ("fp16", 2)])
def test_the_size_on_the_wire_is_known_beforehand(compression, size):
    assert len(encode(VALUES, compression)) == encoded_size(len(VALUES), compression) == size * len(VALUES)


def test_without_compression_nothing_is_lost():
    np.testing.assert_array_equal(decode(encode(VALUES, "none"), "none"), VALUES)


def test_fp16_rounds_to_nearest_even_and_decoding_is_exact():
    decoded = decode(encode(VALUES, "fp16"), "fp16")
    np.testing.assert_array_equal(decoded, VALUES.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(decode(encode(decoded, "fp16"), "fp16"), decoded)


def test_what_fp16_cannot_hold_becomes_infinite_so_that_receivers_refuse_it():
    assert not np.isfinite(decode(encode(np.array([1e6], np.float32), "fp16"), "fp16")).any()
