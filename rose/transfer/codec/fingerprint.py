"""A 64-bit fingerprint that an accelerator computes in place. It is the sum of all words, each mixed with its place by
a bijection. A change of a single word is always found. Of the other changes, about one in 2**64 is missed."""

from typing import Any

import numpy as np
import torch

from rose.transfer.codec.compiled import Array, jit
from rose.transfer.codec.header import Bits
from rose.transfer.turns import PORTION_BYTES, Turn, at_once

_WORD_BYTES = 8
_BLOCK_WORDS = 1 << 21  # Words mixed at once on an accelerator: 16 MB fit its cache, and take well under a millisecond.
#: The offset from one place to the next, and the odd factors of the rounds. They come from splitmix64 and MurmurHash3.
#: Two rounds are too few: if all four signs of a word of bfloat16 are flipped in two places, the changes cancel out far
#: too often.
_STEP = 0x9E3779B97F4A7C15
_FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0xD6E8FEB86659FD93)
_U = np.uint64
_SHIFT, _STEP_U = _U(32), _U(_STEP)
_FIRST, _SECOND, _THIRD = (_U(factor) for factor in _FACTORS)


def of_bits(bits: Bits, turn: Turn = at_once) -> int:
    """Return the fingerprint of an array in host memory, in C order. Each portion is read in a `turn()`."""
    memory = np.ascontiguousarray(bits).reshape(-1).view(np.uint8)
    whole = memory.size // _WORD_BYTES * _WORD_BYTES
    total = 0
    for start in range(0, whole, PORTION_BYTES):
        with turn():
            words = memory[start : min(start + PORTION_BYTES, whole)].view(np.uint64)
            total += int(_sum(words, _U(start // _WORD_BYTES)))
    if whole < memory.size:
        last = np.zeros(_WORD_BYTES, np.uint8)
        last[: memory.size - whole] = memory[whole:]
        total += int(_sum(last.view(np.uint64), _U(whole // _WORD_BYTES)))
    return total % 2**64


def of_tensor(tensor: torch.Tensor, dtype: torch.dtype, turn: Turn = at_once) -> int | None:
    """Return the tensor's fingerprint in type `dtype`, or None if one of its values does not fit into this type."""
    with turn():
        flat = tensor.detach().reshape(-1)
        count = min(_BLOCK_WORDS, -(-flat.numel() * dtype.itemsize // _WORD_BYTES))
        steps = torch.arange(count, dtype=torch.int64, device=flat.device) * _signed(_STEP)
        total = torch.zeros((), dtype=torch.int64, device=flat.device)
    elements = _BLOCK_WORDS * _WORD_BYTES // dtype.itemsize
    for start in range(0, flat.numel(), elements):
        with turn():
            block = flat[start : start + elements]
            exact = block.to(dtype)
            if block.dtype != dtype and not torch.equal(exact.to(block.dtype), block):
                return None
            total += _mixed(_words(exact), steps, start * dtype.itemsize // _WORD_BYTES)
            if flat.is_cuda:
                torch.cuda.current_stream(flat.device).synchronize()
    return int(total.item()) % 2**64


def _words(block: torch.Tensor) -> torch.Tensor:
    aligned = block.storage_offset() * block.element_size() % _WORD_BYTES == 0
    if aligned and block.nbytes % _WORD_BYTES == 0:
        return block.view(torch.int64)
    words = torch.zeros(-(-block.nbytes // _WORD_BYTES), dtype=torch.int64, device=block.device)
    words.view(torch.uint8)[: block.nbytes].copy_(block.view(torch.uint8))
    return words


def _mixed(words: torch.Tensor, steps: torch.Tensor, first: int) -> torch.Tensor:
    mixed = words + steps[: words.numel()]
    mixed += _signed(first * _STEP)
    # Torch only shifts signed integers, which copies the sign: move the upper half onto the lower one instead.
    lower, upper = mixed.view(torch.int32).view(-1, 2).unbind(1)
    for factor in _FACTORS:
        lower.bitwise_xor_(upper)
        mixed *= _signed(factor)
    lower.bitwise_xor_(upper)
    return mixed.sum()


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


@jit
def _sum(words: Array, first: Any) -> Any:
    total = _U(0)
    for i in range(words.size):
        word = words[i] + (first + _U(i)) * _STEP_U
        word = (word ^ word >> _SHIFT) * _FIRST
        word = (word ^ word >> _SHIFT) * _SECOND
        word = (word ^ word >> _SHIFT) * _THIRD
        total += word ^ word >> _SHIFT
    return total
