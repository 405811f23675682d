"""Tool calls in the text of a chat model, in the form that most open models use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def calls_in(answer: str) -> list[str]:
    return _CALL.findall(answer)


def parse(call: str) -> tuple[str, dict[str, Any]]:
    message = json.loads(call)
    name, arguments = message.get("name"), message.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("a call needs a `name` and a table `arguments`")
    return name, arguments


def format_call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def describe(tools: Sequence[Mapping[str, Any]]) -> str:
    lines = "\n".join(json.dumps(tool) for tool in tools)
    form = format_call("NAME", {"ARGUMENT": "VALUE"})
    return f"You may call these tools:\n{lines}\nTo call one, write {form} and wait for its result."
