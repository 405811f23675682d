import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rose.transfer.codec import codec, planes
from rose.transfer.codec.choice import Amount, Link, duration_s, may_be_chosen, quickest
from rose.transfer.codec.header import Bits, Encoding, read_header
from tests.transfer.bit_patterns import adam_like

SIZE = 1 << 19
SIZES: dict[Encoding, int] = {"dense": 2_000_000, "fast": 20_000, "small": 9_000, "planes": 40_000}


@pytest.mark.parametrize(("megabit", "expected"), [(1, "small"), (1000, "fast"), (100_000, "fast")])
def test_bytes_count_on_a_slow_link_and_time_on_a_quick_one(megabit: float, expected: Encoding) -> None:
    assert quickest(SIZES, Amount(1_000_000, 10_000, 2), Link(megabit * 125_000, 2)) == expected
    assert quickest(SIZES, Amount(1_000_000, 1_000_000, 2), Link(1e12, 1)) == "dense"


@given(
    st.dictionaries(st.sampled_from(list(SIZES)), st.integers(1, 10**9), min_size=1),
    st.integers(1, 10**9),
    st.sampled_from([1, 2, 4]),
    st.floats(1e3, 1e12),
    st.floats(1.0, 1e3),
    st.integers(1, 128),
)
def test_none_is_much_quicker_or_slower_than_dense_and_a_slower_link_never_sends_more(
    sizes: dict[Encoding, int], elements: int, item_bytes: int, rate: float, slower: float, cores: int
) -> None:
    amount, link = Amount(elements, elements / 2, item_bytes), Link(rate, cores)
    best = quickest(sizes, amount, link)
    taken_s = {e: duration_s(e, size, amount, link) for e, size in sizes.items()}
    assert taken_s[best] <= 1.21 * min(taken_s.values())
    assert taken_s[best] <= taken_s.get("dense", taken_s[best])
    assert sizes[quickest(sizes, amount, Link(rate / slower, cores))] <= sizes[best]
    others = {encoding: size for encoding, size in sizes.items() if encoding != best}
    assert not others or may_be_chosen(best, others, amount, link)


@pytest.mark.parametrize(("rate", "cores"), [(0.0, 1), (-1.0, 1), (1e6, 0)])
def test_a_link_that_cannot_be_is_refused(rate: float, cores: int) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Link(rate, cores)


def changed(kind: str) -> tuple[Bits, Bits]:
    rng = np.random.default_rng(0)
    base, _ = adam_like(SIZE, 1e-5)
    if kind == "all by one ulp":
        return base, base + np.uint16(1)
    if kind == "all signs":
        return base, base ^ np.uint16(0x8000)
    if kind == "1% of signs":
        return base, base ^ np.where(rng.random(SIZE) < 0.01, 0x8000, 0).astype(np.uint16)
    if kind == "random":
        return base, rng.integers(0, 1 << 16, SIZE).astype(np.uint16)
    if kind == "rows":
        new = base.copy().reshape(-1, 512)
        new[::70] = adam_like(SIZE, 1e-5)[1][: new[::70].size].reshape(-1, 512)[::-1]
        return base, new.reshape(-1)
    if kind == "fp32":
        before = (rng.standard_normal(SIZE) * 0.02).astype(np.float32)
        return before.view(np.uint32), (before + rng.standard_normal(SIZE).astype(np.float32) * 1e-6).view(np.uint32)
    return adam_like(SIZE, float(kind))


KINDS = {"1e-7": 0.5, "1e-6": 0.5, "1e-5": 0.5, "1e-4": 0.8, "fp32": 0.8, "all by one ulp": 0.5, "1% of signs": 0.6}


@pytest.mark.parametrize(("kind", "most"), [*KINDS.items(), ("all signs", 1.0), ("random", 1.0), ("rows", 1.0)])
def test_at_100_mbit_it_is_smaller_than_xor_and_zstd(kind: str, most: float) -> None:
    base, new = changed(kind)
    blob = codec.encode(base, new, link=Link(12.5e6, 16))
    np.testing.assert_array_equal(codec.decode(base, blob), new)
    assert len(blob) <= most * len(zstandard.ZstdCompressor(level=1).compress((base ^ new).data)) + 16


@pytest.mark.parametrize("kind", ["1e-4", "fp32", "all by one ulp", "1% of signs", "all signs", "rows"])
def test_planes_are_never_larger_than_xor_and_zstd(kind: str) -> None:
    base, new = changed(kind)
    planes = codec.encode(base, new, encoding="planes")
    assert len(planes) <= len(zstandard.ZstdCompressor(level=1).compress((base ^ new).data))


def test_what_cannot_be_compressed_is_given_up_after_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def encode(base: Bits, new: Bits) -> tuple[int, bytes]:
        tried.append(base.size)
        return encoded(base, new)

    encoded = planes.encode
    monkeypatch.setattr(planes, "encode", encode)
    base, new = changed("random")
    assert read_header(codec.encode(base, new))[0].encoding == "dense"
    assert len(tried) == 1
    assert tried[0] <= SIZE // 8
