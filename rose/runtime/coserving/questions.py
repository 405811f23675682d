"""Questions to the plugin in a rollout engine. A question is sent as a `/generate` request, because such a request
reaches all ranks at the same point of their loops. The plugin aborts the request; the abort's message is the answer."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

#: Questions about the engine's weights, each with a policy version.
Verb = Literal["prepare", "commit", "audit", "confirm"]

TAKEN = "taken"
CLIENT_RECORDS = "rose-client-"  #: Begins the ids of requests that their client records, if anybody.
_QUESTION = re.compile(r"rose-(?:(prepare|commit|audit|confirm)-([0-9]{1,18})|end-(.+))-[0-9a-f]{32}")


def question(verb: Verb | Literal["end"], about: int | str) -> dict[str, object]:
    """Return the body of the HTTP request for a question. `about`: a policy version or, for "end", a request's id."""
    return {
        "rid": f"rose-{verb}-{about}-{uuid.uuid4().hex}",
        "input_ids": [0],
        "sampling_params": {"max_new_tokens": 1},
    }


def unrecorded_id() -> str:
    """Return a new id for an unrecorded request. No id begins with another id, because SGLang aborts by prefix."""
    return f"{CLIENT_RECORDS}{uuid.uuid4().hex}"


def parse_question(request_id: str) -> tuple[Verb, str] | tuple[Literal["end"], str] | None:
    """Return (verb, subject) if a request's id carries a question of ROSE, else None."""
    if (match := _QUESTION.fullmatch(client_id(request_id))) is None:
        return None
    return (cast(Verb, match[1]), match[2]) if match[1] else ("end", match[3])


def client_id(request_id: str) -> str:
    return request_id.rpartition("#")[0] or request_id


def refusal(answer: Any) -> str | None:
    """Return why the engine refused a question, or None if it accepted."""
    try:
        message = str(answer["meta_info"]["finish_reason"]["message"])
    except (LookupError, TypeError):
        return f"it answered {str(answer)[:200]}, as if it had no plugin"
    return None if message == TAKEN else message


@dataclass(frozen=True, slots=True)
class Ranks:
    rank: int = 0
    size: int = 1
    all_say: Callable[[bool], bool] = bool  # All ranks must call it at the same point.

    @classmethod
    def of_engine(cls) -> Ranks:
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
