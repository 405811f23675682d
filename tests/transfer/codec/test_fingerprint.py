"""`on_each_device` runs a test on CPU cores and, as `pytest.mark.cuda`, on a card."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.transfer import turns
from rose.transfer.codec import dtypes, fingerprint
from rose.transfer.codec.bits import from_bits, torch_dtype
from rose.transfer.codec.fingerprint import of_bits, of_tensor
from rose.transfer.codec.header import Bits
from tests.transfer.test_device import SHAPES, on_each_device

WORD = (1 << 64) - 1


@st.composite
def arrays(draw: st.DrawFn) -> tuple[str, Bits]:
    dtype, shape = draw(st.sampled_from(dtypes.NAMES)), draw(st.sampled_from([*SHAPES, (5,), (1031,), (16, 8)]))
    unsigned = dtypes.bits_dtype(dtype)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return dtype, rng.integers(0, 2 ** (8 * unsigned.itemsize), shape).astype(unsigned)


def in_words(bits: Bits) -> int:
    """As it is defined, in Python's own integers."""
    memory, total = bits.tobytes(), 0
    for place, at in enumerate(range(0, len(memory), 8)):
        word = int.from_bytes(memory[at : at + 8], "little") + place * fingerprint._STEP & WORD
        for factor in fingerprint._FACTORS:
            word = (word ^ word >> 32) * factor & WORD
        total += word ^ word >> 32
    return total & WORD


@on_each_device
@given(made=arrays(), block=st.sampled_from([5, 64, 1 << 21]))
def test_host_and_device_come_to_the_same_number(where: str, made: tuple[str, Bits], block: int) -> None:
    dtype, bits = made
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fingerprint, "_BLOCK_WORDS", block)
        patched.setattr(fingerprint, "PORTION_BYTES", 8 * block)
        there = of_tensor(from_bits(bits, dtype).to(where), torch_dtype(dtype))
        assert of_bits(bits) == there == in_words(bits)


def test_flips_of_the_same_bits_in_many_words_do_not_cancel_out() -> None:
    """A sum of products would miss half of all pairs of flipped top bits, or all."""
    rng = np.random.default_rng(0)
    for pattern in (1 << 63, 1 << 31, 0x8000800080008000, 1):
        words = rng.integers(0, 2**64, 1 << 18, dtype=np.uint64)
        one, other = (np.array([of_bits(word) for word in some[:2048]], np.uint64) for some in (words, words ^ pattern))
        moved = other - one
        assert np.unique(np.minimum(moved, -moved)).size == moved.size


@on_each_device
def test_a_wider_type_has_the_number_of_what_it_holds_and_none_if_it_holds_more(where: str) -> None:
    published = torch.randn(1001).bfloat16()
    wide = published.float().to(where)
    assert of_tensor(wide, torch.bfloat16) == of_tensor(published, torch.bfloat16)
    wide[1000] *= 1 + 2**-20
    assert of_tensor(wide, torch.bfloat16) is None


def test_each_portion_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "PORTION_BYTES", 80)
    monkeypatch.setattr(fingerprint, "_BLOCK_WORDS", 10)
    assert turns.PORTION_BYTES % 8 == 0
    entered = []

    @contextmanager
    def turn():  # type: ignore[no-untyped-def]
        entered.append(None)
        yield

    of_bits(np.zeros(400, np.uint16), turn)
    assert len(entered) == 10
    of_tensor(torch.zeros(400, dtype=torch.bfloat16), torch.bfloat16, turn)
    assert len(entered) == 10 + 1 + 10
