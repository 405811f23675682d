"""The tensor-parallel ranks of one engine: which one this scheduler is, and how all of them come to one decision.

SGLang hands every request to all ranks at the same point of their loops, `/set_internal_state` included. What a rank
knows beyond that, such as how far a thread of its own has come, differs between them and must be agreed on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranks:
    """Rank `rank` of `size`. `all_say(mine)` is whether every rank says yes; all must ask at the same point."""

    rank: int = 0
    size: int = 1
    all_say: Callable[[bool], bool] = bool

    @classmethod
    def of_engine(cls) -> Ranks:
        """This scheduler's."""
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        if parallel.tp_size == 1:
            return cls()
        group = parallel.tp_group.cpu_group

        def all_say(own_vote: bool) -> bool:
            import torch
            from torch import distributed

            votes = torch.tensor([int(own_vote)])
            distributed.all_reduce(votes, op=distributed.ReduceOp.MIN, group=group)
            return bool(votes.item())

        return cls(parallel.tp_rank, parallel.tp_size, all_say)
