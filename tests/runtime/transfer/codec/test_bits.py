from __future__ import annotations

import numpy as np
import pytest
import torch

from rose.runtime.transfer.codec.bits import digest, dtype_name, from_bits, integers, to_bits
from rose.runtime.transfer.codec.dtypes import NAMES, bits_dtype
from rose.runtime.transfer.errors import TransferError


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_every_pattern_of_bits_comes_back(dtype: str, shape: tuple[int, ...]) -> None:
    bits = np.frombuffer(np.random.default_rng(1).bytes(60), bits_dtype(dtype))[: int(np.prod(shape))].reshape(shape)
    tensor = from_bits(bits.copy(), dtype)
    assert (dtype_name("t", tensor), tuple(tensor.shape)) == (dtype, shape)
    assert np.array_equal(to_bits("t", tensor), bits)


def test_a_contiguous_tensor_is_not_copied_and_another_is() -> None:
    tensor = torch.zeros(4, 6, dtype=torch.bfloat16)
    bits, across = to_bits("t", tensor), to_bits("t", tensor.T)
    tensor[1, 2] = -0.0
    assert bits[1, 2] == 0x8000
    assert across.shape == (6, 4)
    assert not across.any()
    assert integers(tensor)[8] == -0x8000


def test_a_hash_is_of_the_bits_and_not_of_the_numbers() -> None:
    zeros = torch.zeros(8)
    assert torch.equal(zeros, -zeros)
    assert digest(to_bits("t", zeros)) != digest(to_bits("t", -zeros))


def test_a_type_without_a_name_is_refused_by_the_tensor_s() -> None:
    with pytest.raises(TransferError, match=r"tensor 'w' is torch.int64, expected one of .*bfloat16"):
        to_bits("w", torch.zeros(1, dtype=torch.int64))
