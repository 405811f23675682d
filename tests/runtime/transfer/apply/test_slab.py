from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rose.runtime.transfer.apply.slab import Buffers, Slab


#: Of tests and parameters that need a card: `-m cuda` chooses them.
@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.cuda)], ids=["plain", "pinned"])
def slab(request: pytest.FixtureRequest) -> Slab:
    return Slab(pinned=request.param, segment_bytes=1 << 12)


def test_what_is_taken_is_nobody_else_s(slab: Slab) -> None:
    def one(number: int) -> torch.Tensor:
        return slab.take(100 + number, torch.int16).fill_(number)

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(one, range(100)))
    for number, tensor in enumerate(taken):
        assert tensor.shape == (100 + number,)
        assert (tensor == number).all()
        assert tensor.data_ptr() % 64 == 0


def test_it_grows_once_for_what_comes_again(slab: Slab) -> None:
    sizes = [3000, 1, 70_000, 0, 3000, 500]
    for order in (sizes, sizes, sizes[::-1]):
        slab.clear()
        for size in order:
            slab.take(size, torch.bfloat16)
        assert slab.nbytes == (1 << 13) + (1 << 18)


def test_memory_is_the_same_after_it_was_taken_back(slab: Slab) -> None:
    first = slab.take(10, torch.float32).data_ptr()
    slab.clear()
    assert slab.take(20, torch.float8_e4m3fn).data_ptr() == first


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (5, 3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e5m2, torch.int64])
def test_a_copy_is_kept_bit_for_bit(slab: Slab, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randn(shape).to(dtype)
    kept = slab.keep(tensor)
    assert kept.shape == tensor.shape
    assert kept.dtype == dtype
    assert torch.equal(kept.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
    assert kept.is_pinned() == slab._pinned


def test_as_many_buffers_are_kept_as_were_lent_at_once() -> None:
    buffers = Buffers(pinned=False)
    for _ in range(3):
        lent = [buffers.lend(size) for size in (1000, 1024, 5, 0)]
        assert [memory.nbytes for memory in lent] == [1024, 1024, 8, 1]
        assert len({memory.data_ptr() for memory in lent}) == 4
        for memory in lent:
            buffers.give_back(memory)
    assert buffers.nbytes == 1024 + 1024 + 8 + 1


def test_a_buffer_is_not_lent_for_less() -> None:
    buffers = Buffers(pinned=False)
    large = buffers.lend(1 << 20)
    buffers.give_back(large)
    assert buffers.lend(100).nbytes == 128
    assert buffers.lend(1 << 20) is large
