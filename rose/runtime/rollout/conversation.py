"""Converts the messages of an environment to tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rose.errors import UserError

Messages = Sequence[Mapping[str, str]]

#: A finished exchange, after which a template's text does not depend on earlier messages.
_ANSWERED = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "."}]


class Conversation:
    """Converts messages to token ids by a checkpoint's chat template. Sampled tokens are never encoded again."""

    def __init__(self, checkpoint: Path) -> None:
        from rose.runtime.platform import cpu

        cpu.define_torchvision()
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
        except (OSError, ValueError) as error:
            raise UserError(_message(checkpoint, str(error).partition("\n")[0])) from None
        if self._tokenizer.chat_template is None or self._tokenizer.eos_token is None:
            raise UserError(_message(checkpoint, "its tokenizer has no chat template or no end-of-text token"))
        self._end: str = self._tokenizer.eos_token
        self.stop_token_ids: list[int] = [self._tokenizer.eos_token_id]

    def first_observation(self, observation: str | Messages) -> list[int]:
        return self._ids(self._render(_messages(observation), answers=True))

    def reply(self, observation: str | Messages, answer_ids: Sequence[int]) -> list[int]:
        """Return the tokens that follow the policy's answer `answer_ids`: the token that ends an answer (if
        `answer_ids` lacks it), the observation, and the tokens that start the next answer."""
        exchange = self._render(_ANSWERED, answers=False)
        end_place = exchange.rfind(self._end)
        text = self._render([*_ANSWERED, *_messages(observation)], answers=True)
        # The reply begins after the end of the answer; a truncated answer also lacks its end.
        reply_place = len(exchange) if end_place < 0 else end_place + len(self._end)
        end = [] if end_place < 0 or (answer_ids and answer_ids[-1] in self.stop_token_ids) else self.stop_token_ids
        return [*end, *self._ids(text[reply_place:])]

    def text(self, answer_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(answer_ids, skip_special_tokens=True))

    def _render(self, messages: Messages, *, answers: bool) -> str:
        texts = [dict(message) for message in messages]
        return str(self._tokenizer.apply_chat_template(texts, tokenize=False, add_generation_prompt=answers))

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _messages(observation: str | Messages) -> Messages:
    return [{"role": "user", "content": observation}] if isinstance(observation, str) else observation


def _message(checkpoint: Path, why: str) -> str:
    problem = f"task.environment has text, which rollout.model in {checkpoint} cannot read ({why})"
    return f"{problem}: name a chat model, such as 'smollm2-135m-instruct'"
