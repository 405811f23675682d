"""Converts texts to token ids and back, with the tokenizer and chat template of a model."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rose.errors import UserError
from rose.runtime.scheduling.refusals import RequestError
from rose.runtime.scheduling.turns.request import TOKENS_DEFAULT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
TOOL_CALL_BEGINS, TOOL_CALL_ENDS = "<tool_call>", "</tool_call>"
Objects = Sequence[Mapping[str, Any]]
_LONG = 16_384  # Longer texts are encoded in another thread.


class Texts:
    """The tokenizer of a model. Await `ready` first, because loading may take long."""

    def __init__(self, model: str, folder: Callable[[], Path]) -> None:
        self._model, self._folder = model, folder
        self._lock = asyncio.Lock()  # A tokenizer encodes one text at a time.
        self._loaded: PreTrainedTokenizerFast | None = None
        self._failure: str | None = None
        self.context: int | None = None  #: Context length in tokens; None: unknown.

    async def ready(self) -> None:
        async with self._lock:
            if self._loaded is None and self._failure is None:
                await asyncio.to_thread(self._load)

    def _load(self) -> None:
        from transformers import PreTrainedTokenizerFast

        try:
            folder = self._folder()
            config = json.loads((folder / "config.json").read_text())
            self.context = config.get("max_position_embeddings")
            self._loaded = PreTrainedTokenizerFast.from_pretrained(folder)
        except (OSError, ValueError, UserError) as error:
            self._failure = str(error).partition("\n")[0]

    @property
    def known(self) -> bool:
        return self._loaded is not None

    @property
    def _tokenizer(self) -> PreTrainedTokenizerFast:
        if self._loaded is None:
            raise RequestError(f"model {self._model!r} has no tokenizer and takes token ids only: {self._failure}")
        return self._loaded

    def room(self, prompt_tokens: int) -> int:
        return TOKENS_DEFAULT if self.context is None else max(1, self.context - prompt_tokens - 1)

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        return await self._alone(len(text), lambda: list(self._tokenizer.encode(text, add_special_tokens=special)))

    async def _alone(self, length: int, encode: Callable[[], list[int]]) -> list[int]:
        async with self._lock:
            return encode() if length < _LONG else await asyncio.to_thread(encode)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=not special))

    def token(self, token_id: int) -> str:
        return str(self._tokenizer.decode([token_id]))

    async def chat(self, messages: Objects, tools: Objects | None, **template: Any) -> list[int]:
        tokenizer = self._tokenizer
        fixed = {"tools": tools or None, "add_generation_prompt": True, "tokenize": True, "return_dict": False}
        arguments: dict[str, Any] = {**template, **fixed}
        try:
            plain = [_plain(message) for message in messages]
            length = sum(len(str(message["content"])) for message in plain)
            return await self._alone(length, lambda: list(tokenizer.apply_chat_template(plain, **arguments)))
        except RequestError:
            raise
        except Exception as error:  # A template refuses a conversation by an error of any kind.
            raise RequestError(f"messages: the model's chat template refuses them: {error}") from None


class GrowingText:
    """A growing text. Only its last tokens are decoded again, because together they may form one character."""

    def __init__(self, texts: Texts, *, special: bool) -> None:
        self.texts, self._special = texts, special
        self._text, self._before, self._known = "", 0, 0

    def after(self, ids: Sequence[int]) -> str:
        """Return the text up to its last whole character. `ids` must begin with the ids of the last call."""
        known = self.texts.decode(ids[self._before : self._known], special=self._special)
        text = self.texts.decode(ids[self._before :], special=self._special)
        if len(text) > len(known) and not text.endswith("\ufffd"):
            self._text += text[len(known) :]
            self._before, self._known = self._known, len(ids)
        return self._text

    def finished(self, ids: Sequence[int], finish: Mapping[str, Any], *, keep_stop: bool) -> str:
        """Return the whole text, without its stop string or stop token unless `keep_stop`."""
        matched = None if keep_stop else finish.get("matched")
        if isinstance(matched, int) and ids and ids[-1] == matched:
            ids = ids[:-1]
        if len(ids) < self._known:  # The stop token had text, and came earlier as a normal token.
            self._text, self._before, self._known = "", 0, 0
        known = self.texts.decode(ids[self._before : self._known], special=self._special)
        text = self._text + self.texts.decode(ids[self._before :], special=self._special)[len(known) :]
        return text[: text.rfind(matched)] if isinstance(matched, str) and matched in text else text


def tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the text without its tool calls, and the tool calls in OpenAI's form."""
    calls: list[dict[str, Any]] = []

    def call(match: re.Match[str]) -> str:
        try:
            content = json.loads(match[1])
            name, arguments = str(content["name"]), content.get("arguments", {})
        except (ValueError, LookupError, TypeError, AttributeError):
            return match[0]
        function = {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}
        calls.append({"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function})
        return ""

    rest = _TOOL_CALL.sub(call, text)
    return (rest.strip() if calls else rest), calls


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the form of chat templates: the content as one text, tool arguments as objects."""
    plain = {name: value for name, value in message.items() if value is not None}
    content = plain.get("content", "")
    if isinstance(content, list):
        if odd := [part for part in content if not (isinstance(part, dict) and part.get("type") == "text")]:
            raise RequestError(f"messages: content part {str(odd[0])[:60]} is not text: this model takes text only")
        content = "".join(str(part.get("text", "")) for part in content)
    plain["content"] = content
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [{**call, "function": _function(call["function"])} for call in calls]
    return plain


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            raise RequestError(f"messages: arguments {arguments[:60]!r} of a tool call are not JSON") from None
    return {**function, "arguments": arguments}
