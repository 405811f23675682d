"""Which packages a store keeps: what a new receiver, a slow one and one that is fetching may still need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.package.manifest import Package, plan


def unneeded(
    packages: Sequence[Package],
    *,
    anchors_kept: int,
    pinned: Collection[Sequence[str]],
    acknowledged: Iterable[int],
) -> list[Package]:
    """The packages that may go, of those there are. What is kept:

    - The newest `anchors_kept` anchors, and all that leads on from the oldest of those.
    - The ways that are `pinned`, as stems in their order.
    - The cheapest way to the newest version from each `acknowledged` one, and from where each pinned way ends.
    """
    anchors = sorted(package.version for package in packages if package.base_version is None)
    oldest = min(anchors[-anchors_kept:], default=0)
    old = [p for p in packages if (p.version if p.base_version is None else p.base_version) < oldest]
    if not old:
        return []
    stems = {stem for way in pinned for stem in way}
    keep = {package for package in old if package.stem in stems}
    newest = max(package.version for package in packages)
    ends = {package.version for package in packages for way in pinned if package.stem == way[-1]}
    for version in {*acknowledged, *ends}:
        try:
            keep.update(plan(packages, newest, version))
        except TransferError:  # There already, or cut off before: it begins again at an anchor, which is kept.
            continue
    return [package for package in old if package not in keep]
