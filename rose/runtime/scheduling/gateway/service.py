"""What every API does with a request: find its run, make its turns, say what they became."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from starlette.types import Scope

from rose.clock import monotonic_ns
from rose.errors import UserError, did_you_mean
from rose.runtime.scheduling.messages import OpenRun
from rose.runtime.scheduling.runs.registry import Run
from rose.runtime.scheduling.turn_service import Client, Outcome
from rose.runtime.scheduling.turns.answer import Tokens, array
from rose.runtime.scheduling.turns.request import Labels, Prompt, RequestError, TurnRequest
from rose.runtime.scheduling.turns.turns import Turn

if TYPE_CHECKING:
    from rose.runtime.scheduling.controller import Controller
    from rose.runtime.scheduling.gateway.origins import FolderOrigins
    from rose.runtime.scheduling.gateway.texts import Texts
    from rose.tokens import Token

TOKEN = "token"  # Key in a request's `state`: its named token, if the gateway wants one.
TURNS_MAX = 10_000  # Maximum of open turns of one run; more are answered 429. The process's connections limit all runs.
OWN_EXPIRES_S = 600.0  # A run that a request opened for its token expires after so long without another request.
_ANYONE = "anyone"


class ApiError(UserError):
    """An answer other than 200; `param` is the field, if one is to blame, `kind` the error's name for programs."""

    def __init__(self, status: int, message: str, param: str | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.kind = status, param, kind

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"} if self.status in (429, 503) else {}


class NotReadyError(ApiError):
    """No engine may make the tokens with the version that a request wants; it may be asked again."""

    def __init__(self, why: str) -> None:
        super().__init__(409, f"WeightVersionNotReady: {why}", kind="WeightVersionNotReady")


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnOrder:
    """One turn to make. `name`: what its client calls it. `exact`: the one version that may make its tokens."""

    ids: Sequence[int]
    sampling: Mapping[str, Any]
    labels: Labels = field(default_factory=Labels)
    fields: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    exact: int | None = None

    @property
    def special(self) -> bool:
        """Return whether its text shows special tokens."""
        return not self.sampling.get("skip_special_tokens", True)

    @property
    def keep_stop(self) -> bool:
        """Return whether its text keeps the stop string."""
        return bool(self.sampling.get("no_stop_trim"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """A turn's tokens, with a log probability and policy version for each; `finish` is None while it goes on."""

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: Mapping[str, Any] | None
    prompt_tokens: int
    cached_tokens: int = 0
    attempts: Sequence[Mapping[str, Any]] = ()

    @property
    def weights(self) -> dict[str, Any]:
        """Return the versions of its weights, as external rollout services name them."""
        if not self.versions:
            return {}
        first, last = self.versions[0], self.versions[-1]
        return {"weight_version": str(last), "weight_version_start": first, "weight_version_end": last}


class Service:
    """`texts`: by model of the fleet. `files`: whether every run may publish folders of this host. Methods raise
    ApiError, and the errors of `Runs`."""

    def __init__(
        self, controller: Controller, texts: Mapping[str, Texts], origins: FolderOrigins | None, *, files: bool = False
    ) -> None:
        self.controller = controller
        self._texts, self.origins, self._files = texts, origins, files

    @property
    def models(self) -> list[str]:
        return list(self.controller.models)

    async def texts(self, run: Run) -> Texts:
        """Return the texts of the run's model, once they are loaded."""
        if (texts := self._texts.get(run.facts.model)) is None:
            raise ApiError(400, f"this controller has no texts of model {run.facts.model!r}: send token ids")
        await texts.ready()
        return texts

    def check_files(self, token: Token | None) -> None:
        """Raise ApiError if the token may not publish a folder: it could hold another team's weights."""
        if token is not None and not token.may("admin") and not self._files:
            raise ApiError(
                403,
                f"token {token.name!r} may not publish folders of the controller's host: set origins.files in the "
                "fleet file, or publish by rose.client",
                "model_path",
            )

    async def context(self, model: str) -> int | None:
        """Return how many tokens a prompt and its answer may have together; None if unknown."""
        if (texts := self._texts.get(model)) is None:
            return None
        await texts.ready()
        return texts.context

    async def texts_or_none(self, run: Run) -> Texts | None:
        """Return the texts of the run's model; None for a model without a tokenizer."""
        if run.facts.model not in self._texts:
            return None
        texts = await self.texts(run)
        return texts if texts.known else None

    def run_of(self, scope: Scope, model: str | None = None) -> Run:
        """Return a request's run: that of its path, the run `model`, its token's, or one opened for its token."""
        token, runs, now_ns = token_of(scope), self.controller.runs, monotonic_ns()
        named = _named(scope, token)
        open_ids = [run.run_id for run in runs if run.is_open]
        if named is None and model in open_ids:
            named, model = model, None
        if named is not None:
            run = runs.hear(named, now_ns)
        elif (own := self._own(token, model)) is not None and own.is_open:
            run = own
        else:
            run = self._open(token, model)
        check_team(token, run)
        if model not in (None, "", "default", run.run_id, run.facts.model):
            known = [*self.models, *(one for one in open_ids if may_use(token, runs.get(one)))]
            raise ApiError(404, f"there is no model {model!r}{did_you_mean(str(model), known)}", "model")
        run.heard_ns = now_ns
        return run

    def known_run(self, scope: Scope) -> Run | None:
        """Return a request's run; None if it would be opened for it."""
        token = token_of(scope)
        if (named := _named(scope, token)) is None:
            return self._own(token)
        run = self.controller.runs.get(named)
        check_team(token, run)
        return run

    def _own(self, token: Token | None, model: str | None = None) -> Run | None:
        """Return the token's run, open or expired: that of a fleet's `model`, else its first."""
        name, team = _who(token)
        own = (run for run in self.controller.runs if run.facts.tags.get("token") == name and _goes_on(run, team))
        return next((run for run in own if model not in self.models or run.facts.model == model), None)

    def _open(self, token: Token | None, model: str | None) -> Run:
        """Return the token's run: resumed with its weights if it has expired, else a new one."""
        name, team = _who(token)
        if not self.models:
            raise ApiError(404, "this controller has no rollout model: open a run at POST /runs")
        before, known = self._own(token, model), model if model in self.models else self.models[0]
        return self.controller.open_run(
            OpenRun(
                name=name,
                model=known if before is None else before.facts.model,
                team=team,
                tags={"token": name},
                staleness_max=0,
                expires_s=OWN_EXPIRES_S,
                resume=None if before is None else before.run_id,
            )
        )

    def turns(self, run: Run, orders: Sequence[TurnOrder]) -> list[Turn]:
        """Return the turns to make, unless the run has too many or a version is not there yet."""
        load, newest, now_ns = self.controller.loads[run.run_id], run.facts.version, monotonic_ns()
        if len(load.turns) + len(orders) > TURNS_MAX:
            full = f"run {run.run_id!r} has {len(load.turns)} turns, and may have {TURNS_MAX}"
            raise ApiError(429, f"{full}: send more once some of them are answered")
        for one in orders:
            least = one.labels.version_min if one.exact is None else one.exact
            if least is not None and least > (-1 if newest is None else newest):
                raise NotReadyError(f"version {least} of run {run.run_id!r} is not published")
            if one.exact is not None and one.exact != newest:
                raise NotReadyError(f"run {run.run_id!r} is at version {newest}")
        if newest is None and self.origins is not None:
            self.origins.publish_checkpoint(run)
        return [
            Turn(
                TurnRequest(Prompt.of(one.ids), dict(one.sampling), _labels(one), fields=dict(one.fields)),
                now_ns,
                run.run_id,
                run.version_min,
                name=one.name,
            )
            for one in orders
        ]

    async def make(self, run: Run, orders: Sequence[TurnOrder], client: Client) -> list[Completion]:
        """Make turns side by side. The first that fails ends the others."""
        service, load = self.controller.turns, self.controller.loads[run.run_id]
        assert service is not None
        if len(orders) > 1 and (key := orders[0].labels.key) is not None:
            raise RequestError(f"rose.key is {key!r}, and the request asks for {len(orders)} turns: a key is of one")
        turns = self.turns(run, orders)
        if len(turns) == 1:
            return [_completion(await service.generate(turns[0], load, client), orders[0])]
        making = [asyncio.create_task(service.generate(turn, load, client)) for turn in turns]
        try:
            outcomes = await asyncio.gather(*making)
            return [_completion(outcome, one) for outcome, one in zip(outcomes, orders, strict=True)]
        finally:
            await _end(making)

    async def stream(self, run: Run, orders: Sequence[TurnOrder]) -> AsyncIterator[tuple[int, Completion]]:
        """Yield each turn's number and its tokens so far, whenever it has more."""
        service, load = self.controller.turns, self.controller.loads[run.run_id]
        assert service is not None
        news: asyncio.Queue[tuple[int, Turn | Outcome | Exception]] = asyncio.Queue()

        async def follow(number: int, turn: Turn) -> None:
            try:
                async for part in service.stream(turn, load):
                    news.put_nowait((number, part))
            except UserError as error:
                news.put_nowait((number, error))

        following = [asyncio.create_task(follow(*one)) for one in enumerate(self.turns(run, orders))]
        try:
            left = len(following)
            while left:
                number, part = await news.get()
                if isinstance(part, Exception):
                    raise part
                left -= isinstance(part, Outcome)
                yield number, _completion(part, orders[number]) if isinstance(part, Outcome) else _so_far(part)
        finally:
            await _end(following)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def token_of(scope: Scope) -> Token | None:
    """Return a request's named token; None at an open gateway."""
    token: Token | None = scope["state"].get(TOKEN)
    return token


def _named(scope: Scope, token: Token | None) -> str | None:
    return scope.get("path_params", {}).get("run_id") or (None if token is None else token.run)


def _who(token: Token | None) -> tuple[str, str | None]:
    return (_ANYONE, None) if token is None else (token.name, token.team)


def _goes_on(run: Run, team: str | None) -> bool:
    return run.facts.state != "closed" and run.facts.team == team


def may_use(token: Token | None, run: Run) -> bool:
    """Return whether the run is of the token's team, and the one run that it is for, if any. An admin's may use all."""
    if token is None or token.may("admin"):
        return True
    return token.run in (None, run.run_id) and token.team == run.facts.team


def check_team(token: Token | None, run: Run) -> None:
    if not may_use(token, run):
        assert token is not None
        whose = "no team" if run.facts.team is None else f"team {run.facts.team!r}"
        bound = f"run {token.run!r}" if token.run is not None else f"team {token.team!r}" if token.team else "no team"
        raise ApiError(403, f"run {run.run_id!r} is of {whose}, and token {token.name!r} of {bound}")


def of_team(token: Token | None, message: OpenRun) -> OpenRun:
    """Return a request for a run of the token's team. Raises ApiError for another team's."""
    if token is None or token.may("admin"):
        return message
    if token.run not in (None, message.resume):
        raise ApiError(403, f"token {token.name!r} is for run {token.run!r} alone")
    if message.team not in (None, token.team):
        raise ApiError(403, f"team is {message.team!r}; token {token.name!r} is of {token.team or 'no team'}")
    return message.model_copy(update={"team": token.team})


def read_version(value: object, name: str) -> int | None:
    """Return the number in `7`, `"7"`, `"RUN/7"` or `"RUN/weight_v000007"`."""
    if value is None:
        return None
    digits = str(value).rpartition("/")[2].removeprefix("weight_v").removeprefix("v")
    if isinstance(value, bool) or not (digits.isascii() and digits.isdecimal()):
        raise RequestError(f"{name} is {str(value)[:60]!r}: give a version's number, such as 7 or RUN/7")
    return int(digits)


def with_versions(labels: Labels, given: object) -> tuple[Labels, int | None]:
    """Return labels with the least version of a request's `weight_version`, and its exact one."""
    if given is None:
        return labels, None
    if not isinstance(given, dict) or given.keys() - {"min_version", "exact_version"}:
        raise RequestError(f"weight_version is {str(given)[:60]}: it takes min_version and exact_version")
    exact = read_version(given.get("exact_version"), "weight_version.exact_version")
    least = read_version(given.get("min_version"), "weight_version.min_version")
    if least is not None:
        labels = msgspec.structs.replace(labels, version_min=least)
    return labels, exact


def _labels(order: TurnOrder) -> Labels:
    return order.labels if order.exact is None else msgspec.structs.replace(order.labels, version_min=order.exact)


def _completion(outcome: Outcome, order: TurnOrder) -> Completion:
    answer = msgspec.json.decode(outcome.body)
    if outcome.status != 200:
        refuse(outcome.status, answer["error"]["message"])
    meta = answer["meta_info"]
    versions = meta["rose"]["versions"]
    if order.exact is not None and set(versions) - {order.exact}:
        raise NotReadyError(f"version {max(versions)} came while {order.exact} made the tokens")
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


def refuse(status: int, message: str) -> NoReturn:
    raise ApiError(status, message)
