"""A PEFT folder with a LoRA adapter, which is merged into the weights of its base model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from rose.transfer.errors import TransferError
from rose.transfer.package.cuts import Elements, elements
from rose.transfer.sources.checkpoint import Checkpoint, mapped, read_json
from rose.transfer.sources.rank_tensors import RankTensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
#: Options that the merge follows, and options that do not concern it. Any other option is refused. The shapes show what
#: `rank_pattern` says.
_FOLLOWED = frozenset(
    (
        *("r", "rank_pattern", "lora_alpha", "use_rslora", "lora_dropout", "base_model_name_or_path", "revision"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
        *("auto_mapping", "inference_mode", "megatron_core", "peft_version", "qalora_group_size", "task_type"),
    )
)
_REQUIRED = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": (True, False, "gaussian", "orthogonal")}


class Adapter:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._config = {"peft_type": None, **read_json(folder / CONFIG)}
        for option, value in self._config.items():
            if value not in _REQUIRED[option] if option in _REQUIRED else value and option not in _FOLLOWED:
                raise TransferError(f"{folder / CONFIG}: {option} is {value!r}: not supported, let PEFT merge the LoRA")
        self._weights = mapped(folder / WEIGHTS)

    def base(self) -> Checkpoint:
        name = self._config.get("base_model_name_or_path")
        if not isinstance(name, str) or not Path(name).is_dir():
            raise TransferError(
                f"{self.folder / CONFIG}: base_model_name_or_path is {name!r}, and not a folder of this host: give "
                "`checkpoint`, the folder of the base model"
            )
        return Checkpoint(Path(name))

    def merge(self, base: Checkpoint) -> tuple[dict[str, RankTensor], list[str]]:
        """Return all tensors (merged ones in float32), and the names of the merged ones. Raises TransferError."""
        merged = dict(base.tensors)
        changed = []
        left = set(self._weights)
        for name in sorted(self._weights):
            module, suffix, _ = name.partition(".lora_A.weight")
            other, target = f"{module}.lora_B.weight", f"{module.removeprefix(_PREFIX)}.weight"
            if not suffix or other not in self._weights:
                continue
            left -= {name, other}
            down, up, whole = self._weights[name], self._weights[other], merged.get(target)
            if whole is None:
                raise TransferError(f"{self.folder}: {name!r} changes {target!r}, which {base.folder} lacks")
            shapes = [tensor.info.shape for tensor in (whole, up, down)]
            fit = [*map(len, shapes)] == [2, 2, 2] and shapes[0] == (shapes[1][0], shapes[2][1])
            if not fit or shapes[1][1] != shapes[2][0]:
                raise TransferError(
                    f"{self.folder}: {other!r} of {list(shapes[1])} and {name!r} of {list(shapes[2])} do not fit "
                    f"{target!r} of {list(shapes[0])}"
                )
            sources = [next(iter(tensor.boxes.values())) for tensor in (whole, up, down)]
            added = partial(_added, sources, self._scale(shapes[2][0]))
            merged[target] = RankTensor.whole(replace(whole.info, dtype="float32"), added)
            changed.append(target)
        if left:
            raise TransferError(f"{self.folder}: {min(left)!r} is not a matrix of a LoRA pair")
        return merged, changed

    def _scale(self, rank: int) -> float:
        alpha = self._config.get("lora_alpha")
        if not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
            raise TransferError(f"{self.folder / CONFIG}: lora_alpha is {alpha!r}, expected a number")
        return alpha / (math.sqrt(rank) if self._config.get("use_rslora") else rank)


def _added(sources: Sequence[Elements], scale: float) -> torch.Tensor:
    base, up, down = (elements(source).float() for source in sources)
    return base + (up @ down) * scale
