from __future__ import annotations

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rose.runtime.transfer import codec
from rose.runtime.transfer.errors import TransferError

#: +0, -0, smallest subnormals, infinities, quiet and signalling NaNs with payloads of both signs, extremes.
SPECIAL = {
    np.uint16: [0x0000, 0x8000, 0x0001, 0x8001, 0x7F80, 0xFF80, 0x7FC1, 0xFFC1, 0x7F81, 0xFFFF, 0x7C00, 0x7E01],
    np.uint32: [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF],
}
DTYPES = st.sampled_from([np.uint16, np.uint32])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[codec.Bits, codec.Bits]:
    """A base and a new array: unrelated bits, no change, or a few ULP-like, arbitrary and special changes."""
    dtype = draw(DTYPES)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    top = np.iinfo(dtype).max
    base = rng.integers(0, top, shape, dtype=dtype, endpoint=True)
    base = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL[dtype], shape), base).astype(dtype)
    density = draw(st.sampled_from([0.0, 0.002, 0.03, 0.3, 1.0]))
    kind = draw(st.sampled_from(["ulp", "any", "special"]))
    if kind == "ulp":
        other = base + rng.integers(-3, 4, shape).astype(dtype)
    elif kind == "any":
        other = rng.integers(0, top, shape, dtype=dtype, endpoint=True)
    else:
        other = rng.choice(SPECIAL[dtype], shape).astype(dtype)
    new = np.where(rng.random(shape) < density, other, base).astype(dtype)
    return np.asarray(base), np.asarray(new)


@settings(max_examples=400, deadline=None)
@given(pairs())
def test_round_trip_is_bit_exact_and_never_larger_than_dense(pair: tuple[codec.Bits, codec.Bits]) -> None:
    base, new = pair
    kept = base.copy()
    blob = codec.encode(base, new)
    decoded = codec.decode(base, blob)
    assert decoded.dtype == new.dtype
    assert decoded.shape == new.shape
    np.testing.assert_array_equal(decoded, new)
    np.testing.assert_array_equal(base, kept)
    assert not np.shares_memory(decoded, base)
    assert len(blob) <= new.nbytes * 1.001 + codec.HEADER_BYTES
    assert codec.read_header(blob).changed == np.count_nonzero(base != new)


@given(pairs())
@settings(max_examples=50, deadline=None)
def test_without_a_base_the_whole_array_is_sent(pair: tuple[codec.Bits, codec.Bits]) -> None:
    base, new = pair
    blob = codec.encode(None, new)
    np.testing.assert_array_equal(codec.decode(base, blob), new)
    header = codec.read_header(blob)
    assert (header.encoding, header.changed) == ("dense", new.size)
    assert len(blob) == new.nbytes + codec.HEADER_BYTES


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_every_special_value_can_follow_every_other(dtype: type) -> None:
    values = np.array(SPECIAL[dtype], dtype)
    # Repeated, so that the delta is the smaller encoding and the pairs really pass through ULP order.
    base, new = np.repeat(values, 64 * len(values)), np.tile(np.repeat(values, 64), len(values))
    blob = codec.encode(base, new)
    assert codec.read_header(blob).encoding == "delta"
    np.testing.assert_array_equal(codec.decode(base, blob), new)


def test_all_65536_patterns_go_to_the_next_in_ulp_order() -> None:
    base = np.arange(1 << 16, dtype=np.uint16)
    order = codec._ulp_order(base)
    assert np.unique(order).size == 1 << 16
    as_float = (base.astype(np.uint32) << 16).view(np.float32)[np.argsort(order)]
    finite = as_float[np.isfinite(as_float)]
    assert np.all(np.diff(finite) >= 0)
    new = codec._from_ulp_order(order + np.uint16(1))
    blob = codec.encode(base, new)
    assert len(blob) < 200, "a step of one ULP everywhere is two constant streams"
    np.testing.assert_array_equal(codec.decode(base, blob), new)


@pytest.mark.parametrize("positions", [[0], [254], [255], [256], [509, 510, 511], [99_999], [0, 99_999], [510, 1021]])
def test_gaps_around_the_escape(positions: list[int]) -> None:
    base = np.zeros(100_000, np.uint16)
    new = base.copy()
    new[positions] = 1
    blob = codec.encode(base, new)
    assert codec.read_header(blob).encoding == "delta"
    np.testing.assert_array_equal(codec.decode(base, blob), new)


def test_nothing_changed_costs_little() -> None:
    base = np.arange(10_000, dtype=np.uint16)
    assert len(codec.encode(base, base.copy())) < codec.HEADER_BYTES + 40


def test_a_delta_beats_xor_on_adam_like_updates() -> None:
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal(1 << 18) * 0.02).astype(np.float32)
    base, new = (
        ((w.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
        for w in (weights, weights + (rng.standard_normal(weights.size) * 2e-6).astype(np.float32))
    )
    density = np.count_nonzero(base != new) / base.size
    assert 0.01 < density < 0.1
    xor = zstandard.ZstdCompressor(level=1).compress((base ^ new).data)
    assert len(codec.encode(base, new)) < 0.6 * len(xor)


def test_mismatched_base_or_dtype_is_refused() -> None:
    a = np.zeros(8, np.uint16)
    with pytest.raises(TransferError, match="against a base"):
        codec.encode(a[:4].copy(), a)
    with pytest.raises(TransferError, match="uint16 or uint32"):
        codec.encode(None, a.astype(np.int64).view(np.uint64))
    blob = codec.encode(a, a)
    with pytest.raises(TransferError, match="expected 4 of 2"):
        codec.decode(a[:4].copy(), blob)
    with pytest.raises(TransferError, match="expected 8 of 4"):
        codec.decode(a.astype(np.uint32), blob)


def test_a_forged_size_is_refused_before_it_is_allocated() -> None:
    base = np.zeros(1000, np.uint16)
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    header = codec.Header(
        encoding="delta",
        item_bytes=2,
        planes=1,
        elements=1000,
        changed=1000,
        gap_bytes=1000,
        gap_frame_bytes=len(bomb),
    )
    with pytest.raises(TransferError, match="inflate to 67108864 bytes, expected 1000"):
        codec.decode(base, header.pack() + bomb)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_blob_raises_or_decodes_to_something_of_the_right_shape(data: st.DataObject) -> None:
    """The codec alone cannot notice every flip; it must neither crash otherwise nor write past the array."""
    rng = np.random.default_rng(3)
    base = rng.integers(0, 1 << 16, 500, dtype=np.uint16)
    new = base.copy()
    new[rng.choice(500, 60, replace=False)] += np.uint16(1)
    blob = bytearray(codec.encode(base, new))
    bit = data.draw(st.integers(0, 8 * len(blob) - 1))
    blob[bit // 8] ^= 1 << bit % 8
    damaged = bytes(blob[: data.draw(st.integers(0, len(blob)))]) if data.draw(st.booleans()) else bytes(blob)
    try:
        decoded = codec.decode(base, damaged)
    except TransferError:
        return
    assert decoded.shape == base.shape
