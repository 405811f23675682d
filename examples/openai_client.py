"""OpenAI's own client on a fleet: a completion, a chat, a chat with a tool, and a stream.

Install it with `pip install openai`. Run it with the address and the token of your fleet:

    OPENAI_BASE_URL=http://127.0.0.1:30100/v1 OPENAI_API_KEY=TOKEN python examples/openai_client.py MODEL

MODEL is the fleet's rollout model, or the id of a run. A fleet without tokens takes any key.
"""

import json
import sys
from typing import Any

from openai import OpenAI

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
        },
    }
]


def solve(client: OpenAI, model: str, question: str, turns_max: int = 4) -> str:
    """Ask until the model answers without calling a tool."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(turns_max):
        answer = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=64)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = sum(json.loads(call.function.arguments).values())
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    return str(messages[-1]["content"])


def main(model: str) -> None:
    client = OpenAI()  # It reads OPENAI_BASE_URL and OPENAI_API_KEY.
    made = client.completions.create(model=model, prompt="One, two, three,", max_tokens=8, logprobs=1)
    print("completion:", made.choices[0].text)
    print("log probabilities:", made.choices[0].logprobs.token_logprobs)
    hello: list[Any] = [{"role": "user", "content": "Say hello."}]
    answer = client.chat.completions.create(model=model, messages=hello, max_tokens=16)
    print("chat:", answer.choices[0].message.content)
    print("tools:", solve(client, model, "How much is 2 + 3?"))
    stream = client.chat.completions.create(model=model, messages=hello, max_tokens=16, stream=True)
    print("stream:", "".join(part.choices[0].delta.content or "" for part in stream if part.choices))


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__)
