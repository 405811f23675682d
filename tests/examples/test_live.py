"""The examples and the requests of trainers on one live fleet: real SGLang engines, on two cores.

Their model is a Llama of two thin layers with the tokenizer of SmolLM2. No test needs answers that make sense."""

import asyncio
import importlib
import json
import runpy
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from rose.runtime.engines.ports import free_port
from rose.runtime.models import models
from rose.runtime.platform.cpu import define_torchvision

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TOKEN = "token-of-the-tests"
DEVICE = (
    '[[device]]\nid = "{pool}"\npool = "{pool}"\ndevice_class = "cpu-core"\ncores = [{core}]\nkv_bytes = 100000000\n'
)
FLEET = """
name = "{name}"
state = "{folder}/state"
ledger = "{folder}/ledger"
serving.model = "{model}"
rollout.model = "{model}"
coserving.enabled = false
traffic.trace = "none"
gateway.port = {port}
gateway.token = "{token}"
"""
PROMPT = [504, 3575, 282]  # "The capital of"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    define_torchvision()
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model")
    smollm2 = models.resolve(models.SMOLLM2, Path.home() / ".cache" / "rose", print)
    thin = {"num_hidden_layers": 2, "hidden_size": 192, "intermediate_size": 64, "num_attention_heads": 3}
    llama = LlamaForCausalLM(AutoConfig.from_pretrained(smollm2, **thin)).bfloat16()
    for part in (llama, AutoTokenizer.from_pretrained(smollm2)):
        part.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def url(tmp_path_factory, model):
    folder, port = tmp_path_factory.mktemp("clients"), free_port()
    file = folder / "fleet.toml"
    text = FLEET.format(name=f"clients-{port}", folder=folder, model=model, port=port, token=TOKEN)
    file.write_text(text + DEVICE.format(pool="serving", core=1) + DEVICE.format(pool="rollout", core=0))
    file.chmod(0o600)
    rose = [sys.executable, "-m", "rose.cli"]
    try:
        subprocess.run([*rose, "up", "-c", str(file)], cwd=ROOT, check=True)
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run([*rose, "down", "-c", str(file)], cwd=ROOT, check=True)


@pytest.fixture
def call(url):
    def call(method, path, body=None):
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    return call


@pytest.fixture
def environment(url, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", TOKEN)
    monkeypatch.setenv("ROSE_TOKEN", TOKEN)
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_openai_s_client(environment, model, capsys):
    runpy.run_path(str(EXAMPLES / "openai_client.py"))["main"](model)
    printed = capsys.readouterr().out
    assert [f"{name}: " in printed for name in ("completion", "log probabilities", "chat", "tools", "stream")] == [
        True
    ] * 5


def test_sglang_s_trainers_generate_and_refit_from_a_folder(call, model):
    """As slime and AReaL do."""
    info = call("GET", "/server_info")[1]
    assert (info["ready"], info["tp_size"], info["pp_size"], info["enable_memory_saver"]) == (True, 1, 1, False)
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 6, "stop": None, "no_stop_trim": True}
    sampling |= {"stop_token_ids": None, "skip_special_tokens": True, "spaces_between_special_tokens": False}
    asked = {"sampling_params": sampling | {"ignore_eos": True}, "return_logprob": True, "input_ids": PROMPT}
    status, before = call("POST", "/generate", asked)
    assert status == 200, before
    assert call("POST", "/pause_generation", {})[0] == call("GET", "/flush_cache")[0] == 200
    status, updated = call("POST", "/update_weights_from_disk", {"model_path": model, "weight_version": "5"})
    assert (status, updated["success"]) == (200, True)
    assert call("POST", "/continue_generation", {})[0] == 200
    status, after = call("POST", "/generate", asked | {"weight_version": {"exact_version": 5}})
    assert (status, after["meta_info"]["weight_version"]) == (200, "5")
    for made in (before, after):
        logprobs = made["meta_info"]["output_token_logprobs"]
        assert [item[1] for item in logprobs] == made["output_ids"]
        assert (len(logprobs), made["text"] != "") == (6, True)
        assert all(item[0] <= 0 for item in logprobs)
    assert call("GET", "/v1/loads?include=core")[1]["loads"][0]["num_total_reqs"] == 0


def test_vllm_s_trainers_generate_while_it_is_paused_and_resumed(call, model):
    """As prime-rl and SkyRL do."""
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "max_tokens": 6, "min_tokens": 6}
    sampling |= {"repetition_penalty": 1.0, "logprobs": 1, "skip_special_tokens": False, "stop_token_ids": [2]}
    asked = {"model": model, "token_ids": PROMPT, "sampling_params": sampling, "cache_salt": "1"}
    assert call("POST", "/pause?mode=keep&clear_cache=false")[0] == 200
    assert call("POST", "/reset_prefix_cache", {"reset_running_requests": False})[0] == 200
    assert call("POST", "/resume")[0] == 200
    status, made = call("POST", "/inference/v1/generate", asked)
    assert status == 200, made
    (choice,) = made["choices"]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == 6
    text = call("POST", "/detokenize", {"model": model, "tokens": choice["token_ids"]})[1]["prompt"]
    assert call("POST", "/tokenize", {"model": model, "prompt": "The capital of"})[1]["tokens"] == PROMPT
    assert text


def test_verifiers(environment, model):
    pytest.importorskip("verifiers", reason="verifiers is not installed: pip install 'verifiers>=0.4', without SGLang")
    assert 0 <= asyncio.run(importlib.import_module("verifiers_env").main(model, 1)) <= 1


def test_trl(environment, url, call, model):
    pytest.importorskip("trl", reason="TRL is not installed: pip install 'trl>=1.16' accelerate datasets")
    runpy.run_path(str(EXAMPLES / "trl_grpo.py"))["main"](url, model, model, 2)
    (run,) = [run for run in call("GET", "/runs")[1] if run["name"] == "trl-grpo"]
    assert (run["state"], run["version"], run["turns_completed"]) == ("closed", 1, 16)
