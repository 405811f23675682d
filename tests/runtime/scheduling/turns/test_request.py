import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.event_fields import AMOUNT_MAX
from rose.runtime.scheduling.refusals import RequestError
from rose.runtime.scheduling.turns.request import TOKENS_DEFAULT, Prompt, read

_IDS = st.lists(st.integers(0, 10**10 - 1), min_size=1, max_size=8)
_SEPARATORS = st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", "\t:\r\n ")])


@given(_IDS, _SEPARATORS, st.lists(st.integers(0, 10**6), max_size=5))
def test_ids_are_passed_on_with_what_was_made_so_far(ids, separators, output):
    labels = {"key": '"input_ids":[4]', "trajectory_id": 5, "step": 3}
    body = {"input_ids": ids, "sampling_params": {"input_ids": [3]}, "rose": labels}
    turn = read(json.dumps(body, separators=separators).encode())
    assert turn.prompt == Prompt.of(ids)
    assert json.loads(bytes(turn.prompt.with_ids(json.dumps(output)[1:-1].encode()))) == ids + output
    assert turn.sampling == {"input_ids": [3], "max_new_tokens": TOKENS_DEFAULT}
    assert (turn.labels.key, turn.labels.trajectory_id, turn.labels.step) == ('"input_ids":[4]', "5", 3)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("", "the body: "),
        ("[1, 2]", "the body: Expected `object`, got `array`"),
        ("null", "the body: "),
        ('{"input_ids": [1]} x', "the body: "),
        ('{"input_ids": "hidden"}', "input_ids: Expected `array`"),
        ('{"input_ids": []}', "input_ids: Expected `array` of length >= 1"),
        ('{"input_ids": ["hidden"]}', "input_ids.0: Expected `int`"),
        ('{"input_ids": [1, -2]}', "input_ids.1: Expected `int` >= 0"),
        ('{"input_ids": [1, 10000000000]}', "input_ids.1: Expected `int` <= 9999999999"),
        ('{"input_ids": [01]}', "the body: JSON is malformed"),
        ('{"input_ids": [1,, 2]}', "the body: JSON is malformed"),
        ('{"input_ids": ' + "[" * 100_000, "the body: "),
        ('{"input_ids": [1], "sampling_params": 3}', "sampling_params: Expected `object | null`"),
        (
            '{"input_ids": [1], "sampling_params": {"max_new_tokens": "many"}}',
            "sampling_params.max_new_tokens is 'many'",
        ),
        ('{"input_ids": [1], "sampling_params": {"max_new_tokens": 1.5}}', "sampling_params.max_new_tokens is 1.5"),
        ('{"input_ids": [1], "sampling_params": {"min_new_tokens": true}}', "sampling_params.min_new_tokens is True"),
        ('{"input_ids": [1], "rose": "t"}', "rose: Expected `object | null`"),
        ('{"input_ids": [1], "rose": {"key": ""}}', "rose.key: Expected `str` of length >= 1"),
        ('{"input_ids": [1], "rose": {"step": -1}}', "rose.step: Expected `int` >= 0"),
        # The turn would be made and answered, and missing in the ledger.
        (f'{{"input_ids": [1], "rose": {{"turn": {AMOUNT_MAX + 1}}}}}', "rose.turn: Expected `int` <= "),
        ('{"input_ids": [1], "stream": "whole"}', "stream: Expected `bool | null`"),
    ],
)
def test_what_is_no_turn_is_refused_by_its_field(body, named):
    with pytest.raises(RequestError) as refused:
        read(body.encode())
    assert str(refused.value).startswith(named)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        '{"text": "a"}',
        '{"input_ids": [ [1]]}',
        '{"input_ids": [1], "rid": "x"}',
        '{"input_ids": [1], "sampling_params": {"n": 2}}',
    ],
)
def test_a_body_that_asks_for_more_than_a_turn_s_tokens_is_none(body):
    assert read(body.encode()) is None
