"""Makes turns of a run with asyncio. A turn is returned as a whole, or as a stream."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from rose.client.address import ClientError, RunAddress, RunExpiredError, message_of, refusal
from rose.client.control import RETRY_STATUSES, Failure, RetryLimit, failure_of
from rose.client.generation import Generation, GenerationLost, Part, attempts_of
from rose.http_calls import LINE_BYTES_MAX, authorization, watched_socket

if TYPE_CHECKING:
    import aiohttp

#: After this silence, or half of `away_s`, the controller's health is checked and the turn is sent again. A silent
#: connection is not enough to tell: a process that is stopped, or hangs on its disk, keeps its connections.
_SILENCE_S, _ANSWER_S = 60.0, 10.0


Ids = Sequence[int]
Sampling = Mapping[str, Any]


class TurnLabels(TypedDict, total=False):
    """The labels of a turn. `version_min` is the oldest allowed policy version (default: from `staleness_max`)."""

    trajectory_id: str | None
    group_id: str | None
    step: int | None
    turn: int | None
    version_min: int | None


class TurnClient:
    """Generates turns in one event loop. Unanswered turns are sent again with the same key."""

    def __init__(self, address: RunAddress) -> None:
        self.address = address
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        silence_s = min(_SILENCE_S, self.address.away_s / 2)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, socket_factory=watched_socket),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=silence_s),
            headers=authorization(self.address.token),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def turn(self, input_ids: Ids, sampling: Sampling | None = None, **labels: Unpack[TurnLabels]) -> Generation:
        """Return one turn. `sampling` is SGLang's `sampling_params`. Raises GenerationLost if no engine completed it,
        ControllerAwayError, RunTakenError, RunEndedError, or ClientError."""
        body = _body(input_ids, sampling, labels)
        retry = RetryLimit(self.address.url, self.address.away_s, waits=True)
        while True:
            try:
                return self._whole(await self._post(body), body)
            except _AwayError as error:
                await self._pause(retry, error)

    async def stream(
        self, input_ids: Ids, sampling: Sampling | None = None, **labels: Unpack[TurnLabels]
    ) -> AsyncIterator[Part]:
        """Yield a turn's tokens, then its `generation`. A broken stream is continued. Raises the errors of `turn`."""
        body = {**_body(input_ids, sampling, labels), "stream": True}
        retry = RetryLimit(self.address.url, self.address.away_s, waits=True)
        previous = Part(output_ids=[], logprobs=[], versions=[])
        while True:
            try:
                answer: dict[str, Any] | None = None
                async for answer in self._chunks(body):
                    part = _part(answer)
                    anew = not _continues(part, previous, whole=answer["meta_info"].get("finish_reason") is not None)
                    tokens = 0 if anew else len(previous.output_ids)
                    if anew or len(part.output_ids) > tokens:
                        previous = part
                        retry.begin()
                        yield _part(answer, tokens, anew)
                if answer is None or not answer["meta_info"].get("finish_reason"):
                    raise _AwayError("silent", "the stream broke off")
            except _AwayError as error:
                await self._pause(retry, error)
            else:
                yield Part(output_ids=[], logprobs=[], versions=[], generation=self._whole(answer, body))
                return

    def _whole(self, answer: dict[str, Any], body: dict[str, Any]) -> Generation:
        labels, part = body["rose"], _part(answer)
        return Generation(
            output_ids=part.output_ids,
            logprobs=part.logprobs,
            versions=part.versions,
            attempts=attempts_of(answer["meta_info"]),
            prompt_ids=body["input_ids"],
            trajectory_id=labels["trajectory_id"],
            group_id=labels.get("group_id"),
            step=labels.get("step"),
        )

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        async with self._request(body) as response:
            answer: dict[str, Any] = await response.json()
        self._check(response.status, answer)
        return answer

    async def _chunks(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        async with self._request(body) as response:
            if response.content_type != "text/event-stream":
                self._check(response.status, await response.json())
                raise ClientError(f"{self.address.base} sent {response.content_type!r}, not server-sent events")
            while line := await response.content.readline(max_line_length=LINE_BYTES_MAX):
                if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                    answer = json.loads(data)
                    if "error" in answer:
                        raise GenerationLost(str(message_of(answer)), attempts_of(answer))
                    yield answer

    @asynccontextmanager
    async def _request(self, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        assert self._session is not None, "`async with` opens it"
        sent_s = time.monotonic()
        try:
            async with self._session.post(f"{self.address.base}/generate", json=body) as response:
                yield response
        except aiohttp.SocketTimeoutError:
            raise _AwayError("silent", "no data arrived in time", is_silent=True) from None
        except (aiohttp.ClientError, OSError, json.JSONDecodeError) as error:
            broke = not isinstance(error, (aiohttp.ClientConnectorError, TimeoutError))
            open_s = time.monotonic() - sent_s if broke else 0.0
            raise _AwayError("silent", str(error) or type(error).__name__, open_s) from None

    def _check(self, status: int, answer: Any) -> None:
        if status in (400, 503) and isinstance(answer, dict) and "rose" in answer:
            raise GenerationLost(str(message_of(answer)), attempts_of(answer))
        if status in RETRY_STATUSES:
            raise _AwayError(*failure_of(status, answer))
        if status != 200:
            error = refusal(self.address.url, status, answer)
            raise _AwayError("expired", str(error)) if isinstance(error, RunExpiredError) else error

    async def _pause(self, retry: RetryLimit, error: _AwayError) -> None:
        if error.is_silent and await self._is_healthy():
            retry.begin()
        else:
            await asyncio.sleep(retry.pause_s(error.failure, str(error), error.open_s))

    async def _is_healthy(self) -> bool:
        import aiohttp

        assert self._session is not None
        limit = aiohttp.ClientTimeout(total=min(_ANSWER_S, self.address.away_s / 2))
        with suppress(aiohttp.ClientError, OSError):
            async with self._session.get(f"{self.address.url}/health", timeout=limit):
                return True
        return False


class _AwayError(Exception):
    """No answer came. `open_s` is the age of a connection that broke. `is_silent`: no data arrived in time."""

    def __init__(self, failure: Failure, reason: str, open_s: float = 0.0, *, is_silent: bool = False) -> None:
        super().__init__(reason)
        self.failure, self.open_s, self.is_silent = failure, open_s, is_silent


def _body(input_ids: Ids, sampling: Sampling | None, labels: TurnLabels) -> dict[str, Any]:
    if unknown := labels.keys() - TurnLabels.__annotations__.keys():
        raise ClientError(f"unknown labels {sorted(unknown)}: give some of {', '.join(TurnLabels.__annotations__)}")
    names = {**labels, "trajectory_id": labels.get("trajectory_id") or uuid.uuid4().hex, "key": uuid.uuid4().hex}
    return {
        "input_ids": list(input_ids),
        "sampling_params": dict(sampling or {}),
        "rose": {name: value for name, value in names.items() if value is not None},
    }


def _part(answer: dict[str, Any], tokens: int = 0, anew: bool = False) -> Part:
    meta = answer["meta_info"]
    ids: list[int] = answer.get("output_ids") or []
    logprobs = [float(item[0]) for item in (meta.get("output_token_logprobs") or [])[tokens:]]
    versions: list[int] = ((meta.get("rose") or {}).get("versions") or [])[tokens:]
    return Part(output_ids=ids[tokens:], logprobs=logprobs, versions=versions, anew=anew)


def _continues(part: Part, previous: Part, *, whole: bool) -> bool:
    length = min(len(part.output_ids), len(previous.output_ids))
    return (
        (length == len(previous.output_ids) or not whole)
        and part.output_ids[:length] == previous.output_ids[:length]
        and part.logprobs[:length] == previous.logprobs[:length]
    )
