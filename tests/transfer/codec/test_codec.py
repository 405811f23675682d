import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.transfer.codec import blocks, choice, codec
from rose.transfer.codec.choice import Link
from rose.transfer.codec.header import HEADER_BYTES, Bits, Encoding, read_header
from rose.transfer.errors import TransferError
from tests.long_form import usual
from tests.transfer.bit_patterns import DTYPES, ENCODINGS, SPECIAL, adam_like, pairs, ulp_order


@settings(max_examples=usual(40, long=400))
@given(pairs(), st.sampled_from([None, *ENCODINGS]), st.sampled_from([None, 0, 2]))
def test_round_trip_is_bit_exact_and_never_larger_than_dense(
    pair: tuple[Bits, Bits], encoding: Encoding | None, mantissa_bits: int | None
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
    assert len(blob) <= new.nbytes + HEADER_BYTES
    header = read_header(blob)[0]
    estimated = encoding is None and header.encoding == "dense"
    assert header.changed == np.count_nonzero(base != new) or (estimated and header.changed <= new.size)
    assert codec.decode(base, blob, out=base) is base
    np.testing.assert_array_equal(base, new)


def test_changes_of_an_array_sent_whole_are_estimated() -> None:
    rng = np.random.default_rng(0)
    base, new = rng.integers(0, 1 << 16, (2, 1 << 19), dtype=np.uint16)
    new[rng.random(new.size) < 0.2] = base[0]
    blobs = codec.encode(base, new), codec.advance(base.copy(), new)[0]
    for header in (read_header(blob)[0] for blob in blobs):
        assert header.encoding == "dense"
        assert abs(header.changed - np.count_nonzero(base != new)) < 0.01 * new.size


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_blocks_and_their_ends(encoding: Encoding, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_blocks(monkeypatch, 1000)
    rng = np.random.default_rng(1)
    for size in (1, 7, 999, 1000, 1001, 1999, 2000, 2001, 5003):
        for density in (0.0, 0.01, 0.4, 1.0):
            base = rng.integers(0x3C00, 0x3E00, size, dtype=np.uint16)
            new = np.where(rng.random(size) < density, base + rng.integers(1, 4, size).astype(np.uint16), base)
            np.testing.assert_array_equal(codec.decode(base, codec.encode(base, new, encoding=encoding)), new)


def _in_blocks(patch: pytest.MonkeyPatch, elements: int) -> None:
    patch.setattr(blocks, "_BLOCK_ELEMENTS", elements)
    patch.setattr(blocks, "_IN_THREADS", 2)


@settings(max_examples=20)
@given(pairs(), st.sampled_from([None, 0, 2]), st.sampled_from([100, 1 << 21]), st.sampled_from([1e5, 1e9, 1e13]))
def test_advancing_sends_what_encoding_does_leads_there_and_is_undone(
    pair: tuple[Bits, Bits], mantissa_bits: int | None, block: int, bytes_per_s: float
) -> None:
    base, new = pair
    with pytest.MonkeyPatch.context() as patch:
        _in_blocks(patch, block)
        link = Link(bytes_per_s, 1)
        held = base.copy()
        blob, inverse = codec.advance(held, new, mantissa_bits=mantissa_bits, link=link)
        assert blob == codec.encode(base, new, mantissa_bits=mantissa_bits, link=link)
        np.testing.assert_array_equal(held, new)
        codec.undo(held, inverse)
    np.testing.assert_array_equal(held, base)


@pytest.mark.parametrize("encoding", ["dense", *ENCODINGS])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_each_encoding_is_undone(dtype: type, encoding: Encoding, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_blocks(monkeypatch, 1000)
    monkeypatch.setattr(choice, "quickest", lambda *_: encoding)
    rng = np.random.default_rng(0)
    base = rng.integers(0, np.iinfo(dtype).max, 5003, dtype=dtype, endpoint=True)
    new = np.where(rng.random(base.size) < 0.1, rng.permutation(base), base)
    new[:1000] = base[:1000]
    held = base.copy()
    blob, inverse = codec.advance(held, new)
    assert read_header(blob)[0].encoding == encoding
    np.testing.assert_array_equal(held, new)
    codec.undo(held, inverse)
    np.testing.assert_array_equal(held, base)


@given(pairs())
def test_without_a_base_the_whole_array_is_sent(pair: tuple[Bits, Bits]) -> None:
    base, new = pair
    blob = codec.encode(None, new)
    np.testing.assert_array_equal(codec.decode(base, blob), new)
    header, _ = read_header(blob)
    assert (header.encoding, header.changed) == ("dense", new.size)
    assert len(blob) - new.nbytes in range(4, 9), "magic, kind, and two numbers below 2**21"


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_every_special_value_can_follow_every_other(dtype: type, encoding: Encoding) -> None:
    values = np.array(SPECIAL[dtype], dtype)
    # Repeated, so that the delta is the smaller encoding and the pairs really pass through ULP order.
    base, new = np.repeat(values, 64 * len(values)), np.tile(np.repeat(values, 64), len(values))
    np.testing.assert_array_equal(codec.decode(base, codec.encode(base, new, encoding=encoding)), new)


def test_all_65536_patterns_go_to_the_next_in_ulp_order() -> None:
    base = np.arange(1 << 16, dtype=np.uint16)
    in_order = base[np.argsort(ulp_order(base))]
    as_float = (in_order.astype(np.uint32) << 16).view(np.float32)
    assert np.all(np.diff(as_float[np.isfinite(as_float)]) >= 0)
    new = np.empty_like(base)
    new[in_order] = np.roll(in_order, -1)
    blob = codec.encode(base, new)
    assert len(blob) < base.nbytes / 8, "a step of one ULP everywhere costs its sign, and little for each exponent"
    np.testing.assert_array_equal(codec.decode(base, blob), new)


@pytest.mark.parametrize("size", [0, 1, 10_000, 1 << 19])
def test_nothing_changed_costs_a_handful_of_bytes(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BLOCK_ELEMENTS", 1 << 17)
    base = np.arange(size, dtype=np.uint32)
    blob = codec.encode(base, base.copy())
    assert len(blob) <= 6
    np.testing.assert_array_equal(codec.decode(base, blob), base)


@pytest.mark.parametrize("step", [5e-7, 2e-6, 1e-5])
def test_half_of_xor_and_close_to_the_entropy_onadam_like_updates(step: float) -> None:
    base, new = adam_like(1 << 20, step)
    assert 0.005 < np.count_nonzero(base != new) / base.size < 0.2
    slow = Link(12.5e6, 16)
    assert (
        len(codec.encode(base, new, link=slow))
        <= len(zstandard.ZstdCompressor(level=1).compress((base ^ new).data)) / 2
    )
    steps = ulp_order(new) - ulp_order(base)
    bits = 0.0
    for exponent in np.unique(base >> 7 & 255):
        _, counts = np.unique(steps[base >> 7 & 255 == exponent], return_counts=True)
        bits -= float((counts * np.log2(counts / counts.sum())).sum())
    assert len(codec.encode(base, new, encoding="small")) <= 1.15 * bits / 8


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


@settings(max_examples=30)
@given(st.data(), st.sampled_from(ENCODINGS), DTYPES, st.sampled_from([700, 1 << 21]))
def test_a_damaged_blob_raises_or_decodes_to_something_within_the_array(
    data: st.DataObject, encoding: Encoding, dtype: type, block_elements: int
) -> None:
    """The codec alone cannot notice every flip; it must neither crash otherwise nor write past the array."""
    rng = np.random.default_rng(3)
    held = np.full(2 * GUARD + 2000, 0x5A, dtype)
    base = held[GUARD:-GUARD]
    base[:] = rng.integers(0x3C, 0x60, 2000)
    new = base.copy()
    new[rng.choice(2000, 240, replace=False)] += rng.integers(1, 4, 240).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BLOCK_ELEMENTS", block_elements)
        blob = bytearray(codec.encode(base, new, encoding=encoding))
        assert read_header(bytes(blob))[0].encoding == encoding
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
def test_a_made_up_body_raises_or_decodes_to_something_within_the_array(body: bytes, encoding: Encoding) -> None:
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
