import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from rose.transfer import turns
from rose.transfer.apply import staged
from rose.transfer.apply.apply import prepare
from rose.transfer.apply.staged import Staged
from rose.transfer.codec import blocks
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.receiver import Receiver


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (turns, staged):
        monkeypatch.setattr(module, "PORTION_BYTES", 1000)
    monkeypatch.setattr("rose.transfer.codec.bits.PORTION_BYTES", 1000)
    monkeypatch.setattr(blocks, "_BLOCK_ELEMENTS", 500)


class Turns:
    """Counts turns; from the one numbered `last` on there is none any more."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self.count = self.inside = 0
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self.count += 1
            if self.last is not None and self.count > self.last:
                raise InterruptedError
            self.inside += 1
        yield
        with self._lock:
            self.inside -= 1


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (400, 3), (0, 4), (1, 3000)])
def test_portions_are_all_rows_in_order_and_no_larger_than_they_may_be(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    copied = torch.empty_like(tensor, dtype=torch.float64)
    for target, source in turns.portions(copied, tensor):
        assert target.nbytes <= 1000 or len(target) == 1
        target.copy_(source)
    assert torch.equal(copied.float(), tensor)


Versions = tuple[Staged, Staged, dict[str, torch.Tensor], dict[str, torch.Tensor]]


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    old = {"w": torch.randn(5000).bfloat16(), "v": torch.randn(3, 1000)}
    new = {name: torch.where(torch.rand(tensor.shape) < 0.1, tensor * 1.01, tensor) for name, tensor in old.items()}
    store = VersionStore(tmp_path / "store")
    store.publish(0, old)
    store.publish(1, new)
    receiver = Receiver(f"file://{store.folder}", None, tmp_path / "staging")
    return receiver.fetch(0, None), receiver.fetch(1, 0), old, new


def test_a_version_is_checked_decoded_and_hashed_in_turns(versions: Versions) -> None:
    anchor, delta, old, new = versions
    for version, before, after in (
        (anchor, {name: torch.zeros_like(old[name]) for name in old}, old),
        (delta, old, new),
    ):
        turn = Turns()
        opened = Staged.open(version.folder, turn=turn)
        assert turn.count >= sum(chunk.size_bytes for chunk in opened.manifests[-1].chunks) / 1000
        engine = {name: tensor.clone() for name, tensor in before.items()}
        turn = Turns()
        prepared = prepare(opened, engine, turn=turn)
        # Each block is decoded in one, and each portion hashed in one.
        assert turn.count >= 8000 / 1000 + 22000 / 1000
        assert turn.inside == 0
        prepared.commit()
        assert all(torch.equal(engine[name], after[name]) for name in after)


def test_a_turn_that_is_not_given_ends_it_wherever_it_is_and_it_can_be_done_again(versions: Versions) -> None:
    _, delta, old, new = versions
    engine = {name: tensor.clone() for name, tensor in old.items()}
    whole = Turns()
    prepare(delta, engine, turn=whole)
    for last in range(0, whole.count, 7):
        turn = Turns(last)
        with pytest.raises(InterruptedError):
            prepare(delta, engine, turn=turn)
        assert turn.inside == 0, "nothing goes on once it was raised"
    prepare(delta, engine).commit()
    assert all(torch.equal(engine[name], new[name]) for name in new)
