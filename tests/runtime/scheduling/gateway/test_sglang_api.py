import pytest

from tests.runtime.scheduling.gateway.conftest import WORDS
from tests.runtime.scheduling.stand_ins import call, events, open_run, post, publish

IDS = [WORDS.index(word) for word in ("a", "b", "c")]


async def test_a_text_or_token_ids_become_a_text_and_token_ids(speaking):
    async with speaking("a b <end>") as (session, _, _, engine):
        status, made = await post(session, "/generate", {"text": "c d", "sampling_params": {"max_new_tokens": 3}})
        assert (status, made["text"], made["output_ids"]) == (200, "a b", [3, 4, 0])
        assert made["meta_info"]["finish_reason"] == {"type": "stop", "matched": 0}
        assert "output_token_logprobs" not in made["meta_info"]
        body = {"input_ids": IDS, "return_logprob": True, "return_text_in_logprobs": True, "rid": "mine"}
        _, made = await post(session, "/generate", body)
        assert made["meta_info"]["output_token_logprobs"] == [[-0.5, 3, "a"], [-0.5, 4, "b"], [-0.5, 0, "<end>"]]
        assert made["meta_info"]["id"] == "mine"
        assert engine.requests[-1]["input_ids"] == IDS


async def test_a_batch_and_several_samples_are_lists(speaking):
    async with speaking() as (session, _, _, engine):
        params = [{"max_new_tokens": 1}, {"max_new_tokens": 2}]
        _, made = await post(session, "/generate", {"text": ["a", "b"], "sampling_params": params, "rid": "x"})
        assert [one["text"] for one in made] == ["a", "a b"]
        assert [one["meta_info"]["id"] for one in made] == ["x_0", "x_1"]
        _, made = await post(session, "/generate", {"input_ids": [IDS], "sampling_params": {"n": 3}})
        assert len(made) == 3
        assert "n" not in engine.requests[-1]["sampling_params"]


async def test_a_stream_has_all_tokens_so_far_and_the_number_of_its_prompt(speaking):
    async with speaking() as (session, _, _, engine):
        engine.pause_s = 0.02
        async with session.post("/generate", json={"text": ["a", "b"], "stream": True}) as response:
            told = [event async for event in events(response)]
        for number in (0, 1):
            texts = [event["text"] for event in told if event["index"] == number]
            assert texts == sorted(texts, key=len)
            assert texts[-1] == "a b c"
        assert sum(event["meta_info"]["finish_reason"] is not None for event in told) == 2


async def test_turns_of_a_session_are_one_trajectory_and_extra_keys_reach_the_engine(speaking):
    async with speaking() as (session, _, server, engine):
        for headers, more in (({"X-Session-ID": "s"}, {}), ({"X-SMG-Routing-Key": "s"}, {}), ({}, {"session_id": "s"})):
            async with session.post(
                "/generate", json={"text": "a", "extra_key": "k", **more}, headers=headers
            ) as answer:
                assert answer.status == 200
        run_id = next(iter(server.controller.runs)).run_id
        path = f"/runs/{run_id}/generate"
        async with session.post(path, json={"input_ids": IDS}, headers={"X-Session-ID": "s"}) as answer:
            assert answer.status == 200
        assert server.controller.trajectories.begin(f"{run_id}/s") == 4
        assert engine.requests[-2]["extra_key"] == "k"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text and input_ids"),
        ({"text": "a", "top_logprobs_num": 2}, "top_logprobs_num"),
        ({"text": "a", "logprob_start_len": 0, "return_hidden_states": True}, "return_hidden_states"),
        ({"text": "a", "image_data": "x"}, "image_data"),
        ({"text": 5}, "text"),
        ({"input_ids": [[1], "x"]}, "input_ids"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens"),
        ({"text": "a", "sampling_params": {"n": 0}}, "sampling_params.n"),
        ({"text": "a", "sampling_params": [{}, {}]}, "sampling_params"),
        ({"text": ["a"] * 5000}, "5000"),
        ({"text": "a", "rid": 5}, "rid"),
        ({"text": "a", "sampling_params": {"stop": ""}}, "sampling_params.stop"),
        ({"text": "a", "sampling_params": {"stop": ["x", ""]}}, "sampling_params.stop"),
        ({"text": "a", "rose": {"step": "x"}}, "rose"),
        ({"text": ["a", "b"], "rose": {"key": "k"}}, "rose.key"),
        ({"text": "a", "weight_version": {"least": 1}}, "weight_version"),
        ({"text": "a", "weight_version": {"min_version": "new"}}, "weight_version.min_version"),
    ],
)
async def test_what_is_wrong_or_not_supported_is_refused_by_name(speaking, body, field):
    async with speaking() as (session, _, server, engine):
        status, answer = await post(session, "/generate", body)
        assert (status, answer["error"]["code"]) == (400, 400)
        assert field in answer["error"]["message"]
        assert engine.requests == []
        assert not any(load.turns for load in server.controller.loads.values())


async def test_a_version_that_is_not_there_is_not_ready_and_an_answer_names_its_versions(speaking):
    async with speaking() as (session, _, server, _):
        run = await open_run(session, model="words")
        await publish(session, run, version=7)
        path = f"/runs/{run['run_id']}/generate"
        for wanted in ({"min_version": 7}, {"exact_version": f"{run['run_id']}/weight_v000007"}):
            status, made = await post(session, path, {"text": "a", "weight_version": wanted})
            assert (status, made["meta_info"]["weight_version_start"], made["meta_info"]["weight_version"]) == (
                200,
                7,
                "7",
            )
        for wanted in ({"min_version": 8}, {"exact_version": 6}, {"exact_version": 8}):
            status, refused = await post(session, path, {"text": "a", "weight_version": wanted})
            assert (status, "WeightVersionNotReady" in refused["error"]["message"]) == (409, True)
        assert not server.controller.loads[run["run_id"]].turns


async def test_the_path_of_a_run_takes_texts_and_plain_turns(speaking):
    async with speaking() as (session, _, _, _):
        run = await open_run(session, model="words")
        await publish(session, run)
        path = f"/runs/{run['run_id']}"
        _, made = await post(session, f"{path}/generate", {"text": "a"})
        assert made["text"] == "a b c"
        _, made = await post(session, f"{path}/generate", {"input_ids": [3]})
        assert "text" not in made
        _, made = await post(session, f"{path}/v1/completions", {"prompt": "a"})
        assert made["choices"][0]["rose"]["run_id"] == run["run_id"]
        assert (await call(session, "GET", f"{path}/get_model_info"))[1]["run_id"] == run["run_id"]
        assert (await post(session, "/runs/none/generate", {"text": "a"}))[0] == 404


async def test_a_model_without_a_tokenizer_takes_token_ids(speaking, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    async with speaking(checkpoint=lambda _: tmp_path) as (session, _, _, _):
        status, made = await post(session, "/generate", {"input_ids": IDS, "return_logprob": True})
        assert (status, "text" in made, made["output_ids"]) == (200, False, [3, 4, 5])
        for path, body in (("/generate", {"text": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user"}]})):
            status, refused = await post(session, path, body)
            assert (status, "no tokenizer" in refused["error"]["message"]) == (400, True)


async def test_token_ids_and_texts_of_the_model(speaking):
    async with speaking() as (session, _, _, _):
        _, made = await post(session, "/tokenize", {"prompt": "a b"})
        assert (made["tokens"], made["count"], made["max_model_len"]) == ([3, 4], 2, 64)
        _, made = await post(session, "/tokenize", {"messages": [{"role": "user", "content": "a"}]})
        assert made["tokens"] == [1, 3, 2]
        assert (await post(session, "/detokenize", {"tokens": [3, 4]}))[1]["text"] == "a b"
        assert (await post(session, "/tokenize", {"text": "a"}))[0] == 400


async def test_tokens_in_and_tokens_out(speaking):
    async with speaking() as (session, _, _, engine):
        params = {"n": 2, "max_tokens": 2, "logprobs": 1, "temperature": 0.5, "detokenize": False}
        body = {"request_id": "r", "model": "words", "token_ids": IDS, "sampling_params": params, "cache_salt": "v1"}
        status, made = await post(session, "/inference/v1/generate", body)
        assert (status, made["request_id"]) == (200, "r")
        assert [choice["token_ids"] for choice in made["choices"]] == [[3, 4]] * 2
        assert [one["logprob"] for one in made["choices"][0]["logprobs"]["content"]] == [-0.5, -0.5]
        sampling = {"max_new_tokens": 2, "temperature": 0.5}
        assert engine.requests[-1]["sampling_params"] == sampling
        assert engine.requests[-1]["extra_key"] == "v1"
        async with session.post("/inference/v1/generate", json=body | {"stream": True}) as response:
            told = [event["choices"][0] async for event in events(response)]
        made = [token for choice in told if choice["index"] == 1 for token in choice["token_ids"]]
        assert made == [3, 4]
        for wrong in ({"token_ids": []}, {"sampling_params": {"prompt_logprobs": 1}}, {"features": "x"}, {"odd": 1}):
            status, refused = await post(session, "/inference/v1/generate", body | wrong)
            (name,) = wrong
            assert (status, name in refused["error"]["message"]) == (400, True)
