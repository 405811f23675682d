"""Publication by several trainer ranks, none of which ever sees a full tensor."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.transfer.shards import Piece, cells, cut_part, pieces
from rose.transfer.apply.apply import prepare
from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region
from rose.transfer.layout.shards import ModelShape, receiver_regions
from rose.transfer.package.manifest import plan
from rose.transfer.package.parts import Writer
from rose.transfer.store.store import Published, VersionStore
from tests.transfer.random_model import random_weights
from tests.transfer.training import stage

SHAPES = {
    "model.embed_tokens.weight": (70, 6),
    "model.layers.0.self_attn.q_proj.weight": (8, 6),
    "model.layers.0.self_attn.k_proj.weight": (4, 6),
    "model.layers.0.self_attn.o_proj.weight": (6, 8),
    "model.layers.1.mlp.down_proj.weight": (6, 12),
    "model.norm.weight": (6,),
}
MODEL = ModelShape(SHAPES, num_heads=4, num_kv_heads=2, head_dim=2, vocab_size=67)
TP = 4


def version_of(model: ModelShape, version: int) -> dict[str, torch.Tensor]:
    arrays = random_weights(model)
    for earlier in range(1, version + 1):
        rng = np.random.default_rng(earlier)
        for array in arrays.values():
            np.add(array, rng.random(array.shape) < 0.1, out=array)
    return {name: torch.from_numpy(array.view(np.float32)) for name, array in arrays.items()}


Layout = Callable[[int, int], dict[str, tuple[Region, ...]]]  # Of a rank and the number of ranks.


def rows(rank: int, ranks: int) -> dict[str, tuple[Region, ...]]:
    """As FSDP2 splits: the rows of each tensor in chunks of ceil(rows / ranks); the last ones may be empty."""
    held = {}
    for name in SHAPES:
        whole = MODEL.published(name)
        length = -(-SHAPES[name][0] // ranks)
        if box := whole.between(0, rank * length, (rank + 1) * length):
            held[name] = (box,)
    return held


def tensor_parallel(rank: int, ranks: int) -> dict[str, tuple[Region, ...]]:
    """As SGLang's own ranks; what all have is published by the first."""
    others = receiver_regions(MODEL, ranks, rank - 1) if rank else {}
    own = receiver_regions(MODEL, ranks, rank)
    return {name: (box,) for name, box in own.items() if others.get(name) != box}


class Trainer:
    """The ranks of a trainer, each with a store of its own on the one folder, as processes have."""

    def __init__(self, folder: Path, layout: Layout, ranks: int, *, attempt: str = "0") -> None:
        self.ranks = ranks
        self.attempt = attempt
        self.stores = [VersionStore(folder, anchor_every=4) for _ in range(ranks)]
        cut = cells(MODEL, TP)
        self.pieces = [pieces(layout(rank, ranks), cut) for rank in range(ranks)]

    def part(self, version: int, rank: int) -> dict[Piece, torch.Tensor]:
        tensors = version_of(MODEL, version)
        return {piece: tensors[piece.name][piece.region.slices] for piece in self.pieces[rank]}

    def publish(self, version: int, rank: int) -> Published | None:
        part = self.part(version, rank)
        return self.publish_pieces(version, rank, part)

    def publish_pieces(self, version: int, rank: int, part: dict[Piece, torch.Tensor]) -> Published | None:
        writer = Writer(rank, self.ranks, self.attempt)
        return self.stores[rank].publish_part(version, writer, cut_part(part, MODEL))

    def publish_all(self, version: int) -> Published:
        *others, last = [self.publish(version, rank) for rank in range(self.ranks)]
        assert others == [None] * len(others)
        assert last is not None
        return last


def check_receivers(store: VersionStore, model: ModelShape, tp: int, version: int, have: int | None, to: Path) -> None:
    before, after = version_of(model, have or 0), version_of(model, version)
    way = plan(store.packages(), version, have)
    for rank in range(tp):
        regions = receiver_regions(model, tp, rank)
        engine = {name: before[name][box.slices].clone() for name, box in regions.items()}
        prepare(stage(store, way, to, regions), engine, regions).commit()
        for name, box in regions.items():
            expected = after[name][box.slices]
            assert torch.equal(engine[name].view(torch.int32), expected.contiguous().view(torch.int32)), (rank, name)


@pytest.mark.parametrize(("layout", "ranks"), [(rows, 3), (tensor_parallel, 2)], ids=["rows", "tensor_parallel"])
def test_each_layout_of_trainers_reaches_each_receiver(memory: Path, layout: Layout, ranks: int) -> None:
    trainer = Trainer(memory / "store", layout, ranks)
    for version in range(3):
        published = trainer.publish_all(version)
    assert [manifest.base_version for manifest in published] == [1, 0]
    for receiver, have in ((1, None), (2, 0), (4, 1)):
        check_receivers(trainer.stores[0], MODEL, receiver, 2, have, memory / "staged")
    assert not list((memory / "store" / "parts").iterdir())


def test_ranks_may_run_ahead_of_each_other(memory: Path) -> None:
    trainer = Trainer(memory / "store", rows, 2)
    trainer.publish_all(0)
    for version in range(1, 5):
        trainer.stores[0].prune()  # What the others have yet to complete stays.
        assert trainer.publish(version, 0) is None
    for version in range(1, 5):
        assert trainer.publish(version, 1) is not None
    check_receivers(trainer.stores[0], MODEL, 2, 4, 0, memory / "staged")
    check_receivers(trainer.stores[0], MODEL, 4, 4, None, memory / "staged")


def test_a_rank_that_died_publishes_again(memory: Path) -> None:
    trainer = Trainer(memory / "store", rows, 2)
    for version in range(2):
        trainer.publish_all(version)
    trainer.publish(2, 1)
    # Rank 1 dies after its part is written, and rank 0 before; both come back and know nothing.
    again = Trainer(memory / "store", rows, 2)
    assert again.publish(2, 1) is None
    assert again.publish(2, 0) is not None
    check_receivers(again.stores[0], MODEL, 4, 2, 1, memory / "staged")
    # It died after the version was complete: to publish it again changes nothing.
    assert Trainer(memory / "store", rows, 2).publish(2, 1) is None
    again.publish_all(3)
    check_receivers(again.stores[0], MODEL, 4, 3, 2, memory / "staged")


def test_a_trainer_that_returns_with_more_ranks_continues_with_deltas(memory: Path) -> None:
    before = Trainer(memory / "store", rows, 2)
    for version in range(2):
        before.publish_all(version)
    after = Trainer(memory / "store", rows, 3)
    assert after.publish_all(2)[0].base_version == 1
    for have in (0, 1, None):
        check_receivers(after.stores[0], MODEL, TP, 2, have, memory / "staged")


def test_parts_of_two_attempts_are_never_put_together(memory: Path) -> None:
    first = Trainer(memory / "store", rows, 2)
    first.publish_all(0)
    first.publish(1, 0)
    # The trainer begins anew, and its step comes out another way.
    second = Trainer(memory / "store", rows, 2, attempt="1")
    other = [{piece: tensor * 3 for piece, tensor in second.part(1, rank).items()} for rank in range(2)]
    assert second.publish_pieces(1, 1, other[1]) is None
    assert second.stores[0].latest() == 0
    store = second.stores[0]
    assert second.publish_pieces(1, 0, other[0]) is not None
    regions = receiver_regions(MODEL, 1, 0)
    engine = {name: version_of(MODEL, 0)[name][box.slices].clone() for name, box in regions.items()}
    prepare(stage(store, plan(store.packages(), 1, 0), memory / "staged", regions), engine, regions).commit()
    for piece, tensor in (item for part in other for item in part.items()):
        assert torch.equal(engine[piece.name][piece.region.slices].view(torch.int32), tensor.view(torch.int32)), piece
    # What is left of the first attempt can do no harm, and learns of it.
    with pytest.raises(TransferError, match=r"version 1 exists in .* this publisher has"):
        first.publish(1, 1)


def test_parts_that_do_not_make_up_the_version_are_refused(memory: Path) -> None:
    trainer = Trainer(memory / "store", rows, 2)
    first, second = trainer.part(0, 0), trainer.part(0, 1)
    missing = next(piece for piece in second if piece.name == "model.norm.weight")
    store = trainer.stores[0]
    trainer.publish_pieces(0, 0, first)
    with pytest.raises(TransferError, match=r"pieces of 'model\.norm\.weight' hold \d of its 6"):
        trainer.publish_pieces(0, 1, {piece: second[piece] for piece in second if piece != missing})
    assert store.packages() == []
    with pytest.raises(TransferError, match=r"does not come after|overlap"):
        trainer.publish_pieces(0, 1, {**second, **dict(list(first.items())[:1])})
    assert trainer.publish_pieces(0, 1, second) is not None
    with pytest.raises(TransferError, match=r"has shape \[2\]"):
        trainer.publish_pieces(1, 0, {missing: torch.zeros(2)})
    with pytest.raises(TransferError, match=r"'model\.norm\.weight' is bfloat16\[6\], but float32\[6\] in version 0"):
        trainer.publish_pieces(1, 0, {missing: torch.zeros(missing.region.shape, dtype=torch.bfloat16)})


def test_ranks_in_processes_of_their_own(memory: Path) -> None:
    trainer = Trainer(memory / "store", rows, 3)
    trainer.publish_all(0)
    children = []
    for rank in range(3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                completed = [trainer.publish(version, rank) is not None for version in range(1, 7)]
                (memory / f"completed-{rank}").write_text(str(sum(completed)))
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert sum(int(path.read_text()) for path in memory.glob("completed-*")) == 6
    assert trainer.stores[0].latest() == 6
    check_receivers(trainer.stores[0], MODEL, 4, 6, 0, memory / "staged")
