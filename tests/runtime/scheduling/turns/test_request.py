"""Requests that are read without looking at each token id: no other than pydantic reads, and no other errors."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from rose.runtime.scheduling.messages import GenerateRequest, TurnLabels
from rose.runtime.scheduling.turns import request as requests
from rose.runtime.scheduling.turns.request import Labels, Prompt, read

_IDS = st.lists(st.one_of(st.integers(0, 200_000), st.integers(-2, 2**64)), max_size=8)
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-2, 2**64), st.floats(allow_nan=False), st.text(max_size=5))
_JSON = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
_NAMES = [*Labels.__struct_fields__, "input_ids"]
_LABELS = st.dictionaries(st.sampled_from(_NAMES), st.text(max_size=5) | st.integers(0, 9) | _SCALARS | _IDS)
_SAMPLING = st.dictionaries(
    st.sampled_from(["max_new_tokens", "min_new_tokens", "n", "temperature", "input_ids"]),
    st.integers(0, 2) | _SCALARS | _IDS,
)
_BODIES = st.fixed_dictionaries(
    {"input_ids": _IDS | _JSON},
    optional={
        "sampling_params": _SAMPLING | _JSON,
        "rose": _LABELS | _JSON,
        "stream": _SCALARS,
        "input_idz": _JSON,
        "": _JSON,
    },
)


def said(body: bytes) -> Any:
    """The request and its ids as pydantic reads them, or the errors that it names."""
    try:
        request = GenerateRequest.model_validate_json(body)
    except ValidationError as error:
        return error.errors(include_url=False)
    labels = request.rose or TurnLabels()
    return request.input_ids, request.sampling, labels.model_dump(), bool(request.stream)


def said_here(body: bytes) -> Any:
    try:
        request = read(body)
    except ValidationError as error:
        return error.errors(include_url=False)
    ids = json.loads(request.prompt.text)
    assert request.prompt == Prompt.of(ids)
    return ids, request.sampling, msgspec.structs.asdict(request.labels), request.stream


@given(_BODIES, st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", "\t:\r\n ")]))
@example({"input_ids": [1, 2], "sampling_params": {"input_ids": [3]}, "rose": {"key": '"input_ids":[4]'}}, (",", ":"))
@example({"input_ids": [9_999_999_999, 10_000_000_000]}, (",", ":"))
def test_a_request_is_read_as_pydantic_reads_it(body: dict[str, Any], separators: tuple[str, str]) -> None:
    text = json.dumps(body, separators=separators).encode()
    assert said_here(text) == said(text)


@pytest.mark.parametrize(
    "ids",
    [
        "[01]",
        "[1,,2]",
        "[1 2]",
        "[1,]",
        "[,1]",
        "[]",
        "[-1]",
        "[1.0]",
        "[1e3]",
        "[[1]]",
        '["1"]',
        "[1",
        "null",
        "5",
        "[1]]",
        "[1\x002]",
        '{"1":2}',
        "[true]",
        "[1,[2],3]",
        "[ ]",
        "9" * 30,
        "[" * 100_000,
        '["[1,2]"]',
    ],
)
def test_what_is_no_array_of_token_ids_is_refused_in_the_same_words(ids: str) -> None:
    text = f'{{"input_ids":{ids},"stream":false}}'.encode()
    assert isinstance(said(text), list)
    assert said_here(text) == said(text)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"null", b'{"input_ids":[1]} x', b"\xff", b'{"rose":{"step":-1}}'])
def test_what_is_no_request_is_refused_in_the_same_words(body: bytes) -> None:
    assert isinstance(said(body), list)
    assert said_here(body) == said(body)


def test_what_is_as_it_should_be_is_not_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    whole = GenerateRequest.model_validate_json
    monkeypatch.setattr(GenerateRequest, "model_validate_json", lambda text: seen.append(text) or whole(text))
    labels = b'{"trajectory_id": "t", "group_id": "g", "step": 1, "turn": 2, "version_min": 3, "key": "k"}'
    sampling = b'{"max_new_tokens": 5, "min_new_tokens": 1, "n": 1, "temperature": 0.5, "stop": ["x"]}'
    read(b'{"input_ids": [1, 2], "rose": %b, "sampling_params": %b, "stream": true}' % (labels, sampling))
    read(b'{"input_ids": [1, 2], "rose": null, "other": {}}')
    assert not seen
    with pytest.raises(ValidationError):
        read(b'{"input_ids": [1, -2]}')
    assert len(seen) == 1


def test_each_field_of_a_request_is_read() -> None:
    assert requests._Fields.__struct_fields__ == tuple(GenerateRequest.model_fields)
    assert Labels.__struct_fields__ == tuple(TurnLabels.model_fields)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5), st.lists(st.integers(0, 10**6), max_size=5))
def test_an_engine_gets_the_prompt_and_what_was_made_so_far(ids: list[int], made: list[int]) -> None:
    assert json.loads(bytes(Prompt.of(ids).with_ids(json.dumps(made)[1:-1].encode()))) == ids + made
