"""The pieces that a trainer publishes, with their elements."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from rose.transfer.codec.bits import torch_dtype
from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region
from rose.transfer.package.manifest import TensorInfo

Key = tuple[str, Region]
Elements = torch.Tensor | Callable[[], torch.Tensor]  # A function is called when an element is needed.


@dataclass(frozen=True, slots=True)
class Cut:
    """A box of a tensor, with its elements. `holders`: the ranks that hold it at the largest tensor-parallel size."""

    info: TensorInfo
    region: Region
    holders: frozenset[int]
    source: Elements

    @property
    def key(self) -> Key:
        return self.info.name, self.region

    def elements(self) -> torch.Tensor:
        return elements(self.source).to(torch_dtype(self.info.dtype))


def elements(source: Elements) -> torch.Tensor:
    return source if isinstance(source, torch.Tensor) else source()


def check_same_layout(before: Iterable[TensorInfo], cuts: Sequence[Cut], version: int, *, whole: bool) -> None:
    known = {info.name: info for info in before}
    now = {cut.info.name: cut.info for cut in cuts}
    if odd := sorted(set(known) ^ set(now) if whole else set(now) - set(known)):
        raise TransferError(f"tensors differ from version {version} in {odd}; publish to a new store")
    for name, info in now.items():
        if info != known[name]:
            raise TransferError(f"tensor {name!r} is {info}, but {known[name]} in version {version}; use a new store")


def aliases(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the names of tensors that share an earlier tensor's memory, each with the earlier tensor's name."""
    names: dict[tuple[int, torch.Size, tuple[int, ...], torch.dtype], str] = {}
    same: dict[str, str] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and names.setdefault(place, name) != name:
            same[name] = names[place]
    return same
