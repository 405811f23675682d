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
    np.uint8: [0x00, 0x80, 0x01, 0x81, 0x7F, 0xFF, 0x7C, 0xFC, 0x7D],
    np.uint16: [0x0000, 0x8000, 0x0001, 0x8001, 0x7F80, 0xFF80, 0x7FC1, 0xFFC1, 0x7F81, 0xFFFF, 0x7C00, 0x7E01],
    np.uint32: [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF],
}
DTYPES = st.sampled_from([np.uint8, np.uint16, np.uint32])
ENCODINGS: list[codec.Encoding] = ["fast", "small"]


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
@given(pairs(), st.sampled_from([None, *ENCODINGS]), st.sampled_from([None, 0, 2]))
def test_round_trip_is_bit_exact_and_never_larger_than_dense(
    pair: tuple[codec.Bits, codec.Bits], encoding: codec.Encoding | None, mantissa_bits: int | None
) -> None:
    base, new = pair
    kept = base.copy()
    blob = codec.encode(base, new, encoding=encoding, mantissa_bits=mantissa_bits)
    decoded = codec.decode(base, blob)
    assert decoded.dtype == new.dtype
    assert decoded.shape == new.shape
    np.testing.assert_array_equal(decoded, new)
    np.testing.assert_array_equal(base, kept)
    assert not np.shares_memory(decoded, base)
    assert len(blob) <= new.nbytes + codec.HEADER_BYTES
    assert codec.read_header(blob).changed == np.count_nonzero(base != new)
    assert codec.decode(base, blob, out=base) is base
    np.testing.assert_array_equal(base, new)


@settings(max_examples=200, deadline=None)
@given(pairs(), st.integers(0, 2**32))
def test_changes_merge_and_are_undone(pair: tuple[codec.Bits, codec.Bits], seed: int) -> None:
    first, second = pair
    rng = np.random.default_rng(seed)
    other = rng.integers(0, np.iinfo(second.dtype).max, second.shape, dtype=second.dtype, endpoint=True)
    # Some of what changed goes back to what it was.
    third = np.where(rng.random(second.shape) < 0.3, first, np.where(rng.random(second.shape) < 0.2, other, second))
    third = np.ascontiguousarray(third.astype(second.dtype))
    merged = codec.merge(codec.changes(first, second), codec.changes(second, third))
    direct = codec.changes(first, third)
    np.testing.assert_array_equal(merged.positions, direct.positions)
    np.testing.assert_array_equal(merged.steps, direct.steps)
    np.testing.assert_array_equal(codec.undo(third, merged, np.empty_like(third)), first)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_blocks_and_their_ends(encoding: codec.Encoding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_BLOCK_ELEMENTS", 1000)
    rng = np.random.default_rng(1)
    for size in (1, 7, 999, 1000, 1001, 1999, 2000, 2001, 5003):
        for density in (0.0, 0.01, 0.4, 1.0):
            base = rng.integers(0x3C00, 0x3E00, size, dtype=np.uint16)
            new = np.where(rng.random(size) < density, base + rng.integers(1, 4, size).astype(np.uint16), base)
            blob = codec.encode(base, new, encoding=encoding)
            np.testing.assert_array_equal(codec.decode(base, blob), new)


@given(pairs())
@settings(max_examples=50, deadline=None)
def test_without_a_base_the_whole_array_is_sent(pair: tuple[codec.Bits, codec.Bits]) -> None:
    base, new = pair
    blob = codec.encode(None, new)
    np.testing.assert_array_equal(codec.decode(base, blob), new)
    header = codec.read_header(blob)
    assert (header.encoding, header.changed) == ("dense", new.size)
    assert len(blob) - new.nbytes in range(4, 9), "magic, kind, and two numbers below 2**21"


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_every_special_value_can_follow_every_other(dtype: type, encoding: codec.Encoding) -> None:
    values = np.array(SPECIAL[dtype], dtype)
    # Repeated, so that the delta is the smaller encoding and the pairs really pass through ULP order.
    base, new = np.repeat(values, 64 * len(values)), np.tile(np.repeat(values, 64), len(values))
    blob = codec.encode(base, new, encoding=encoding)
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
    assert len(blob) < base.nbytes / 8, "a step of one ULP everywhere costs its sign, and little for each exponent"
    np.testing.assert_array_equal(codec.decode(base, blob), new)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("positions", [[0], [255], [*range(2000), 99_999], [99_999], [0, 99_999], [4095, 4096, 4097]])
def test_runs_short_and_long(positions: list[int], encoding: codec.Encoding) -> None:
    base = np.zeros(100_000, np.uint32)
    new = base.copy()
    new[positions] = 0x7FFF_FFFF
    new[positions[-1]] = 1
    blob = codec.encode(base, new, encoding=encoding)
    assert codec.read_header(blob).encoding == encoding
    np.testing.assert_array_equal(codec.decode(base, blob), new)


@pytest.mark.parametrize("size", [0, 1, 10_000, 1 << 19])
def test_nothing_changed_costs_a_handful_of_bytes(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_BLOCK_ELEMENTS", 1 << 17)
    base = np.arange(size, dtype=np.uint32)
    blob = codec.encode(base, base.copy())
    assert len(blob) <= 6
    np.testing.assert_array_equal(codec.decode(base, blob), base)


def _adam_like(size: int, step: float) -> tuple[codec.Bits, codec.Bits]:
    """bf16 before and after a step of about the same size for every weight."""
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal(size) * 0.02).astype(np.float32)
    after = weights + (rng.standard_normal(size) * step).astype(np.float32)
    base, new = (((w.view(np.uint32) + 0x8000) >> 16).astype(np.uint16) for w in (weights, after))
    return base, new


@pytest.mark.parametrize("step", [5e-7, 2e-6, 1e-5])
def test_half_of_xor_and_close_to_the_entropy_on_adam_like_updates(step: float) -> None:
    base, new = _adam_like(1 << 20, step)
    assert 0.005 < np.count_nonzero(base != new) / base.size < 0.2
    xor = zstandard.ZstdCompressor(level=1).compress((base ^ new).data)
    assert len(codec.encode(base, new)) <= len(xor) / 2
    steps = codec._ulp_order(new).astype(np.int64) - codec._ulp_order(base)
    bits = 0.0
    for exponent in np.unique(base >> 7 & 255):
        _, counts = np.unique(steps[base >> 7 & 255 == exponent], return_counts=True)
        bits -= float((counts * np.log2(counts / counts.sum())).sum())
    assert len(codec.encode(base, new, encoding="small")) <= 1.15 * bits / 8


def test_where_much_changed_and_where_there_is_little_the_small_encoding_is_taken() -> None:
    few, many, short = _adam_like(1 << 18, 5e-7), _adam_like(1 << 18, 1e-5), _adam_like(1 << 17, 5e-7)
    found = [codec.read_header(codec.encode(*pair)).encoding for pair in (few, many, short)]
    assert found == ["fast", "small", "small"]


@pytest.mark.parametrize(("size", "step"), [(128, 1e-5), (4096, 2e-6), (16384, 5e-7), (49152, 3e-5)])
def test_a_small_array_is_half_of_xor_too(size: int, step: float) -> None:
    base, new = _adam_like(size, step)
    xor = zstandard.ZstdCompressor(level=1).compress((base ^ new).data)
    assert len(codec.encode(base, new)) <= len(xor) / 2


def test_one_change_of_a_small_array_costs_a_few_bytes() -> None:
    base, _ = _adam_like(128, 1e-5)
    new = base.copy()
    new[77] += 1
    assert len(codec.encode(base, new)) <= 10


def test_mismatched_base_or_dtype_is_refused() -> None:
    a = np.zeros(8, np.uint16)
    with pytest.raises(TransferError, match="against a base"):
        codec.encode(a[:4].copy(), a)
    with pytest.raises(TransferError, match="uint8, uint16 or uint32"):
        codec.encode(None, a.astype(np.int64).view(np.uint64))
    with pytest.raises(TransferError, match="cannot decode"):
        codec.decode(a, codec.encode(a, a), out=a[:4].copy())
    blob = codec.encode(a, a)
    with pytest.raises(TransferError, match="expected 4 of 2"):
        codec.decode(a[:4].copy(), blob)
    with pytest.raises(TransferError, match="expected 8 of 4"):
        codec.decode(a.astype(np.uint32), blob)


GUARD = 4096


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(ENCODINGS), DTYPES, st.sampled_from([700, 1 << 21]))
def test_a_damaged_blob_raises_or_decodes_to_something_within_the_array(
    data: st.DataObject, encoding: codec.Encoding, dtype: type, block_elements: int
) -> None:
    """The codec alone cannot notice every flip; it must neither crash otherwise nor write past the array."""
    rng = np.random.default_rng(3)
    held = np.full(2 * GUARD + 2000, 0x5A, dtype)
    base = held[GUARD:-GUARD]
    base[:] = rng.integers(0x3C, 0x60, 2000)
    new = base.copy()
    new[rng.choice(2000, 240, replace=False)] += rng.integers(1, 4, 240).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_BLOCK_ELEMENTS", block_elements)
        blob = bytearray(codec.encode(base, new, encoding=encoding))
        assert codec.read_header(bytes(blob)).encoding == encoding
        kind = data.draw(st.sampled_from(["flip", "cut", "noise"]))
        if kind == "flip":
            for bit in data.draw(st.lists(st.integers(0, 8 * len(blob) - 1), min_size=1, max_size=3)):
                blob[bit // 8] ^= 1 << bit % 8
        elif kind == "cut":
            blob = blob[: data.draw(st.integers(0, len(blob) - 1))]
        else:
            # All of it after the header.
            blob[6:] = data.draw(st.binary(max_size=len(blob)))
        try:
            assert codec.decode(base, bytes(blob), out=base) is base
        except TransferError:
            pass
    np.testing.assert_array_equal(held[:GUARD], 0x5A)
    np.testing.assert_array_equal(held[-GUARD:], 0x5A)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("body", [b"", b"\xff" * 600, b"\0" * 600, b"\0" + b"\xff" * 700])
def test_a_made_up_body_raises_or_decodes_to_something_within_the_array(body: bytes, encoding: codec.Encoding) -> None:
    base = np.full(3000, 0x3C00, np.uint16)
    new = base.copy()
    new[::10] += 1
    header = codec.encode(base, new, encoding=encoding)[:6]
    held = np.full(2 * GUARD + base.size, 0x5A, np.uint16)
    held[GUARD:-GUARD] = base
    inner = held[GUARD:-GUARD]
    try:
        codec.decode(inner, header + body, out=inner)
    except TransferError:
        pass
    np.testing.assert_array_equal(held[:GUARD], 0x5A)
    np.testing.assert_array_equal(held[-GUARD:], 0x5A)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"", "nothing"),
        (b"\xd3", "d3"),
        (b"\xd2\0\0\0", "d200"),
        (b"\xd3\xa8\0\0", "d3a8"),
        (b"\xd3\0\x80", "no number at byte"),
        (b"\xd3\0" + b"\xff" * 20, "no number at byte"),
        (b"\xd3\0\x05\x06", "6 of 5 elements"),
    ],
)
def test_what_is_no_header_is_refused(blob: bytes, message: str) -> None:
    with pytest.raises(TransferError, match=message):
        codec.read_header(blob)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_a_header_says_what_was_encoded(dtype: type) -> None:
    array = np.zeros(300, dtype)
    for mantissa_bits in range(8 * array.itemsize):
        for encoding in ("dense", *ENCODINGS):
            header = codec.read_header(codec.encode(array, array, encoding=encoding, mantissa_bits=mantissa_bits))
            assert (header.encoding, header.item_bytes, header.mantissa_bits, header.elements) == (
                encoding,
                array.itemsize,
                mantissa_bits,
                300,
            )
