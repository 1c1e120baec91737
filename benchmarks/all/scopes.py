"""Functions of a syntax tree: their parameters, decorators and local names."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.all.code_index import Definition, Target

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass
class Scope:
    """Names of a function or comprehension: locals with their numbers, and imports."""

    names: set[str]
    numbers: dict[str, int] = field(default_factory=dict)
    imports: dict[str, Target | None] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)


def parameter_list(arguments: ast.arguments) -> list[ast.arg]:
    """Return the parameters in the order of the signature."""
    starred = [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]


def is_property(method: Definition) -> bool:
    """Whether a method is read as an attribute."""
    decorators = getattr(method.nodes[0], "decorator_list", [])
    return any("property" in ast.unparse(one) for one in decorators)


def is_registration(decorator: ast.expr) -> bool:
    """Whether a decorator enters a function in a registry: its words belong to the registry."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(called, "id", "").startswith("register")


def bound_names(body: Iterable[ast.AST]) -> set[str]:
    """Return the names that the body of a function binds in its own scope."""
    found: set[str] = set()
    outer: set[str] = set()
    for node in body:
        _collect(node, found, outer)
    return found - outer


def _collect(node: ast.AST, found: set[str], outer: set[str], *, only_walrus: bool = False) -> None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        found.add(node.name)
        return
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.Global | ast.Nonlocal):
        outer.update(node.names)
    if isinstance(node, ast.NamedExpr):
        found.add(node.target.id)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del) and not only_walrus:
        found.add(node.id)
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        found.add(node.name)
    inside = only_walrus or isinstance(node, _COMPREHENSIONS)
    for child in ast.iter_child_nodes(node):
        _collect(child, found, outer, only_walrus=inside)
