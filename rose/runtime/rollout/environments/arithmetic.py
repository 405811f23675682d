"""Arithmetic tasks, with a calculator as a tool."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from rose.runtime.rollout.environments.tool_calls import calls_in, format_call, parse

EXPRESSION_LENGTH_MAX = 200

#: A small model follows examples better than instructions.
_EXAMPLES = (("12 * 34", "408"), ("71 - 25", "46"), ("8 + 96", "104"))

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_RESULT = re.compile(rf"(?:=|answer(?:\s+is)?\s*:?|is)\s*\**({_NUMBER.pattern})", re.IGNORECASE)
_OPERATORS: dict[type, Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class Arithmetic:
    """Tasks with `terms` numbers of `digits` digits. The verdict compares the answer's last number with the result."""

    verifier = "arithmetic-result"
    verifier_version = "1"
    threshold = 1.0

    def __init__(self, digits: int = 2, terms: int = 2) -> None:
        if digits < 1 or terms < 2:
            raise ValueError(f"digits is {digits} and terms is {terms}: give at least 1 digit and 2 terms")
        self._digits, self._terms = digits, terms

    def reset(self, seed: int) -> list[dict[str, str]]:
        draw = random.Random(seed)  # noqa: S311
        numbers = [draw.randrange(10 ** (self._digits - 1), 10**self._digits) for _ in range(self._terms)]
        signs = [draw.choice("+-*") for _ in numbers[1:]]
        self._products = _products(numbers, signs)
        self._expression = str(numbers[0])
        for sign, number in zip(signs, numbers[1:], strict=True):
            self._expression += f" {sign} {number}"
        examples = [message for expression, result in _EXAMPLES for message in _exchange(expression, result)]
        return [*examples, _question(self._expression)]

    def step(self, answer: str) -> tuple[list[dict[str, str]], float, bool, Mapping[str, Any]]:
        if calls := calls_in(answer):
            results = [{"role": "tool", "content": _call_tool(call)} for call in calls]
            return results, 0.0, False, {"tool_calls": len(calls)}
        self._answer = answer
        numbers = _NUMBER.findall(answer)
        right = bool(numbers) and _value(numbers[-1]) == calculate(self._expression)
        return [], float(right), True, {}

    def recheck(self) -> bool:
        results = _RESULT.findall(self._answer) or _NUMBER.findall(self._answer)[-1:]
        return {_value(result) for result in results} == {Fraction(sum(self._products))}


def _question(expression: str) -> dict[str, str]:
    return {"role": "user", "content": f"What is {expression}?"}


def _exchange(expression: str, result: str) -> list[dict[str, str]]:
    return [
        _question(expression),
        {"role": "assistant", "content": format_call("calculator", {"expression": expression})},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": f"Answer: {result}"},
    ]


def _products(numbers: list[int], signs: list[str]) -> list[int]:
    products = [numbers[0]]
    for sign, number in zip(signs, numbers[1:], strict=True):
        if sign == "*":
            products[-1] *= number
        else:
            products.append(number if sign == "+" else -number)
    return products


def _call_tool(call: str) -> str:
    try:
        name, arguments = parse(call)
        if name != "calculator":
            return f"error: unknown tool {name!r}, give 'calculator'"
        value = calculate(arguments["expression"])
    except (ValueError, TypeError, KeyError, SyntaxError, ZeroDivisionError, RecursionError) as error:
        return f"error: {error}"
    return str(value) if value.denominator == 1 else str(float(value))


def calculate(expression: str) -> Fraction:
    """Return the exact value of an expression with + - * /. Raises ValueError, SyntaxError or ZeroDivisionError."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise ValueError(f"the expression has {len(expression)} characters, more than {EXPRESSION_LENGTH_MAX}")
    return _evaluate(ast.parse(expression.strip(), mode="eval").body)


def _evaluate(node: ast.AST) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as value):
            return Fraction(str(value))
        case ast.BinOp(left, kind, right) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_evaluate(left), _evaluate(right))
        case ast.UnaryOp(kind, operand) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_evaluate(operand))
    raise ValueError(f"the calculator takes numbers, + - * / and brackets, not {type(node).__name__}")


def _value(number: str) -> Fraction:
    return Fraction(number.replace(",", ""))
