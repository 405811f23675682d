import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.scheduling.turns.answer import Answer, Tokens, array

RUN = "team/grpo"


def body(ids: list[int] | None, spans: list[dict[str, Any]] | None = None, **meta: Any) -> bytes:
    logprobs = None if ids is None else [[-token / 7, token, None] for token in ids]
    fields = {"output_token_logprobs": logprobs, "weight_versions": spans, **meta}
    return json.dumps({"text": "[1,2]", "output_ids": ids, "meta_info": fields}).encode()


def span(version: str | int, start: int, end: int) -> dict[str, Any]:
    return {"version": version, "start": start, "end": end}


def lists(tokens: Tokens) -> tuple[list[int], list[list[Any]], list[int]]:
    ids, logprobs = (json.loads(bytes(array(items))) for items in (tokens.ids, tokens.logprobs))
    assert tokens.count == len(ids)
    return ids, logprobs, tokens.versions


_VERSIONS = st.sampled_from(["7", f"{RUN}/8", "other/9", "default", 3])
_SPANS = st.lists(st.builds(span, _VERSIONS, st.integers(0, 9), st.integers(0, 9)), max_size=4)
_IDS = st.lists(st.integers(0, 200_000), max_size=8)


@given(_IDS, _SPANS)
def test_tokens_are_as_the_engine_wrote_them(ids, spans):
    answer = Answer.read(body(ids, spans, cached_tokens=5, finish_reason={"type": "length", "length": 8}))
    versions = [0] * len(ids)
    for given_span in spans:
        number = {"7": 7, f"{RUN}/8": 8, "other/9": 9, 3: 3}.get(given_span["version"])
        for index in range(given_span["start"], min(given_span["end"], len(ids))):
            versions[index] = versions[index] if number is None else number
    assert lists(answer.tokens) == (ids, [[-token / 7, token, None] for token in ids], versions)
    assert (answer.cached_tokens, answer.finish) == (5, "length")


@given(_IDS, _SPANS)
def test_what_another_runs_weights_made_and_all_after_it_is_not_the_runs_own(ids, spans):
    answer = Answer.read(body(ids, spans))
    own = answer.of_run(RUN)
    foreign = [item["start"] for item in spans if item["version"] == "other/9" and item["start"] < item["end"]]
    if not foreign:
        assert own is answer
        return
    end = min(foreign)
    assert lists(own.tokens) == tuple(part[:end] for part in lists(answer.tokens))
    assert json.loads(bytes(own.meta["weight_versions"])) == [item for item in spans if item["end"] <= end]


@given(st.lists(_IDS, max_size=4))
def test_attempts_follow_one_another(attempts):
    tokens = Tokens()
    for ids in attempts:
        tokens += Answer.read(body(ids, [span("7", 0, len(ids))])).tokens
    flat = [token for ids in attempts for token in ids]
    assert lists(tokens) == (flat, [[-token / 7, token, None] for token in flat], [7] * len(flat))


def test_an_engine_that_says_little_is_understood():
    for text in (b'{"meta_info": {}}', body(None), b'{"output_ids": [ ], "meta_info": {"weight_versions": null}}'):
        answer = Answer.read(text)
        assert (lists(answer.tokens), answer.cached_tokens, answer.finish) == (([], [], []), 0, None)
    ongoing = Answer.read(body([1, 2])).with_version(RUN, 8)
    assert (ongoing.tokens.versions, ongoing.of_run(RUN)) == ([8, 8], ongoing)
    named = Answer.read(body([1, 2], [span("7", 0, 2)]))
    assert named.with_version(RUN, 8) is named


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", b"null", b"{}", b'{"meta_info": []}'),
        b'{"meta_info": {}, "output_ids": 5}',
        b'{"meta_info": {"output_token_logprobs": {}}}',
        b'{"meta_info": {"weight_versions": [{"version": "7"}]}}',
        b'{"meta_info": {"weight_versions": [{"version": "7", "start": -1, "end": 2}]}}',
        b'{"meta_info": {"cached_tokens": "x"}}',
        b'{"meta_info": {"finish_reason": "length"}}',
        b'{"meta_info": {}} x',
        b'{"meta_info": {}',
        b'{"meta_info": {"x": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_answer_is_said_to_be_none(text):
    with pytest.raises(ValueError, match="not an answer of SGLang") as raised:
        Answer.read(text)
    assert not isinstance(raised.value, msgspec.MsgspecError)
