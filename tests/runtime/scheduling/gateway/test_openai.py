import json

import openai
import pytest
import xgrammar

from rose.runtime.scheduling.gateway.texts import tool_calls
from tests.runtime.scheduling.gateway.conftest import CALL, WORDS
from tests.runtime.scheduling.stand_ins import until

USER = [{"role": "user", "content": "a"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def client(url, key="none"):
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def test_a_completion_of_a_text_or_of_token_ids(speaking):
    async with speaking("a b <end>") as (_, url, _, engine), client(url) as ai:
        made = await ai.completions.create(model="words", prompt="c d", max_tokens=5, logprobs=1, seed=3)
        (choice,) = made.choices
        assert (choice.text, choice.finish_reason) == ("a b", "stop")
        assert choice.logprobs.token_logprobs == [-0.5] * 3
        assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (2, 3)
        assert engine.requests[-1]["input_ids"] == [WORDS.index("c"), WORDS.index("d")]
        assert engine.requests[-1]["sampling_params"]["sampling_seed"] == 3
        made = await ai.completions.create(
            model="words", prompt=[[3], [4, 5]], n=2, extra_body={"return_token_ids": True, "top_k": 4}
        )
        assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
        assert [choice.prompt_token_ids for choice in made.choices] == [[3], [3], [4, 5], [4, 5]]
        assert made.choices[0].token_ids == [3, 4, 0]
        assert made.usage.prompt_tokens == 3
        assert engine.requests[-1]["sampling_params"]["top_k"] == 4


async def test_a_chat_by_the_model_s_own_template(speaking):
    async with speaking() as (_, url, _, engine), client(url) as ai:
        made = await ai.chat.completions.create(model="words", messages=USER, logprobs=True)
        assert made.choices[0].message.content == "a b c"
        assert [one.token for one in made.choices[0].logprobs.content] == ["a", "b", "c"]
        assert engine.requests[-1]["input_ids"] == [WORDS.index(word) for word in ("<user>", "a", "<model>")]
        assert engine.requests[-1]["sampling_params"]["max_new_tokens"] == 64 - 3 - 1
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]
        await ai.chat.completions.create(model="words", messages=[{"role": "user", "content": parts}], max_tokens=1)
        assert engine.requests[-1]["input_ids"] == [WORDS.index(word) for word in ("<user>", "a", "b", "<model>")]


async def test_a_tool_is_called_and_answered(speaking):
    says = f"a <tool_call> {CALL} </tool_call> <end>"
    async with speaking(says) as (_, url, _, engine), client(url) as ai:
        made = await ai.chat.completions.create(model="words", messages=USER, tools=[TOOL])
        (choice,) = made.choices
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "a")
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
        assert engine.requests[-1]["input_ids"][0] == WORDS.index("<tools>")
        answered = [*USER, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "b"}]
        await ai.chat.completions.create(model="words", messages=answered, tools=[TOOL], tool_choice="none")
        assert WORDS.index("<tools>") not in engine.requests[-1]["input_ids"]


def fits(sampling, text):
    matcher = xgrammar.GrammarMatcher(
        xgrammar.GrammarCompiler(
            xgrammar.TokenizerInfo(["<end>", *map(chr, range(1, 128))], stop_token_ids=[0])
        ).compile_structural_tag(sampling["structural_tag"])
    )
    return matcher.accept_string(text) and matcher.accept_token(0)


async def test_an_answer_that_must_call_a_tool_can_do_nothing_else(speaking):
    says = f"<tool_call> {CALL} </tool_call> <end>"
    number = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": name, "parameters": number}} for name in ("add", "sub")]
    add, sub, other, wrong = (
        f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": {value}}}}}\n</tool_call>'
        for name, value in (("add", 1), ("sub", 2), ("mul", 3), ("add", '"x"'))
    )
    named = {"type": "function", "function": {"name": "sub"}}
    async with speaking(says) as (_, url, _, engine), client(url) as ai:
        for choice, may, may_not in (
            ("required", (add, sub, f"{add}\n{sub}"), ("", "a", f"a {add}", other, wrong)),
            (named, (sub,), ("", "a", add, other, f"{sub}\n{sub}")),
        ):
            made = await ai.chat.completions.create(model="words", messages=USER, tools=tools, tool_choice=choice)
            assert made.choices[0].finish_reason == "tool_calls"
            sampling = engine.requests[-1]["sampling_params"]
            assert [fits(sampling, text) for text in (*may, *may_not)] == [True] * len(may) + [False] * len(may_not)
            assert [tool_calls(text)[0] for text in may] == [""] * len(may)
        count = len(engine.requests)
        for more in (
            {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "mul"}}},
            {"tools": tools, "tool_choice": "always"},
            {"tool_choice": "required"},
            {"tools": tools, "tool_choice": "required", "response_format": {"type": "json_object"}},
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await ai.chat.completions.create(model="words", messages=USER, **more)
            assert refused.value.body["param"] == "tool_choice"
        assert len(engine.requests) == count


@pytest.mark.parametrize("tools", [None, [TOOL]])
async def test_a_stream_says_what_the_whole_answer_says(speaking, tools):
    more = {} if tools is None else {"tools": tools}
    says = f"a b <tool_call> {CALL} </tool_call> <end>" if tools else "a b c <end>"
    async with speaking(says) as (_, url, _, _), client(url) as ai:
        whole = (await ai.chat.completions.create(model="words", messages=USER, **more)).choices[0]
        options = {"include_usage": True}
        told = [
            chunk
            async for chunk in await ai.chat.completions.create(
                model="words", messages=USER, stream=True, stream_options=options, **more
            )
        ]
        usage, deltas = told[-1].usage, [chunk.choices[0] for chunk in told[:-1]]
        assert "".join(choice.delta.content or "" for choice in deltas).strip() == whole.message.content
        assert deltas[-1].finish_reason == whole.finish_reason
        called = [call.function.name for choice in deltas for call in choice.delta.tool_calls or []]
        assert called == [call.function.name for call in whole.message.tool_calls or []]
        assert usage.completion_tokens == len(says.split())


async def test_a_stop_string_is_left_out_and_no_stream_tells_a_part_of_it(speaking):
    async with speaking("a b stop", {"type": "stop", "matched": "b stop"}) as (_, url, _, _), client(url) as ai:
        ask = {"model": "words", "prompt": "a", "stop": ["b stop"]}
        whole = (await ai.completions.create(**ask)).choices[0]
        assert (whole.text, whole.matched_stop) == ("a ", "b stop")
        parts = [chunk.choices[0].text async for chunk in await ai.completions.create(**ask, stream=True)]
        assert "".join(parts) == "a "
        kept = (await ai.completions.create(**ask, extra_body={"no_stop_trim": True})).choices[0]
        assert kept.text == "a b stop"


async def test_a_schema_becomes_the_engine_s_grammar(speaking):
    async with speaking() as (_, url, _, engine), client(url) as ai:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        await ai.chat.completions.create(model="words", messages=USER, response_format=wanted)
        assert json.loads(engine.requests[-1]["sampling_params"]["json_schema"]) == schema
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.chat.completions.create(model="words", messages=USER, response_format={"type": "odd"})
        assert "response_format" in refused.value.body["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", True),
        ("best_of", 3),
        ("suffix", "x"),
        ("logprobs", 5),
        ("n", 0),
        ("unheard_of", 1),
        ("temperature", "x"),
    ],
)
async def test_a_field_that_is_not_supported_is_refused_by_name(speaking, field, value):
    async with speaking() as (_, url, _, engine), client(url) as ai:
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.completions.create(model="words", prompt="a", extra_body={field: value})
        assert field in refused.value.body["param"]
        assert field in refused.value.body["message"]
        assert engine.requests == []


@pytest.mark.parametrize("prompt", ["", [], [-1], [[1], "x", 2], [1, "x"], {"a": 1}, None, True, [None]])
async def test_a_prompt_that_is_none_is_refused_once_and_by_its_name(speaking, prompt):
    async with speaking() as (session, _, _, engine):
        async with session.post("/v1/completions", json={"prompt": prompt}) as response:
            error = (await response.json())["error"]
        assert (response.status, error["param"], error["message"].count("prompt")) == (400, "prompt", 1)
        assert engine.requests == []


async def test_log_probabilities_of_the_tokens_alone_have_two_names(speaking):
    async with speaking() as (_, url, _, _), client(url) as ai:
        for logprobs, there in ((0, True), (1, True), (True, True), (False, False), (None, False)):
            made = await ai.completions.create(model="words", prompt="a", extra_body={"logprobs": logprobs})
            assert (made.choices[0].logprobs is not None) == there


async def test_a_model_is_the_fleet_s_or_a_run(speaking):
    async with speaking(published=False) as (_, url, server, _), client(url) as ai:
        await ai.completions.create(model="words", prompt="a")
        (run,) = server.controller.runs
        assert (run.facts.version, run.facts.tags, run.facts.staleness_max) == (0, {"token": "anyone"}, 0)
        made = await ai.completions.create(model=run.run_id, prompt="a")
        assert made.choices[0].rose["run_id"] == run.run_id
        assert [model.id async for model in ai.models.list()] == ["words", run.run_id]
        assert (await ai.models.retrieve("words")).id == "words"
        for call in (ai.models.retrieve("wards"), ai.completions.create(model="wards", prompt="a")):
            with pytest.raises(openai.NotFoundError) as refused:
                await call
            assert "wards" in refused.value.body["message"]
        assert len(list(server.controller.runs)) == 1


async def test_a_client_has_a_run_of_each_of_the_fleet_s_models_that_it_names(speaking):
    async with speaking(published=False, models=["words", "more"]) as (_, url, server, _), client(url) as ai:
        for model in ("more", "words", "more"):
            made = await ai.completions.create(model=model, prompt="a")
            assert server.controller.runs.get(made.choices[0].rose["run_id"]).facts.model == model
        assert len(list(server.controller.runs)) == 2


async def test_a_client_that_leaves_a_stream_takes_its_turns_along(speaking):
    async with speaking("a " * 50) as (_, url, server, engine), client(url) as ai:
        engine.pause_s = 0.05
        async for _chunk in await ai.completions.create(
            model="words", prompt="a", max_tokens=50, n=2, stream=True, extra_body={"return_token_ids": True}
        ):
            break
        await ai.close()
        await until(lambda: not engine.running)
        (run,) = server.controller.runs
        await until(lambda: not server.controller.loads[run.run_id].turns)
        assert len(engine.aborted) == 2


async def test_a_body_that_is_wrong_is_refused_in_the_same_form(speaking):
    async with speaking() as (session, _, _, _):
        for body in (b"{", b"[]", b'{"model": "words"}', b'{"prompt": []}', b'{"prompt": ""}', b'{"prompt": [-1]}'):
            async with session.post("/v1/completions", data=body) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (400, 400)
