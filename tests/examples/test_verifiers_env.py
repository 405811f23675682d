"""The example with `verifiers` itself, against a controller whose engine speaks."""

import asyncio
import importlib
from pathlib import Path

import pytest

from tests.runtime.scheduling.gateway.conftest import WORDS

PROGRAM = Path(__file__).parents[2] / "examples" / "verifiers_env.py"


@pytest.fixture
def example(monkeypatch):
    pytest.importorskip("verifiers", reason="verifiers is not installed: pip install 'verifiers>=0.4', without SGLang")
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    return importlib.import_module("verifiers_env")  # By this name it finds itself.


@pytest.mark.parametrize(("says", "reward"), [("a b c", 0.0), ("a 7", 1 / 3)])
async def test_it_is_evaluated_on_a_fleet(speaking, example, monkeypatch, says, reward):
    async with speaking(says) as (_, url, server, engine):
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        assert await asyncio.wait_for(example.main("words", 2), 60) == pytest.approx(reward)
        assert len(engine.requests) == 6
        (run,) = server.controller.runs
        assert run.facts.tags["token"] == "anyone"


async def test_prime_rl_s_own_client_trains_on_the_fleet_s_tokens(speaking, example, checkpoint):
    """prime-rl plays its environments with this client: it renders chats to token ids itself."""
    import verifiers.v1 as vf

    async with speaking("a 7 <end>") as (_, url, _, _):
        agent = {"harness": {"id": "verifiers_env"}, "runtime": {"type": "subprocess"}}
        env = vf.SingleAgentEnv(vf.SingleAgentEnvConfig(taskset={"id": "verifiers_env"}, agent=agent))
        endpoint = {"base_url": f"{url}/v1", "api_key_var": "OPENAI_API_KEY"}
        client = vf.TrainClientConfig(**endpoint, renderer_model_name=str(checkpoint))
        (slot, *_) = [slot for task in env.taskset for slot in env.slots(task)]
        async with env.serving():
            episode = await asyncio.wait_for(env.run_slot(slot, vf.ModelContext("words", client)), 60)
    (trace,) = episode.traces
    answer = trace.nodes[-1]
    assert (trace.errors, answer.message.content) == ([], "a 7")
    assert answer.token_ids == [WORDS.index(word) for word in ("<model>", "a", "7", "<end>")]
    assert (answer.mask, answer.logprobs) == ([False, True, True, True], [-0.5] * 3)


def test_it_is_short():
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) <= 60
