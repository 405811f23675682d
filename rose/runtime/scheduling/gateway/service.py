"""The steps that all APIs share: find a request's run, run its turns, return completions."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.types import Scope

from rose.clock import monotonic_ns
from rose.errors import UserError, did_you_mean
from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.gateway.origins import FolderOrigins
from rose.runtime.scheduling.gateway.texts import Texts
from rose.runtime.scheduling.messages import OpenRun
from rose.runtime.scheduling.refusals import RefusedError, RequestError
from rose.runtime.scheduling.runs.registry import Run
from rose.runtime.scheduling.turn_service import Client, Outcome
from rose.runtime.scheduling.turns.answer import Tokens, array
from rose.runtime.scheduling.turns.request import Labels, Prompt, TurnRequest
from rose.runtime.scheduling.turns.turns import Turn
from rose.tokens import Token

TOKEN = "token"  # Key in a request's `state`: its named token.
TURNS_MAX = 10_000  # Open turns of one run.
OWN_EXPIRES_S = 600.0  # A token's own run expires after so long without a request.
_ANYONE = "anyone"


class NotReadyError(RefusedError):
    def __init__(self, why: str) -> None:
        super().__init__(409, f"WeightVersionNotReady: {why}", kind="WeightVersionNotReady")


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnOrder:
    """A turn that a request asks for. If `exact` is given, the turn accepts only this version."""

    ids: Sequence[int]
    sampling: Mapping[str, Any]
    labels: Labels = field(default_factory=Labels)
    fields: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    exact: int | None = None

    @property
    def request(self) -> TurnRequest:
        return TurnRequest(Prompt.of(self.ids), dict(self.sampling), self.labels, fields=dict(self.fields))

    @property
    def special(self) -> bool:
        return not self.sampling.get("skip_special_tokens", True)

    @property
    def keep_stop(self) -> bool:
        return bool(self.sampling.get("no_stop_trim"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The tokens of a turn. `finish` is None while the turn grows."""

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: Mapping[str, Any] | None
    prompt_tokens: int
    cached_tokens: int = 0
    attempts: Sequence[Mapping[str, Any]] = ()

    @property
    def weights(self) -> dict[str, Any]:
        if not self.versions:
            return {}
        first, last = self.versions[0], self.versions[-1]
        return {"weight_version": str(last), "weight_version_start": first, "weight_version_end": last}


class Service:
    """Runs turns for all APIs. If `files` is True, every run may publish folders of this host."""

    def __init__(
        self, controller: Controller, texts: Mapping[str, Texts], origins: FolderOrigins | None, *, files: bool = False
    ) -> None:
        self.controller, self.models = controller, list(controller.models)
        self._texts, self.origins, self._files = texts, origins, files

    async def _texts_of(self, model: str) -> Texts | None:
        if (texts := self._texts.get(model)) is not None:
            await texts.ready()
        return texts

    async def texts(self, run: Run) -> Texts:
        if (texts := await self._texts_of(run.facts.model)) is None:
            raise RefusedError(400, f"no tokenizer for model {run.facts.model!r} here: send token ids")
        return texts

    async def texts_or_none(self, run: Run) -> Texts | None:
        texts = await self._texts_of(run.facts.model)
        return texts if texts is not None and texts.known else None

    async def context(self, model: str) -> int | None:
        texts = await self._texts_of(model)
        return None if texts is None else texts.context

    def check_files(self, token: Token | None) -> None:
        """Raise RefusedError if the token may not publish this host's folders, which may belong to other teams."""
        if token is not None and not token.may("admin") and not self._files:
            why = f"token {token.name!r} may not publish folders of the controller's host"
            raise RefusedError(403, f"{why}: set origins.files in the fleet file, or use rose.client", "model_path")

    def run_of(self, scope: Scope, model: str | None = None) -> Run:
        token, runs, now_ns = token_of(scope), self.controller.runs, monotonic_ns()
        run_id = _run_id_of(scope, token)
        open_ids = [run.run_id for run in runs if run.is_open]
        if run_id is None and model in open_ids:
            run_id, model = model, None
        if run_id is not None:
            run = runs.hear(run_id, now_ns)
        elif (token_run := self._token_run(token, model)) is not None and token_run.is_open:
            run = token_run
        else:
            run = self._open(token, model)
        check_team(token, run)
        if model not in (None, "", "default", run.run_id, run.facts.model):
            known = [*self.models, *(name for name in open_ids if may_use(token, runs.get(name)))]
            raise RefusedError(404, f"unknown model {model!r}{did_you_mean(str(model), known)}", "model")
        run.heard_ns = now_ns
        return run

    def known_run(self, scope: Scope) -> Run | None:
        token = token_of(scope)
        if (run_id := _run_id_of(scope, token)) is None:
            return self._token_run(token)
        run = self.controller.runs.get(run_id)
        check_team(token, run)
        return run

    def _token_run(self, token: Token | None, model: str | None = None) -> Run | None:
        name, team = _who(token)
        for run in self.controller.runs:
            facts, fits = run.facts, model not in self.models or run.facts.model == model
            if fits and facts.state != "closed" and (facts.tags.get("token"), facts.team) == (name, team):
                return run
        return None

    def _open(self, token: Token | None, model: str | None) -> Run:
        name, team = _who(token)
        if not self.models:
            raise RefusedError(404, "this controller has no rollout model: open a run at POST /runs")
        request = {"name": name, "team": team, "tags": {"token": name}, "staleness_max": 0, "expires_s": OWN_EXPIRES_S}
        if (expired := self._token_run(token, model)) is not None:
            request |= {"model": expired.facts.model, "resume": expired.run_id}
        else:
            request["model"] = model if model in self.models else self.models[0]
        return self.controller.open_run(OpenRun.model_validate(request))

    def turns(self, run: Run, orders: Sequence[TurnOrder]) -> list[Turn]:
        load, newest, now_ns = self.controller.loads[run.run_id], run.facts.version, monotonic_ns()
        if len(load.turns) + len(orders) > TURNS_MAX:
            full = f"run {run.run_id!r} has {len(load.turns)} open turns; the maximum is {TURNS_MAX}"
            raise RefusedError(429, f"{full}: wait for answers before you send more")
        for order in orders:
            version_min = order.labels.version_min
            if version_min is not None and (newest is None or version_min > newest):
                raise NotReadyError(f"version {version_min} of run {run.run_id!r} is not published yet")
            if order.exact is not None and order.exact != newest:
                raise NotReadyError(f"run {run.run_id!r} is at version {newest}")
        if newest is None and self.origins is not None:
            self.origins.publish_checkpoint(run)
        return [Turn(order.request, now_ns, run.run_id, run.version_min, name=order.name) for order in orders]

    async def make(self, run: Run, orders: Sequence[TurnOrder], client: Client) -> list[Completion]:
        """Run the turns of `orders` in parallel, and return their completions. If one fails, the others end."""
        service, load = self.controller.turns, self.controller.loads[run.run_id]
        if len(orders) > 1 and (key := orders[0].labels.key) is not None:
            raise RequestError(f"rose.key is {key!r}, but the request asks for {len(orders)} turns: leave the key out")
        turns = self.turns(run, orders)
        if len(turns) == 1:
            return [_completion(await service.generate(turns[0], load, client), orders[0])]
        making = [asyncio.create_task(service.generate(turn, load, client)) for turn in turns]
        try:
            outcomes = await asyncio.gather(*making)
            return [_completion(outcome, order) for outcome, order in zip(outcomes, orders, strict=True)]
        finally:
            await _end(making)

    async def stream(self, run: Run, orders: Sequence[TurnOrder]) -> AsyncIterator[tuple[int, Completion]]:
        service, load = self.controller.turns, self.controller.loads[run.run_id]
        news: asyncio.Queue[tuple[int, Turn | Outcome | Exception]] = asyncio.Queue()

        async def follow(number: int, turn: Turn) -> None:
            try:
                async for part in service.stream(turn, load):
                    news.put_nowait((number, part))
            except UserError as error:
                news.put_nowait((number, error))

        following = [asyncio.create_task(follow(*item)) for item in enumerate(self.turns(run, orders))]
        try:
            unfinished = len(following)
            while unfinished:
                number, part = await news.get()
                if isinstance(part, Exception):
                    raise part
                unfinished -= isinstance(part, Outcome)
                yield number, _completion(part, orders[number]) if isinstance(part, Outcome) else _so_far(part)
        finally:
            await _end(following)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def token_of(scope: Scope) -> Token | None:
    token: Token | None = scope["state"].get(TOKEN)
    return token


def _run_id_of(scope: Scope, token: Token | None) -> str | None:
    return scope.get("path_params", {}).get("run_id") or (None if token is None else token.run)


def _who(token: Token | None) -> tuple[str, str | None]:
    return (_ANYONE, None) if token is None else (token.name, token.team)


def may_use(token: Token | None, run: Run) -> bool:
    """Return whether the token may use the run: its own run, a run of its team, or any run of an admin."""
    if token is None or token.may("admin"):
        return True
    return token.run in (None, run.run_id) and token.team == run.facts.team


def check_team(token: Token | None, run: Run) -> None:
    if not may_use(token, run):
        assert token is not None
        whose = "no team" if run.facts.team is None else f"team {run.facts.team!r}"
        bound = f"run {token.run!r}" if token.run is not None else f"team {token.team!r}" if token.team else "no team"
        raise RefusedError(403, f"run {run.run_id!r} belongs to {whose}, but token {token.name!r} to {bound}")


def of_team(token: Token | None, message: OpenRun) -> OpenRun:
    if token is None or token.may("admin"):
        return message
    if token.run not in (None, message.resume):
        raise RefusedError(403, f"token {token.name!r} is for run {token.run!r} only")
    if message.team not in (None, token.team):
        raise RefusedError(403, f"team is {message.team!r}; token {token.name!r} belongs to {token.team or 'no team'}")
    return message.model_copy(update={"team": token.team})


def read_version(value: object, name: str) -> int | None:
    """Return the number in `7`, `"RUN/7"` or `"RUN/weight_v000007"`. Raises RequestError."""
    if value is None:
        return None
    digits = str(value).rpartition("/")[2].removeprefix("weight_v").removeprefix("v")
    if isinstance(value, bool) or not (digits.isascii() and digits.isdecimal()):
        raise RequestError(f"{name} is {str(value)[:60]!r}: give a version's number, such as 7 or RUN/7")
    return int(digits)


def with_versions(labels: Labels, limits: object) -> tuple[Labels, int | None]:
    """Return `labels` with the oldest version that `limits` allows, and the exact version in `limits` (None: not set).
    `limits` is the field `weight_version` of a request. Raises RequestError."""
    if limits is None:
        return labels, None
    if not isinstance(limits, dict) or limits.keys() - {"min_version", "exact_version"}:
        raise RequestError(f"weight_version is {str(limits)[:60]}: it takes min_version and exact_version")
    exact = read_version(limits.get("exact_version"), "weight_version.exact_version")
    version_min = read_version(limits.get("min_version"), "weight_version.min_version")
    if (oldest := version_min if exact is None else exact) is not None:
        labels = msgspec.structs.replace(labels, version_min=oldest)
    return labels, exact


def _completion(outcome: Outcome, order: TurnOrder) -> Completion:
    answer = msgspec.json.decode(outcome.body)
    if outcome.status != 200:
        raise RefusedError(outcome.status, answer["error"]["message"])
    meta = answer["meta_info"]
    versions = meta["rose"]["versions"]
    if order.exact is not None and set(versions) - {order.exact}:
        raise NotReadyError(f"version {max(versions)} replaced version {order.exact} during the turn")
    return Completion(
        ids=answer["output_ids"],
        logprobs=[item[0] for item in meta["output_token_logprobs"]],
        versions=versions,
        finish=meta.get("finish_reason") or {"type": "length"},
        prompt_tokens=meta["prompt_tokens"],
        cached_tokens=meta.get("cached_tokens") or 0,
        attempts=meta["rose"]["attempts"],
    )


def _so_far(turn: Turn) -> Completion:
    tokens: Tokens = turn.so_far
    ids, logprobs = msgspec.json.decode(array(tokens.ids)), msgspec.json.decode(array(tokens.logprobs))
    return Completion(
        ids=ids,
        logprobs=[item[0] for item in logprobs],
        versions=list(tokens.versions),
        finish=None,
        prompt_tokens=turn.request.prompt.count,
    )
