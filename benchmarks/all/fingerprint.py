"""What a result was measured on, as a hash: the code of the modules it is about, without words and
layout.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What types are made of, where an assignment names one.
_TYPES = {"NDArray", "Float", "Flags", "Codes", "Array", "Callable", "tuple", "list", "dict"}
#: Fields of the syntax tree that say nothing about what is computed.
_SILENT = {"ctx", "kind", "type_comment", "type_ignores", "type_params", "returns", "annotation"}


def fingerprint(source: str) -> str:
    r"""Twelve digits of a hash of the code: comments, docstrings, annotations, types, imports and
    layout do not count.

    The tree is written out here rather than by `ast.dump`, whose text differs between versions of
    Python.

    Examples
    --------
    >>> one = fingerprint('def f(x: int) -> int:\n    "Words."\n    return x + 1  # more\n')
    >>> one == fingerprint("def f(x): return (x+1)")
    True
    >>> one == fingerprint("def f(x): return x + 2")
    False
    """
    return hashlib.sha256(_written(ast.parse(source)).encode()).hexdigest()[:12]


def _written(node: object) -> str:
    """A part of the tree as text; what is empty or silent is left out."""
    if isinstance(node, ast.AST):
        fields = {name: value for name, value in ast.iter_fields(node) if name not in _SILENT}
        body = fields.get("body")
        if isinstance(body, list):
            fields["body"] = [part for part in body if not _says_only(part)]
        told = (
            (name, _written(value)) for name, value in fields.items() if value not in (None, [])
        )
        return f"{type(node).__name__}({','.join(f'{name}={text}' for name, text in told)})"
    if isinstance(node, list):
        return f"[{','.join(map(_written, node))}]"
    return repr(node)


def _says_only(statement: object) -> bool:
    """Whether a statement is a docstring, an import, or something for type checkers alone, a type's
    name among it.
    """
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return True
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return isinstance(statement.value.value, str)
    if isinstance(statement, ast.If):
        return getattr(statement.test, "id", "") == "TYPE_CHECKING"
    return isinstance(statement, ast.Assign) and _is_type(statement.value)


def _is_type(value: ast.expr) -> bool:
    """Whether an expression is a type of arrays, or made of types: the name of an annotation.

    Examples
    --------
    >>> texts = "NDArray[np.intp] | None", "Callable[[Float], Curve]", "Codes | None", "table[0]", "x | y"
    >>> [_is_type(ast.parse(text).body[0].value) for text in texts]
    [True, True, True, False, False]
    """
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return _is_type(value.left) or _is_type(value.right)
    return getattr(value.value if isinstance(value, ast.Subscript) else value, "id", "") in _TYPES


def source_of(name: str, root: Path = ROOT) -> Path | None:
    """Find the file of a subject, `promises/rules/accuracy.py` or `benchmarks/cascade.py`; None if
    there is none.
    """
    places = (root / "src" / "metacal", root)
    return next((place / name for place in places if (place / name).is_file()), None)


def fingerprints_in(root: Path, subject: Iterable[str]) -> dict[str, str]:
    """Compute the fingerprint of each module of a subject in a tree of sources; empty if the file
    is not there.
    """
    found = {name: source_of(name, root) for name in subject}
    return {
        name: fingerprint(path.read_text(encoding="utf-8")) if path else ""
        for name, path in found.items()
    }


def fingerprints(subject: Iterable[str]) -> dict[str, str]:
    """Compute the fingerprint of the present code of each module; empty if the file is gone."""
    return fingerprints_in(ROOT, subject)


def changed(made: Mapping[str, str], subject: Iterable[str]) -> list[str]:
    """The modules of a subject whose code is not that of the stamp."""
    return [name for name, now in fingerprints(subject).items() if made.get(name) != now]
