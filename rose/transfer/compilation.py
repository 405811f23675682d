"""Compiles the codec, so that the first sync does not wait for it. Run it with `python -m` after the installation."""

import tempfile
from pathlib import Path
from typing import get_args

import torch

from rose.transfer.apply.apply import prepare
from rose.transfer.codec import codec
from rose.transfer.codec.bits import to_bits
from rose.transfer.codec.header import Encoding
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.receiver import Receiver

_DTYPES = (torch.bfloat16, torch.float32)
_ELEMENTS = 1 << 12


def compile_codec() -> None:
    weights = {str(dtype): torch.linspace(-1, 1, _ELEMENTS).to(dtype) for dtype in _DTYPES}
    for name, tensor in weights.items():
        base, new = to_bits(name, tensor), to_bits(name, tensor * 1.01)
        for encoding in get_args(Encoding):
            codec.decode(base, codec.encode(base, new, encoding=encoding))
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
