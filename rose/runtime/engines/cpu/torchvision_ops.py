"""Lets torchvision's Python import where its compiled operators cannot load (they want CUDA libraries).

torchvision registers meta kernels for two operators at import; the import works once their schemas exist. Nothing
that ROSE runs calls them.
"""

from __future__ import annotations

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library: torch.library.Library | None = None


def define() -> None:
    """Define the schemas once in this process, unless torch is a CUDA build, beside which torchvision brings its own.

    Must run before torchvision (or sglang) is first imported.
    """
    global _library
    if _library is not None or torch.version.cuda is not None:
        return
    _library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        _library.define(f"{name}{_SCHEMA}")  # type: ignore[no-untyped-call]
