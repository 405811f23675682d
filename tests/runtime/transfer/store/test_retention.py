from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.transfer.package.manifest import Package, plan
from rose.runtime.transfer.store.claims import unneeded

#: Anchors at 0, 4, 8; a delta to each version; composites of two.
PACKAGES = [
    *(Package(version, None, 100) for version in (0, 4, 8)),
    *(Package(version, version - 1, 10) for version in range(1, 11)),
    *(Package(version, version - 2, 15) for version in range(2, 11, 2)),
]


def kept(packages: Iterable[Package], **claims: Any) -> set[Package]:
    return set(packages) - set(unneeded(list(packages), **claims))


@given(st.sets(st.integers(0, 10)), st.sets(st.sampled_from(PACKAGES)), st.integers(1, 3))
def test_nobody_is_cut_off(acknowledged: set[int], pinned: set[Package], anchors: int) -> None:
    stems = [[package.stem] for package in pinned]
    keep = kept(PACKAGES, anchors_kept=anchors, pinned=stems, acknowledged=acknowledged)
    assert pinned <= keep <= set(PACKAGES)
    plan(keep, 10, None)
    for version in acknowledged - {10}:
        assert plan(keep, 10, version) == plan(PACKAGES, 10, version)
    # Once more changes nothing.
    assert kept(keep, anchors_kept=anchors, pinned=stems, acknowledged=acknowledged) == keep
