"""Compiles the codec before the first sync needs it: run `python -m` this module after installing. Numba caches it."""

import tempfile
from pathlib import Path

import torch

from rose.runtime.transfer.apply.apply import prepare
from rose.runtime.transfer.store.store import VersionStore
from rose.runtime.transfer.wire.receiver import Receiver

_DTYPES = (torch.bfloat16, torch.float32)
_ELEMENTS = (1 << 12, 1 << 18)  # One size that is encoded `small`, and one that is encoded `fast`.


def compile_codec() -> None:
    weights = {
        f"{dtype} {elements}": torch.linspace(-1, 1, elements).to(dtype) for dtype in _DTYPES for elements in _ELEMENTS
    }
    engine = {name: tensor.clone() for name, tensor in weights.items()}
    with tempfile.TemporaryDirectory() as folder:
        store = VersionStore(Path(folder) / "store")
        receiver = Receiver(f"file://{store.folder}", None, Path(folder) / "staging")
        for version in range(3):
            store.publish(version, weights)
            staged = receiver.fetch(version, version - 1 if version else None)
            prepare(staged, engine).commit()
            staged.remove()
            for tensor in weights.values():
                tensor[::50] *= 1.01


if __name__ == "__main__":
    compile_codec()
