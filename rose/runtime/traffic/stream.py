"""Follows one streamed completion on the client's side."""

import json
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import Any

from rose.clock import monotonic_ns


class StreamError(Exception):
    """The server reported an error, or the stream broke off."""


@dataclass(slots=True)
class Arrivals:
    """When the tokens of one response arrived, in monotonic ns. All tokens of a chunk arrive at once."""

    sent_ns: int
    tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None  #: Prompt tokens in the server's prefix cache, if known.
    times_ns: list[int] = field(default_factory=list)
    timed_tokens: int = 0  #: Tokens at these times. `tokens` may be more after the final total.

    def add(self, at_ns: int, new: int) -> None:
        if new > 0:
            self.times_ns.append(at_ns)
            self.timed_tokens += new
            self.tokens = max(self.tokens, self.timed_tokens)

    @property
    def ttft_ns(self) -> int | None:
        return self.times_ns[0] - self.sent_ns if self.times_ns else None

    @property
    def tpot_mean_ns(self) -> int | None:
        return None if self.tokens < 2 else (self.times_ns[-1] - self.times_ns[0]) // (self.tokens - 1)

    @property
    def tpot_max_ns(self) -> int | None:
        if self.tokens < 2:
            return None
        return max((b - a for a, b in zip(self.times_ns, self.times_ns[1:], strict=False)), default=0)


async def follow(lines: AsyncIterable[bytes], arrivals: Arrivals) -> None:
    """Read the server-sent events of `/v1/completions` until `[DONE]`. Raises StreamError."""
    finish: str | None = None
    async for line in lines:
        at_ns = monotonic_ns()
        if not line.startswith(b"data:"):
            continue
        if (payload := line[5:].strip()) == b"[DONE]":
            if finish is None:
                raise StreamError(f"stream sent [DONE] after {arrivals.tokens} tokens without a finish_reason")
            if finish == "abort":
                raise StreamError(f"server aborted the request after {arrivals.tokens} tokens")
            return
        try:
            chunk: Any = json.loads(payload)
        except ValueError as error:
            raise StreamError(f"stream has invalid JSON: {payload[:100]!r}") from error
        if not isinstance(chunk, dict):
            raise StreamError(f"stream has an invalid chunk: {payload[:100]!r}")
        if failure := chunk.get("error"):
            message = failure.get("message", failure) if isinstance(failure, dict) else failure
            raise StreamError(f"server sent an error: {str(message)[:200]}")
        finish = _chunk(chunk, at_ns, arrivals) or finish
    raise StreamError(f"stream ended after {arrivals.tokens} tokens without [DONE]")


def _chunk(chunk: dict[str, Any], at_ns: int, arrivals: Arrivals) -> str | None:
    if usage := chunk.get("usage"):
        arrivals.prompt_tokens = usage.get("prompt_tokens", arrivals.prompt_tokens)
        details = usage.get("prompt_tokens_details") or {}
        arrivals.cached_tokens = details.get("cached_tokens", arrivals.cached_tokens)
    choices = chunk.get("choices")
    if not choices:  # The closing chunk has totals, without a token.
        if usage:
            arrivals.tokens = max(arrivals.tokens, usage.get("completion_tokens", 0))
        return None
    choice = choices[0]
    total = usage.get("completion_tokens", 0) if usage else arrivals.timed_tokens + bool(choice.get("text"))
    arrivals.add(at_ns, total - arrivals.timed_tokens)
    finish: str | None = choice.get("finish_reason")
    return finish
