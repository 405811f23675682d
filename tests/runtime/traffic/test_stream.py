import asyncio
from collections.abc import AsyncIterator

import pytest

from rose.runtime.traffic.prompts import WORDS, prompt_text
from rose.runtime.traffic.stream import Arrivals, StreamError, follow


def run(*lines: str) -> Arrivals:
    async def stream() -> AsyncIterator[bytes]:
        for line in lines:
            yield line.encode() + b"\n"

    arrivals = Arrivals(0)
    asyncio.run(follow(stream(), arrivals))
    return arrivals


def test_times_of_tokens() -> None:
    at_once = Arrivals(0)
    at_once.add(70, 8)
    assert (at_once.ttft_ns, at_once.tpot_mean_ns, at_once.tpot_max_ns) == (70, 0, 0)
    arrivals = Arrivals(sent_ns=1000)
    assert (arrivals.ttft_ns, arrivals.tpot_mean_ns, arrivals.tpot_max_ns) == (None, None, None)
    arrivals.add(1100, 1)
    assert (arrivals.ttft_ns, arrivals.tpot_mean_ns, arrivals.tpot_max_ns) == (100, None, None)
    arrivals.add(1150, 2)
    arrivals.add(1160, 0)
    arrivals.add(1400, 1)
    assert arrivals.tokens == 4
    assert (arrivals.ttft_ns, arrivals.tpot_mean_ns, arrivals.tpot_max_ns) == (100, 100, 250)


def test_the_closing_total_counts_tokens_but_is_no_arrival() -> None:
    arrivals = run(
        ": a comment",
        'data: {"choices": [{"text": "a b"}]}',
        "",
        'data: {"choices": [{"text": "", "finish_reason": "length"}]}',
        'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}',
        "data: [DONE]",
    )
    assert (arrivals.tokens, arrivals.timed_tokens, arrivals.prompt_tokens) == (3, 1, 9)
    assert len(arrivals.times_ns) == 1


@pytest.mark.parametrize(
    ("details", "cached"), [('{"cached_tokens": 7}', 7), ('{"cached_tokens": 0}', 0), ("null", None)]
)
def test_what_was_in_the_prefix_cache_is_known_where_the_server_says_so(details: str, cached: int | None) -> None:
    arrivals = run(
        'data: {"choices": [{"text": "a", "finish_reason": "length"}], "usage": {"completion_tokens": 1}}',
        'data: {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": ' + details + "}}",
        "data: [DONE]",
    )
    assert (arrivals.prompt_tokens, arrivals.cached_tokens) == (9, cached)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["data: [1]"], "invalid chunk"),
        (["data: {not json"], "invalid JSON: b'{not json'"),
        (['data: {"choices": [{"text": "x", "finish_reason": "abort"}]}', "data: [DONE]"], "aborted .* after 1 tokens"),
        (["data: [DONE]"], "DONE\\] after 0 tokens without a finish_reason"),
        (['data: {"error": "busy"}'], "server sent an error: busy"),
        ([], "ended after 0 tokens without"),
    ],
)
def test_what_is_not_a_completed_stream(lines: list[str], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        run(*lines)


def test_prompts_have_a_word_for_each_token() -> None:
    assert len(set(WORDS)) == len(WORDS)
    for tokens in (1, 7, 500):
        text = prompt_text("seed", tokens)
        assert text == prompt_text("seed", tokens)
        assert len(text.split(" ")) == tokens
