"""Signs that code may be hard to read: printed for each room, never a reason to fail.

The values of scikit-learn, for comparison: 6.6 tokens per line, 0.5 conditional expressions per 100
lines, 47% compound local names, 8% growth.
"""

from __future__ import annotations

import ast
import io
import shutil
import subprocess
import tempfile
import tokenize
from dataclasses import dataclass
from pathlib import Path

#: Tokens that are not code.
_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass
class Readability:
    """Counts of some files.

    Attributes
    ----------
    code_lines : int
        Lines with code: no docstring, comment or blank line.
    tokens, conditional_expressions : int
        Occurrences in these lines.
    local_names, compound_names : int
        Names that functions bind, and those of them made of several words, such as `fit_rows`.
    lines, lines_at_88 : int
        Lines as they are, and if formatted to 88 columns.
    """

    code_lines: int = 0
    tokens: int = 0
    conditional_expressions: int = 0
    local_names: int = 0
    compound_names: int = 0
    lines: int = 0
    lines_at_88: int = 0

    @property
    def row(self) -> str:
        """Tokens per line, conditional expressions per 100 lines, compound names, growth."""
        if not self.code_lines:
            return ""
        tokens = self.tokens / self.code_lines
        conditionals = 100 * self.conditional_expressions / self.code_lines
        compound = self.compound_names / max(1, self.local_names)
        growth = self.lines_at_88 / self.lines - 1
        return f"{tokens:>8.1f}{conditionals:>14.1f}{compound:>11.0%}{growth:>10.0%}"


HEADER = f"{'room':<14}{'tokens':>8}{'conditionals':>14}{'compound':>11}{'growth':>10}"
UNITS = f"{'':<14}{'a line':>8}{'/ 100 lines':>14}{'names':>11}{'at 88':>10}"


def measure_rooms(rooms: dict[str, list[Path]]) -> dict[str, Readability]:
    """Measure the files of each room."""
    found = {room: Readability() for room in rooms}
    with tempfile.TemporaryDirectory() as folder:
        copies: dict[str, list[Path]] = {room: [] for room in rooms}
        for room, paths in rooms.items():
            for number, path in enumerate(paths):
                _count(found[room], path.read_text(encoding="utf-8"))
                copy = Path(folder) / room / f"file_{number}.py"
                copy.parent.mkdir(exist_ok=True)
                copies[room].append(Path(shutil.copy(path, copy)))
        command = ["ruff", "format", "--isolated", "--quiet", "--line-length", "88", folder]
        subprocess.run(command, check=True)
        for room, paths in copies.items():
            for path in paths:
                found[room].lines_at_88 += path.read_text(encoding="utf-8").count("\n")
    return found


def _count(counts: Readability, text: str) -> None:
    """Add the counts of one file."""
    docstring_lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstring_lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.IfExp):
            counts.conditional_expressions += 1
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = _local_names(node)
            counts.local_names += len(names)
            counts.compound_names += sum("_" in name.strip("_") for name in names)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    lines = [token.start[0] for token in tokens if token.type not in _SILENT]
    code_lines = [line for line in lines if line not in docstring_lines]
    counts.tokens += len(code_lines)
    counts.code_lines += len(set(code_lines))
    counts.lines += text.count("\n")


def _local_names(function: ast.AST) -> set[str]:
    """Return the names that a function binds."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}
