import os
import time
from collections.abc import Callable

import pytest

from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.engines.forkserver import ForkServer
from rose.runtime.engines.ports import free_port
from rose.runtime.engines.sglang import EngineSpec
from tests.runtime.rollout.environments.packages import guessing  # noqa: F401 - a fixture

#: SGLang would compile a vocabulary's lookup for half a minute; fork server and engines share it.
ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1"}


def until(condition: Callable[[], object], seconds: float = 240.0) -> None:
    deadline, pause_s = time.monotonic() + seconds, 0.02
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(pause_s)
        pause_s = min(0.3, 1.2 * pause_s)


def engine_spec(folder, **changes):
    usual = {
        "engine_id": "r0",
        "model": "m",
        "model_name": "untrained",
        "port": free_port(),
        "max_total_tokens": 1024,
        "capacity": 4,
        "kv_bytes_per_token": 2,
        "plugin": PluginSettings("rollout", folder / "page", folder / "staging", gated=True),
        "log": folder / "engine.log",
        "cores": [min(os.sched_getaffinity(0))],
        "environment": ENVIRONMENT,
    }
    return EngineSpec(**{**usual, **changes})


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forks")
    server = ForkServer.start(folder / "socket", folder / "log", ENVIRONMENT)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    from transformers import AutoTokenizer

    from rose.runtime.models import models
    from rose.runtime.models.policy_model import Policy, PolicyShape

    folder = tmp_path_factory.mktemp("chat-model")
    models.save_tokenizer(models.packaged_gguf(), folder, length_max=8192)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 16}
    shape = PolicyShape(
        vocab_size=len(AutoTokenizer.from_pretrained(folder)),
        num_attention_heads=1,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        **sizes,
    )
    Policy(shape, seed=0).save(folder)
    return folder
