"""The requests of trainers that know SGLang, vLLM or an external rollout service, in the order in which they send them.

Each test sends what the trainer's source sends (paths, fields, headers) and reads the fields that the trainer reads."""

import asyncio

import pytest
import torch
from safetensors.torch import save_file

from tests.runtime.scheduling.gateway.conftest import WORDS
from tests.runtime.scheduling.stand_ins import call, open_run, post, publish, until

PROMPT = [WORDS.index("c"), WORDS.index("d")]
ABC = [WORDS.index(word) for word in "abc"]


@pytest.fixture
def stepped(tmp_path):
    """A checkpoint folder that a trainer wrote."""
    folder = tmp_path / "weight_v000001"
    folder.mkdir()
    save_file({"weight": torch.arange(64, dtype=torch.bfloat16) * 2}, folder / "model.safetensors")
    return folder


def requests_of(load):
    """Return the number of requests in an answer of /v1/loads, whose shape differs between versions of SGLang."""
    return sum(max(value for name, value in rank.items() if name.endswith("_reqs")) for rank in load["loads"])


async def test_slime(speaking, stepped):
    """Discover the engine, register it, generate by token ids, refit from disk, abort until idle, unregister."""
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
        assert (await call(session, "GET", "/get_weight_version"))[1]["weight_version"] == "1"

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


async def test_areal(speaking, stepped):
    """Pause keeping the tokens, update from disk aborting the rest, go on; an aborted turn is asked for again with its
    tokens until it has them all."""
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
    """Tokens in and out under a cache salt for each step; pause, update from a folder and resume without a body."""
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
    """Generate by token ids with a session, detokenize; freeze, drop the prefix cache and resume; chat."""
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
    """A request says which version may serve it; one that cannot be served yet is to be asked again."""
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
    """Completions of token ids for a model that is a run's, with a token id and a log probability for each."""
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
