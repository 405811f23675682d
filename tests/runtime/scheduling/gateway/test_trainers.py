"""Each test sends what the source of a trainer sends, and reads the fields that it reads."""

import asyncio
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rose.transfer.codec.bits import digest, to_bits
from rose.transfer.wire.receiver import Receiver
from tests.runtime.scheduling.gateway.conftest import WORDS
from tests.runtime.scheduling.stand_ins import call, open_run, post, publish, until
from tests.transfer.sources.checkpoints import save_delta

PROMPT = [WORDS.index("c"), WORDS.index("d")]
ABC = [WORDS.index(word) for word in "abc"]


@pytest.fixture
def stepped(tmp_path):
    folder = tmp_path / "weight_v000001"
    folder.mkdir()
    save_file({"weight": torch.arange(64, dtype=torch.bfloat16) * 2}, folder / "model.safetensors")
    return folder


def requests_of(load):
    """Return the number of requests in an answer of /v1/loads, whose shape differs between versions of SGLang."""
    return sum(max(value for name, value in rank.items() if name.endswith("_reqs")) for rank in load["loads"])


async def test_slime(speaking, stepped):
    async with speaking("a " * 30) as (session, url, _, engine):
        assert (await call(session, "GET", "/health_generate"))[0] == 200
        info = (await call(session, "GET", "/server_info"))[1]
        assert (int(info["tp_size"]), int(info["pp_size"]), info["enable_memory_saver"]) == (1, 1, False)
        assert not info.get("disaggregation_mode")
        assert (await post(session, "/workers", {"url": url, "worker_type": "regular"}))[0] in range(200, 300)

        engine.pause_s = 0.03
        sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 30, "stop": None}
        sampling |= {"stop_token_ids": None, "skip_special_tokens": True, "no_stop_trim": True}
        sampling |= {"spaces_between_special_tokens": False, "sampling_seed": 1234}
        body = {"sampling_params": sampling, "return_logprob": True, "input_ids": PROMPT}

        async def generate():
            headers = {"X-SMG-Routing-Key": "b2b6"}
            async with session.post("/generate", json=body, headers=headers) as response:
                assert response.status == 200
                return await response.json()

        turn = asyncio.create_task(generate())
        await until(lambda: engine.running)
        assert engine.requests[-1]["sampling_params"]["spaces_between_special_tokens"] is False
        assert (await post(session, "/pause_generation", {}))[0] == 200
        partial = await turn
        assert (await call(session, "GET", "/flush_cache"))[0] == 200
        assert partial["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await post(session, "/update_weights_from_disk", {"model_path": str(stepped), "weight_version": "1"}))[
            1
        ]["success"]
        assert (await post(session, "/continue_generation", {}))[0] == 200
        for path in ("/get_weight_version", "/get_model_info"):
            assert (await call(session, "GET", path))[1]["weight_version"] == "1"

        engine.pause_s = 0.0
        made = await generate()
        assert made["text"] == " ".join("a" * 30)
        assert [item[1] for item in made["meta_info"]["output_token_logprobs"]] == [WORDS.index("a")] * 30
        assert made["meta_info"]["weight_version"] == "1"

        engine.pause_s = 0.03
        turn = asyncio.create_task(generate())
        await until(lambda: engine.running)
        (worker,) = (await call(session, "GET", "/workers"))[1]["workers"]
        assert worker["url"] == url
        assert (await post(session, "/abort_request", {"abort_all": True}))[0] == 200
        await turn
        load = (await call(session, "GET", "/v1/loads?include=core,disagg,queues"))[1]
        assert requests_of(load) == 0
        assert (await call(session, "DELETE", f"/workers/{worker['id']}"))[0] in range(200, 300)


async def test_slime_by_deltas(speaking, checkpoint, tmp_path):
    steps = [load_file(checkpoint / "model.safetensors")]
    copy, source = str(tmp_path / "copy"), tmp_path / "updates"
    source.mkdir()
    async with speaking(published=False) as (session, _, server, _):

        async def pull(version):
            body = {"local_checkpoint_dir": copy, "source_dir": str(source), "target_version": version}
            return await post(session, "/pull_weights", body)

        assert (await pull(0))[0] == 200
        for version, encoding in ((1, "xor"), (2, "overwrite"), (3, "xor")):
            steps.append({"weight": steps[-1]["weight"] + version})
            save_delta(source / f"weight_v{version:06d}", *steps[-2:], version, encoding)
            assert (await pull(version))[0] == 200
            assert (await post(session, "/pause_generation", {}))[0] == 200
            assert (await call(session, "GET", "/flush_cache"))[0] == 200
            body = {"model_path": copy, "weight_version": str(version)}
            for _ in range(2):  # The first answer may be lost.
                status, updated = await post(session, "/update_weights_from_disk", body)
                assert (status, updated.get("weight_version")) == (200, str(version)), updated
            assert (await post(session, "/continue_generation", {}))[0] == 200
        (run,) = server.controller.runs
        target = run.target
        receiver = Receiver(target.url, target.token, tmp_path / "fetched", run_id=run.run_id)
        staged = await asyncio.to_thread(receiver.fetch, 3, None)
        (piece,) = staged.manifests[-1].pieces
        assert piece.result_xxh3 == digest(to_bits("weight", steps[-1]["weight"]))

        other = save_delta(tmp_path / "other", *steps[:2], 7)
        for body, numbers in (
            ({"model_path": str(other)}, ("base_version 6", "version 7", "version is 3")),
            ({"model_path": str(other), "weight_version": 8}, ("weight_version is 8", "version 7")),
            ({"model_path": copy, "weight_version": "2"}, ("weight_version is 2", "version 3")),
        ):
            status, refused = await post(session, "/update_weights_from_disk", body)
            assert (status, [one for one in numbers if one not in refused["error"]["message"]]) == (409, [])
        for version, status, what in (
            (0, 409, "target_version is 0"),
            (4, 400, "weight_v000004"),
            (None, 400, "target_version is None"),
        ):
            answered, refused = await pull(version)
            assert (answered, what in refused["error"]["message"]) == (status, True)
        assert run.facts.version == 3


async def test_areal_by_lora(speaking, checkpoint, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "bias": "none", "init_lora_weights": True}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    base = tmp_path / "base"
    base.mkdir()
    weights = {"proj.weight": torch.zeros(2, 3, dtype=torch.bfloat16)}
    save_file(weights, base / "model.safetensors")
    (base / "config.json").write_text("{}")
    async with speaking(published=False, checkpoint=lambda _: base) as (session, _, server, engine):
        for version in (1, 2, 3):
            pair = {"lora_A": torch.ones(1, 3), "lora_B": torch.full((2, 1), float(version))}
            named = {f"base_model.model.proj.{name}.weight": tensor for name, tensor in pair.items()}
            save_file(named, adapter / "adapter_model.safetensors")
            assert (await post(session, "/pause_generation", {"mode": "retract"}))[0] == 200
            body = {"lora_name": f"policy-v{version}", "lora_path": str(adapter)}
            status, loaded = await post(session, "/load_lora_adapter", body)
            assert (status, loaded["success"], loaded["weight_version"]) == (200, True, str(version)), loaded
            status, _ = await post(session, "/unload_lora_adapter", {"lora_name": f"policy-v{version - 2}"})
            assert status == (200 if version == 3 else 400)
            assert (await post(session, "/continue_generation", {}))[0] == 200
        (run,) = server.controller.runs
        assert run.facts.adapters == {"policy-v2": 2, "policy-v3": 3}
        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}}
        _, made = await post(session, "/generate", body | {"lora_path": "policy-v2"})
        assert made["meta_info"]["weight_version"] == "3"
        assert "lora_path" not in engine.requests[-1]
        for name in ("policy-v1", "other", ["policy-v2"]):
            status, refused = await post(session, "/generate", body | {"lora_path": name})
            assert (status, "lora_path" in refused["error"]["message"]) == (400, True)
        status, refused = await post(
            session, "/load_lora_adapter", {"lora_name": "policy-v2", "lora_path": str(adapter)}
        )
        assert (status, "lora_name is 2, " in refused["error"]["message"]) == (409, True)
        target = run.target
        receiver = Receiver(target.url, target.token, tmp_path / "fetched", run_id=run.run_id)
        staged = await asyncio.to_thread(receiver.fetch, 3, None)
        (piece,) = staged.manifests[-1].pieces
        assert piece.result_xxh3 == digest(to_bits("w", torch.full((2, 3), 3.0, dtype=torch.bfloat16)))


async def test_areal(speaking, stepped):
    async with speaking("a " * 20) as (session, _, _, engine):
        assert (await call(session, "GET", "/health"))[0] == 200
        engine.pause_s = 0.02
        sampling = {"top_p": 1.0, "top_k": 100_000_000, "max_new_tokens": 20, "temperature": 1.0, "stop_token_ids": []}
        sampling |= {"ignore_eos": False, "skip_special_tokens": True, "frequency_penalty": 0.0}
        body = {"image_data": None, "sampling_params": sampling, "return_logprob": True, "stream": False}
        tokens, logprobs, reasons = [], [], []

        async def generate():
            while len(tokens) < 20 and (not reasons or reasons[-1] not in ("stop", "tool_calls", "length")):
                left = {"sampling_params": sampling | {"max_new_tokens": 20 - len(tokens)}}
                status, made = await post(session, "/generate", {**body, **left, "input_ids": [*PROMPT, *tokens]})
                assert status == 200
                meta = made["meta_info"]
                reasons.append(meta["finish_reason"]["type"])
                assert isinstance(meta["finish_reason"].get("message", ""), str)
                tokens.extend(item[1] for item in meta["output_token_logprobs"])
                logprobs.extend(item[0] for item in meta["output_token_logprobs"])

        turn = asyncio.create_task(generate())
        await until(lambda: engine.running)
        await asyncio.sleep(0.1)
        assert (await post(session, "/pause_generation", {"mode": "retract"}))[0] == 200
        body_of_update = {"model_path": str(stepped), "abort_all_requests": True}
        assert (await post(session, "/update_weights_from_disk", body_of_update))[1]["success"]
        assert (await post(session, "/continue_generation", {}))[0] == 200
        await turn
        assert (len(tokens), len(logprobs)) == (20, 20)
        assert reasons[0] == "abort"
        assert (await post(session, "/abort_request", {"abort_all": True}))[0] == 200
        refused = (await post(session, "/generate", body | {"input_ids": PROMPT, "lora_path": "policy-v1"}))[1]
        assert "lora_path" in refused["error"]["message"]


async def test_prime_rl(speaking, stepped):
    async with speaking("a b c <end>", finish={"type": "stop", "matched": 0}) as (session, _, _, engine):
        assert (await call(session, "GET", "/health"))[0] == 200
        cards = (await call(session, "GET", "/v1/models"))[1]["data"]
        (card,) = [card for card in cards if card["id"] == "words"]
        assert card["max_model_len"] == 64

        sampling = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 8, "min_tokens": 0, "repetition_penalty": 1.0}
        sampling |= {"stop_token_ids": [0], "logprobs": 1, "skip_special_tokens": False, "top_k": -1, "min_p": 0.0}
        sampling |= {"routed_experts_prompt_start": 2}
        body = {"model": "words", "token_ids": PROMPT, "sampling_params": sampling, "cache_salt": "0"}
        headers = {"X-Session-ID": "trace-1", "Authorization": "Bearer EMPTY"}

        async def generate():
            async with session.post("/inference/v1/generate", json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                return await response.json()

        (choice,) = (await generate())["choices"]
        assert choice["token_ids"] == [*ABC, 0]
        assert [one["logprob"] for one in choice["logprobs"]["content"]] == [-0.5] * 4
        assert (choice["finish_reason"], choice.get("routed_experts")) == ("stop", None)
        assert engine.requests[-1]["extra_key"] == "0"

        async with session.post("/pause", params={"mode": "keep", "clear_cache": "false"}) as response:
            assert response.status == 200
        turn = asyncio.create_task(generate())
        (stepped / "NCCL_READY").touch()
        assert (await post(session, "/update_weights", {"weight_dir": str(stepped)}))[0] == 200
        assert not turn.done()
        async with session.post("/resume") as response:
            assert response.status == 200
        (choice,) = (await turn)["choices"]
        assert choice["token_ids"] == [*ABC, 0]
        assert choice["meta_info"]["weight_version"] == "1"
        status, refused = await post(session, "/update_weights", {"weight_dir": None})
        assert (status, "weight_dir" in refused["error"]["message"]) == (400, True)


async def test_prime_rl_by_chat(speaking):
    """The token ids of a chat are where vLLM has them: those of the prompt beside the choices."""
    async with speaking() as (session, _, _, _):
        body = {"model": "words", "messages": [{"role": "user", "content": "a"}], "logprobs": True, "max_tokens": 3}
        body |= {"return_token_ids": True, "top_k": -1, "min_p": 0.0, "cache_salt": "0", "min_tokens": 0}
        _, made = await post(session, "/v1/chat/completions", body)
        assert made["prompt_token_ids"] == [1, 3, 2]
        (choice,) = made["choices"]
        assert choice["token_ids"] == ABC
        assert [one["logprob"] for one in choice["logprobs"]["content"]] == [-0.5] * 3


async def test_skyrl(speaking):
    async with speaking("a " * 20) as (session, _, _, engine):
        assert (await call(session, "GET", "/health"))[0] == 200
        headers = {"Content-Type": "application/json", "X-Session-ID": "17"}
        sampling = {"max_tokens": 20, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "logprobs": 0}
        sampling |= {"skip_special_tokens": True, "include_stop_str_in_output": True, "stop": None}
        body = {"sampling_params": sampling, "model": "default", "token_ids": PROMPT}

        async def generate():
            async with session.post("/inference/v1/generate", json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                return (await response.json())["choices"][0]

        engine.pause_s = 0.02
        turn = asyncio.create_task(generate())
        await until(lambda: engine.running)
        for path, options in (
            ("/pause", {"params": {"mode": "keep", "clear_cache": "false"}}),
            ("/reset_prefix_cache", {"json": {"reset_running_requests": False}}),
            ("/resume", {}),
        ):
            async with session.post(path, **options) as response:
                assert response.status == 200, (path, await response.text())
        choice = await turn
        assert (len(choice["token_ids"]), choice["finish_reason"]) == (20, "stop")
        assert len([one["logprob"] for one in choice["logprobs"]["content"]]) == 20
        body_of_tokens = {"model": "default", "tokens": choice["token_ids"]}
        assert (await post(session, "/detokenize", body_of_tokens))[1]["prompt"] == " ".join("a" * 20)
        asked = {"model": "default", "prompt": "a b", "add_special_tokens": True}
        assert (await post(session, "/tokenize", asked))[1]["tokens"] == [3, 4]
        asked = {"model": "default", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        _, made = await post(session, "/v1/chat/completions", asked)
        assert made["choices"][0]["message"]["content"] == "a a"
        # Weights come from a folder, or by `rose.client`: a group for NCCL is not what a fleet can join.
        info = {"names": ["weight"], "dtype_names": ["bfloat16"], "shapes": [[64]], "packed": True}
        status, refused = await post(session, "/update_weights", {"update_info": info})
        assert (status, "update_info" in refused["error"]["message"]) == (400, True)


async def test_an_external_rollout_service(speaking):
    async with speaking(finish={"type": "length"}) as (session, _, server, _):
        run = await open_run(session, model="words")
        base = f"/runs/{run['run_id']}"
        info = (await call(session, "GET", f"{base}/server_info"))[1]
        assert (info["ready"], info["applied"], info["reason"]) == (True, None, None)
        await publish(session, run, version=7)
        info = (await call(session, "GET", f"{base}/server_info"))[1]
        assert info["applied"] == f"{run['run_id']}/weight_v000007"
        assert (await call(session, "GET", f"{base}/health"))[0] == 200

        sampling = {"temperature": 1.0, "max_new_tokens": 3, "sampling_seed": 5}
        body = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True}
        headers = {"x-session-affinity": "group-3"}
        for wanted in ({"min_version": 6, "exact_version": None}, {"min_version": None, "exact_version": 7}):
            async with session.post(
                f"{base}/generate", json=body | {"weight_version": wanted}, headers=headers
            ) as response:
                meta = (await response.json())["meta_info"]
            assert (meta["weight_version"], meta["weight_version_start"], meta["weight_version_end"]) == ("7", 7, 7)
            assert ([item[1] for item in meta["output_token_logprobs"]], meta["finish_reason"]["type"]) == (
                ABC,
                "length",
            )
            assert meta["cached_tokens"] >= 0
        assert server.controller.trajectories.begin(f"{run['run_id']}/group-3") == 2

        chat = {"model": run["run_id"], "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
        chat |= {"temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}
        _, made = await post(session, "/v1/chat/completions", chat | {"weight_version": {"exact_version": 7}})
        assert (made["weight_version_start"], made["weight_version_end"]) == (7, 7)
        for path, asked in ((f"{base}/v1/chat/completions", chat), ("/generate", {**body, "model": run["run_id"]})):
            status, refused = await post(session, path, asked | {"weight_version": {"exact_version": 8}})
            assert (status, refused["error"]["type"]) == (409, "WeightVersionNotReady")


async def test_an_external_rollout_service_that_has_no_engine(speaking):
    async with speaking(devices={"d": "h"}, published=False) as (session, _, _, _):
        run = await open_run(session, model="words")
        for path in (f"/runs/{run['run_id']}/health", "/health_generate"):
            async with session.get(path) as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "1")
        info = (await call(session, "GET", f"/runs/{run['run_id']}/server_info"))[1]
        assert (info["ready"], "d" in info["reason"]) == (False, True)


async def test_a_server_of_tinker_s_kind(speaking):
    async with speaking() as (session, _, _, engine):
        run = await open_run(session, model="words")
        await publish(session, run)
        body = {"model": run["run_id"], "prompt": PROMPT, "n": 2, "seed": 7, "max_tokens": 3, "temperature": 1.0}
        body |= {"top_p": 1.0, "top_k": -1, "logprobs": True, "stream": False, "return_token_ids": True}
        async with session.post("/v1/completions", json=body, headers={"X-Session-ID": "s"}) as response:
            choices = (await response.json())["choices"]
        assert [(choice["token_ids"], choice["finish_reason"]) for choice in choices] == [(ABC, "stop")] * 2
        assert [choice["logprobs"]["token_logprobs"] for choice in choices] == [[-0.5] * 3] * 2
        assert sorted(request["sampling_params"]["sampling_seed"] for request in engine.requests) == [7, 8]
