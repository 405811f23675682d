"""Serves OpenAI's completions and chats, with fields of SGLang and vLLM, and vLLM's API of token ids."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rose.runtime.scheduling.gateway.service import Completion, Service, TurnOrder
from rose.runtime.scheduling.gateway.sglang import check_count, check_sampling, prompt_ids, read_labels
from rose.runtime.scheduling.gateway.texts import TOOL_CALL_BEGINS, TOOL_CALL_ENDS, GrowingText, Texts, tool_calls
from rose.runtime.scheduling.messages import ID_LENGTH_MAX
from rose.runtime.scheduling.refusals import RefusedError, RequestError
from rose.runtime.scheduling.runs.registry import Run
from rose.runtime.scheduling.turn_service import Client

#: SGLang's names of parameters that it calls otherwise.
SGLANG_NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "include_stop_str_in_output": "no_stop_trim",
}
_GRAMMARS = {"json_schema", "regex", "ebnf", "structural_tag"}
Text = Annotated[str, Field(max_length=64 << 20)]
Name = Annotated[str, Field(max_length=ID_LENGTH_MAX)]
Count = Annotated[int, Field(ge=0, lt=1 << 31)]
Ids = Annotated[list[Count], Field(max_length=1 << 24)]
Real = Annotated[float, Field(ge=-1e6, le=1e6)]
Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Samples = Annotated[int, Field(ge=1, le=4096)]
_off_as_none = BeforeValidator(lambda value: None if value is False else value)
_one_or_more = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
# Errors of a union would name each alternative instead of the field.
Stops = Annotated[list[Name], Field(max_length=64), _one_or_more]
Biases = Annotated[dict[Name, Real], Field(max_length=1024)]
Objects = Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1 << 16)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False
    continuous_usage_stats: Literal[False] = False


class Sampling(BaseModel):
    temperature: Real | None = None
    top_p: Real | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Real | None = None
    frequency_penalty: Real | None = None
    presence_penalty: Real | None = None
    repetition_penalty: Real | None = None
    logit_bias: Biases | None = None
    seed: Seed | None = None
    stop: Stops | None = None
    stop_token_ids: Ids | None = None
    min_tokens: Count | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None


class _Request(Sampling):
    """The fields of completions and chats. Unknown fields and values are refused."""

    model_config = ConfigDict(extra="forbid")

    model: Name | None = None
    n: Samples = 1
    max_tokens: Count | None = None
    stop_regex: Stops | None = None
    no_stop_trim: bool | None = None
    json_schema: Text | None = None
    regex: Text | None = None
    ebnf: Text | None = None
    structural_tag: Text | None = None
    response_format: dict[str, Any] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    user: Name | None = None
    session_id: Name | None = None
    conversation_id: Name | None = None
    routing_key: Name | None = None
    cache_salt: Name | None = None
    extra_key: Name | None = None
    weight_version: dict[str, Any] | None = None
    rose: dict[str, Any] | None = None

    def sampling(self) -> dict[str, Any]:
        names = {*Sampling.model_fields, *_GRAMMARS, "stop_regex", "no_stop_trim"}
        values = self.model_dump(include=names, exclude_none=True)
        return {SGLANG_NAMES.get(name, name): value for name, value in values.items()} | _grammar(self.response_format)

    def fields(self) -> dict[str, Any]:
        key = self.extra_key or self.cache_salt
        return {} if key is None else {"extra_key": key}


class CompletionRequest(_Request):
    prompt: Any  # `read_completion` checks it.
    #: Generated tokens only.
    logprobs: Annotated[Annotated[int, Field(ge=0, le=1)] | None, _off_as_none] = None
    echo: Literal[False] = False
    suffix: Literal[None, ""] = None
    best_of: Literal[1] | None = None


class ChatRequest(_Request):
    messages: Objects
    tools: Objects | None = None
    tool_choice: Any = None  # `_tool_grammar` checks it.
    parallel_tool_calls: Literal[True] | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: Name | None = None
    prompt: Text | None = None
    messages: Objects | None = None
    tools: Objects | None = None
    add_special_tokens: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


def _grammar(form: Any) -> dict[str, Any]:
    match form:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"json_schema": '{"type": "object"}'}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"json_schema": json.dumps(schema)}
        case {"type": "structural_tag", **_rest}:
            return {"structural_tag": json.dumps(form)}
    forms = "text, json_object, json_schema with a schema, or structural_tag"
    raise RequestError(f"response_format is {str(form)[:80]}: give {forms}")


def _tool_grammar(request: ChatRequest) -> dict[str, Any]:
    choice, functions = request.tool_choice, dict[str, dict[str, Any]]()
    for tool in request.tools or []:
        if isinstance(function := tool.get("function"), dict):
            functions[str(function.get("name"))] = function
    match choice:
        case None | "auto" | "none":
            return {}
        case "required" if functions:
            calls = [_call_grammar(*item) for item in functions.items()]
            form = {"type": "tags_with_separator", "tags": calls, "separator": "\n", "at_least_one": True}
        case {"type": "function", "function": {"name": str(name)}} if name in functions:
            form = _call_grammar(name, functions[name])
        case _:
            why = f"tool_choice is {str(choice)[:80]}: give auto, none, required, or one of the functions"
            raise RefusedError(400, f"{why} in tools: {', '.join(functions)}", "tool_choice")
    if grammar := _GRAMMARS & request.sampling().keys():
        why = f"tool_choice is {str(choice)[:80]}, but {min(grammar)} sets another form: leave out one of them"
        raise RefusedError(400, why, "tool_choice")
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": form})}


def _call_grammar(name: str, function: dict[str, Any]) -> dict[str, Any]:
    begin = f'{TOOL_CALL_BEGINS}\n{{"name": {json.dumps(name)}, "arguments": '
    schema = {"type": "json_schema", "json_schema": function.get("parameters") or {"type": "object"}}
    return {"type": "tag", "begin": begin, "content": schema, "end": f"}}\n{TOOL_CALL_ENDS}"}


@dataclass(frozen=True, kw_only=True)
class OpenAIAnswer:
    service: Service
    run: Run
    request: CompletionRequest | ChatRequest
    orders: Sequence[TurnOrder]
    texts: Texts | None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def chat(self) -> bool:
        return isinstance(self.request, ChatRequest)

    @property
    def _tools(self) -> bool:
        return isinstance(self.request, ChatRequest) and bool(self.request.tools) and self.request.tool_choice != "none"

    async def answer(self, client: Client) -> dict[str, Any]:
        completions = await self.service.make(self.run, self.orders, client)
        choices = [self._choice(number, completion) for number, completion in enumerate(completions)]
        return self._head(choices, chunk=False) | {"usage": self._usage(completions)}

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the chunks of a stream. Text that may begin a stop string or a tool call is held back."""
        progress = [_Progress(self._growing_text(number)) for number in range(len(self.orders))]
        last: dict[int, Completion] = {}
        async for number, completion in self.service.stream(self.run, self.orders):
            last[number] = completion
            delta = self._delta(number, completion, progress[number])
            if delta is not None:
                yield self._event([delta])
        if self.request.stream_options is not None and self.request.stream_options.include_usage:
            yield self._event([], usage=self._usage([last[number] for number in sorted(last)]))

    def _event(self, choices: list[dict[str, Any]], **extra: Any) -> bytes:
        return json.dumps(self._head(choices, chunk=True) | extra).encode()

    def _head(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.chat else "text_completion"
        name = f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}"
        common: dict[str, Any] = {}
        for choice in choices:
            weights = choice.get("meta_info", {}).items()
            common |= {key: value for key, value in weights if key in ("weight_version_start", "weight_version_end")}
            if self.chat and "prompt_token_ids" in choice:  # vLLM puts them here for a chat.
                common["prompt_token_ids"] = choice.pop("prompt_token_ids")
        return {
            "choices": choices,
            **common,
            "id": name,
            "object": kind,
            "created": self.created,
            "model": self.request.model or self.run.facts.model,
        }

    def _usage(self, completions: Sequence[Completion]) -> dict[str, Any]:
        per_prompt = completions[:: self.request.n]  # A prompt counts once for all its completions.
        prompt = sum(completion.prompt_tokens for completion in per_prompt)
        generated = sum(len(completion.ids) for completion in completions)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": sum(completion.cached_tokens for completion in per_prompt)},
        }

    def _growing_text(self, number: int) -> GrowingText | None:
        return None if self.texts is None else GrowingText(self.texts, special=self.orders[number].special)

    def _final_text(self, number: int, completion: Completion, growing: GrowingText | None) -> tuple[str, Objects]:
        if growing is None or completion.finish is None:
            return "", []
        text = growing.finished(completion.ids, completion.finish, keep_stop=self.orders[number].keep_stop)
        return tool_calls(text) if self._tools else (text, [])

    def _choice(self, number: int, completion: Completion) -> dict[str, Any]:
        text, calls = self._final_text(number, completion, self._growing_text(number))
        choice = self._finish(number, completion, calls_tools=bool(calls)) | self._tokens(number, completion, 0)
        if not self.chat:
            return choice | {"text": text}
        message: dict[str, Any] = {"role": "assistant", "content": (text or None) if calls else text}
        return choice | {"message": message | ({"tool_calls": calls} if calls else {})}

    def _delta(self, number: int, completion: Completion, progress: _Progress) -> dict[str, Any] | None:
        final, calls = self._final_text(number, completion, progress.growing)
        if completion.finish is None and progress.growing is not None:
            order, tools = self.orders[number], [TOOL_CALL_BEGINS] if self._tools else []
            stop = [] if order.keep_stop else order.sampling.get("stop") or []
            final = settled(progress.growing.after(completion.ids), [*stop, *tools])
            if tools:
                final = final.partition(TOOL_CALL_BEGINS)[0]
        text, more_ids = final[len(progress.text) :], len(completion.ids) > progress.tokens
        if not text and completion.finish is None and not (self.request.return_token_ids and more_ids):
            return None
        choice = self._finish(number, completion, calls_tools=bool(calls))
        choice |= self._tokens(number, completion, progress.tokens)
        first = not progress.begun
        progress.text, progress.tokens, progress.begun = progress.text + text, len(completion.ids), True
        if not self.chat:
            return choice | {"text": text}
        delta: dict[str, Any] = {"content": text} | ({"role": "assistant"} if first else {})
        if calls:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        return choice | {"delta": delta}

    def _finish(self, number: int, completion: Completion, *, calls_tools: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": number, "finish_reason": None, "logprobs": None}
        if completion.finish is None:
            return choice
        reason, matched = completion.finish.get("type", "length"), completion.finish.get("matched")
        stop = {} if matched is None else {"matched_stop": matched}
        rose = {"run_id": self.run.run_id, "versions": completion.versions}
        return choice | {
            "finish_reason": "tool_calls" if calls_tools else reason,
            **stop,
            "meta_info": completion.weights,
            "rose": rose,
        }

    def _tokens(self, number: int, completion: Completion, start: int) -> dict[str, Any]:
        ids, logprobs = completion.ids[start:], completion.logprobs[start:]
        tokens: dict[str, Any] = {}
        if self.request.return_token_ids:
            tokens["token_ids"] = ids
            if start == 0:
                tokens["prompt_token_ids"] = list(self.orders[number].ids)
        if self.request.logprobs is not None and self.request.logprobs is not False:
            names = [f"token_id:{token}" if self.texts is None else self.texts.token(token) for token in ids]
            tokens["logprobs"] = (_chat_logprobs if self.chat else _text_logprobs)(names, logprobs)
        return tokens


@dataclass(slots=True)
class _Progress:
    growing: GrowingText | None
    text: str = ""
    tokens: int = 0
    begun: bool = False


def settled(text: str, endings: Sequence[str]) -> str:
    """Return the text without a last part that may be the beginning of one of `endings`."""
    longest = max((len(ending) for ending in endings), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(ending.startswith(text[-length:]) for ending in endings):
            return text[:-length]
    return text


def _text_logprobs(names: Sequence[str], logprobs: Sequence[float]) -> dict[str, Any]:
    offsets = list(itertools.accumulate((len(name) for name in names), initial=0))[: len(names)]
    top = [{name: logprob} for name, logprob in zip(names, logprobs, strict=True)]
    return {"tokens": list(names), "token_logprobs": list(logprobs), "top_logprobs": top, "text_offset": offsets}


def _chat_logprobs(names: Sequence[str], logprobs: Sequence[float]) -> dict[str, Any]:
    content = [
        {"token": name, "logprob": logprob, "bytes": list(name.encode()), "top_logprobs": []}
        for name, logprob in zip(names, logprobs, strict=True)
    ]
    return {"content": content}


async def read_completion(request: CompletionRequest, service: Service, run: Run, session: str | None) -> OpenAIAnswer:
    prompts: list[Any] = [request.prompt]
    if isinstance(request.prompt, list) and request.prompt and not isinstance(request.prompt[0], int):
        prompts = request.prompt
        check_count(prompts)
    ids = [await prompt_ids(prompt, "prompt", service, run) for prompt in prompts]
    return await _make_answer(request, service, run, session, ids, 16)


async def read_chat(request: ChatRequest, service: Service, run: Run, session: str | None) -> OpenAIAnswer:
    grammar = _tool_grammar(request)
    texts = await service.texts(run)
    tools = None if request.tool_choice == "none" else request.tools
    ids = await texts.chat(request.messages, tools, **(request.chat_template_kwargs or {}))
    return await _make_answer(request, service, run, session, [ids], texts.room(len(ids)), grammar)


async def _make_answer(
    request: CompletionRequest | ChatRequest,
    service: Service,
    run: Run,
    session: str | None,
    prompts: Sequence[list[int]],
    default_tokens: int,
    grammar: dict[str, Any] | None = None,
) -> OpenAIAnswer:
    labels, exact = read_labels(vars(request), session)
    tokens_max = request.max_tokens
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        tokens_max = request.max_completion_tokens
    values = {"max_new_tokens": default_tokens if tokens_max is None else tokens_max, **request.sampling()}
    sampling, fields = check_sampling(values | (grammar or {}), "the request"), request.fields()
    orders: list[TurnOrder] = []
    for ids in prompts:
        order = TurnOrder(ids=ids, sampling=sampling, labels=labels, exact=exact, fields=fields)
        orders += _samples(order, request.n, request.seed)
    check_count(orders)
    texts = await service.texts_or_none(run)
    return OpenAIAnswer(service=service, run=run, request=request, orders=orders, texts=texts)


def _samples(order: TurnOrder, count: int, seed: int | None) -> list[TurnOrder]:
    """Return the orders of `count` samples, each with its own seed."""
    seeds = [{} if seed is None else {"sampling_seed": seed + number} for number in range(count)]
    return [replace(order, sampling={**order.sampling, **seeded}) for seeded in seeds]


class _TokenSampling(Sampling):
    model_config = ConfigDict(extra="forbid")

    n: Samples = 1
    max_tokens: Count = 16
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None  # Generated tokens only.
    detokenize: bool | None = None  # The answer has tokens only.
    routed_experts_prompt_start: Count | None = None  # Has no effect without routed experts.
    prompt_logprobs: None = None
    bad_words: Annotated[list[Name], Field(max_length=0)] | None = None


class TokensRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    token_ids: Annotated[Ids, Field(min_length=1)]
    sampling_params: _TokenSampling = _TokenSampling()
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


@dataclass(frozen=True, kw_only=True)
class TokenAnswer:
    service: Service
    run: Run
    request: TokensRequest
    orders: Sequence[TurnOrder]
    id: str

    async def answer(self, client: Client) -> dict[str, Any]:
        completions = await self.service.make(self.run, self.orders, client)
        choices = [self._choice(number, completion, 0) for number, completion in enumerate(completions)]
        return {"request_id": self.id, "choices": choices}

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
            content = [{"token": f"token_id:{id_}", "logprob": value, "top_logprobs": []} for id_, value in pairs]
            choice["logprobs"] = {"content": content}
        return choice if completion.finish is None else choice | {"meta_info": completion.weights}


async def read_tokens(request: TokensRequest, service: Service, run: Run, session: str | None) -> TokenAnswer:
    params = request.sampling_params
    values = params.model_dump(exclude_none=True, include={*Sampling.model_fields, "max_tokens"})
    sampling = check_sampling({SGLANG_NAMES.get(name, name): value for name, value in values.items()})
    labels, exact = read_labels(vars(request), session)
    fields = {} if request.cache_salt is None else {"extra_key": request.cache_salt}
    name = request.request_id or uuid.uuid4().hex
    order = TurnOrder(ids=request.token_ids, sampling=sampling, labels=labels, exact=exact, fields=fields, name=name)
    orders = _samples(order, params.n, params.seed)
    return TokenAnswer(service=service, run=run, request=request, orders=orders, id=name)
