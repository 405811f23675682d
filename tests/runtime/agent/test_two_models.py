from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tokenizers import Tokenizer

from rose import client
from rose.ledger.files import catalog
from rose.ledger.writer import LedgerWriter
from rose.runtime.agent.agent import DeviceAgent
from rose.runtime.coserving.page import Party
from rose.runtime.engines.ports import free_port
from rose.runtime.models import models
from rose.runtime.policy import sharing
from rose.runtime.scheduling.gateway import Gateway
from tests import programs
from tests.runtime.agent.agent_of_engine import agent_spec, straight, with_other
from tests.runtime.conftest import engine_spec
from tests.runtime.coserving.parties import OtherParty
from tests.runtime.scheduling.stand_ins import AGENT_TOKEN

pytestmark = pytest.mark.live

QUESTION = "<|im_start|>user\nWhat is 7 + 5?<|im_end|>\n<|im_start|>assistant\n"
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture
def chat() -> Path:
    return models.resolve(models.SMOLLM2, Path("~/.cache/rose").expanduser(), print)


@pytest.fixture
def url(tmp_path, tiny_policy, chat, fork_server, monkeypatch):
    monkeypatch.setattr(sharing, "HOLD_SWITCHES", 3)  # Ten starts would take minutes.
    page, port = tmp_path / "page", free_port()
    own = {"model": str(tiny_policy), "model_name": "tiny", "any_port": True, "token_ids_only": True}
    engine = engine_spec(tmp_path, **own, fork_server=fork_server.path)
    controller = f"http://127.0.0.1:{port}"
    spec = agent_spec(tmp_path, controller, engine, kv_bytes=1 << 26, policy="share_all", lease_ttl_s=3.0)
    spec = with_other(replace(spec, agent_token=AGENT_TOKEN), models.SMOLLM2, model=str(chat), port=free_port())

    def make() -> Gateway:
        return Gateway("127.0.0.1", port, models=list(spec.models), agent_token=AGENT_TOKEN, fleet_run_id="run")

    with ExitStack() as stack:
        writer = stack.enter_context(LedgerWriter.open(tmp_path / "ledger", "agent-d0", "run", flush_interval_s=0.1))
        agent = DeviceAgent(spec, writer.record, lambda: writer.failure, via=straight)
        stack.enter_context(programs.in_thread(make))
        stack.enter_context(OtherParty(page, Party.SERVING)).do("page.set_load(load)")
        agent.start()
        stack.callback(agent.stop)
        yield controller


def test_two_runs_of_two_models_have_a_lent_device_in_turns(url, tmp_path, tiny_policy, chat):
    tokenizer = Tokenizer.from_file(str(chat / "tokenizer.json"))
    prompts = {"tiny": list(range(1, 40)), models.SMOLLM2: tokenizer.encode(QUESTION).ids}
    tiny = {name: tensor * 1.5 for name, tensor in load_file(tiny_policy / "model.safetensors").items()}
    weights = {"tiny": tiny, models.SMOLLM2: load_file(chat / "model.safetensors")}
    weights[models.SMOLLM2]["model.norm.weight"] *= 2  # The likeliest token stays the likeliest.

    def play(run, model):
        (generation,) = run.generate([prompts[model]], {"max_new_tokens": 12, **GREEDY})
        assert set(generation.versions) == {0}
        return generation.output_ids

    with ExitStack() as stack:
        runs = {
            model: stack.enter_context(
                client.open_run(url, name=f"run-{number}", model=model, team=f"team-{number}", expires_s=600)
            )
            for number, model in enumerate(prompts)
        }
        for model, run in runs.items():
            run.publish(weights[model])
        made = play(runs["tiny"], "tiny")
        pool = stack.enter_context(ThreadPoolExecutor(1))
        chatting = pool.submit(play, runs[models.SMOLLM2], models.SMOLLM2)
        while not chatting.done():
            assert play(runs["tiny"], "tiny") == made, "turns of its own weights, before the change and after it"
        assert "7 + 5" in tokenizer.decode(chatting.result())
        assert play(runs["tiny"], "tiny") == made
        ids = {model: run.run_id for model, run in runs.items()}
    lives = "SELECT model FROM engine WHERE role = 'rollout' AND action = 'started' ORDER BY event_time, seq"
    with catalog.connect(tmp_path / "ledger") as ledger:
        assert ledger.execute(lives).fetchall()[:3] == [("tiny",), (models.SMOLLM2,), ("tiny",)]
        synced = ledger.execute("SELECT rl_run_id FROM sync WHERE ok ORDER BY event_time, seq").fetchall()
        assert synced[:3] == [(ids[model],) for model in ("tiny", models.SMOLLM2, "tiny")]
        started = "SELECT rollout_run_id FROM device_slice WHERE activation_ns > 0 ORDER BY t0_ns"
        charged = list(dict.fromkeys(run_id for (run_id,) in ledger.execute(started).fetchall()))
        assert charged[-2:] == [ids["tiny"], ids[models.SMOLLM2]]
