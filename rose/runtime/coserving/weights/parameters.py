"""Gives an engine's parameters their published names. On GPUs, parameters stay in place: captured graphs read them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from rose.runtime.coserving.questions import Ranks
    from rose.transfer.layout.regions import Region
    from rose.transfer.package.manifest import Manifest
    from rose.transfer.turns import Turn


@dataclass(frozen=True, slots=True)
class EngineWeights:
    views: dict[str, torch.Tensor]
    regions: dict[str, Region] | None  # none on an engine of one rank: each tensor whole

    @classmethod
    def of(
        cls, model_runner: Any, manifest: Manifest, ranks: Ranks, parameters: Mapping[str, torch.Tensor] | None = None
    ) -> EngineWeights:
        """Return the engine's weights. Raises TransferError if a parameter has an unexpected number of rows."""
        from rose.transfer.layout.fused import hf_views

        config = model_runner.model_config
        views = hf_views(
            model_runner.model.named_parameters() if parameters is None else parameters.items(),
            num_heads=config.num_attention_heads // ranks.size,
            num_kv_heads=max(1, config.num_key_value_heads // ranks.size),
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            tp=ranks.size,
            rank=ranks.rank,
        )
        return cls(views, None if ranks.size == 1 else _regions(config, manifest, ranks))

    def published(self, manifest: Manifest, turn: Turn = nullcontext) -> dict[str, torch.Tensor]:
        """Return the parameters by published name: as views, or as copies where the published type differs."""
        from rose.transfer.codec.bits import torch_dtype

        types = {tensor.name: torch_dtype(tensor.dtype) for tensor in manifest.tensors}
        return {
            name: view if view.dtype == types.get(name, view.dtype) else copied(view, types[name], turn)
            for name, view in self.views.items()
        }


def copied(tensor: torch.Tensor, dtype: torch.dtype, turn: Turn) -> torch.Tensor:
    import torch

    from rose.transfer.turns import portions

    copy = torch.empty_like(tensor, dtype=dtype)
    for target, source in portions(copy, tensor):
        with turn():
            target.copy_(source)
    return copy


def _regions(config: Any, manifest: Manifest, ranks: Ranks) -> dict[str, Region]:
    from rose.transfer.layout.shards import ModelShape, receiver_regions

    shape = ModelShape(
        {tensor.name: tensor.shape for tensor in manifest.tensors},
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
    )
    return receiver_regions(shape, ranks.size, ranks.rank)
