"""The tables of `benchmarks/selective/held_out.py`."""

from __future__ import annotations

from typing import Any

from benchmarks.selective.rules import RULES
from benchmarks.tables.markdown import number, table

Results = dict[str, Any]
Cells = dict[tuple[str, float, int], dict[str, Any]]

#: The rules of the tables; the result holds more.
_SHOWN = ("certified", "sgr", "ltt-sequence", "ltt-bonferroni", "ltt-sequence-even", "ltt-bonferroni-even", "plug-in")
#: Differences of mean coverage below this are no difference.
_SAME = 5e-5


def by_cell(results: Results) -> Cells:
    """Group the rows of a result: (set, target, size) -> rule -> row."""
    cells: Cells = {}
    for row in results["rows"]:
        cells.setdefault((row["set"], row["beta"], row["n"]), {})[row["rule"]] = row
    return cells


def comparison(results: Results) -> list[str]:
    """Coverage and violation rate of every set, target and size; the valid rule that accepts most in bold."""
    lines = []
    for (name, beta, n), cell in by_cell(results).items():
        best = max(row["coverage"] for row in cell.values() if row["valid"])
        oracle = number(cell["certified"]["oracle"], 3)
        lines.append([f"`{name}`", f"{beta:g}", f"{n:,}", oracle, *(_cell(cell[rule], best) for rule in _SHOWN)])
    titles = [RULES[rule].title + ("" if RULES[rule].valid else " ✗") for rule in _SHOWN]
    return table(["set", "beta", "n", "oracle", *titles], lines)


def leads(results: Results) -> list[str]:
    """How much more than each valid rival the certified rule accepts, and in how many cells."""
    cells = list(by_cell(results).values())
    lines = []
    for rival in (rule for rule in _SHOWN if RULES[rule].valid and rule != "certified"):
        lead = [cell[rival]["lead"] for cell in cells]
        more = sum(value > _SAME for value in lead)
        fewer = sum(value < -_SAME for value in lead)
        extent = [number(value, 3) for value in (min(lead), sum(lead) / len(lead), max(lead))]
        lines.append([RULES[rival].title, f"{more} of {len(cells)}", f"{fewer} of {len(cells)}", *extent])
    return table(["rival", "ours accepts more", "the rival does", "smallest lead", "mean", "largest"], lines)


def _cell(row: dict[str, Any], best: float) -> str:
    text = f"{number(row['coverage'], 3)} / {number(row['violation'], 3)}"
    return f"**{text}**" if row["valid"] and 0.0 < best <= row["coverage"] + _SAME else text
