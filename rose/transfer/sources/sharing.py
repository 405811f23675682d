"""Decides which trainer rank publishes which boxes. Each rank sees the offers of all ranks, so all decide the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region, overlapping
from rose.transfer.package.cuts import Cut
from rose.transfer.package.manifest import TensorInfo
from rose.transfer.sources.rank_tensors import RankTensor, rank_tensors

Offer = tuple[TensorInfo, tuple[Region, ...], bool]  # A rank's boxes of a tensor, and whether the tensor is tied.


def offers(tensors: Mapping[str, RankTensor]) -> list[Offer]:
    return [(tensor.info, tuple(tensor.boxes), tensor.tied) for tensor in tensors.values()]


def share(ranks: Sequence[Sequence[Offer]], model_names: Collection[str] | None) -> list[set[tuple[str, Region]]]:
    """Return the boxes that each rank publishes, as pairs (tensor's name, region). `ranks` has the offers of each rank.
    If several ranks have a box, the rank with the fewest elements so far publishes it. Raises TransferError."""
    shares: list[set[tuple[str, Region]]] = [set() for _ in ranks]
    load = [0] * len(ranks)
    names = set()
    for info, holders in _tensors(ranks):
        names.add(info.name)
        if pair := overlapping(holders):
            (one, other) = (holders[box][0] for box in pair)
            raise TransferError(f"tensor {info.name!r}: {pair[0]} of rank {one} and {pair[1]} of rank {other} overlap")
        if (covered := sum(box.elements for box in holders)) != info.elements:
            raise TransferError(
                f"tensor {info.name!r}: {len(ranks)} ranks have {covered} of its {info.elements} elements: open the "
                "run with `group` on every rank that has a part of the model"
            )
        for box, ranks_with_box in sorted(holders.items()):
            rank = min(ranks_with_box, key=lambda rank: (load[rank], rank))
            load[rank] += box.elements
            shares[rank].add((info.name, box))
    if lacking := sorted(set(model_names or ()) - names):
        raise TransferError(f"tensors {lacking} of the model's checkpoint are missing: publish the whole model")
    if not names:
        raise TransferError("no tensors to publish: give at least one")
    return shares


def cuts(tensors: Mapping[str, RankTensor], chosen: Collection[tuple[str, Region]]) -> list[Cut]:
    return [
        Cut(tensor.info, box, frozenset({0}), source)
        for tensor in tensors.values()
        for box, source in tensor.boxes.items()
        if (tensor.info.name, box) in chosen
    ]


def cut_whole(tensors: Mapping[str, torch.Tensor]) -> list[Cut]:
    whole = rank_tensors(tensors)
    return cuts(whole, share([offers(whole)], None)[0])


def _tensors(ranks: Sequence[Sequence[Offer]]) -> Iterator[tuple[TensorInfo, dict[Region, list[int]]]]:
    by_name: dict[str, list[tuple[int, Offer]]] = {}
    for rank, rank_offers in enumerate(ranks):
        for offer in rank_offers:
            by_name.setdefault(offer[0].name, []).append((rank, offer))
    for name, entries in sorted(by_name.items()):
        first, (info, _, _) = entries[0]
        holders: dict[Region, list[int]] = {}
        for rank, (other, boxes, _) in entries:
            if other != info:
                raise TransferError(f"tensor {name!r} is {other} on rank {rank}, and {info} on rank {first}")
            for box in boxes:
                holders.setdefault(box, []).append(rank)
        if not (holders and all(tied for _, (_, boxes, tied) in entries if boxes)):
            yield info, holders
