"""`on_each_device` runs a test on CPU cores and, as `pytest.mark.cuda`, on a card."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.transfer.apply import aside as aside_module
from rose.runtime.transfer.apply.apply import prepare
from rose.runtime.transfer.apply.aside import Aside, Patch
from rose.runtime.transfer.codec import codec
from rose.runtime.transfer.codec.bits import from_bits, to_bits
from rose.runtime.transfer.codec.fingerprint import of_tensor
from rose.runtime.transfer.codec.header import DTYPES, Bits
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.package.staged import Staged
from rose.runtime.transfer.store.store import VersionStore
from rose.runtime.transfer.wire.receiver import Receiver
from tests.runtime.coserving.hand_made_engine import random_weights, stepped

on_each_device = pytest.mark.parametrize(
    "where",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.cuda,
        ),
    ],
)
SHAPES: list[tuple[int, ...]] = [(), (0,), (0, 3), (1,), (257,), (33, 17), (3, 5, 7)]


MANTISSA_BITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float8_e4m3fn": 3, "float8_e5m2": 2}


def special(dtype: str) -> list[int]:
    """Bits of both zeros, both infinities where there are any, the largest, and NaNs with all kinds of payloads."""
    bits = 8 * DTYPES[dtype].itemsize
    exponent = (1 << (bits - 1)) - (1 << MANTISSA_BITS[dtype])
    found = [0, 1, exponent - 1, exponent, exponent + 1, (1 << (bits - 1)) - 1]
    return [sign << (bits - 1) | value for sign in (0, 1) for value in found]


@st.composite
def versions(draw: st.DrawFn) -> tuple[str, Bits, Bits]:
    """A dtype, and two versions of an array of any bit patterns, of which from none to all elements differ."""
    dtype = draw(st.sampled_from(list(DTYPES)))
    unsigned, shape = DTYPES[dtype], draw(st.sampled_from(SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.0, 0.01, 0.1, 1.0]))

    def some() -> Bits:
        ordinary = rng.integers(0, 2 ** (8 * unsigned.itemsize), shape).astype(unsigned)
        return np.where(rng.random(shape) < 0.3, rng.choice(special(dtype), shape).astype(unsigned), ordinary)

    base = some()
    return dtype, base, np.where(rng.random(shape) < share, some(), base)


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
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(aside_module, "_BLOCK_ELEMENTS", 7)
        patch.write(engine)
    assert np.array_equal(to_bits("t", engine), new)
    if patch.positions is not None:
        assert patch.positions.tolist() == np.flatnonzero(base != new).tolist()
        assert patch.positions.nbytes + patch.values.nbytes < max(new.nbytes, 1)


@on_each_device
@pytest.mark.parametrize("changed", [1, 600])
def test_a_wider_tensor_gets_the_same_numbers(where: str, changed: int) -> None:
    old = torch.randn(600, dtype=torch.bfloat16)
    new = old.clone()
    new[:changed] *= 3
    engine = old.float().to(where)
    Aside(torch.device(where)).patch(to_bits("t", old), to_bits("t", new), "bfloat16").write(engine)
    assert torch.equal(engine.cpu(), new.float())


def test_a_tensor_whose_elements_do_not_lie_in_order_is_not_patched() -> None:
    engine = torch.zeros(30, 40, dtype=torch.float16).T
    with pytest.raises(TransferError, match=r"strides \(1, 40\) cannot be patched"):
        Patch(torch.tensor([3]), torch.ones(1, dtype=torch.float16)).write(engine)
    assert not engine.any()


@on_each_device
def test_versions_are_written_where_the_parameters_lie_and_their_fingerprints_known(
    where: str, ways: list[Staged]
) -> None:
    engine, aside = engine_at(V0, where), Aside(torch.device(where))
    places = [tensor.data_ptr() for tensor in engine.values()]
    for staged, expected in zip(ways, (V1, V2), strict=True):
        prepared = prepare(staged, engine, aside=aside)
        assert not same(engine, expected)
        whole = sum(tensor.nbytes for tensor in engine.values())
        assert 0.2 * whole < prepared.write_bytes < 0.5 * whole  # One in ten, each with its place.
        prepared.commit()
        assert same(engine, expected)
        numbers = {name: of_tensor(tensor, tensor.dtype) for name, tensor in engine.items()}
        assert prepared.fingerprints == numbers
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
