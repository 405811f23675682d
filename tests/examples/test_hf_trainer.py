"""The example against a real controller, with Hugging Face's own Trainer."""

import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rose.runtime.platform.cpu import define_torchvision
from tests.client.fleet import Engine, Holding, fleet, same_bits

PROGRAM = Path(__file__).parents[2] / "examples" / "hf_trainer.py"


@pytest.fixture(autouse=True)
def trainer():
    pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate: pip install accelerate")
    if not torch.cuda.is_available():
        define_torchvision()


def test_the_trainer_publishes_each_step_and_engines_hold_its_weights_in_bfloat16(
    tmp_path, tiny_policy, monkeypatch, capsys
):
    from rose.client.hf import PublishCallback

    trained, publish = [], PublishCallback._publish

    def keep(callback, model):
        publish(callback, model)
        trained.append({name: tensor.bfloat16() for name, tensor in model.state_dict().items()})

    monkeypatch.setattr(PublishCallback, "_publish", keep)
    monkeypatch.setenv("ROSE_TOKEN", "token-of-the-tests")
    holding = Holding(tmp_path / "staging")
    with fleet(tmp_path / "state", Engine(fetch=holding), token="token-of-the-tests") as there:
        runpy.run_path(str(PROGRAM))["main"](there.url, tiny_policy, 3)
    names = load_file(Path(tiny_policy) / "model.safetensors")
    assert f"published version 3; rounded {len(names)} tensors" in capsys.readouterr().out
    assert len(trained) == 4
    assert same_bits(holding.weights[0], names)
    assert holding.weights.keys() >= {0, 1, 2}
    assert all(same_bits(held, trained[version]) for version, held in holding.weights.items())


def test_it_is_short():
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) <= 60
