"""The example with TRL itself, against a real controller and its ledger."""

import random
import runpy
from pathlib import Path

import pytest

from rose.ledger.files import catalog, layout
from rose.ledger.writer import LedgerWriter
from rose.runtime.platform.cpu import define_torchvision
from tests.client.fleet import Engine, Fetching, fleet
from tests.runtime.scheduling.gateway.conftest import WORDS

PROGRAM = Path(__file__).parents[2] / "examples" / "trl_grpo.py"


@pytest.fixture
def llama(checkpoint, tmp_path):
    """A Llama of one layer that knows the tokenizer's words."""
    pytest.importorskip("trl", reason="TRL is not installed: pip install 'trl>=1.16' accelerate datasets")
    define_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape = LlamaConfig(vocab_size=len(WORDS), num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    tokenizer.pad_token = tokenizer.eos_token
    for part in (LlamaForCausalLM(shape), tokenizer):
        part.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_it_trains_and_publishes_each_step(llama, tmp_path, monkeypatch):
    monkeypatch.setenv("ROSE_TOKEN", "token-of-the-tests")
    ledger, fetching = tmp_path / "ledger", Fetching(tmp_path / "staging")
    layout.create(ledger)
    engine = Engine(fetch=fetching, tokens=lambda: [*random.choices(range(3, 7), k=random.randint(2, 12)), 0])
    with (
        LedgerWriter.open(ledger, "controller", "fleet") as writer,
        fleet(tmp_path / "state", engine, writer=writer, token="token-of-the-tests", model="words") as there,
    ):
        runpy.run_path(str(PROGRAM))["main"](there.url, "words", str(llama), 3)
    assert [version for _, version, _ in fetching.fetched] == [0, 1, 2]
    assert {len(request["input_ids"]) for request in engine.requests} == {3}
    with catalog.connect(ledger) as connection:
        turns = connection.execute("SELECT policy_version, count(*) FROM turn GROUP BY 1 ORDER BY 1").fetchall()
        verdicts = connection.execute("SELECT step, count(*) FROM verdict GROUP BY 1 ORDER BY 1").fetchall()
    assert turns == verdicts == [(0, 8), (1, 8), (2, 8)]


def test_it_is_short():
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) <= 60
