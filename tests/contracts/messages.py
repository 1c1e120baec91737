"""Every error, warning and note of the package, one per line, in the order of the files.

The messages are read from the source with `ast`, so the list also contains messages that no test
triggers. Placeholders are shown as `{expression}`. A message that is assembled from local variables
or module constants is followed by one line for each of them, marked with the name of the variable.
`python tests/contracts/messages.py` writes `messages.txt`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "metacal"
LIST = Path(__file__).with_suffix(".txt")
REWRITE = (
    "The messages in the source differ from tests/contracts/messages.txt. Run"
    " `python tests/contracts/messages.py`, and read the difference before you commit it."
)
#: Names of the functions and classes whose text arguments are messages.
_BUILDS_MESSAGE = re.compile(r"(Error|Exception|_error|BadParameter)$|^bad_option$|^warn")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _called_name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _render(node: ast.expr) -> str | None:
    """Return the text of a string expression, or None if the expression holds no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_render_piece(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [_render(node.left), _render(node.right)]
        if sides == [None, None]:
            return None
        expressions = [ast.unparse(side) for side in (node.left, node.right)]
        return "".join(
            f"{{{expression}}}" if side is None else side
            for side, expression in zip(sides, expressions, strict=True)
        )
    return None


def _render_piece(node: ast.expr) -> str:
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    return _render(node) or ""


def _find_texts(node: ast.AST) -> Iterator[str]:
    """Yield the outermost string expressions that hold more than one word."""
    text = _render(node) if isinstance(node, ast.expr) else None
    if text is not None:
        if " " in text.strip():
            yield text.replace("\n", "\\n")
        return
    for child in ast.iter_child_nodes(node):
        yield from _find_texts(child)


def _iterate_without_inner_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _iterate_without_inner_functions(child)


def _collect_assigned_texts(nodes: Iterator[ast.AST]) -> dict[str, list[str]]:
    """Return the texts that are assigned to each variable."""
    texts: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    texts.setdefault(target.id, []).extend(_find_texts(node.value))
    return texts


def _is_note(function: _Function) -> bool:
    return any(
        isinstance(decorator, ast.Call) and _called_name(decorator) == "register_note"
        for decorator in function.decorator_list
    )


def _message_sources(function: _Function) -> Iterator[tuple[str, list[ast.expr]]]:
    """Yield the kind of each message of a function, and the expressions that build it."""
    for node in _iterate_without_inner_functions(function):
        if isinstance(node, ast.Call) and _BUILDS_MESSAGE.search(_called_name(node)):
            yield _called_name(node), [*node.args, *(word.value for word in node.keywords)]
        elif isinstance(node, ast.Return) and node.value is not None and _is_note(function):
            yield "note", [node.value]


def _function_lines(
    function: _Function, place: str, constants: dict[str, list[str]]
) -> Iterator[str]:
    local_texts = _collect_assigned_texts(_iterate_without_inner_functions(function))
    listed: set[str] = set()

    def variable_lines(expression: ast.AST) -> Iterator[str]:
        for node in ast.walk(expression):
            if not isinstance(node, ast.Name) or node.id in listed:
                continue
            listed.add(node.id)
            for text in local_texts.get(node.id) or constants.get(node.id, []):
                yield f"{place}: {node.id} = {text}"

    for kind, expressions in _message_sources(function):
        for expression in expressions:
            for text in _find_texts(expression):
                yield f"{place}: {kind}: {text}"
            yield from variable_lines(expression)


def collect_messages(package: Path = PACKAGE) -> list[str]:
    """Return the lines of the list: file, function, kind and text of each message."""
    lines: list[str] = []
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = _collect_assigned_texts(iter(tree.body))
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for function in sorted(functions, key=lambda one: one.lineno):
            place = f"{path.relative_to(package).as_posix()}:{function.name}"
            lines.extend(_function_lines(function, place, constants))
    return lines


if __name__ == "__main__":
    LIST.write_text("\n".join(collect_messages()) + "\n", encoding="utf-8")
