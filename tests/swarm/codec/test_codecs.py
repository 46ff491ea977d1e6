"""Encodings of updates: a size known beforehand, the same bits for everyone, and one clear error for anything else."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.swarm.codec import FOR_RUNS, NAMES, CodecError, decode, encode, encoded_size, norm_growth, registry

EVERYWHERE_THE_SAME = FOR_RUNS
PRODUCTION = ("none", "fp16", "int8", "int4")
BLOCKWISE = ["int8", "int4"]
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-8000, max_value=8000)


def update(count: int, seed: int = 0) -> np.ndarray:
    """Values of the size and spread that training makes, some of them zero."""
    rng = np.random.default_rng(seed)
    values = 1e-3 * rng.standard_normal(count) * rng.lognormal(size=count)
    values[rng.random(count) < 0.05] = 0.0
    return values.astype(np.float32)


def error(values: np.ndarray, name: str) -> float:
    """What encoding loses, as a share of the vector's length."""
    lost = decode(encode(values, name), len(values), name) - values
    return float(np.linalg.norm(lost) / np.linalg.norm(values))


def test_what_is_not_exact_or_integers_says_that_it_is_an_experiment():
    assert set(PRODUCTION) < set(FOR_RUNS) == set(NAMES) - {"experimental-dct"}
    assert all(name.startswith("experimental-") for name in set(NAMES) - set(PRODUCTION))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 129, 4096, 5001, 70_003])
def test_the_size_on_the_wire_is_known_beforehand(name: str, count: int):
    data = encode(update(count), name)
    assert len(data) == encoded_size(count, name)
    decoded = decode(data, count, name)
    assert decoded.shape == (count,) and decoded.dtype == np.float32 and np.isfinite(decoded).all()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50, deadline=None)
@given(values=st.lists(FINITE, max_size=200))
def test_every_finite_vector_survives_the_wire(name: str, values: list[float]):
    vector = np.array(values, dtype=np.float32)
    decoded = decode(encode(vector, name), len(vector), name)
    assert np.isfinite(decoded).all()
    largest = np.abs(vector).max(initial=0)
    assert np.abs(decoded).max(initial=0) <= 1.02 * largest * (8 if "dct" in name else 1) + 1e-6


@pytest.mark.parametrize(("name", "bits"), [("none", 32), ("fp16", 16), ("int8", 8.25), ("int4", 4.25)])
def test_bits_a_value(name: str, bits: float):
    assert encoded_size(640_000, name) * 8 / 640_000 == bits


def test_int4_takes_at_most_a_seventh_of_float32_and_loses_a_tenth_of_the_length():
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    assert encoded_size(len(values), "int4") <= 4 * len(values) / 7
    assert error(values, "int4") < 0.1
    assert error(values, "int8") < 0.0065


@pytest.mark.parametrize("name", NAMES)
def test_a_vector_cut_at_multiples_of_the_group_encodes_piece_by_piece_to_the_same_bytes(name: str):
    group = registry._codec(name).group
    values = update(7 * group + group // 3)
    pieces = [values[: 2 * group], values[2 * group : 5 * group], values[5 * group :]]
    assert b"".join(encode(piece, name) for piece in pieces) == encode(values, name)


@pytest.mark.parametrize("name", PRODUCTION)
def test_what_was_decoded_encodes_to_the_same_values_again(name: str):
    """So a mean of one update is that update, whatever the encoding."""
    once = decode(encode(update(10_007), name), 10_007, name)
    np.testing.assert_array_equal(decode(encode(once, name), 10_007, name), once)


def test_without_compression_nothing_is_lost():
    values = update(1000)
    np.testing.assert_array_equal(decode(encode(values, "none"), 1000, "none"), values)


def test_fp16_rounds_to_nearest_even():
    values = np.array([0.0, -0.0, 1.0, 1e-3, -2.5e-5, 3e-8, 65504.0], dtype=np.float32)
    np.testing.assert_array_equal(decode(encode(values, "fp16"), 7, "fp16"), values.astype(np.float16).astype("f4"))


@pytest.mark.parametrize(("name", "step"), [("int8", 1 / 127), ("int4", 1 / 8)])
@settings(max_examples=100, deadline=None)
@given(values=st.lists(FINITE, min_size=1, max_size=64))
def test_no_value_moves_by_more_than_the_step_of_its_group(name: str, step: float, values: list[float]):
    """Half a step, and a whole one at the end of int4's grid that has no code +8."""
    vector = np.array(values, dtype=np.float32)
    moved = np.abs(decode(encode(vector, name), len(vector), name) - vector).max()
    largest = float(np.abs(vector).max())
    assert moved <= (1.0 if name == "int4" else 0.5) * step * largest * 1.03 + 1e-37


@pytest.mark.parametrize("name", BLOCKWISE)
@pytest.mark.parametrize("size", [1e-35, 1e-20, 1e20, 1e35])
def test_groups_far_apart_in_size_are_encoded_alike(name: str, size: float):
    values = update(64)
    values /= np.abs(values).max()
    both = np.concatenate([values, values * np.float32(size)])
    decoded = decode(encode(both, name), 128, name)
    np.testing.assert_allclose(decoded[64:] / np.float32(size), decoded[:64], atol=0.01)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.floats(0.015625, 8000, width=32), min_size=1, max_size=130))
def test_encoding_makes_no_vector_longer_than_its_bound(name: str, values: list[float]):
    """Receivers refuse a mean that is longer than its terms by more than this."""
    vector = np.array(values, dtype=np.float32)
    decoded = decode(encode(vector, name), len(vector), name)
    assert np.dot(decoded, decoded) <= norm_growth(name) * np.dot(vector, vector)


def test_the_bound_of_int4_is_nearly_reached():
    vector = np.full(64, 0.5001, dtype=np.float32)
    vector[0] = 8.0
    decoded = decode(encode(vector, "int4"), 64, "int4")
    assert np.dot(decoded, decoded) > 0.99 * norm_growth("int4") * np.dot(vector, vector)


@pytest.mark.parametrize("name", ["fp16", *BLOCKWISE])
def test_what_is_too_large_for_the_encoding_is_found_out_too(name: str):
    data = encode(np.full(64, 3e38, dtype=np.float32), name)
    if name == "fp16":
        assert not np.isfinite(decode(data, 64, name)).any()
    else:
        with pytest.raises(CodecError, match="not finite"):
            decode(data, 64, name)


@pytest.mark.parametrize("name", BLOCKWISE)
def test_a_group_too_small_for_a_normal_scale_becomes_zero(name: str):
    values = np.full(64, 1e-40, dtype=np.float32)
    np.testing.assert_array_equal(decode(encode(values, name), 64, name), 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_update_is_found_out_by_every_receiver(name: str, bad: float):
    values = update(5000)
    values[4321] = bad
    data = encode(values, name)
    assert len(data) == encoded_size(5000, name)
    try:
        decoded = decode(data, 5000, name)
    except CodecError as error:
        assert "finite" in str(error)
    else:
        assert not np.isfinite(decoded).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_length_is_refused_with_the_right_one(name: str):
    data = encode(update(500), name)
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(CodecError, match=f"take {len(data)} bytes, not {len(wrong)}"):
            decode(wrong, 500, name)
    with pytest.raises(CodecError):
        decode(data, -1, name)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), count=st.integers(1, 300))
def test_any_bytes_of_the_right_length_give_values_or_one_clear_error(name: str, data: st.DataObject, count: int):
    size = encoded_size(count, name)
    raw = data.draw(st.binary(min_size=size, max_size=size))
    try:
        decoded = decode(raw, count, name)
    except CodecError:
        return
    assert decoded.shape == (count,)
    if name not in ("none", "fp16"):
        assert np.isfinite(decoded).all()


@pytest.mark.parametrize("name", ["int8", "int4", "experimental-sign"])
def test_a_scale_that_is_not_finite_is_refused(name: str):
    data = bytearray(encode(update(64), name))
    data[:2] = b"\x80\x7f"  # infinity in bfloat16
    with pytest.raises(CodecError, match="not finite"):
        decode(data, 64, name)


def test_positions_that_repeat_or_point_outside_are_refused():
    data = bytearray(encode(update(4096), "experimental-top1"))
    repeated, outside = data.copy(), data.copy()
    repeated[2:4] = repeated[:2]
    outside[80:82] = (4096).to_bytes(2, "little")
    for wrong in (repeated, outside):
        with pytest.raises(CodecError, match="positions"):
            decode(wrong, 4096, "experimental-top1")


def test_an_unknown_codec_or_something_that_is_no_vector_is_refused():
    with pytest.raises(CodecError, match="no codec named 'zip'"):
        encode(update(3), "zip")
    with pytest.raises(CodecError, match="float64"):
        encode(np.zeros(3), "fp16")


def test_top_sends_the_largest_values_and_nothing_else():
    values = update(4096)
    decoded = decode(encode(values, "experimental-top1"), 4096, "experimental-top1")
    kept = np.flatnonzero(decoded)
    assert set(kept) <= set(np.argsort(np.abs(values))[-41:])
    np.testing.assert_allclose(decoded[kept], values[kept], rtol=1e-3, atol=1e-7)


def test_the_cosine_codec_holds_a_smooth_vector_in_few_components():
    smooth = np.cos(np.linspace(0, 3, 640)).astype(np.float32)
    assert error(smooth, "experimental-dct") < 0.01


@pytest.mark.parametrize(
    ("name", "encoded", "decoded"),
    [
        ("none", "5d50bc17", "5d50bc17"),
        ("fp16", "3a31cebe", "2f657314"),
        ("int8", "6c0e11e0", "fa361fee"),
        ("int4", "7130af14", "dc6f521a"),
        ("experimental-sign", "8f1ea27c", "94c11400"),
        ("experimental-top1", "0807e923", "17ba114b"),
        ("experimental-top10", "c34101c2", "193c7423"),
    ],
)
def test_the_bytes_are_the_same_on_every_machine(name: str, encoded: str, decoded: str):
    """A change of these digests is a change of the wire format: another protocol version."""
    bits = np.random.Philox(7).random_raw(5000)
    values = (bits.astype(np.int64) >> 40).astype(np.float32) * np.float32(2**-40)
    values *= (np.arange(5000) % 97).astype(np.float32)
    data = encode(values, name)
    assert hashlib.sha256(data).hexdigest()[:8] == encoded
    assert hashlib.sha256(decode(data, 5000, name).astype("<f4").tobytes()).hexdigest()[:8] == decoded


@pytest.mark.parametrize("name", BLOCKWISE)
def test_bytes_written_by_hand_mean_what_the_protocol_says(name: str):
    scale = np.array([-0.5], dtype=np.float32).view(np.uint32)[0] >> 16
    head = int(scale).to_bytes(2, "little")
    if name == "int8":
        data, expected = head + bytes([1, 255, 127]), [-0.5, 0.5, -63.5]
    else:
        data, expected = head + bytes([0x90, 0x8F]), [4.0, -0.5, -3.5]  # codes -8, 1, 7; the last nibble is spare
    np.testing.assert_array_equal(decode(data, 3, name), np.array(expected, dtype=np.float32))
