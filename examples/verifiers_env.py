"""An environment of the `verifiers` package, evaluated through the OpenAI API of a fleet.

Install it with `pip install 'verifiers>=0.4'`, in an environment without SGLang, whose pins it does not fit. Run it:

    OPENAI_BASE_URL=http://127.0.0.1:30100/v1 OPENAI_API_KEY=TOKEN python examples/verifiers_env.py MODEL [TRIES]

MODEL is the fleet's rollout model, or the id of a run. A fleet without tokens takes any key.
"""

import asyncio
import os
import sys
from collections.abc import Iterator

import verifiers.v1 as vf
from openai import AsyncOpenAI

__all__ = ["Chat", "Sums"]


class Sum(vf.Task):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        """A sum's name is its answer."""
        return float(self.data.name in trace.last_reply.split())


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self) -> Iterator[Sum]:
        for a, b in ((1, 2), (3, 4), (5, 6)):
            yield Sum(vf.TaskData(name=str(a + b), prompt=f"How much is {a} + {b}?"), self.config.task)


class Chat(vf.Harness[vf.HarnessConfig]):  # It asks the model once, in this process.
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):  # type: ignore[no-untyped-def]
        messages = [{"role": "user", "content": data.prompt}]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages, max_tokens=32)
        return vf.ProgramResult(0, "", "")


async def main(model: str, tries: int = 2) -> float:
    """Return the mean reward. The taskset and the harness are found in this file, by its name."""
    agent = {"harness": {"id": "verifiers_env"}, "runtime": {"type": "subprocess"}}
    env = vf.SingleAgentEnv(vf.SingleAgentEnvConfig(taskset={"id": "verifiers_env"}, agent=agent))
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    slots = [slot for task in env.taskset for slot in env.slots(task, tries)]
    async with env.serving():
        episodes = await asyncio.gather(*(env.run_slot(slot, vf.ModelContext(model, client)) for slot in slots))
    traces = [trace for episode in episodes for trace in episode.traces]
    if errors := [error.message for trace in traces for error in trace.errors]:
        raise RuntimeError(errors[0])
    return sum(trace.reward for trace in traces) / len(traces)


if __name__ == "__main__":
    print("mean reward", asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))) if sys.argv[1:] else sys.exit(__doc__)
