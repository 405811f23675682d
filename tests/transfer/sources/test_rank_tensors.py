"""What each rank has of a DTensor, for meshes of up to eight ranks. Torch's fake group stands for the other ranks: it
moves no elements, and each rank cuts its own out of the whole."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from rose.transfer.codec.bits import integers
from rose.transfer.errors import TransferError
from rose.transfer.package.cuts import elements
from rose.transfer.sources.rank_tensors import RankTensor, rank_tensors
from rose.transfer.sources.sharing import cuts, offers, share


@contextmanager
def one_rank(rank: int, *mesh_shape: int) -> Iterator[DeviceMesh]:
    names = ("a", "b", "c")[: len(mesh_shape)]
    ranks = torch.Size(mesh_shape).numel()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    finally:
        dist.destroy_process_group()


def on_each_rank(
    mesh_shape: tuple[int, ...], state: Callable[[DeviceMesh], dict[str, torch.Tensor]]
) -> list[dict[str, RankTensor]]:
    ranks = []
    for rank in range(torch.Size(mesh_shape).numel()):
        with one_rank(rank, *mesh_shape) as mesh:
            ranks.append(rank_tensors(state(mesh)))
    return ranks


def check_whole(ranks: list[dict[str, RankTensor]], whole: dict[str, torch.Tensor]) -> None:
    """All ranks' shares together are the whole tensors, each element once, and about the same for each rank."""
    shares = share([offers(given) for given in ranks], whole.keys())
    put = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    times = {name: torch.zeros(tensor.shape, dtype=torch.int8) for name, tensor in whole.items()}
    for given, boxes in zip(ranks, shares, strict=True):
        for cut in cuts(given, boxes):
            put[cut.info.name][cut.region.slices] = cut.elements()
            times[cut.info.name][cut.region.slices] += 1
    for name, tensor in whole.items():
        assert torch.equal(integers(put[name]), integers(tensor)), name
        assert bool((times[name] == 1).all()), name


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize("shape", [(7, 5), (8, 8), (3, 2, 4), (1, 9)], ids=str)
@pytest.mark.parametrize(
    ("mesh_shape", "placements"),
    [
        ((3,), [Shard(0)]),
        ((4,), [Shard(1)]),
        ((2,), [Replicate()]),
        ((2, 2), [Replicate(), Shard(0)]),
        ((2, 2), [Shard(0), Shard(0)]),
        ((2, 2), [Shard(1), Shard(0)]),
        ((2, 2, 2), [Replicate(), Shard(1), Shard(1)]),
    ],
    ids=str,
)
def test_the_boxes_of_all_ranks_are_the_whole(shape, mesh_shape, placements) -> None:
    whole = {"w": noise(*shape)}
    ranks = on_each_rank(
        mesh_shape, lambda mesh: {"w": distribute_tensor(whole["w"], mesh, placements, src_data_rank=None)}
    )
    check_whole(ranks, whole)


class Block(torch.nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(6, inner), torch.nn.Linear(inner, 6), torch.nn.LayerNorm(6)


@pytest.mark.parametrize("inner", [8, 10, 7, 3])
@pytest.mark.parametrize("mesh_shape", [(2, 2), (4, 2), (2, 4)], ids=str)
def test_fsdp_over_tensor_parallel_reaches_the_whole_also_where_nothing_divides(inner, mesh_shape) -> None:
    torch.manual_seed(0)
    whole = dict(Block(inner).state_dict())

    def state(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
        block = Block(inner)
        block.load_state_dict(whole)
        parallelize_module(block, mesh["b"], {"up": ColwiseParallel(), "down": RowwiseParallel()}, src_data_rank=None)
        return fully_shard(block, mesh=mesh["a"]).state_dict()

    check_whole(on_each_rank(mesh_shape, state), whole)


def test_a_rank_beside_the_mesh_has_nothing_and_partial_sums_are_refused() -> None:
    with one_rank(0, 2) as mesh:
        other = DeviceMesh("cpu", [1])
        plain = DTensor.from_local(noise(2), other, [Shard(0)], run_check=False)
        assert rank_tensors({"w": plain})["w"].boxes == {}
        partial = DTensor.from_local(noise(2), mesh, [Partial()], run_check=False)
        with pytest.raises(TransferError, match="'w' is a DTensor of partial sums"):
            rank_tensors({"w": partial})


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (torch.zeros(2, 2).to_sparse(), "'odd' is a Tensor .*sparse_coo"),
        (torch.zeros(2, dtype=torch.float64), "'odd' is torch.float64, expected one of bfloat16"),
        (torch.zeros(2, dtype=torch.int64), "'odd' is torch.int64"),
        (b"state", "'odd' is a bytes"),
    ],
    ids=["sparse", "float64", "int64", "bytes"],
)
def test_what_is_no_plain_tensor_is_refused_by_name(odd, message) -> None:
    with pytest.raises(TransferError, match=message):
        rank_tensors({"plain": torch.zeros(2), "odd": odd})


def test_a_tied_tensor_is_published_once_also_where_some_ranks_have_nothing_of_it() -> None:
    weight = noise(2, 3)  # Of three ranks the last has no row.

    def state(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
        shard = distribute_tensor(weight, mesh, [Shard(0)], src_data_rank=None)
        return {"embed_tokens.weight": shard, "lm_head.weight": shard}

    ranks = on_each_rank((3,), state)
    assert [given["lm_head.weight"].tied for given in ranks] == [True, True, False]
    shares = share([offers(given) for given in ranks], None)
    assert {name for boxes in shares for name, _ in boxes} == {"embed_tokens.weight"}


def test_elements_are_read_where_they_lie() -> None:
    weight = torch.nn.Parameter(noise(4, 4))
    (source,) = rank_tensors({"w": weight})["w"].boxes.values()
    assert elements(source).data_ptr() == weight.data_ptr()
    assert not elements(source).requires_grad
