"""Serves SGLang's path `/generate`, with texts, token ids, batches, samples and streams."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from rose.runtime.scheduling.gateway.service import Completion, Service, TurnOrder, with_versions
from rose.runtime.scheduling.gateway.texts import GrowingText
from rose.runtime.scheduling.refusals import RefusedError, RequestError
from rose.runtime.scheduling.runs.registry import Run
from rose.runtime.scheduling.turn_service import Client
from rose.runtime.scheduling.turns.request import TOKENS_DEFAULT, Labels
from rose.runtime.scheduling.turns.turns import new_id

TURNS_AT_ONCE = 4096  # Turns of one request.
#: Accepted fields without effect here.
_HARMLESS = frozenset({"log_metrics", "no_logs", "custom_labels", "stream_options"})
_TO_ENGINES = frozenset({"extra_key", "custom_logit_processor"})
_FLAGS = {"stream", "return_logprob", "return_text_in_logprobs"}
_INPUTS = {"text", "input_ids", "sampling_params", "rid", "lora_path"}
_COMMON_FIELDS = {"rose", "weight_version", "session_id", "conversation_id", "routing_key", "model"}
_FIELDS = _TO_ENGINES | _HARMLESS | _FLAGS | _INPUTS | _COMMON_FIELDS
_TokenIds = Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]], msgspec.Meta(min_length=1)]
_NOTHING: tuple[object, ...] = (None, False, [], {}, "", -1)


@dataclass(frozen=True, slots=True)
class Form:
    batch: bool
    stream: bool
    logprobs: bool
    texts_of_tokens: bool


def check_known(body: Mapping[str, Any], supported: frozenset[str]) -> None:
    if odd := [name for name, value in body.items() if name not in supported and value not in _NOTHING]:
        raise RequestError(f"{odd[0]} is not supported here: leave it out")


def check_sampling(sampling: object, where: str = "sampling_params") -> dict[str, Any]:
    """Return SGLang's sampling parameters, with a default for `max_new_tokens`. Raises RequestError."""
    if sampling is None:
        sampling = {}
    if not isinstance(sampling, dict):
        raise RequestError(f"{where} is {str(sampling)[:60]}: give an object")
    values = {name: value for name, value in sampling.items() if value is not None}
    for name, minimum in (("max_new_tokens", 0), ("min_new_tokens", 0), ("n", 1)):
        if type(count := values.get(name, 1)) is not int or not minimum <= count < 1 << 31:
            raise RequestError(f"{where}.{name} is {repr(count)[:60]}: give an integer from {minimum}")
    if values.get("beam_width", 1) != 1:
        raise RequestError(f"{where}.beam_width is not supported here: leave it out")
    stop = values.get("stop") or []
    if values.get("stop") == "" or "" in ([stop] if isinstance(stop, str) else stop):
        raise RequestError(f"{where}.stop has an empty text: leave it out")
    return {"max_new_tokens": TOKENS_DEFAULT, **values}


def read_labels(body: Mapping[str, Any], trajectory_id: str | None) -> tuple[Labels, int | None]:
    try:
        labels = msgspec.convert(body.get("rose") or {}, Labels)
    except msgspec.ValidationError as error:
        raise RequestError(f"rose: {error}") from None
    session = next((body[name] for name in ("session_id", "conversation_id", "routing_key") if body.get(name)), None)
    if labels.trajectory_id is None and (session or trajectory_id):
        labels = msgspec.structs.replace(labels, trajectory_id=str(session or trajectory_id))
    return with_versions(labels, body.get("weight_version"))


def _with_adapter(labels: Labels, name: object, run: Run) -> Labels:
    if name in _NOTHING:
        return labels
    if not isinstance(name, str) or name not in run.facts.adapters:
        why = f"lora_path is {str(name)[:60]!r}, and run {run.run_id!r} has no adapter of this name"
        raise RequestError(f"{why}: load it at /load_lora_adapter first")
    version_min = max(labels.version_min or 0, run.facts.adapters[name])
    return msgspec.structs.replace(labels, version_min=version_min)


async def read(body: dict[str, Any], service: Service, run: Run, session: str | None) -> tuple[list[TurnOrder], Form]:
    check_known(body, _FIELDS)
    sources = [name for name in ("text", "input_ids") if body.get(name) not in (None, [], "")]
    if len(sources) != 1:
        both = "text and input_ids are both given" if sources else "text is missing, and so is input_ids"
        raise RequestError(f"{both}: give one of them")
    prompts = body[sources[0]]
    batch = isinstance(prompts, list) and (sources[0] == "text" or isinstance(prompts[0], list))
    prompts = prompts if batch else [prompts]
    ids = [await prompt_ids(prompt, sources[0], service, run) for prompt in prompts]
    samplings = body.get("sampling_params")
    samplings = samplings if isinstance(samplings, list) else [samplings] * len(ids)
    names = _names(body.get("rid"), len(ids))
    if len(samplings) != len(ids):
        raise RequestError(f"sampling_params has {len(samplings)} entries for {len(ids)} prompts: give one for each")
    labels, exact = read_labels(body, session)
    labels = _with_adapter(labels, body.get("lora_path"), run)
    fields = {name: body[name] for name in _TO_ENGINES if body.get(name) is not None}
    orders: list[TurnOrder] = []
    for prompt, given_sampling, name in zip(ids, samplings, names, strict=True):
        sampling = check_sampling(given_sampling)
        count = sampling.pop("n", 1)
        batch = batch or count > 1
        order = TurnOrder(ids=prompt, sampling=sampling, labels=labels, fields=fields, name=name, exact=exact)
        orders += itertools.repeat(order, count)
    check_count(orders)
    switches = (bool(body.get(name)) for name in ("stream", "return_logprob", "return_text_in_logprobs"))
    return orders, Form(batch, *switches)


def check_count(orders: Sequence[object]) -> None:
    if len(orders) > TURNS_AT_ONCE:
        raise RequestError(f"the request asks for {len(orders)} completions: ask for at most {TURNS_AT_ONCE} at once")


async def prompt_ids(prompt: object, where: str, service: Service, run: Run) -> list[int]:
    if isinstance(prompt, str) and prompt and where != "input_ids":
        return await (await service.texts(run)).encode(prompt)
    try:
        return msgspec.convert(prompt, _TokenIds)
    except msgspec.ValidationError:
        why = f"{where} must be a text that is not empty, or a list of token ids from 0"
        raise RefusedError(400, why, where) from None


def _names(rid: object, count: int) -> list[str]:
    if rid is None:
        return [new_id() for _ in range(count)]
    if isinstance(rid, str):
        return [rid] if count == 1 else [f"{rid}_{number}" for number in range(count)]
    if not (isinstance(rid, list) and len(rid) == count and all(isinstance(name, str) for name in rid)):
        raise RequestError(f"rid is {str(rid)[:60]}: give a text, or one for each of {count} prompts")
    return rid


async def answer(service: Service, run: Run, orders: list[TurnOrder], form: Form, client: Client) -> Any:
    completions = await service.make(run, orders, client)
    growing = await _growing_texts(service, run, orders)
    answers = [_answer(*items, form) for items in zip(completions, orders, growing, strict=True)]
    return answers if form.batch else answers[0]


async def events(service: Service, run: Run, orders: list[TurnOrder], form: Form) -> AsyncIterator[bytes]:
    growing = await _growing_texts(service, run, orders)
    async for number, completion in service.stream(run, orders):
        answer = _answer(completion, orders[number], growing[number], form)
        yield json.dumps(answer | ({"index": number} if form.batch else {})).encode()


async def _growing_texts(service: Service, run: Run, orders: list[TurnOrder]) -> list[GrowingText | None]:
    texts = await service.texts_or_none(run)
    return [None if texts is None else GrowingText(texts, special=order.special) for order in orders]


def _answer(completion: Completion, order: TurnOrder, growing: GrowingText | None, form: Form) -> dict[str, Any]:
    ids, finish = completion.ids, completion.finish
    meta: dict[str, Any] = {
        "id": order.name,
        "finish_reason": finish,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": len(ids),
        "cached_tokens": completion.cached_tokens,
        **completion.weights,
        "rose": {"versions": completion.versions, "attempts": list(completion.attempts)},
    }
    if form.logprobs:
        token_text = growing.texts.token if form.texts_of_tokens and growing is not None else lambda _: None
        logprobs = zip(completion.logprobs, ids, strict=True)
        meta["output_token_logprobs"] = [[logprob, token, token_text(token)] for logprob, token in logprobs]
    answer: dict[str, Any] = {"output_ids": ids, "meta_info": meta}
    if growing is not None and finish is None:
        answer["text"] = growing.after(ids)
    elif growing is not None and finish is not None:
        answer["text"] = growing.finished(ids, finish, keep_stop=order.keep_stop)
    return answer
