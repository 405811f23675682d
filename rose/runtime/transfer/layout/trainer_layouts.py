"""The boxes of each tensor that a trainer's rank publishes, for the usual ways to spread a model over ranks. If several
ranks hold a box, one publishes it: all ranks together publish every element exactly once."""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.layout.regions import Region, flat_regions, overlapping
from rose.runtime.transfer.layout.shards import ModelShape, check_rank, tensor_parallel_regions

Regions = dict[str, tuple[Region, ...]]  # The boxes of each tensor, by name.
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a trainer spreads its model over `ranks` ranks. `held` returns the boxes of one rank, padding included. For
    another trainer write your own `held`, and run `check_cover` on it."""

    ranks: int
    held: Callable[[ModelShape, int], Regions]

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise TransferError(f"a layout of {self.ranks} ranks: expected 1 or more")

    def regions(self, model: ModelShape, rank: int) -> Regions:
        """Return the boxes of each tensor that a rank publishes, each contiguous in the rank's own memory. Raises
        TransferError for a rank out of range, a model that does not fit the layout, and a box outside of its tensor."""
        check_rank(self.ranks, rank)
        by_name: Regions = {}
        for name, regions in self.held(model, rank).items():
            published = model.published(name)
            for region in regions:
                if not Region.whole(model.shapes[name]).contains(region):
                    shape = model.shapes[name]
                    raise TransferError(f"tensor {name!r}: rank {rank} holds {region}, outside of its shape {shape}")
            if boxes := tuple(box for region in regions if (box := region.intersect(published))):
                by_name[name] = boxes
        return by_name


def replicated(ranks: int = 1) -> Layout:
    """Every rank holds everything; the ranks take turns with the tensors to share the work."""

    def held(model: ModelShape, rank: int) -> Regions:
        return {name: (Region.whole(model.shapes[name]),) for name in list(model.shapes)[rank::ranks]}

    return Layout(ranks, held)


def fsdp(ranks: int) -> Layout:
    """FSDP2: the rows of each parameter in chunks of ceil(rows / ranks); the last chunks may be short or empty."""

    def held(model: ModelShape, rank: int) -> Regions:
        sizes = {name: -(-(shape or (1,))[0] // ranks) * math.prod(shape[1:]) for name, shape in model.shapes.items()}
        return {name: _flat(model.shapes[name], rank * size, (rank + 1) * size) for name, size in sizes.items()}

    return Layout(ranks, held)


def fsdp_flat(ranks: int) -> Layout:
    """FSDP1 with one flat parameter: all parameters in the order of `ModelShape.shapes`, padded, and split evenly."""

    def held(model: ModelShape, rank: int) -> Regions:
        ends = list(itertools.accumulate(map(math.prod, model.shapes.values()), initial=0))
        share = -(-ends[-1] // ranks)
        return {
            name: _flat(shape, rank * share - offset, (rank + 1) * share - offset)
            for (name, shape), offset in zip(model.shapes.items(), ends, strict=False)
        }

    return Layout(ranks, held)


def tensor_parallel(ranks: int) -> Layout:
    """Megatron's split: SGLang's, but vocabulary rows in chunks of ceil(rows / ranks). The first holder publishes."""

    def held(model: ModelShape, rank: int) -> Regions:
        own = tensor_parallel_regions(model, ranks, rank, None)
        # Ranks with equal boxes follow each other.
        before = tensor_parallel_regions(model, ranks, rank - 1, None) if rank else {}
        return {name: (region,) for name, region in own.items() if before.get(name) != region}

    return Layout(ranks, held)


def pipeline(ranks: int) -> Layout:
    """Whole layers: layer i of n on rank i * ranks // n, the embedding on the first rank, all else on the last."""

    def held(model: ModelShape, rank: int) -> Regions:
        layers = {name: int(match[1]) for name in model.shapes if (match := _LAYER.search(name))}
        count = max(layers.values(), default=0) + 1

        def stage(name: str) -> int:
            if name in layers:
                return layers[name] * ranks // count
            return 0 if "embed_tokens" in name else ranks - 1

        return {name: (Region.whole(shape),) for name, shape in model.shapes.items() if stage(name) == rank}

    return Layout(ranks, held)


def check_cover(model: ModelShape, layout: Layout) -> None:
    """Raise TransferError if a layout publishes an element twice, never, or outside of its tensor."""
    held: dict[str, list[Region]] = {name: [] for name in model.shapes}
    for rank in range(layout.ranks):
        for name, regions in layout.regions(model, rank).items():
            held[name] += regions
    for name, boxes in held.items():
        if pair := overlapping(boxes):
            raise TransferError(f"tensor {name!r}: {pair[0]} and {pair[1]} overlap, expected each element once")
        covered, total = sum(box.elements for box in boxes), model.published(name).elements
        if covered != total:
            raise TransferError(f"tensor {name!r}: the ranks publish {covered} of its {total} elements")


def _flat(shape: tuple[int, ...], start: int, stop: int) -> tuple[Region, ...]:
    total = math.prod(shape)
    return flat_regions(shape, min(max(start, 0), total), min(max(stop, 0), total))
