from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.transfer.codec import codec
from rose.runtime.transfer.codec.bits import digest
from rose.runtime.transfer.codec.header import Bits, read_header
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.layout.regions import Region
from rose.runtime.transfer.package.chain import follow, inside, reach
from rose.runtime.transfer.package.manifest import PieceEntry

SHAPE = (6, 8)
WHOLE = Region.whole(SHAPE)
ROWS = [Region((start, 0), (start + 2, 8)) for start in (0, 2, 4)]
COLUMNS = [Region((0, start), (6, start + 4)) for start in (0, 4)]

#: A link: its pieces, and the encoded bytes of each.
Link = list[tuple[PieceEntry, bytes]]


def values(version: int) -> Bits:
    rng = np.random.default_rng(version // 3)
    array = rng.integers(0, 2**16, SHAPE, dtype=np.uint16)
    array[:: version % 3 + 1] += np.uint16(version)
    return array


def link(base: Bits | None, new: Bits, cut: list[Region]) -> Link:
    made = []
    for box in cut:
        old = None if base is None else np.ascontiguousarray(base[box.slices])
        piece = np.ascontiguousarray(new[box.slices])
        blob = codec.encode(old, piece)
        header = read_header(blob)
        entry = PieceEntry(
            name="w",
            dtype="float16",
            shape=SHAPE,
            start=box.start,
            stop=box.stop,
            chunk=0,
            offset=0,
            length=len(blob),
            encoding=header.encoding,
            changed=header.changed,
            base_xxh3=None if old is None else digest(old),
            result_xxh3=digest(piece),
        )
        made.append((entry, blob))
    return made


def run(box: Region, bits: Bits, links: list[Link]) -> Bits:
    chain = [inside("w", box, [entry for entry, _ in one]) for one in links]
    return follow(box, bits, chain, lambda index, piece: {e.key: b for e, b in links[index]}[piece.key])


@settings(deadline=None)
@given(st.lists(st.sampled_from([ROWS, COLUMNS, [WHOLE]]), min_size=1, max_size=5), st.booleans())
def test_a_box_follows_links_however_each_is_cut(cuts: list[list[Region]], anchor: bool) -> None:
    versions = [values(version) for version in range(len(cuts) + 1)]
    links = [
        link(None if anchor and index == 0 else versions[index], versions[index + 1], cut)
        for index, cut in enumerate(cuts)
    ]
    start = values(99) if anchor else versions[0]
    before = start.copy()
    assert np.array_equal(run(WHOLE, start, links), versions[-1])
    assert np.array_equal(start, before)


def test_a_part_of_a_tensor_follows_alone() -> None:
    versions = [values(version) for version in range(3)]
    links = [link(versions[0], versions[1], ROWS), link(versions[1], versions[2], ROWS)]
    box = Region((2, 0), (6, 8))
    assert np.array_equal(run(box, versions[0][2:6], links), versions[2][2:6])
    with pytest.raises(TransferError, match=r"'w' is not cut at the edges of \[1:6, 0:8\].* hold 32 of its 40"):
        run(Region((1, 0), (6, 8)), versions[0][1:6], links)


def test_a_wrong_base_is_refused_also_where_the_cut_changes() -> None:
    versions = [values(version) for version in range(3)]
    stray = versions[1].copy()
    stray[5, 7] ^= 1
    links = [link(versions[0], versions[1], ROWS), link(stray, versions[2], COLUMNS)]
    with pytest.raises(TransferError, match=r"'w' at \[0, 4\] is \w+, expected base \w+"):
        run(WHOLE, versions[0], links)
    with pytest.raises(TransferError, match=r"'w' at \[0, 0\] is \w+, expected base \w+"):
        run(WHOLE, versions[2], links[:1])


def test_a_wrong_result_is_refused() -> None:
    made = link(values(0), values(1), [WHOLE])
    other = link(values(0), values(2), [WHOLE])
    with pytest.raises(TransferError, match=r"decodes to \w+, expected"):
        run(WHOLE, values(0), [[(made[0][0], other[0][1])]])
    with pytest.raises(TransferError, match=r"tensor 'w' at \[0, 0\]: encoded array"):
        run(WHOLE, values(0), [[(made[0][0], made[0][1][:5])]])


def test_what_whole_pieces_make_up() -> None:
    entries = [entry for entry, _ in link(None, values(0), ROWS)]
    columns = [entry for entry, _ in link(None, values(0), COLUMNS)]
    assert reach(Region((2, 0), (4, 8)), [entries]) == Region((2, 0), (4, 8))
    assert reach(Region((1, 3), (3, 5)), [entries]) == Region((0, 0), (4, 8))
    assert reach(Region((2, 0), (3, 1)), [entries, columns]) == WHOLE
