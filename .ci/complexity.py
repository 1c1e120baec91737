"""Cyclomatic complexity, with the branches that hide inside expressions.

A function starts with 1. Each `if`, loop, `except` and `case` adds 1, and so does each conditional
expression, each `and` or `or`, and each `for` and `if` of a comprehension. Nested functions count
as part of the function around them.

A function above the limit needs a reason on its `def` line: ``def f(x):  # complexity: a table of
cases``. Functions that were above it when the limit was set are listed in `.ci/exceptions.txt`,
which may only get shorter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIMIT = 15
_REASON = "# complexity:"
_BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
)


@dataclass(frozen=True)
class ComplexFunction:
    """A function above the limit, without a reason."""

    name: str
    place: str
    complexity: int


def complexity_of(function: ast.AST) -> int:
    """Count the branches of a function, plus 1."""
    total = 1
    for node in ast.walk(function):
        if isinstance(node, _BRANCHES):
            total += 1
        if isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        if isinstance(node, ast.comprehension):
            total += len(node.ifs)
    return total


def complex_functions(path: Path, room: str) -> Iterator[ComplexFunction]:
    """Yield the functions of a file that are above the limit and give no reason."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for name, function in _functions(ast.parse(text), ""):
        complexity = complexity_of(function)
        head = lines[function.lineno - 1 : function.body[0].lineno]
        has_reason = any(_REASON in line for line in head)
        if complexity > LIMIT and not has_reason:
            yield ComplexFunction(f"{room}:{name}", f"{path}:{function.lineno}", complexity)


def _functions(
    node: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield functions and methods with their qualified names, without nested functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)
