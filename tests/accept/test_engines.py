import time

import numpy as np
import pytest
import torch

from rose.accept.coserve.host import Cores, Host
from rose.accept.stage import Scope, SkippedError, StageReport
from rose.accept.stages import engine_models, engines
from rose.runtime.models.policy_model import Policy
from rose.runtime.platform import gpu
from rose.runtime.traffic.prompts import prompt_text


@pytest.fixture
def report(tmp_path) -> StageReport:
    return StageReport("engines", True, file=tmp_path / "out.json")


def test_a_part_that_does_not_fit_or_fails_ends_no_other(report, tmp_path):
    folders = [engine_models.write(tmp_path / name, engine_models.SMALL) for name in ("serving", "rollout")]
    host = Host(tmp_path, Cores((0,), (1,)), None, dict(zip(("serving", "rollout"), folders, strict=True)))
    assert "--load-format=dummy" in host._arguments(folders[0], serves=True)
    parts = engines.Parts(report, host, None, engine_models.SMALL, time.monotonic() + 1)
    host.page.close()
    assert not parts.run("sync", 14, lambda: pytest.fail("it does not fit"))
    assert report.facts["sync"].startswith("left out: it needs 14 s")
    assert report.claims == []
    assert not parts.run("sync", 0, lambda: 1 / 0)
    assert parts.run("rounds", 0, lambda: None)
    (claim,) = report.claims
    assert claim.name.startswith("engines: sync")
    assert not claim.holds
    assert "ZeroDivisionError" in report.facts["sync, failure"]


def test_a_host_without_kernels_skips_with_what_to_install(tmp_path, report, monkeypatch):
    monkeypatch.delenv(gpu.NATIVE_KERNELS, raising=False)
    monkeypatch.setattr(gpu, "has_kernels", lambda: False)
    with pytest.raises(SkippedError, match="sglang-kernel"):
        engines.measure(Scope(gpu=0, quick=True, seconds=100, folder=tmp_path), report)


def test_a_prompt_of_the_made_tokenizer_has_a_token_for_each_word(tmp_path):
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(engine_models.write(tmp_path / "model", engine_models.SMALL))
    ids = tokenizer(prompt_text("seed", 40))["input_ids"]
    assert len(ids) == 40
    assert tokenizer.unk_token_id not in ids
    assert len(tokenizer) == engine_models.SMALL.vocab_size


@pytest.mark.long
def test_published_weights_are_those_of_the_checkpoint(tmp_path):
    shape = engine_models.SMALL
    weights = engine_models.random_weights(shape)
    assert {name: tensor.shape for name, tensor in weights.items()} == {
        name: parameter.shape for name, parameter in Policy(shape).named_parameters()
    }
    assert sum(tensor.numel() for tensor in weights.values()) == engine_models.parameter_count(shape)
    newer = engine_models.changed(weights)
    differing = sum(int((newer[name] != weights[name]).sum()) for name in weights)
    assert 0.012 < differing / engine_models.parameter_count(shape) < 0.0145
    assert all(torch.isfinite(tensor.float()).all() for tensor in newer.values())


def test_the_large_shape_has_eight_billion_parameters_and_few_layers_keep_its_width():
    assert 7e9 < engine_models.parameter_count(engine_models.LARGE) < 8.5e9
    few = engine_models.layers(engine_models.LARGE, 4)
    assert (few.num_hidden_layers, few.hidden_size) == (4, engine_models.LARGE.hidden_size)
    assert np.isclose(engine_models.parameter_count(few), 1.14e9, rtol=0.01)


@pytest.mark.live
@pytest.mark.long
def test_all_parts_are_measured_on_cpu_cores(tmp_path, report):
    folder = tmp_path / "work"
    folder.mkdir()
    engines.measure(Scope(gpu=None, quick=True, seconds=280, folder=folder), report)
    claims = {claim.name: claim.value for claim in report.claims}
    assert {name: fact for name, fact in report.facts.items() if name.endswith("failure")} == {}
    assert claims["engines: hooks accepted"] == 2
    assert claims["engines: slice sum error"] == 0
    assert claims["engines: serving requests failed, rollout engine killed"] == 0
    assert claims["engines: rollout steps begun without serving"] == 0
    assert claims["engines: versions acknowledged"] == 2
    assert "engines: idle time harvested" in claims
    assert report.facts["serving killed: rollout steps before it"] > 0
    assert set(report.detail["logs"]) >= {"serving.log", "rollout.log"}
