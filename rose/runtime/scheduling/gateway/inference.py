"""Serves vLLM's `/inference/v1/generate`, which takes and returns tokens."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rose.runtime.scheduling.gateway.openai import SGLANG_NAMES, Count, Ids, Name, Samples, Sampling, StreamOptions
from rose.runtime.scheduling.gateway.service import Completion, Service, TurnOrder
from rose.runtime.scheduling.gateway.sglang import check_sampling, read_labels
from rose.runtime.scheduling.runs.registry import Run
from rose.runtime.scheduling.turn_service import Client


class _Sampling(Sampling):
    model_config = ConfigDict(extra="forbid")

    n: Samples = 1
    max_tokens: Count = 16
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None  # Generated tokens only.
    detokenize: bool | None = None  # The answer has tokens only.
    routed_experts_prompt_start: Count | None = None  # Has no effect without routed experts.
    prompt_logprobs: None = None
    bad_words: Annotated[list[Name], Field(max_length=0)] | None = None


class GenerateRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    token_ids: Annotated[Ids, Field(min_length=1)]
    sampling_params: _Sampling = _Sampling()
    request_id: Name | None = None
    model: Name | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: Name | None = None
    priority: Literal[0] = 0
    features: None = None
    session_id: Name | None = None
    weight_version: dict[str, Any] | None = None
    rose: dict[str, Any] | None = None


_OURS = {"n", "logprobs", "detokenize", "prompt_logprobs", "bad_words", "routed_experts_prompt_start"}


@dataclass(frozen=True, kw_only=True)
class TokenAnswer:
    service: Service
    run: Run
    request: GenerateRequest
    orders: Sequence[TurnOrder]
    id: str

    async def answer(self, client: Client) -> dict[str, Any]:
        completions = await self.service.make(self.run, self.orders, client)
        return {
            "request_id": self.id,
            "choices": [self._choice(number, completion, 0) for number, completion in enumerate(completions)],
        }

    async def events(self) -> AsyncIterator[bytes]:
        counts = [0] * len(self.orders)
        async for number, completion in self.service.stream(self.run, self.orders):
            choice = self._choice(number, completion, counts[number])
            counts[number] = len(completion.ids)
            yield json.dumps({"request_id": self.id, "choices": [choice]}).encode()

    def _choice(self, number: int, completion: Completion, start: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": number, "token_ids": completion.ids[start:], "logprobs": None}
        choice["finish_reason"] = None if completion.finish is None else completion.finish.get("type", "length")
        if self.request.sampling_params.logprobs is not None:
            pairs = zip(completion.ids[start:], completion.logprobs[start:], strict=True)
            content = [
                {"token": f"token_id:{token}", "logprob": logprob, "top_logprobs": []} for token, logprob in pairs
            ]
            choice["logprobs"] = {"content": content}
        return choice if completion.finish is None else choice | {"meta_info": completion.weights}


def read(request: GenerateRequest, service: Service, run: Run, session: str | None) -> TokenAnswer:
    params = request.sampling_params
    values = params.model_dump(exclude_none=True, exclude=_OURS)
    sampling = check_sampling({SGLANG_NAMES.get(name, name): value for name, value in values.items()})
    labels, exact = read_labels(vars(request), session)
    fields = {} if request.cache_salt is None else {"extra_key": request.cache_salt}
    name = request.request_id or uuid.uuid4().hex
    orders = [
        TurnOrder(
            ids=request.token_ids,
            sampling=sampling if params.seed is None else sampling | {"sampling_seed": params.seed + number},
            labels=labels,
            exact=exact,
            fields=fields,
            name=name,
        )
        for number in range(params.n)
    ]
    return TokenAnswer(service=service, run=run, request=request, orders=orders, id=name)
