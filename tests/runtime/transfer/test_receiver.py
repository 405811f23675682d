from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from rose.runtime.transfer.apply import prepare
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.fused import hf_views
from rose.runtime.transfer.receiver import Receiver
from rose.runtime.transfer.server import StoreServer
from rose.runtime.transfer.staged import Staged
from rose.runtime.transfer.store import VersionStore

HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 4, 2, 8, 32


def trainer_weights(seed: int) -> dict[str, torch.Tensor]:
    """Weights of one attention block under checkpoint names, fp32 masters."""
    generator = torch.Generator().manual_seed(seed)
    rows = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    named = {
        f"model.layers.0.self_attn.{part}_proj.weight": 0.02 * torch.randn(count, HIDDEN, generator=generator)
        for part, count in rows.items()
    }
    named["model.norm.weight"] = 1 + 0.02 * torch.randn(HIDDEN, generator=generator)
    return named


def bf16(masters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(torch.bfloat16) for name, tensor in masters.items()}


def step(masters: dict[str, torch.Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in masters.values():
        tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=1e-5)


class Engine(torch.nn.Module):
    """The fused parameters of SGLang's Llama attention, in bf16."""

    def __init__(self) -> None:
        super().__init__()
        attention = torch.nn.Module()
        attention.qkv_proj = torch.nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        layer = torch.nn.Module()
        layer.self_attn = attention
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList([layer])
        self.model.norm = torch.nn.RMSNorm(HIDDEN)
        self.to(torch.bfloat16)

    def views(self) -> dict[str, torch.Tensor]:
        return hf_views(self.named_parameters(), HEADS, KV_HEADS, HEAD_DIM)


def assert_same_bits(views: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert views.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(views[name].contiguous().view(torch.int16), tensor.view(torch.int16)), name


def test_store_to_engine_over_http(tmp_path: Path) -> None:
    """Each version in turn: an anchor to begin with, then a delta each, written into fused parameters."""
    store = VersionStore(tmp_path / "store", anchor_every=3)
    masters = trainer_weights(0)
    engine = Engine()
    address = engine.model.layers[0].self_attn.qkv_proj.weight.data_ptr()
    with StoreServer(store, token="t") as server:
        receiver = Receiver(server.url, "t", tmp_path / "staging")
        assert receiver.latest() is None
        have = None
        for version in range(5):
            published = store.publish(version, bf16(masters))
            assert receiver.latest() == version
            staged = receiver.fetch(version, have)
            assert (staged.version, staged.base_version) == (version, have)
            assert staged.encoding == ("dense" if version == 0 else "delta")
            assert staged.wire_bytes > sum(manifest.blob_bytes for manifest in staged.manifests)
            assert staged.fetch_ns > 0
            assert staged.verify_ns > 0
            prepared = prepare(staged, engine.views())
            assert prepared.commit() > 0
            assert prepared.verify() == published.manifest.weights_sha256
            assert_same_bits(engine.views(), bf16(masters))
            staged.remove()
            have = version
            step(masters, version)
    assert engine.model.layers[0].self_attn.qkv_proj.weight.data_ptr() == address
    assert not list((tmp_path / "staging").iterdir())


@pytest.mark.parametrize("have", [None, 0, 2, 5])
def test_a_joiner_and_a_laggard_reach_the_same_bits(tmp_path: Path, have: int | None) -> None:
    store = VersionStore(tmp_path / "store", anchor_every=4)
    masters = trainer_weights(1)
    engine = Engine()
    for version in range(7):
        store.publish(version, bf16(masters))
        if version == have:
            for name, view in engine.views().items():
                view.copy_(bf16(masters)[name])
        last = bf16(masters)
        step(masters, version)
    with StoreServer(store) as server:
        staged = Receiver(server.url, None, tmp_path / "staging").fetch(6, have)
    prepared = prepare(staged, engine.views())
    prepared.commit()
    prepared.verify()
    assert_same_bits(engine.views(), last)


def test_another_process_can_open_what_was_staged(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    store.publish(0, bf16(trainer_weights(2)))
    with StoreServer(store) as server:
        receiver = Receiver(server.url, None, tmp_path / "staging")
        first = receiver.fetch(0, None)
        again = receiver.fetch(0, None)
    assert again.wire_bytes == 0, "what is staged is not fetched twice"
    assert Staged.open(receiver.folder(0, None)).manifests == first.manifests == again.manifests


def test_a_damaged_staged_folder_is_fetched_again(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    store.publish(0, bf16(trainer_weights(2)))
    with StoreServer(store) as server:
        receiver = Receiver(server.url, None, tmp_path / "staging")
        staged = receiver.fetch(0, None)
        staged.blob_path(0).write_bytes(b"rot")
        with pytest.raises(TransferError, match="SHA-256"):
            Staged.open(staged.folder)
        assert receiver.fetch(0, None).wire_bytes > 0
    Staged.open(staged.folder)


@pytest.mark.parametrize("suffix", ["bin", "json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "lengthen", "remove"])
def test_a_damaged_origin_is_refused_and_stages_nothing(tmp_path: Path, suffix: str, damage: str) -> None:
    store = VersionStore(tmp_path / "store")
    store.publish(0, bf16(trainer_weights(3)))
    path = store.folder / f"00000000-anchor.{suffix}"
    data = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        flipped = data[:100] + bytes([data[100] ^ 1]) + data[101:]
        path.write_bytes({"flip": flipped, "cut": data[:-1], "lengthen": data + b"\n"}[damage])
    with StoreServer(store) as server:
        receiver = Receiver(server.url, None, tmp_path / "staging")
        with pytest.raises(TransferError):
            receiver.fetch(0, None)
        assert not list(receiver.staging.iterdir())


def test_errors_name_the_origin_and_the_way_out(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    store.publish(0, bf16(trainer_weights(3)))
    with StoreServer(store, token="right") as server:
        url = server.url
        with pytest.raises(TransferError, match=f"{url}/v1/packages answered 401"):
            Receiver(url, "wrong", tmp_path / "staging").fetch(0, None)
        with pytest.raises(TransferError, match=r"no way from nothing to version 9: the store holds versions \[0\]"):
            Receiver(url, "right", tmp_path / "staging").fetch(9, None)
    with pytest.raises(TransferError, match=f"transfer from {url} broke off .*try again"):
        Receiver(url, "right", tmp_path / "staging").fetch(0, None)
    with pytest.raises(ValueError, match="'ftp://x' is not http"):
        Receiver("ftp://x", None, tmp_path / "staging")


SERVE = """
import sys, time
from pathlib import Path
from rose.runtime.transfer.server import StoreServer
from rose.runtime.transfer.store import VersionStore
with StoreServer(VersionStore(Path(sys.argv[1])), port=int(sys.argv[2])) as server:
    print(server.url, flush=True)
    time.sleep(120)
"""


def serve(folder: Path, port: int) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(folder), str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_server_killed_in_mid_transfer_is_an_error_and_a_retry_works(tmp_path: Path) -> None:
    weights = {"w": torch.zeros(64 << 20, dtype=torch.bfloat16)}
    store = VersionStore(tmp_path / "store")
    expected = store.publish(0, weights).manifest.weights_sha256
    server, url = serve(store.folder, 0)
    receiver = Receiver(url, None, tmp_path / "staging", timeout_s=20)
    errors: list[TransferError] = []

    def fetch() -> None:
        try:
            receiver.fetch(0, None)
        except TransferError as error:
            errors.append(error)

    try:
        thread = threading.Thread(target=fetch)
        thread.start()
        while not any(path.stat().st_size for path in receiver.staging.glob("*.partial/00.bin")):
            assert thread.is_alive(), errors
            time.sleep(0.0005)
        os.kill(server.pid, signal.SIGKILL)
        thread.join()
        assert len(errors) == 1
        assert "broke off" in str(errors[0])
        assert "try again" in str(errors[0])
        assert not list(receiver.staging.iterdir())
        server.wait()
        server, again = serve(store.folder, int(url.rsplit(":", 1)[1]))
        assert again == url
        assert receiver.fetch(0, None).manifests[-1].weights_sha256 == expected
    finally:
        server.kill()
        server.wait()
