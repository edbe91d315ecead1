"""The ``calculate`` tool: the arithmetic that τ²-bench passes to ``eval``, without ``eval``."""

import ast
import operator
from collections.abc import Callable

from grpo_cl.errors import ToolError

MAX_BITS = 10_000
"""Limit of integer size: a power of seven characters can block the process for minutes."""

Number = int | float

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def calculate(expression: str) -> str:
    """The value of an arithmetic expression, rounded to two places."""
    if not all(character in "0123456789+-*/(). " for character in expression):
        raise ToolError("Invalid characters in expression")
    try:
        tree = ast.parse(expression.lstrip(" "), filename="<string>", mode="eval")
        return str(round(float(_value(tree.body)), 2))
    except (SyntaxError, ArithmeticError) as error:
        raise ToolError(str(error)) from error
    except (RecursionError, MemoryError) as error:
        raise ToolError("Expression is nested too deeply") from error


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case _:
            raise ToolError("Only numbers, + - * / and parentheses can be calculated")


def _power(base: Number, exponent: Number) -> Number:
    bits = base.bit_length() if isinstance(base, int) else 0
    if isinstance(exponent, int) and bits * abs(exponent) > MAX_BITS:
        raise ToolError("Number is too large")
    result = base**exponent
    if isinstance(result, complex):
        raise ToolError("float() argument must be a string or a real number, not 'complex'")
    return result


def _bounded(number: Number) -> Number:
    if isinstance(number, int) and number.bit_length() > MAX_BITS:
        raise ToolError("Number is too large")
    return number
