"""`.ci/house` counts the branches inside expressions, and accepts a stated reason."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[2] / ".ci"


@pytest.fixture(scope="module")
def complexity():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(CI)
        return importlib.import_module("complexity")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x", 1),
        ("if x:\n        return 1\n    return 2", 2),
        ("return 1 if x else 2", 2),
        ("return x and x > 1 or x is None", 3),
        ("return [y for y in x if y]", 3),
        ("for y in x:\n        print(y)", 2),
        ("def inner(y):\n        return 1 if y else 2\n    return inner", 2),
    ],
)
def test_branches_in_expressions_count(complexity, body, expected):
    assert complexity.complexity_of(ast.parse(f"def f(x):\n    {body}\n")) == expected


def test_a_reason_on_the_def_line_is_accepted(complexity, tmp_path):
    body = "    return " + " or ".join(f"x == {k}" for k in range(20)) + "\n"
    path = tmp_path / "file.py"
    path.write_text(f"def f(x):\n{body}")
    assert [one.name for one in complexity.complex_functions(path, "room")] == ["room:f"]
    path.write_text(f"def f(x):  # complexity: a table of cases\n{body}")
    assert not list(complexity.complex_functions(path, "room"))
