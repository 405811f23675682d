"""A stand-in for `sgl_kernel`, which has no CPU build on the package index.

SGLang's CPU path imports the names below at start-up. All of them belong to speculative decoding, which ROSE does
not switch on; on a host with no GPU the torch-native backend does the rest, so calling one says what is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

NAMES = (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
)


def _refuse(name: str) -> Callable[..., NoReturn]:
    def raise_(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} was called: speculative decoding needs the compiled sgl_kernel package, "
            "which has no CPU build. Start the engine without --speculative-* arguments."
        )

    return raise_


def install() -> None:
    """Make `import sgl_kernel` find the stand-in in this process. Does nothing if a real one was imported first."""
    if "sgl_kernel" in sys.modules:
        return
    module = ModuleType("sgl_kernel", __doc__)
    for name in NAMES:
        setattr(module, name, _refuse(name))
    sys.modules["sgl_kernel"] = module
