"""Tool calls in the text of a chat model, in the form that most open models are trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def calls_in(answer: str) -> list[str]:
    """Return the JSON text of each call."""
    return _CALL.findall(answer)


def parsed(call: str) -> tuple[str, dict[str, Any]]:
    """Return a call's tool and arguments. Raises ValueError."""
    message = json.loads(call)
    name, arguments = message.get("name"), message.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("a call has a `name` and a table of `arguments`")
    return name, arguments


def written(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def described(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return what tells a model which tools there are; each has `name`, `description` and `parameters`."""
    lines = "\n".join(json.dumps(tool) for tool in tools)
    form = written("NAME", {"ARGUMENT": "VALUE"})
    return f"You may call these tools:\n{lines}\nTo call one, write {form} and wait for its result."
