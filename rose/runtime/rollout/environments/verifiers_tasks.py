"""Text environments of the package `verifiers` (0.4 or later) with one agent, with or without tools."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from rose.runtime.rollout.environments import tool_calls
from rose.runtime.rollout.environments.protocol import EnvironmentNameError

TASKS_MAX = 100_000  #: Limits an endless taskset.

Messages = list[dict[str, str]]


class VerifiersTasks:
    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        try:
            self._env: Any = load_environment(resolve_env_config({"taskset": {"id": name, **options}}))
        except ModuleNotFoundError as error:
            raise EnvironmentNameError(f"task.environment 'verifiers:{name}' is not installed: {error}") from None
        self._tasks: Sequence[Any] = list(itertools.islice(self._env.taskset, TASKS_MAX))
        if not self._tasks:
            raise EnvironmentNameError(f"task.environment 'verifiers:{name}' has no tasks")
        if why := _unsupported(self._env, self._tasks[0]):
            advice = "run it with `verifiers` itself, against the fleet's OpenAI address"
            raise EnvironmentNameError(f"task.environment 'verifiers:{name}' {why}: {advice}")

    def environment(self) -> VerifiersEnvironment:
        return VerifiersEnvironment(self._env, self._tasks)


def _toolsets(env: Any, task: Any) -> list[Any]:
    return [*type(task).toolsets(task.config), *type(env.taskset).toolsets(env.taskset.config)]


def _unsupported(env: Any, task: Any) -> str | None:
    hooks = [hook for kind in ("reward", "metric") for hook in task.hooks(kind)]
    in_runtime = any(
        (parameter := inspect.signature(hook).parameters.get("runtime")) is not None
        and parameter.default is parameter.empty
        for hook in hooks
    )
    overridden = any(getattr(type(task), name) is not getattr(vf.Task, name) for name in ("setup", "finalize"))
    if any(toolset._state_cls is not vf.State for toolset in _toolsets(env, task)):
        return "has tools that share state"
    if type(task).NEEDS_CONTAINER or in_runtime or overridden:
        return "works in a container or another runtime"
    return "has several agents" if len(env._agent_specs) != 1 else None


class VerifiersEnvironment:
    verifier_version = importlib.metadata.version("verifiers")

    def __init__(self, env: Any, tasks: Sequence[Any]) -> None:
        self._env, self._tasks = env, tasks
        self._loop = asyncio.new_event_loop()
        self._traces: list[Any] = []
        self._tool_calls = 0

    def reset(self, seed: int) -> Messages:
        self._playing = self._loop.create_task(self._play(self._tasks[seed % len(self._tasks)]))
        question = self._until_asked()
        if question is None:
            raise ValueError("the environment ended before it asked for a reply")
        return question

    def step(self, answer: str) -> tuple[Messages | None, float, bool, dict[str, Any]]:
        self._tool_calls = 0
        self._answer.set_result(answer)
        question = self._until_asked()
        facts = {"tool_calls": self._tool_calls}
        if question is not None:
            return question, 0.0, False, facts
        return None, float(sum(trace.reward for trace in self._traces)), True, facts

    async def ask(self, question: Messages) -> str:
        self._answer: asyncio.Future[str] = self._loop.create_future()
        self._asked.set_result(question)
        return await self._answer

    async def _play(self, task: Any) -> None:
        ((name, spec),) = self._env._agent_specs.items()
        self.tools = _Tools()
        for toolset in _toolsets(self._env, task):
            await self.tools.add(toolset, task)
        agent = _Agent(self, spec, name)
        agents = type("Agents", (), {name: agent})()
        await self._env.setup(agents)
        await self._env.run(task, agents)
        trace_task = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        episode = vf.Episode(env=vf.EnvInfo(id=self._env.config.env_id), task=trace_task, traces=self._traces)
        await self._env.finalize(task, episode)

    async def call(self, call: str) -> tuple[str, str, str]:
        self._tool_calls += 1
        try:
            name, arguments = tool_calls.parse(call)
        except ValueError as error:
            return "unknown", call, f"error: {error}"
        return name, json.dumps(arguments), await self.tools.call(name, arguments)

    def _until_asked(self) -> Messages | None:
        """Run until the environment asks the policy. Return the question, or None if the environment ended."""
        self._asked: asyncio.Future[Messages] = self._loop.create_future()
        either: list[asyncio.Future[Any]] = [self._playing, self._asked]
        self._loop.run_until_complete(asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED))
        if self._asked.done():
            return self._asked.result()
        self._playing.result()
        return None


class _Agent:
    def __init__(self, environment: VerifiersEnvironment, spec: Any, name: str) -> None:
        self._environment, self._spec, self._name = environment, spec, name
        self.trainable = True

    async def run(self, task: Any) -> Any:
        async with self.interaction(task) as interaction:
            await interaction.turn()
        return interaction.trace

    @asynccontextmanager
    async def interaction(self, task: Any) -> AsyncIterator[_Interaction]:
        trace_task = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        trace: Any = vf.Trace(task=trace_task, agent=vf.AgentInfo(config=self._spec, name=self._name))
        yield _Interaction(self._environment, task, trace)
        trace.is_completed = trace.ok = True
        await task.score(trace)
        self._environment._traces.append(trace)


class _Interaction:
    def __init__(self, environment: VerifiersEnvironment, task: Any, trace: Any) -> None:
        self._environment, self._task, self.trace = environment, task, trace

    async def turn(self, message: Any = None) -> Any:
        data, opens = self._task.data, not self.trace.nodes
        messages = [vf.types.UserMessage(content=message)] if isinstance(message, str) else message or []
        if opens and data.prompt is not None:
            prompt = [vf.types.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt
            messages = [*prompt, *messages]
        tools = self._environment.tools.description
        if opens and (system := "\n\n".join(text for text in (data.system_prompt, tools) if text)):
            messages = [vf.types.SystemMessage(content=system), *messages]
        segment: list[Any] = []
        while True:
            for item in messages:
                self._append(item)
            texts = [{"role": item.role, "content": vf.types.content_text(item.content)} for item in messages]
            answer = await self._environment.ask(texts)
            calls = [await self._environment.call(call) for call in tool_calls.calls_in(answer)] if tools else []
            requests = [
                vf.types.ToolCall(id=f"call_{number}", name=name, arguments=arguments)
                for number, (name, arguments, _) in enumerate(calls)
            ]
            reply = vf.types.AssistantMessage(content=answer, tool_calls=requests or None)
            self._append(reply, sampled=True)
            messages = [
                vf.types.ToolMessage(tool_call_id=request.id, content=result, name=request.name)
                for request, (_, _, result) in zip(requests, calls, strict=True)
            ]
            segment += [reply, *messages]
            if not calls:
                return vf.agent.Segment(messages=segment)

    def _append(self, message: Any, *, sampled: bool = False) -> None:
        parent = len(self.trace.nodes) - 1
        self.trace.nodes.append(vf.MessageNode(parent=None if parent < 0 else parent, message=message, sampled=sampled))


class _Tools:
    def __init__(self) -> None:
        self._servers: dict[str, tuple[Any, str]] = {}
        self._tools: list[dict[str, Any]] = []

    @property
    def description(self) -> str:
        return tool_calls.describe(self._tools) if self._tools else ""

    async def add(self, toolset: Any, task: Any) -> None:
        from mcp.server.mcpserver import MCPServer

        await toolset.setup()
        await toolset.setup_task(task.data)
        server = MCPServer(toolset.server_name or type(toolset).__name__)
        toolset.register(server)
        for tool in await server.list_tools():
            name = f"{toolset.server_name}_{tool.name}" if toolset.server_name else tool.name
            self._servers[name] = server, tool.name
            self._tools.append({"name": name, "description": tool.description, "parameters": tool.input_schema})

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        if name not in self._servers:
            return f"error: unknown tool {name!r}, give {', '.join(self._servers)}"
        server, tool = self._servers[name]
        try:
            result = await server.call_tool(tool, arguments)
        except Exception as error:  # An error of a tool is its answer.
            return f"error: {error}"
        return "\n".join(block.text if block.type == "text" else str(block) for block in result.content)
