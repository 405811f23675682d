from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.rollout.environments.arithmetic import Arithmetic, calculate


def question(environment, seed):
    return environment.reset(seed)[-1]["content"].removeprefix("What is ").removesuffix("?")


def call(expression):
    return f'<tool_call>{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}</tool_call>'


@given(seed=st.integers(0, 2**32), digits=st.integers(1, 6), terms=st.integers(2, 6))
def test_what_the_calculator_says_is_right(seed, digits, terms):
    environment = Arithmetic(digits, terms)
    expression = question(environment, seed)
    assert expression == question(environment, seed)
    (result,), reward, done, info = environment.step(call(expression))
    assert (result["role"], reward, done, info) == ("tool", 0.0, False, {"tool_calls": 1})
    assert int(result["content"]) == eval(expression)
    assert environment.step(f"Answer: {result['content']}")[1:3] == (1.0, True)
    assert environment.recheck()


ANSWERS = [
    ("Answer: {right}", True, True),
    ("It is {right}.", True, True),
    ("{right}", True, True),
    ("9 * 9 = {right}", True, True),
    ("12 is 13, so the answer is {right}", True, False),
    ("= 7, or {right}", True, False),
    ("Answer: {wrong}", False, None),
    ("", False, None),
    ("I do not know.", False, None),
]


@pytest.mark.parametrize(("answer", "accepted", "right"), ANSWERS)
def test_the_second_verdict_is_stricter(answer, accepted, right):
    environment = Arithmetic(digits=5)
    value = eval(question(environment, 3))
    _, reward, done, _ = environment.step(answer.format(right=value, wrong=value + 1))
    assert (reward == 1.0, done) == (accepted, True)
    assert right is None or environment.recheck() == right


@pytest.mark.parametrize(
    "given",
    [
        call("1 / 0"),
        call("2 ** 99999999"),
        call("__import__('os')"),
        call("1" * 1000),
        call("(" * 90 + "1" + ")" * 91),
        call("1e400 - x"),
        '<tool_call>{"name": "calculator"}</tool_call>',
        '<tool_call>{"name": "shell", "arguments": {"expression": "1"}}</tool_call>',
        '<tool_call>{"name": "calculator", "arguments": {"expression": 1}}</tool_call>',
        '<tool_call>{"name": "calculator", "arguments": "x"}</tool_call>',
        "<tool_call>{1: 2}</tool_call>",
    ],
)
def test_a_wrong_call_is_answered_with_an_error(given):
    environment = Arithmetic()
    environment.reset(0)
    (result,), reward, done, _ = environment.step(given)
    assert result["content"].startswith("error: ")
    assert (reward, done) == (0.0, False)


def test_the_calculator_is_exact():
    assert calculate("0.1 + 0.2") == Fraction(3, 10)
    assert calculate("-(7 - 9) / 3 * 1.5") == 1
