"""Names and types of what is published: the checkpoint's, whatever the trainer's are."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from rose.transfer.codec.bits import integers
from rose.transfer.errors import TransferError
from rose.transfer.package.cuts import elements
from rose.transfer.sources.checkpoint import Checkpoint
from rose.transfer.sources.published import Source
from rose.transfer.sources.sharing import cuts, offers, share
from tests.transfer.sources.checkpoints import Weights, read_whole, save, weights

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def published(source: Source) -> Weights:
    """Return what a trainer of one rank publishes."""
    (boxes,) = share([offers(source.tensors)], source.names)
    return {cut.info.name: cut.elements() for cut in cuts(source.tensors, boxes)}


def same(left: Weights, right: Weights) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(integers(left[name]), integers(right[name]))
        for name in right
    )


@pytest.mark.parametrize("files", [1, 3])
def test_a_folder_is_published_as_it_is(tmp_path: Path, files: int) -> None:
    tensors = weights() | {"model.norm.weight": torch.randn(4)}
    source = read_whole(save(tmp_path / "new", tensors, files=files), None)
    assert same(published(source), tensors)
    assert (source.merged, source.rounded) == ((), ())


def test_a_folder_is_mapped_and_not_read(tmp_path: Path) -> None:
    large = {"w": torch.zeros(64 << 20, dtype=torch.uint8).view(torch.bfloat16)}
    folder = save(tmp_path / "new", large)
    before = _own_kib()
    tensors = Checkpoint(folder).tensors
    mapped = [elements(source) for given in tensors.values() for source in given.boxes.values()]
    # A sum would make a wider copy of all elements.
    assert sum(int(integers(tensor).count_nonzero()) for tensor in mapped) == 0
    assert _own_kib() - before < 16 << 10
    assert sum(tensor.nbytes for tensor in mapped) == 64 << 20


def _own_kib() -> int:
    """Return the memory of this process that no file lies behind."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found
    return int(found[1])


def nearest_even(bits: np.ndarray) -> np.ndarray:
    """Round float32 patterns to bfloat16 by the definition: the nearest value, of two as near the even one."""
    wide = bits.astype(np.uint64)
    low, high = wide & 0xFFFF, wide >> 16
    up = (low > 0x8000) | ((low == 0x8000) & (high & 1 == 1))
    return (high + up).astype(np.uint16)


def test_float32_masters_are_published_in_bfloat16_rounded_to_nearest_even(tmp_path: Path) -> None:
    # Every bfloat16, and what lies below it, above it, and half way to the next.
    lows = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    patterns = ((np.arange(1 << 16, dtype=np.uint32) << 16)[:, None] | lows).reshape(-1)
    master = {"w": torch.from_numpy(patterns.view(np.float32)), "kept": torch.randn(3)}
    folder = save(tmp_path / "base", {"w": torch.zeros(len(patterns), dtype=torch.bfloat16), "kept": torch.zeros(3)})
    source = read_whole(master, Checkpoint(folder))
    result = published(source)
    assert source.rounded == ("w",)
    assert torch.equal(result["kept"], master["kept"])
    rounded = integers(result["w"]).numpy().view(np.uint16)
    numbers = ~np.isnan(patterns.view(np.float32))
    assert np.array_equal(rounded[numbers], nearest_even(patterns)[numbers])
    assert bool(result["w"][torch.from_numpy(~numbers)].isnan().all())


def test_narrower_weights_are_published_exactly_in_the_checkpoint_s_wider_type(tmp_path: Path) -> None:
    base = save(tmp_path / "base", weights(1, torch.float32))
    result = published(read_whole(weights(2), Checkpoint(base)))
    assert same(result, {name: tensor.float() for name, tensor in weights(2).items()})


@pytest.mark.parametrize("config", [{}, {"tie_word_embeddings": True}], ids=["by its names", "by its configuration"])
@pytest.mark.parametrize("names", ["both", "copied", "embedding", "head"])
def test_tied_weights_have_the_checkpoint_s_one_name(tmp_path: Path, names: str, config: dict[str, object]) -> None:
    stored = weights(1, head=bool(config))  # Some checkpoints have the head although it is tied.
    base = Checkpoint(save(tmp_path / "base", stored, **config))
    new = weights(2, head=False)
    given = dict(new)
    if names != "embedding":
        given[HEAD] = new[EMBEDDING].clone() if names == "copied" else new[EMBEDDING]
    if names == "head":
        del given[EMBEDDING]
    assert same(published(read_whole(given, base)), new)


def test_untied_weights_keep_both_names_also_where_they_share_memory(tmp_path: Path) -> None:
    base = Checkpoint(save(tmp_path / "base", weights(1), tie_word_embeddings=False))
    new = weights(2, head=False)
    new[HEAD] = new[EMBEDDING]
    assert same(published(read_whole(new, base)), new)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {HEAD: torch.ones(12, 4, dtype=torch.bfloat16)},
            f"'{HEAD}' differs from '{EMBEDDING}' at .*: tie them, as the checkpoint does",
        ),
        ({"extra": torch.ones(1)}, "'extra' is not in the checkpoint"),
        ({"model.norm.weight": torch.ones(5)}, r"'model.norm.weight' has shape \[5\], expected \[4\]"),
        ({"model.norm.weight": torch.ones(4).to(torch.float8_e5m2)}, "is float8_e5m2, and cannot be rounded"),
        ({"model.norm.weight": None}, r"tensors \['model.norm.weight'\] of the model's checkpoint are missing"),
    ],
)
def test_what_does_not_fit_the_checkpoint_is_refused_by_name(tmp_path: Path, change: Weights, message: str) -> None:
    base = Checkpoint(save(tmp_path / "base", weights(1, head=False)))
    given = {name: tensor for name, tensor in (weights(2, head=False) | change).items() if tensor is not None}
    with pytest.raises(TransferError, match=message):
        published(read_whole(given, base))


def test_a_damaged_folder_is_refused_by_the_file_s_name(tmp_path: Path) -> None:
    empty, short, absent, nothing = (tmp_path / name for name in ("empty", "short", "absent", "nothing"))
    empty.mkdir()
    save(short, weights())
    file = short / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    save(absent, weights(), files=2)
    index = absent / "model.safetensors.index.json"
    places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    index.write_text(json.dumps({"weight_map": places | {"odd": places[EMBEDDING]}}))
    save(nothing, weights(), files=2)
    (nothing / "model.safetensors.index.json").write_text("[]")
    for folder, message in (
        (empty, "has neither model.safetensors.index.json nor model.safetensors"),
        (short, "model.safetensors cannot be read"),
        (absent, "lacks tensor 'odd', which the folder's index puts there"),
        (nothing, "holds no JSON object"),
    ):
        with pytest.raises(TransferError, match=message):
            read_whole(folder, None)
    (absent / places[HEAD]).unlink()
    with pytest.raises(TransferError, match=f"{places[HEAD]} cannot be read"):
        read_whole(absent, None)
