"""Which rank publishes what, where several ranks of a trainer publish together. Every rank decides it alike, from what
all of them have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.layout.regions import Region, overlapping
from rose.runtime.transfer.package.cuts import Cut
from rose.runtime.transfer.package.manifest import TensorInfo
from rose.runtime.transfer.sources.given import Given

Offer = tuple[TensorInfo, tuple[Region, ...], bool]  # A rank's boxes of a tensor, and whether it is tied to another.


def offers(tensors: Mapping[str, Given]) -> list[Offer]:
    return [(given.info, tuple(given.boxes), given.tied) for given in tensors.values()]


def share(ranks: Sequence[Sequence[Offer]], wanted: Collection[str] | None) -> list[set[tuple[str, Region]]]:
    """Return the boxes that each rank publishes, so that all together publish each element once. Of several ranks that
    have a box, the one with the least to publish does. `wanted` are the names of the whole model. Raises TransferError
    naming the tensor, and the rank, if ranks differ in its type or shape, have overlapping boxes, or lack a part."""
    shares: list[set[tuple[str, Region]]] = [set() for _ in ranks]
    load = [0] * len(ranks)
    names = set()
    for info, holders in _tensors(ranks):
        names.add(info.name)
        if pair := overlapping(holders):
            (one, other) = (holders[box][0] for box in pair)
            raise TransferError(
                f"tensor {info.name!r}: rank {one} has {pair[0]} and rank {other} {pair[1]}, which overlap"
            )
        if (covered := sum(box.elements for box in holders)) != info.elements:
            raise TransferError(
                f"tensor {info.name!r}: {len(ranks)} ranks have {covered} of its {info.elements} elements: open the "
                "run with `group` on every rank that has a part of the model"
            )
        for box, held_by in sorted(holders.items()):
            rank = min(held_by, key=lambda rank: (load[rank], rank))
            load[rank] += box.elements
            shares[rank].add((info.name, box))
    if lacking := sorted(set(wanted or ()) - names):
        raise TransferError(
            f"tensors {lacking} are in the model's checkpoint, and missing here: publish the whole model"
        )
    if not names:
        raise TransferError("there are no tensors to publish")
    return shares


def cuts(tensors: Mapping[str, Given], chosen: Collection[tuple[str, Region]]) -> list[Cut]:
    """Return the chosen boxes with their elements."""
    return [
        Cut(given.info, box, frozenset({0}), source)
        for given in tensors.values()
        for box, source in given.boxes.items()
        if (given.info.name, box) in chosen
    ]


def _tensors(ranks: Sequence[Sequence[Offer]]) -> Iterator[tuple[TensorInfo, dict[Region, list[int]]]]:
    """Yield each tensor, and the ranks that have each of its boxes. A tensor is left out if it is tied wherever a rank
    has elements of it."""
    by_name: dict[str, list[tuple[int, Offer]]] = {}
    for rank, given in enumerate(ranks):
        for offer in given:
            by_name.setdefault(offer[0].name, []).append((rank, offer))
    for name, held in sorted(by_name.items()):
        first, (info, _, _) = held[0]
        holders: dict[Region, list[int]] = {}
        for rank, (other, boxes, _) in held:
            if other != info:
                raise TransferError(
                    f"tensor {name!r} is {other.dtype}{list(other.shape)} on rank {rank}, and {info.dtype}"
                    f"{list(info.shape)} on rank {first}"
                )
            for box in boxes:
                holders.setdefault(box, []).append(rank)
        if not (holders and all(tied for _, (_, boxes, tied) in held if boxes)):
            yield info, holders
