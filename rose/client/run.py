"""An RL run, as the trainer sees it."""

from __future__ import annotations

import asyncio
import math
import re
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack

from rose.client.address import (
    ClientError,
    ControllerAwayError,
    RunAddress,
    RunEndedError,
    RunExpiredError,
    RunLostError,
    RunTakenError,
)
from rose.client.control import RESUME, call, warn_stalled
from rose.client.generation import Generation, Part, judged
from rose.client.publishing import Publication, WeightOrigin, address_towards, make_folder
from rose.client.ranks import Ranks
from rose.client.turns import Ids, Sampling, TurnClient, TurnLabels
from rose.errors import UserError
from rose.events import Event, Step, Trajectory, Verdict
from rose.http_calls import AWAY_S
from rose.private_files import TemporaryFolder

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

TURNS_MAX = 256
PROGRESS_S, STALLED_S = 2.0, 10.0
EVENTS_MAX = 500

Progress = Callable[[int, int], None]


def show_progress(done: int, total: int) -> None:
    print(f"rose: {done} of {total} turns", file=sys.stderr, flush=True)


class RunOptions(TypedDict, total=False):
    team: str | None
    tags: Mapping[str, str]
    task: str | None
    staleness_max: int  # Turns use versions up to so many behind the newest; default 1.
    weight: float  # Share of engines among runs of one priority; default 1.
    priority: int  # Runs of higher priority get engines first; default 0.
    expires_s: float  # A run that is silent for so long expires; default 60.
    trainer_device: str | None  # The trainer's device in the fleet.
    resume: str | None  # Id of the run to take over.


def open_run(
    url: str,
    *,
    name: str,
    model: str,
    token: str | None = None,
    folder: Path | str | None = None,
    host: str | None = None,
    away_s: float = AWAY_S,
    checkpoint: Path | str | None = None,
    group: ProcessGroup | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Open a run at the controller at `url`, or take over the run whose id is the option `resume`.

    Published versions are in `folder`. A run that is resumed with the same folder can publish deltas. Engines fetch
    weights from this host, at its address `host`. Tensors must have the names and types that `checkpoint` has. Requests
    are repeated for `away_s` seconds. All ranks of a torch.distributed `group` call this at once and share `folder`.
    Raises ClientError, ControllerAwayError or RunEndedError."""
    if not re.fullmatch(r"https?://[^/?#\s]+/?", url):
        raise ClientError(f"url {url!r} must be the controller's root, such as http://127.0.0.1:30100")
    if not 0 < away_s < math.inf:
        raise ClientError(f"away_s {away_s} must be a finite number above 0")
    folder = None if folder is None else Path(folder).expanduser()
    checkpoint = None if checkpoint is None else Path(checkpoint).expanduser()
    url = url.rstrip("/")
    message = {"name": name, "model": model, **{field: value for field, value in options.items() if value is not None}}
    request = {**message, "key": uuid.uuid4().hex}  # The key keeps a run whose answer is lost from being opened twice.
    then = RESUME if "resume" in message else "open the run"
    ranks = Ranks(group)

    def opened() -> dict[str, Any]:
        if checkpoint is not None and not checkpoint.is_dir():
            raise ClientError(f"checkpoint {str(checkpoint)!r} is not a folder of this host: correct it")
        if not ranks.leads:
            return {}
        if folder is not None:
            make_folder(folder)  # Before the run is open: a failure would leave it open.
        return call(url, "POST", "/runs", request, token=token, away_s=away_s, then=then)

    answer = ranks.share(opened)[0]
    address = RunAddress(url=url, run_id=answer["run_id"], fence=answer["fence"], token=token, away_s=away_s)
    return Run(address, message, answer, folder=folder, host=host, checkpoint=checkpoint, ranks=ranks)


class Run:
    """A thread-safe run. At the end of a `with` block, rank 0 closes the run, as failed if there was an exception."""

    def __init__(
        self,
        address: RunAddress,
        opened: Mapping[str, Any],
        answer: Mapping[str, Any],
        *,
        folder: Path | None,
        host: str | None,
        checkpoint: Path | None,
        ranks: Ranks,
    ) -> None:
        self.address, self._opened = address, opened
        self.version: int | None = answer["version"]
        self.last_step: int | None = answer["step"]
        self.published: Publication | None = None  # The last publication.
        self._expires_s: float = answer["expires_s"]
        self._folder, self._host, self._checkpoint = folder, host, checkpoint
        self._ranks = ranks
        self._own_folder: TemporaryFolder | None = None
        self._origin: WeightOrigin | None = None
        self._background: BackgroundTurns | None = None
        self._lock, self._resuming = threading.Lock(), threading.Lock()
        self._left = threading.Event()
        self._lost: ClientError | None = None
        self._resume_request: dict[str, Any] | None = None  # The request to resume the run, until its answer arrives.
        self._renewing = threading.Thread(target=self._renew, name="rose-renew", daemon=True)
        if ranks.leads:
            self._renewing.start()

    @property
    def run_id(self) -> str:
        """Return the run's name in the ledger, for `open_run(..., resume=...)`."""
        return self.address.run_id

    @property
    def fence(self) -> int:
        return self.address.fence

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self._ranks.drop()
        if isinstance(error, (RunTakenError, RunEndedError, ControllerAwayError)):
            self.leave()
        elif error is None:
            self.close()
        else:
            with suppress(ClientError):
                if isinstance(error, (KeyboardInterrupt, SystemExit)):
                    self.close(reason="stopped")
                else:
                    self.close("failed", f"{type(error).__name__}: {error}")

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Mapping[str, Any] | None = None,
        *,
        group_id: str | None = None,
        group_ids: Sequence[str] | None = None,
        step: int | None = None,
        version_min: int | None = None,
        turns_max: int = TURNS_MAX,
        progress: Progress | None = show_progress,
    ) -> list[Generation]:
        """Return one generation per prompt of token ids. `sampling` is SGLang's `sampling_params`. `progress` is called
        every two seconds. The first failure ends all turns. Raises the errors of `TurnClient.turn`."""
        if group_ids is not None and len(group_ids) != len(prompts):
            raise ClientError(f"group_ids has {len(group_ids)} names for {len(prompts)} prompts: give one per prompt")
        groups: Sequence[str | None] = group_ids or [group_id] * len(prompts)
        background = self._background_turns()
        limit = asyncio.Semaphore(turns_max)

        async def one(prompt: Sequence[int], group: str | None) -> Generation:
            labels: TurnLabels = {"group_id": group, "step": step, "turn": 0, "version_min": version_min}
            async with limit:
                return await background.client.turn(prompt, sampling, **labels)

        pending = [background.submit(one(*labels)) for labels in zip(prompts, groups, strict=True)]
        waiting, shown_s, moved_s = set(pending), time.monotonic(), time.monotonic()
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=PROGRESS_S, return_when=FIRST_COMPLETED)
                self.check()
                for future in done:
                    future.result()
                now_s = time.monotonic()
                moved_s = now_s if done else moved_s
                if now_s - moved_s >= STALLED_S:
                    moved_s = now_s
                    warn_stalled(self.address, len(waiting))
                if progress is not None and waiting and now_s - shown_s >= PROGRESS_S:
                    shown_s = now_s
                    progress(len(pending) - len(waiting), len(pending))
        finally:
            for future in waiting:
                future.cancel()
        return [future.result() for future in pending]

    async def turn(self, input_ids: Ids, sampling: Sampling | None = None, **labels: Unpack[TurnLabels]) -> Generation:
        """Return the result of one turn, as `TurnClient.turn` does, in any event loop."""
        background = self._background_turns()
        return await asyncio.wrap_future(background.submit(background.client.turn(input_ids, sampling, **labels)))

    async def stream(
        self, input_ids: Ids, sampling: Sampling | None = None, **labels: Unpack[TurnLabels]
    ) -> AsyncIterator[Part]:
        """Yield the tokens of one turn, as `TurnClient.stream` does, in any event loop."""
        self._check_published()
        async with TurnClient(self.address) as client:
            async for part in client.stream(input_ids, sampling, **labels):
                yield part

    def publish(self, weights: Mapping[str, torch.Tensor] | Path | str, version: int | None = None) -> int:
        """Publish tensors, a checkpoint folder or a LoRA adapter folder, and return the version (default: the next).
        All ranks call this at once, each with its DTensor shards. Raises TransferError, RunTakenError, RunEndedError,
        ControllerAwayError, or ClientError if the version exists with other weights."""

        def current() -> RunAddress:
            self.check()
            return self.address

        address = self._ranks.share(current)[0]
        if not self._ranks.leads:
            self.address = address
        origin = self._weights()
        weights = weights if isinstance(weights, Mapping) else Path(weights).expanduser()
        version = self._next_version(origin, version)
        try:
            published = origin.publish(weights, version)
        except UserError:
            if origin.fenced and self._ranks.leads:
                # Only the controller knows whether that publisher also has the run.
                self._call("POST", "/renew", {"expires_s": self._expires_s})
            raise
        self._ranks.share(lambda: self._announce(origin, version))
        self.version, self.published = version, published
        return version

    def _next_version(self, origin: WeightOrigin, version: int | None) -> int:
        def choose() -> int:
            newest = [number for number in (origin.latest(), self.version) if number is not None]
            return max(newest, default=-1) + 1 if version is None else version

        first, *others = versions = self._ranks.share(choose)
        if any(other != first for other in others):
            raise ClientError(f"version is {versions} on the ranks: give the same version on all ranks")
        return first

    def _announce(self, origin: WeightOrigin, version: int) -> None:
        if self._ranks.leads:
            message = {"version": version, "url": origin.url, "token": origin.token, "signer": origin.signer}
            self._call("POST", "/versions", {**message, "weights_sha256": origin.weights_sha256(version)})

    def record(self, *events: Trajectory | Verdict | Step) -> None:
        """Record events durably. Events with the same `event_id` count once. Default ids: `step-STEP` for a step, the
        trajectory's id for a trajectory, and `TRAJECTORY/VERIFIER` for a verdict."""
        messages = [_message(event) for event in events]
        for first in range(0, len(messages), EVENTS_MAX):
            self._call("POST", "/events", {"events": messages[first : first + EVENTS_MAX]})
        for event in events:
            if isinstance(event, Step):
                self.last_step = event.step

    def judge(self, generations: Sequence[Generation], rewards: Sequence[float], *, verifier: str, **more: Any) -> None:
        """Record verdicts on trajectories of a single turn. See `rose.client.judged`."""
        version = 0 if self.version is None else self.version
        self.record(*judged(generations, rewards, verifier=verifier, trainer_version=version, **more))

    def close(self, outcome: Literal["ended", "failed"] = "ended", reason: str | None = None) -> None:
        """End the run once all ranks have called this. A second call does nothing. Raises ControllerAwayError."""
        if self._left.is_set():
            return
        self._wait_for_ranks()
        try:
            if self._lost is None and self._ranks.leads:
                message = {"outcome": outcome, "reason": reason}
                values = {name: value for name, value in message.items() if value is not None}
                self._call("DELETE", "", values, min(self.address.away_s, 10.0))  # It expires by itself.
        finally:
            self.leave()

    def leave(self) -> None:
        """Release resources once all ranks have called this. The run then expires, and can be resumed."""
        self._wait_for_ranks()
        self._left.set()
        with self._lock:
            background, self._background = self._background, None
            origin, self._origin = self._origin, None
            own_folder, self._own_folder = self._own_folder, None
        if background is not None:
            background.close()
        if origin is not None:
            origin.close()
        if own_folder is not None:
            own_folder.close()
        if self._ranks.leads and threading.current_thread() is not self._renewing:
            self._renewing.join()

    def _wait_for_ranks(self) -> None:
        if self._ranks.shared:
            if self._origin is not None:
                self._origin.wait()
            self._ranks.leave()

    def check(self) -> None:
        """Raise RunTakenError or RunEndedError if the run is lost, or ClientError if it was closed here."""
        if self._lost is not None:
            raise self._lost
        if self._left.is_set():
            raise ClientError(f"run {self.run_id} was closed by this client: open it again with resume={self.run_id!r}")

    def _call(self, method: str, path: str, message: Mapping[str, Any], away_s: float | None = None) -> dict[str, Any]:
        while True:
            self.check()
            address = self.address
            retry_s = address.away_s if away_s is None else away_s
            waits = away_s is None  # Closing must not wait for a disk repair.
            body = {"fence": address.fence, **message}
            try:
                return self._ask(method, f"{self._path}{path}", body, retry_s, waits=waits)
            except ControllerAwayError:
                self.check()
                raise
            except RunLostError as error:
                if not self._ranks.leads:
                    raise
                self._resume(error, address.fence, address.away_s, waits=waits)

    @property
    def _path(self) -> str:
        return f"/runs/{self.address.run_id}"

    def _ask(self, method: str, path: str, message: Mapping[str, Any], away_s: float, *, waits: bool) -> dict[str, Any]:
        url, token = self.address.url, self.address.token
        return call(url, method, path, message, token=token, away_s=away_s, waits=waits, keep_trying=self._continues)

    def _continues(self) -> bool:
        return self._lost is None and not self._left.is_set()

    def _renew(self) -> None:
        while not self._left.wait(self._expires_s / 4) and self._lost is None:
            address = self.address
            message = {"fence": address.fence, "expires_s": self._expires_s}
            try:
                self._ask("POST", f"{self._path}/renew", message, 0.0, waits=False)
            except RunLostError as error:
                with suppress(ClientError):
                    self._resume(error, address.fence, 0.0, waits=False)
            except ClientError:
                pass

    def _resume(self, error: RunLostError, fence: int, away_s: float, *, waits: bool) -> None:
        """Resume the run after `error`, or raise the error that prevents this. Repeated requests have the same key."""
        with self._resuming:
            address = self.address
            if address.fence != fence:
                return
            try:
                if isinstance(error, RunExpiredError):
                    resumed = {"resume": address.run_id, "fence": fence, "key": uuid.uuid4().hex}
                    self._resume_request = self._resume_request or {**self._opened, **resumed}
                elif isinstance(error, RunEndedError) or self._resume_request is None:
                    raise error
                answer = self._ask("POST", "/runs", self._resume_request, away_s, waits=waits)
            except (RunTakenError, RunEndedError) as lost:
                self._lost = lost
                raise
            self._resume_request = None
            self.address = replace(address, fence=answer["fence"])

    def _check_published(self) -> None:
        self.check()
        if self.version is None:
            raise ClientError(f"run {self.run_id} has published no version yet: publish one before its first turn")

    def _background_turns(self) -> BackgroundTurns:
        self._check_published()
        with self._lock:
            if self._background is None:
                self._background = BackgroundTurns(self.address)
            return self._background

    def _weights(self) -> WeightOrigin:
        with self._lock:
            if self._origin is None:
                folder, host = self._ranks.share(self._folder_and_host)[0]
                self._origin = WeightOrigin(
                    folder, host, run_id=self.run_id, fence=self.fence, ranks=self._ranks, checkpoint=self._checkpoint
                )
            return self._origin

    def _folder_and_host(self) -> tuple[Path, str]:
        if not self._ranks.leads:
            return Path(), ""
        host = address_towards(self.address.url) if self._host is None else self._host
        if self._folder is None:
            self._own_folder = self._own_folder or TemporaryFolder("rose-run-weights-")
            return self._own_folder.path, host
        return self._folder, host


def _message(event: Event) -> dict[str, Any]:
    if not isinstance(event, (Trajectory, Verdict, Step)):
        raise ClientError(f"a client cannot record a {event.kind!r} event: give trajectory, verdict and step events")
    event = replace(event, event_id=event.event_id or _event_id(event))
    values = {field.name: (getattr(event, field.name), field.default) for field in fields(event)}
    return {"kind": event.kind, **{name: value for name, (value, default) in values.items() if value != default}}


def _event_id(event: Trajectory | Verdict | Step) -> str:
    if isinstance(event, Step):
        return f"step-{event.step}"
    if event.trajectory_id is None:
        return uuid.uuid4().hex
    return event.trajectory_id if isinstance(event, Trajectory) else f"{event.trajectory_id}/{event.verifier}"


_T = TypeVar("_T")


class BackgroundTurns:
    def __init__(self, address: RunAddress) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rose-client", daemon=True)
        self._thread.start()
        self.client = TurnClient(address)
        self.submit(self.client.__aenter__()).result()

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        self.submit(self.client.__aexit__()).result()
        self.submit(_cancel_others()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
