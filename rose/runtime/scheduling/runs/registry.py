"""The RL runs. Every change is on disk before the request is answered."""

import hashlib
import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit

from rose.clock import utc_us
from rose.errors import UserError, did_you_mean
from rose.ledger.address import is_loopback
from rose.runtime.scheduling.messages import OpenRun, PublishVersion, Target
from rose.runtime.scheduling.refusals import RefusedError
from rose.runtime.scheduling.runs.state import RunFacts, RunState, State, StateError
from rose.transfer.wire.origin_rules import STRICT, OriginRules

NOT_HEARD = "not heard of"
ENDED_MAX = 1000  # The earliest ended runs are forgotten first.
_RECORDED = ("model", "task", "staleness_max", "weight", "priority", "expires_s")
KEYS_MAX = 16
NAMES_MAX = 64  # Adapters and pulled folders of a run; the latest stay.


class UnknownRunError(UserError):
    def __init__(self, run_id: str) -> None:
        super().__init__(f"unknown run {run_id!r}")
        self.run_id = run_id


@dataclass(slots=True, eq=False)
class Run:
    """A run. Its time until expiry starts anew when the controller restarts."""

    facts: RunFacts
    heard_ns: int
    target: Target | None = field(default=None, init=False)  # The weights for its engines; None: not published.

    def __post_init__(self) -> None:
        self.become(self.facts)

    def become(self, facts: RunFacts) -> None:
        self.facts, self.target = facts, None
        if facts.version is not None and facts.url is not None:
            self.target = Target.model_validate(facts, from_attributes=True)

    @property
    def run_id(self) -> str:
        return self.facts.run_id

    @property
    def is_open(self) -> bool:
        return self.facts.state == "open"

    @property
    def version_min(self) -> int:
        return max(0, (self.facts.version or 0) - self.facts.staleness_max)

    def left_ns(self, now_ns: int) -> int:
        return max(0, self.heard_ns + int(self.facts.expires_s * 1e9) - now_ns)


class Runs:
    """All runs by id. Methods raise UnknownRunError, RefusedError or StateError."""

    def __init__(
        self,
        state: State,
        now_ns: int,
        *,
        models: Sequence[str] = (),
        fleet_run_id: str | None = None,
        origins: OriginRules = STRICT,
    ) -> None:
        self._state, self._models, self._origins = state, models, origins
        self._fleet_run_id = fleet_run_id
        self._runs = {facts.run_id: Run(facts, now_ns) for facts in state.runs()}

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def get(self, run_id: str) -> Run:
        if (run := self._runs.get(run_id)) is None:
            raise UnknownRunError(run_id)
        return run

    def hear(self, run_id: str, now_ns: int, fence: int | None = None) -> Run:
        """Return the open run, and restart the time after which it expires."""
        run = self.get(run_id)
        facts = run.facts
        if fence is not None:
            _check_fence(run, fence)
        if facts.state == "expired":
            late = f"run {run_id!r} expired {facts.expires_s:g} s after its last request: resume it"
            raise RefusedError(409, late, kind="RunExpired")
        if not run.is_open:
            closed = f"run {run_id!r} is closed ({facts.outcome}): resume it, or open another run"
            raise RefusedError(409, closed, kind="RunClosed")
        run.heard_ns = now_ns
        return run

    def open(self, request: OpenRun, now_ns: int) -> Run:
        if self._models and request.model not in self._models:
            near = did_you_mean(request.model, self._models)
            raise RefusedError(409, f"unknown rollout model {request.model!r}{near}")
        if (repeated := next((run for run in self if request.key in run.facts.keys), None)) is not None:
            return _opened_again(repeated, request, now_ns)
        if request.resume is not None:
            return self._resume(self.get(request.resume), request, now_ns)
        opened_us = utc_us()
        facts = RunFacts(
            run_id=_new_id(request.name),
            opened_us=opened_us,
            taken_us=opened_us,
            keys=_keys({}, 1, request),
            **request.model_dump(exclude={"resume", "fence", "key"}),
        )
        run = Run(facts, now_ns)
        self._state.keep(facts, self._due(facts, "started", opened_us))
        self._runs[facts.run_id] = run
        return run

    def trainer_of(self, device_id: str) -> Run | None:
        """Return the open run that trains on the device. If there are several, return the last opened or resumed."""
        trainers = [run for run in self if run.is_open and run.facts.trainer_device == device_id]
        return max(trainers, key=lambda run: run.facts.taken_us, default=None)

    def _resume(self, run: Run, request: OpenRun, now_ns: int) -> Run:
        before = run.facts
        if request.fence is not None:
            _check_fence(run, request.fence)
        if request.model != before.model:
            raise RefusedError(409, f"model is {request.model!r}, but the run has {before.model!r}: give its model")
        if request.team not in (None, before.team):
            raise RefusedError(409, f"team is {request.team!r}, but the run has {before.team!r}: give its team")
        facts = replace(
            before,
            state="open",
            fence=before.fence + 1,
            **request.model_dump(include={"staleness_max", "weight", "priority", "expires_s", "trainer_device"}),
            taken_us=utc_us(),
            closed_us=None,
            outcome=None,
            reason=None,
            keys=_keys(before.keys, before.fence + 1, request),
        )
        self._change(run, facts, [] if run.is_open else self._due(facts, "started", utc_us(), "resumed"))
        run.heard_ns = now_ns
        return run

    def renew(self, run_id: str, fence: int, now_ns: int, expires_s: float | None = None) -> Run:
        run = self.hear(run_id, now_ns, fence)
        if expires_s not in (None, run.facts.expires_s):
            self._change(run, replace(run.facts, expires_s=expires_s))
        return run

    def publish(
        self,
        run_id: str,
        request: PublishVersion,
        now_ns: int,
        hosts: Collection[str] = (),
        client_address: str | None = None,
    ) -> Run:
        """Make `request.version` the run's newest. All `hosts` must be able to reach its URL. Raises TransferError."""
        run = self.hear(run_id, now_ns, request.fence)
        replace(self._origins, client=client_address).check_url(request.url)
        host = urlsplit(request.url).hostname
        if len(hosts) > 1 and host and (is_loopback(host) or host in ("0.0.0.0", "::")):  # noqa: S104
            why = f"url is {request.url!r}, which is a different place on each host ({', '.join(hosts)})"
            advice = "open the run with `host` (the trainer's address for these hosts), or use a controller URL that is"
            raise RefusedError(409, f"{why}: {advice} not loopback")
        facts = run.facts
        if request.version == facts.version and len({request.weights_sha256, facts.weights_sha256} - {None}) > 1:
            why = f"version is {request.version}, which run {run_id!r} published with other weights"
            raise RefusedError(409, f"{why}: publish these weights as a newer version")
        origin = request.model_dump(include={"url", "token", "signer"})
        published = replace(facts, **origin, client_address=client_address)
        if request.version == facts.version:
            if published != facts:  # A resumed client serves its versions from another address.
                self._change(run, published)
            return run
        if facts.version is not None and request.version < facts.version:
            why = f"version is {request.version}, but run {run_id!r} is at version {facts.version}"
            raise RefusedError(409, f"{why}: give a newer version")
        self._change(run, replace(published, version=request.version, weights_sha256=request.weights_sha256))
        return run

    def note_adapters(self, run: Run, adapters: Mapping[str, int]) -> None:
        self._change(run, replace(run.facts, adapters=dict(list(adapters.items())[-NAMES_MAX:])))

    def note_pulled(self, run: Run, copy: str, folder: str) -> None:
        """Record that the client's folder `copy` is a copy of `folder`."""
        pulled = {name: value for name, value in run.facts.pulled.items() if name != copy} | {copy: folder}
        self._change(run, replace(run.facts, pulled=dict(list(pulled.items())[-NAMES_MAX:])))

    def reach_step(self, run: Run, step: int) -> None:
        if run.facts.step is None or step > run.facts.step:
            self._change(run, replace(run.facts, step=step))

    def close(self, run_id: str, fence: int, outcome: Literal["ended", "failed"], reason: str | None) -> Run:
        run = self.get(run_id)
        _check_fence(run, fence)
        if run.facts.state != "closed":
            self._end(run, "closed", outcome, reason)
        return run

    def expire(self, now_ns: int) -> list[Run]:
        late = [run for run in self if run.is_open and run.left_ns(now_ns) == 0]
        for run in late:
            self._end(run, "expired", "ended", NOT_HEARD)
        return late

    def forget(self) -> list[str]:
        candidates = sorted((run.facts for run in self if not run.is_open), key=lambda facts: facts.closed_us or 0)
        if late := [facts.run_id for facts in candidates[: max(0, len(candidates) - ENDED_MAX)]]:
            try:
                self._state.forget(late)
            except StateError:
                return []
        for run_id in late:
            del self._runs[run_id]
        return late

    def _end(self, run: Run, state: RunState, outcome: Literal["ended", "failed"], reason: str | None) -> None:
        closed_us = utc_us()
        facts = replace(run.facts, state=state, outcome=outcome, reason=reason, closed_us=closed_us)
        self._change(run, facts, self._due(facts, outcome, closed_us, reason) if run.is_open else [])

    def _change(self, run: Run, facts: RunFacts, due: list[dict[str, Any]] | None = None) -> None:
        self._state.keep(facts, due or [])
        run.become(facts)

    def _due(self, facts: RunFacts, action: str, at_us: int, reason: str | None = None) -> list[dict[str, Any]]:
        return [
            {
                "kind": "run",
                "event_id": f"{facts.run_id}/{facts.fence}/{action}",
                "run_id": facts.run_id,
                "fleet_run_id": self._fleet_run_id,
                "at_us": at_us,
                "action": action,
                "name": facts.name,
                "config": {name: getattr(facts, name) for name in _RECORDED},
                "tags": facts.tags | ({} if facts.team is None else {"team": facts.team}),
                "reason": reason,
            }
        ]


def _check_fence(run: Run, fence: int) -> None:
    if fence > run.facts.fence:
        why = f"fence is {fence}; run {run.run_id!r} has fence {run.facts.fence}"
        raise RefusedError(409, f"{why}: send the fence that `POST /runs` answered, or resume the run")
    if fence != run.facts.fence:
        why = f"run {run.run_id!r} has a newer client: its fence is {run.facts.fence}, not {fence}"
        raise RefusedError(409, f"{why}; resume the run to take it over", kind="RunTaken")


def _keys(before: dict[str, dict[str, Any]], fence: int, request: OpenRun) -> dict[str, dict[str, Any]]:
    if request.key is None:
        return before
    return {**dict(list(before.items())[1 - KEYS_MAX :]), request.key: {"fence": fence, "digest": _digest(request)}}


def _digest(request: OpenRun) -> str:
    return hashlib.sha256(request.model_dump_json(exclude_unset=True).encode()).hexdigest()


def _opened_again(run: Run, request: OpenRun, now_ns: int) -> Run:
    request_facts = run.facts.keys[request.key or ""]
    if request_facts["digest"] != _digest(request):
        why = f"key is {request.key!r}; run {run.run_id!r} was opened with this key and other fields"
        raise RefusedError(409, f"{why}: give another key")
    _check_fence(run, request_facts["fence"])
    if run.is_open:
        run.heard_ns = now_ns
    return run


def _new_id(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40].lower()
    return f"{plain or 'run'}-{uuid.uuid4().hex[:12]}"
