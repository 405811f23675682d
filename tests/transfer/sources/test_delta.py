"""Folders of slime's deltas, applied to the version published last."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from rose.client.publishing import WeightOrigin
from rose.transfer.codec.bits import integers
from rose.transfer.errors import ConflictError, TransferError
from rose.transfer.sources.checkpoint import Checkpoint
from rose.transfer.sources.delta import Delta
from rose.transfer.sources.published import read
from tests.transfer.sources.checkpoints import Weights, save, save_delta, weights
from tests.transfer.sources.test_published import published, same

INDEX, FILE = "model.safetensors.index.json", "model-00000-of-00001.safetensors"
Q = "model.layers.0.self_attn.q_proj.weight"


def stepped(before: Weights, seed: int = 1) -> Weights:
    """Change every third bit pattern of most tensors to any other, NaN and -0 among them."""
    generator = torch.Generator().manual_seed(seed)
    after = {name: tensor.clone() for name, tensor in before.items()}
    for name in list(after)[seed % 2 :]:
        bits = integers(after[name])
        bits[::3] = torch.randint(-(1 << 15), 1 << 15, bits[::3].shape, generator=generator).to(bits.dtype)
    return after


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("checksum", ["xxh3-128", "adler32"])
def test_a_delta_leads_bit_for_bit_to_what_was_trained(tmp_path: Path, encoding: str, checksum: str) -> None:
    before, after = weights(), stepped(weights())
    folder = save_delta(tmp_path / "d", before, after, 8, encoding, checksum_format=checksum)
    for newest, tensors in ((7, before), (8, after)):
        assert same(published(read(folder, None, partial(tuple, (newest, tensors)))), after)
    for newest in (6, 9):
        with pytest.raises(ConflictError, match=f"base_version 7 .* newest version is {newest}"):
            read(folder, None, partial(tuple, (newest, before)))


def test_a_chain_of_deltas_is_published_after_a_restart_too(tmp_path: Path) -> None:
    steps = [weights(head=False)]
    for seed in (1, 2, 3, 4):
        steps.append(stepped(steps[-1], seed))
    base = save(tmp_path / "base", steps[0])

    def origin() -> WeightOrigin:
        return WeightOrigin(tmp_path / "store", "127.0.0.1", run_id="r", fence=1, checkpoint=base)

    def delta(version: int) -> Path:
        folder = tmp_path / f"weight_v{version:06d}"
        return folder if folder.exists() else save_delta(folder, *steps[version - 7 : version - 5], version)

    first = origin()
    first.publish(base, 6)
    for version in (7, 8):  # 8 is published whole, too.
        first.publish(delta(version), version)
    first.close()
    again = origin()
    again.publish(delta(8), 8)  # The answer to the first may be lost.
    for version in (9, 10):
        again.publish(delta(version), version)
        newest, tensors = again._newest()
        assert (newest, same(dict(tensors), steps[version - 6])) == (version, True)
    with pytest.raises(ConflictError, match="base_version 8"):
        again.publish(delta(9), 11)
    again.close()


def test_a_head_that_is_tied_follows_the_embedding(tmp_path: Path) -> None:
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    before = weights(head=False)
    both = before | {head: before[embedding]}
    after = stepped(before, 2)
    folder = save_delta(tmp_path / "d", both, after | {head: after[embedding]}, 1)
    base = Checkpoint(save(tmp_path / "base", before))
    assert same(published(read(folder, base, lambda: (0, before))), after)


def test_a_delta_without_a_change_is_the_same_version(tmp_path: Path) -> None:
    before = weights()
    folder = save_delta(tmp_path / "d", before, before, 1)
    assert same(published(read(folder, None, lambda: (0, before))), before)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("delta_encoding", "sum"),
        ("compression_format", "lz4"),
        ("checksum_format", "blake3"),
        ("base_version", "x"),
        ("version", None),
    ],
)
def test_a_field_that_is_not_known_is_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    folder = save_delta(tmp_path / "d", weights(), stepped(weights()), 1)
    index = json.loads((folder / INDEX).read_text())
    index["metadata"][field] = value
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(TransferError, match=f"{field} is '?{value}"):
        Delta.read(folder)


def test_another_base_is_noticed_by_its_checksum(tmp_path: Path) -> None:
    before = weights()
    folder = save_delta(tmp_path / "d", before, stepped(before), 1)
    other = {name: tensor + 1 for name, tensor in before.items()}
    with pytest.raises(TransferError, match="checksum"):
        published(read(folder, None, lambda: (0, other)))
