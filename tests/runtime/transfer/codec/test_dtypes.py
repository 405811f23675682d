from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from rose.runtime.transfer.codec import dtypes
from rose.runtime.transfer.codec.bits import from_bits, to_bits, torch_dtype


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_a_type_is_what_torch_says_it_is(name: str) -> None:
    of = torch_dtype(name)
    assert dtypes.bits_dtype(name).itemsize == of.itemsize
    assert torch.finfo(of).eps == 2.0 ** -dtypes.mantissa_bits(name)
    bits = torch.arange(256, dtype=torch.uint8).repeat(of.itemsize).numpy().view(dtypes.bits_dtype(name))
    assert (to_bits("t", from_bits(bits, name)) == bits).all()


def test_a_relay_needs_no_torch() -> None:
    program = "import sys; from rose.runtime.transfer.wire import receiver, relay; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
