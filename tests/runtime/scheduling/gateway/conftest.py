import json
import multiprocessing
from contextlib import asynccontextmanager

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from rose.runtime.scheduling.gateway import origins
from tests.runtime.scheduling.stand_ins import SERVERS, FakeEngine, fleet, gateway, left_of, open_run, publish

CALL = '{"name":"add","arguments":{"a":1}}'
WORDS = ["<end>", "<user>", "<model>", "a", "b", "c", "d", "stop", "<tool_call>", CALL, "</tool_call>", "<tools>", "7"]
TEMPLATE = (
    "{% if tools %}<tools> {% endif %}{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} "
    "{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("model") / "words")


def make_checkpoint(folder):
    folder.mkdir()
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="b"))
    words.pre_tokenizer = WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", chat_template=TEMPLATE)
    made.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    save_file({"weight": torch.arange(64, dtype=torch.bfloat16)}, folder / "model.safetensors")
    return folder


class Speaker(FakeEngine):
    says, finish = "a b c", {"type": "stop", "matched": 0}

    def tokens(self, body):
        return [WORDS.index(word) for word in self.says.split()][: left_of(body)]

    def answer(self, ids, finish_reason):
        said = finish_reason and (finish_reason if finish_reason["type"] == "abort" else self.finish)
        return super().answer(ids, said)


#: Starts processes that have loaded torch and the weight store already.
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["rose.transfer.store.store", "rose.transfer.wire.server"])


@pytest.fixture
def speaking(checkpoint, tmp_path, monkeypatch):
    """Yield (session, url, server, engine) of a gateway whose engine speaks."""
    monkeypatch.setattr(origins, "get_context", lambda _: FORKING)
    monkeypatch.setattr(origins, "die_with_parent", int)

    @asynccontextmanager
    async def opened(says="a b c", finish=None, token=None, *, published=True, sync_s=0.0, **options):
        many = {"models": ["words"], "state": tmp_path, "checkpoint": lambda _: checkpoint, **options}
        async with gateway(token, **many) as (session, url), fleet(session, engine=Speaker, sync_s=sync_s) as (agent,):
            agent.engine.says, agent.engine.finish = says, finish or Speaker.finish
            if published:
                run = await open_run(session, "anyone", model="words", tags={"token": "anyone"}, staleness_max=0)
                await publish(session, run)
            yield session, url, SERVERS[0], agent.engine

    return opened
