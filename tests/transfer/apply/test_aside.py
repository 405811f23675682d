"""`on_each_device` runs a test on CPU cores and, as `pytest.mark.cuda`, on a card."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

from rose.transfer.apply import aside as aside_module
from rose.transfer.apply.apply import prepare
from rose.transfer.apply.aside import Aside
from rose.transfer.apply.staged import Staged
from rose.transfer.codec import codec
from rose.transfer.codec.bits import from_bits, to_bits
from rose.transfer.codec.fingerprint import of_tensor
from rose.transfer.codec.header import Bits
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.receiver import Receiver
from tests.runtime.coserving.hand_made_engine import random_weights, stepped
from tests.transfer.test_device import on_each_device, versions

V0 = random_weights()
V1 = stepped(V0, 1)
V2 = stepped(V1, 2)


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> list[Staged]:
    """To version 1 from 0, and to 2 from 1."""
    folder: Path = tmp_path_factory.mktemp("ways")
    store = VersionStore(folder / "store")
    for version, weights in enumerate((V0, V1, V2)):
        store.publish(version, weights)
    receiver = Receiver(f"file://{store.folder}", None, folder / "staging")
    return [receiver.fetch(version, version - 1) for version in (1, 2)]


def engine_at(weights: dict[str, torch.Tensor], where: str) -> dict[str, torch.Tensor]:
    return {name: tensor.to(where, copy=True) for name, tensor in weights.items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor.cpu(), right[name]) for name, tensor in left.items())


@on_each_device
@given(made=versions())
def test_a_patch_of_bits_is_that_of_tensors(where: str, made: tuple[str, Bits, Bits]) -> None:
    dtype, base, new = made
    aside, engine = Aside(torch.device(where)), from_bits(base.copy(), dtype).to(where)
    with aside.entered():
        old = aside.read("t", engine)
        assert np.array_equal(old, base)
        patch = aside.patch(old, codec.decode(old, codec.encode(base, new)), dtype)
    patch.write(engine)
    assert np.array_equal(to_bits("t", engine), new)
    if patch.positions is not None:
        assert patch.positions.tolist() == np.flatnonzero(base != new).tolist()
        assert patch.positions.nbytes + patch.values.nbytes < max(new.nbytes, 1)


@on_each_device
def test_versions_are_written_where_the_parameters_lie_and_their_fingerprints_known(
    where: str, ways: list[Staged], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aside_module, "FINGERPRINTED", ("cpu", "cuda"))
    engine, aside = engine_at(V0, where), Aside(torch.device(where))
    places = [tensor.data_ptr() for tensor in engine.values()]
    for staged, expected in zip(ways, (V1, V2), strict=True):
        prepared = prepare(staged, engine, aside=aside)
        assert not same(engine, expected)
        whole = sum(tensor.nbytes for tensor in engine.values())
        assert 0.2 * whole < prepared.write_bytes < 0.5 * whole  # One in ten, each with its place.
        prepared.commit()
        assert same(engine, expected)
        assert prepared.fingerprints == {name: of_tensor(tensor, tensor.dtype) for name, tensor in engine.items()}
    assert [tensor.data_ptr() for tensor in engine.values()] == places


@on_each_device
def test_a_tensor_whose_elements_do_not_lie_in_order_is_written_whole(where: str, ways: list[Staged]) -> None:
    engine = {
        name: tensor.T.contiguous().T if tensor.ndim > 1 else tensor for name, tensor in engine_at(V0, where).items()
    }
    prepare(ways[0], engine, aside=Aside(torch.device(where))).commit()
    assert same(engine, V1)


class Seen(Aside):
    """Knows which threads have entered it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.inside: set[int] = set()

    def entered(self) -> AbstractContextManager[None]:
        @contextmanager
        def enter() -> Iterator[None]:
            with super(Seen, self).entered():
                self.inside.add(threading.get_ident())
                yield
                self.inside.discard(threading.get_ident())

        return enter()


@on_each_device
def test_every_thread_that_works_on_the_device_is_on_the_stream(where: str, ways: list[Staged]) -> None:
    aside, threads = Seen(torch.device(where)), set()

    @contextmanager
    def turn() -> Iterator[None]:
        assert threading.get_ident() in aside.inside
        if where == "cuda":
            assert torch.cuda.current_stream() == aside.stream
        threads.add(threading.get_ident())
        yield

    prepare(ways[0], engine_at(V0, where), turn=turn, aside=aside)
    assert threads
    assert threading.get_ident() not in threads
    assert not aside.inside
