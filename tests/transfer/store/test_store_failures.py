"""What is refused, what a full disk, a damaged one or a killed publisher leaves, and how the next goes on."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from rose.transfer.errors import TransferError
from rose.transfer.sources.sharing import cut_whole
from rose.transfer.store.store import ALONE, VersionStore
from tests.long_form import usual
from tests.transfer.training import chunks_in, chunks_of, file_size_limit, join, same, weights

#: By what a publisher changes the folder, or begins to.
TOUCHES = ("open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir")


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "lock" not in path.name}


@pytest.mark.parametrize("version", [-3, True, 1.0, "1", None, 2**63])
def test_a_version_is_a_whole_number(memory: Path, version: Any) -> None:
    store = VersionStore(memory)
    for publish in (
        lambda: store.publish(version, weights(0)),
        lambda: store.publish_part(version, ALONE, cut_whole(weights(0))),
    ):
        with pytest.raises(TransferError, match=f"version is {version!r}, expected a whole number"):
            publish()
    assert store.packages() == []


ODD: dict[str, Any] = {
    "a Tensor .*meta": torch.empty(2, device="meta"),
    "a Tensor .*sparse_coo": torch.eye(2).to_sparse(),
    "a ndarray": np.zeros(2),
    "torch.int64, expected one of bfloat16": torch.zeros(2, dtype=torch.int64),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_tensor_without_elements_to_send_is_refused_by_its_name(memory: Path, kind: str) -> None:
    with pytest.raises(TransferError, match=f"tensor 'odd' is {kind}"):
        VersionStore(memory).publish(0, {**weights(0), "odd": ODD[kind]})
    assert VersionStore(memory).latest() is None


def test_a_sharded_tensor_is_refused_by_its_name(memory: Path) -> None:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        sharded = distribute_tensor(torch.zeros(4), init_device_mesh("cpu", (2,)), [Shard(0)])
        with pytest.raises(TransferError, match="tensor 'odd': 1 ranks have 2 of its 4 elements"):
            VersionStore(memory).publish(0, {"odd": sharded})
    finally:
        torch.distributed.destroy_process_group()


def test_a_store_damaged_on_disk_is_not_built_upon(memory: Path) -> None:
    chunk = VersionStore(memory).publish(0, weights(0))[0].chunks[0].sha256
    path = memory / "chunks" / chunk[:2] / chunk
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(TransferError, match=r"tensor '\w+' at \[0, 0\] decodes to \w+, expected"):
        VersionStore(memory).publish(1, weights(1))
    path.write_bytes(content[:-1])
    with pytest.raises(TransferError, match=r"is \d+ bytes, expected \d+"):
        VersionStore(memory).publish(1, weights(1))
    (memory / "00000000-anchor.json").write_bytes(b"{}")
    with pytest.raises(TransferError, match=r"00000000-anchor\.json is damaged"):
        VersionStore(memory).packages()


def test_a_damaged_chunk_is_written_anew_when_it_is_needed_again(memory: Path) -> None:
    store = VersionStore(memory / "store")
    for version in range(2):
        published = store.publish(version, weights(0))
    chunk = published[0].chunks[0].sha256
    path = memory / "store" / "chunks" / chunk[:2] / chunk
    path.write_bytes(b"x" * path.stat().st_size)
    store.publish(2, weights(0))
    assert same(join(store, 2, None, memory / "staged"), weights(0))


def test_what_cannot_be_published_is_refused_and_nothing_is_written(memory: Path) -> None:
    store = VersionStore(memory / "store")
    tensors = weights(0)
    store.publish(4, tensors)
    before = files(memory)
    with pytest.raises(TransferError, match="version 4 is not newer than version 4"):
        store.publish(4, tensors)
    with pytest.raises(TransferError, match=r"\['norm'\]"):
        store.publish(5, {name: tensor for name, tensor in tensors.items() if name != "norm"})
    with pytest.raises(TransferError, match=r"'norm' is bfloat16\[8, 4\], but float32\[8, 4\] in version 4"):
        store.publish(5, {**tensors, "norm": tensors["norm"].to(torch.bfloat16)})
    with pytest.raises(TransferError, match=r"'embed' is torch\.float64"):
        store.publish(5, {**tensors, "embed": tensors["embed"].double()})
    with pytest.raises(TransferError, match="no tensors"):
        store.publish(5, {})
    assert files(memory) == before
    assert store.publish(5, weights(5))[0].base_version == 4


def refusal(store: VersionStore, version: int) -> str | None:
    try:
        store.publish(version, weights(version))
    except TransferError as error:
        return str(error)
    return None


def test_a_full_disk_leaves_all_versions_as_they_were(memory: Path) -> None:
    store = VersionStore(memory / "store", anchor_every=2)
    for version in range(4):
        store.publish(version, weights(version))
    before = files(memory)
    sizes = sorted({len(content) for content in before.values()})
    refused = 0
    # From no byte at all to just enough: what fails is a chunk, a manifest, the index.
    for limit in [0, *(size + more for size in sizes for more in (-1, 0, 1))]:
        with file_size_limit(limit):
            reason = refusal(store, 4)
        if reason is None:
            break
        refused += 1
        if store.latest() == 4:  # What did not fit is the composite, the anchor, or the index.
            assert "version 4 is published, but its other packages are not" in reason
            assert limit > sizes[0]
            break
        assert "version 4 cannot be written" in reason
        assert files(memory) == before, limit
        assert store.latest() == 3
    assert refused > 5
    assert chunks_in(store) == chunks_of(store)
    assert same(join(store, 4, 3, memory / "staged"), weights(4))
    assert same(join(store, 4, None, memory / "staged"), weights(4))
    # The anchor that was due at version 4.
    assert store.publish(5, weights(5))[-1].base_version is None
    assert len(store.publish(6, weights(6))) > 1
    for have in (None, 3, 4, 5):
        assert same(join(store, 6, have, memory / "staged"), weights(6))


def publish_on(folder: Path, versions: int) -> None:
    store = VersionStore(folder, anchor_every=4)
    latest = store.latest()
    first = 0 if latest is None else latest + 1
    for version in range(first, first + versions):
        store.publish(version, weights(version))


def killed_publishing(folder: Path, point: int) -> int:
    """Publish three more versions in a process that is killed just before it touches the folder for the n-th time;
    its exit code."""
    child = os.fork()
    if child == 0:
        touches = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal touches
            if event in TOUCHES and str(arguments[0]).startswith(str(folder)):
                touches += 1
                if touches == point:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            publish_on(folder, 3)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_publisher_that_is_killed_leaves_the_last_version_or_the_new_one(memory: Path) -> None:
    folder = memory / "store"
    reached: list[int] = []
    point = 1
    while (code := killed_publishing(folder, point)) != 0:
        assert code == -signal.SIGKILL
        point += usual(47, long=1)
        store = VersionStore(folder, anchor_every=4)
        latest = store.latest()
        if latest is not None:
            reached.append(latest)
            for version in {package.version for package in store.packages()}:
                assert same(join(store, version, None, memory / "staged"), weights(version)), version
            if latest > 0:
                assert same(join(store, latest, latest - 1, memory / "staged"), weights(latest))
    assert reached == sorted(reached)
    assert len(set(reached)) >= 4
    latest = reached[-1] + 3
    store = VersionStore(folder, anchor_every=4)
    store.publish(latest + 1, weights(latest + 1))
    assert same(join(store, latest + 1, None, memory / "staged"), weights(latest + 1))
    # What the killed ones left behind is gone.
    assert chunks_in(store) == chunks_of(store)
    assert not [path for path in folder.rglob("*") if path.name.endswith(".tmp")]
