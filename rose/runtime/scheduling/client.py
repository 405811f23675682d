"""Clients of the rollout gateway: the agents' blocking one, and the one that plays trajectories."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import fields
from typing import Any

import aiohttp

from rose.runtime.rollout.agent import Attempt, Generation, GenerationLost
from rose.runtime.scheduling.messages import (
    Heartbeat,
    HeartbeatReply,
    Message,
    PreemptReply,
    PreemptRequest,
    StepRequest,
)

_ATTEMPT_FIELDS = tuple(field.name for field in fields(Attempt))


class ControlClient:
    """Blocking calls with a short timeout; each raises OSError (urllib's URLError) if the gateway is away."""

    def __init__(self, url: str, token: str | None = None, timeout_s: float = 2.0) -> None:
        self._url, self._token, self._timeout_s = url, token, timeout_s

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        return HeartbeatReply.model_validate_json(self._post("/heartbeat", heartbeat))

    def preempt(self, request: PreemptRequest) -> PreemptReply:
        return PreemptReply.model_validate_json(self._post("/preempt", request))

    def set_step(self, request: StepRequest) -> None:
        self._post("/step", request)

    def _post(self, path: str, message: Message) -> bytes:
        request = urllib.request.Request(
            self._url + path,
            data=message.model_dump_json().encode(),
            headers={"Content-Type": "application/json", **auth_header(self._token)},
        )
        with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
            body: bytes = response.read()
        return body


class GenerateClient:
    """Generates turns through the gateway (the `Generate` protocol of `rose.runtime.rollout.agent`)."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, sampling_params: dict[str, Any], token: str | None = None
    ) -> None:
        self._session, self._url, self._sampling, self._token = session, url, sampling_params, token

    async def __call__(self, input_ids: list[int], *, trajectory_id: str, turn: int) -> Generation:
        """Raises GenerationLost with what the gateway said when the turn could not be completed anywhere."""
        body = {
            "input_ids": input_ids,
            "sampling_params": self._sampling,
            "rose": {"trajectory_id": trajectory_id, "turn": turn},
        }
        try:
            async with self._session.post(
                f"{self._url}/generate", json=body, headers=auth_header(self._token)
            ) as response:
                answer = await response.json()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise GenerationLost(f"the rollout gateway at {self._url} is away: {error}") from error
        if "error" in answer:
            raise GenerationLost(str(answer["error"]), _attempts(answer))
        meta = answer["meta_info"]
        return Generation(
            output_ids=answer["output_ids"],
            logprobs=[float(item[0]) for item in meta["output_token_logprobs"]],
            versions=meta["rose"]["versions"],
            attempts=_attempts(meta),
        )


def auth_header(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _attempts(answer: dict[str, Any]) -> list[Attempt]:
    records = (answer.get("rose") or {}).get("attempts", [])
    return [Attempt(**{name: record[name] for name in _ATTEMPT_FIELDS}) for record in records]
