"""The HTTP client with which agents call the controller. Calls raise OSError if no answer comes."""

import urllib.request

from pydantic import BaseModel

from rose.http_calls import authorization
from rose.runtime.scheduling.messages import Heartbeat, HeartbeatReply, PreemptReply, PreemptRequest


class ControlClient:
    def __init__(self, url: str, token: str | None = None, timeout_s: float = 2.0) -> None:
        self._url, self._token, self._timeout_s = url, token, timeout_s

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        return HeartbeatReply.model_validate_json(self._post("/heartbeat", heartbeat, heartbeat.hold_s))

    def preempt(self, request: PreemptRequest) -> PreemptReply:
        return PreemptReply.model_validate_json(self._post("/preempt", request))

    def _post(self, path: str, message: BaseModel, hold_s: float = 0.0) -> bytes:
        request = urllib.request.Request(
            self._url + path,
            data=message.model_dump_json().encode(),
            headers={"Content-Type": "application/json", **authorization(self._token)},
        )
        with urllib.request.urlopen(request, timeout=self._timeout_s + hold_s) as response:
            return bytes(response.read())
