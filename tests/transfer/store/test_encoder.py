from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.transfer.codec import codec
from rose.transfer.codec.choice import LINK
from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region
from rose.transfer.package.cuts import Cut
from rose.transfer.package.manifest import Manifest, TensorInfo
from rose.transfer.store.chunks import ChunkFolder
from rose.transfer.store.encoder import EncoderState, encode_first, encode_more

BOX = Region.whole((40,))
INFO = TensorInfo("w", "float16", (40,))


def cuts(array: np.ndarray) -> list[Cut]:
    return [Cut(INFO, BOX, frozenset({0}), torch.from_numpy(array).view(torch.float16))]


def arrays(count: int) -> list[np.ndarray]:
    """Each differs from the one before in a few elements; some go back to what they were."""
    rng = np.random.default_rng(1)
    made = [rng.integers(-(2**15), 2**15, 40, dtype=np.int16)]
    for _ in range(count - 1):
        array = made[-1].copy()
        array[rng.integers(0, 40, 4)] += rng.integers(-1, 2, 4, dtype=np.int16)
        made.append(array)
    return made


def encode(
    version: int,
    array: np.ndarray,
    held: EncoderState | None,
    folder: ChunkFolder,
    *,
    anchor: bool = False,
    stride_max: int,
) -> tuple[list[Manifest], EncoderState]:
    first, now = encode_first(version, cuts(array), held, folder, anchor=anchor, link=LINK)
    if held is None:
        return [first], now
    return [first, *encode_more(cuts(array), now, folder, anchor=anchor, stride_max=stride_max, link=LINK)], now


def decode(folder: ChunkFolder, manifest: Manifest, base: np.ndarray) -> np.ndarray:
    (piece,) = manifest.pieces
    blob = folder.open(manifest.chunks[piece.chunk])[piece.offset : piece.offset + piece.length]
    return codec.decode(base.view(np.uint16), blob).view(np.int16)


@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(0, 40), min_size=2, max_size=14), st.sampled_from([1, 2, 8, 64]))
def test_every_delta_leads_from_its_base_to_the_version(
    tmp_path_factory: pytest.TempPathFactory, published: set[int], stride_max: int
) -> None:
    folder = ChunkFolder(tmp_path_factory.mktemp("chunks"))
    all_arrays = arrays(41)
    held: EncoderState | None = None
    before: list[int] = []
    for version in sorted(published):
        manifests, held = encode(version, all_arrays[version], held, folder, stride_max=stride_max)
        strides = {1 << power for power in range(1, 7) if 1 << power <= stride_max and version % (1 << power) == 0}
        expected = {version - stride for stride in strides} & set(before)
        if before:
            expected.add(before[-1])
        assert [manifest.base_version for manifest in manifests] == (sorted(expected, reverse=True) or [None])
        for manifest in manifests:
            base = all_arrays[manifest.base_version or 0]
            assert np.array_equal(decode(folder, manifest, base), all_arrays[version])
        before.append(version)
        assert held.version == version
        assert len(held.spans) < max(2, stride_max)


def test_changes_that_do_not_lead_back_are_noticed(tmp_path: Path) -> None:
    held: EncoderState | None = None
    made = arrays(3)
    for version in range(2):
        _, held = encode(version, made[version], held, ChunkFolder(tmp_path), stride_max=8)
    assert held is not None
    span = held.spans[0]
    other = made[2].view(np.uint16)
    span.inverse = {key: codec.advance(other.copy(), other ^ 1)[1] for key in span.inverse}
    with pytest.raises(TransferError, match="the changes since version 0 are wrong"):
        encode(2, made[2], held, ChunkFolder(tmp_path), stride_max=8)


def test_what_does_not_decode_to_what_was_encoded_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = arrays(2)
    _, held = encode(0, made[0], None, ChunkFolder(tmp_path), stride_max=8)
    advance = codec.advance
    monkeypatch.setattr(codec, "advance", lambda base, new, **others: advance(base, new ^ 1, **others))
    with pytest.raises(TransferError, match="'w' of version 1 does not decode to what was encoded"):
        encode_first(1, cuts(made[1]), held, ChunkFolder(tmp_path), anchor=False, link=LINK)
