"""Clients of the rollout gateway: the agents' blocking one, and the one that plays trajectories."""

from __future__ import annotations

import asyncio
import random
import time
import urllib.error
import urllib.request
from typing import Any

import aiohttp
from pydantic import BaseModel

from rose.client.address import authorization
from rose.client.generation import Generation, GenerationLost, attempts_of
from rose.runtime.scheduling.messages import (
    Heartbeat,
    HeartbeatReply,
    PreemptReply,
    PreemptRequest,
    StepRequest,
)

#: How long a turn is tried again while the gateway is away or has no room for it.
RETRY_S = 30.0
#: Between two tries, drawn anew each time: clients of a gateway that comes back do not all return at once.
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.1, 1.0
_FULL = 429


class ControlClient:
    """Blocking calls with a short timeout; each raises OSError (urllib's URLError) if the gateway is away."""

    def __init__(self, url: str, token: str | None = None, timeout_s: float = 2.0) -> None:
        self._url, self._token, self._timeout_s = url, token, timeout_s

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Blocks for as long as the heartbeat asks to be held."""
        return HeartbeatReply.model_validate_json(self._post("/heartbeat", heartbeat, heartbeat.hold_s))

    def preempt(self, request: PreemptRequest) -> PreemptReply:
        return PreemptReply.model_validate_json(self._post("/preempt", request))

    def set_step(self, request: StepRequest) -> None:
        self._post("/step", request)

    def _post(self, path: str, message: BaseModel, hold_s: float = 0.0) -> bytes:
        request = urllib.request.Request(
            self._url + path,
            data=message.model_dump_json().encode(),
            headers={"Content-Type": "application/json", **authorization(self._token)},
        )
        with urllib.request.urlopen(request, timeout=self._timeout_s + hold_s) as response:
            body: bytes = response.read()
        return body


class GenerateClient:
    """Generates turns through the gateway (the `Generate` protocol of `rose.runtime.rollout.agent`).

    A gateway that is away or full is tried again for `RETRY_S`: one that was restarted knows nothing of the turn, and
    takes it anew. `version_min` is the oldest weights that turns may be generated with.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        sampling_params: dict[str, Any],
        token: str | None = None,
        *,
        version_min: int = 0,
    ) -> None:
        self._session, self._url, self._sampling, self._token = session, url, sampling_params, token
        self._version_min = version_min

    async def __call__(self, input_ids: list[int], *, trajectory_id: str, turn: int) -> Generation:
        """Raises GenerationLost with what the gateway said when the turn could not be completed anywhere."""
        body = {
            "input_ids": input_ids,
            "sampling_params": self._sampling,
            "rose": {"trajectory_id": trajectory_id, "turn": turn, "version_min": self._version_min},
        }
        answer = await self._post(body)
        if "error" in answer:
            raise GenerationLost(str(answer["error"]), attempts_of(answer))
        meta = answer["meta_info"]
        return Generation(
            output_ids=answer["output_ids"],
            logprobs=[float(item[0]) for item in meta["output_token_logprobs"]],
            versions=meta["rose"]["versions"],
            attempts=attempts_of(meta),
        )

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        away_since: float | None = None
        while True:
            sent = time.monotonic()
            try:
                async with self._session.post(
                    f"{self._url}/generate", json=body, headers=authorization(self._token)
                ) as response:
                    answer: dict[str, Any] = await response.json()
                if response.status != _FULL:
                    return answer
                reason = str(answer["error"])
                broke = False
            except (aiohttp.ClientError, OSError, ValueError) as error:
                reason = f"the rollout gateway at {self._url} is away: {error}"
                broke = not isinstance(error, (aiohttp.ClientConnectorError, TimeoutError))
            now = time.monotonic()
            # A gateway that died in the middle of a turn is away from now on, not since the one before it was.
            if away_since is None or (broke and now - sent > _PAUSE_MAX_S):
                away_since = now
            if now - away_since >= RETRY_S:
                raise GenerationLost(reason)
            await asyncio.sleep(random.uniform(_PAUSE_MIN_S, _PAUSE_MAX_S))  # noqa: S311 - no secret
