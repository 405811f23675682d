import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.transfer import device
from rose.transfer.codec import codec, dtypes
from rose.transfer.codec.bits import from_bits, to_bits
from rose.transfer.codec.header import Bits
from rose.transfer.device import Fetched, Patch, fetch
from rose.transfer.errors import TransferError

on_each_device = pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
SHAPES: list[tuple[int, ...]] = [(), (0,), (0, 3), (1,), (257,), (33, 17), (3, 5, 7)]


def special(dtype: str) -> list[int]:
    """Bits of both zeros, both infinities where there are any, the largest, and NaNs with all kinds of payloads."""
    bits = 8 * dtypes.bits_dtype(dtype).itemsize
    exponent = (1 << (bits - 1)) - (1 << dtypes.mantissa_bits(dtype))
    found = [0, 1, exponent - 1, exponent, exponent + 1, (1 << (bits - 1)) - 1]
    return [sign << (bits - 1) | value for sign in (0, 1) for value in found]


@st.composite
def versions(draw: st.DrawFn) -> tuple[str, Bits, Bits]:
    """A dtype, and two versions of an array of any bit patterns, of which from none to all elements differ."""
    dtype = draw(st.sampled_from(dtypes.NAMES))
    unsigned, shape = dtypes.bits_dtype(dtype), draw(st.sampled_from(SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.0, 0.01, 0.1, 1.0]))

    def some() -> Bits:
        ordinary = rng.integers(0, 2 ** (8 * unsigned.itemsize), shape).astype(unsigned)
        return np.where(rng.random(shape) < 0.3, rng.choice(special(dtype), shape).astype(unsigned), ordinary)

    base = some()
    return dtype, base, np.where(rng.random(shape) < share, some(), base)


@on_each_device
@settings(max_examples=20)
@given(made=versions(), block=st.sampled_from([1, 7, 64, 1 << 24]))
def test_a_patch_leads_where_the_codec_does(where: str, made: tuple[str, Bits, Bits], block: int) -> None:
    dtype, base, new = made
    expected = codec.decode(base, codec.encode(base, new))
    engine = from_bits(base.copy(), dtype).to(where)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(device, "_BLOCK_ELEMENTS", block)
        patch = Patch.between(engine, from_bits(new, dtype).to(where))
        patch.write(engine)
    assert patch.values.device.type == "cpu"
    assert (to_bits("t", engine) == expected).all()
    if patch.positions is not None:
        assert patch.positions.tolist() == np.flatnonzero(base != new).tolist()
        assert patch.positions.nbytes + patch.values.nbytes < max(new.nbytes, 1)


@on_each_device
@pytest.mark.parametrize("changed", [1, 600])
def test_a_wider_tensor_gets_the_same_numbers(where: str, changed: int) -> None:
    old = torch.randn(600, dtype=torch.bfloat16)
    new = old.clone()
    new[:changed] *= 3
    engine = old.float().to(where)
    Patch.between(old, new).write(engine)
    assert torch.equal(engine.cpu(), new.float())


@on_each_device
def test_a_tensor_whose_elements_do_not_lie_in_order_is_written_whole_or_not_at_all(where: str) -> None:
    old = torch.zeros(40, 30, dtype=torch.float16, device=where)
    new = old.clone()
    new[1, 2] = 5
    engine = torch.zeros(30, 40, dtype=torch.float16, device=where).T
    with pytest.raises(TransferError, match=r"strides \(1, 40\) cannot be patched"):
        Patch.between(old, new).write(engine)
    assert not engine.any()
    Patch(None, new.cpu()).write(engine)
    assert torch.equal(engine, new)


def start(where: str, tensor: torch.Tensor) -> Fetched:
    """What is fetched first; in host memory a copy is kept beside it as on an accelerator, to run the same code."""
    first = fetch("t", tensor)
    return first if where == "cuda" else Fetched(first.bits.copy(), tensor.clone())


@on_each_device
@given(made=versions())
def test_what_a_trainer_fetches_is_what_a_whole_copy_would_be(where: str, made: tuple[str, Bits, Bits]) -> None:
    dtype, base, new = made
    tensor = from_bits(base.copy(), dtype).to(where)
    first = start(where, tensor)
    tensor.copy_(from_bits(new.copy(), dtype))
    second = fetch("t", tensor, first)
    tensor.zero_()  # The trainer goes on.
    assert (first.bits == base).all()
    assert (second.bits == new).all()
    if where == "cuda":
        assert second.on_device is not None
        assert (to_bits("t", second.on_device) == new).all()
    assert codec.encode(first.bits, second.bits) == codec.encode(base, new)
