"""The tables of `benchmarks/selective/held_out.py`."""

from __future__ import annotations

from typing import Any

from benchmarks.selective.held_out import TOP_FIFTH
from benchmarks.selective.rules import RULES
from benchmarks.tables.markdown import number, table

Results = dict[str, Any]
Cells = dict[tuple[str, float, int], dict[str, Any]]

#: The rules of the tables; the result holds more.
_SHOWN = (
    "certified",
    TOP_FIFTH,
    "sgr",
    "ltt-sequence",
    "ltt-bonferroni",
    "ltt-sequence-even",
    "ltt-bonferroni-even",
    "plug-in",
)
#: Differences of mean coverage below this are no difference.
_SAME = 5e-5


def title_of(rule: str) -> str:
    """Return what tables call a rule."""
    return "metacal, top fifth" if rule == TOP_FIFTH else RULES[rule].title


def _is_valid(rule: str) -> bool:
    return rule == TOP_FIFTH or RULES[rule].valid


def by_cell(results: Results) -> Cells:
    """Group the rows of a result: (set, target, size) -> rule -> row."""
    cells: Cells = {}
    for row in results["rows"]:
        cells.setdefault((row["set"], row["beta"], row["n"]), {})[row["rule"]] = row
    return cells


def comparison(results: Results) -> list[str]:
    """Coverage and violation rate of every set, target and size; the valid rule that accepts most
    in bold.
    """
    lines = []
    for (name, beta, n), cell in by_cell(results).items():
        best = max(
            row["coverage"] for rule, row in cell.items() if row["valid"] and rule != TOP_FIFTH
        )
        oracle = number(cell["certified"]["oracle"], 3)
        lines.append(
            [
                f"`{name}`",
                f"{beta:g}",
                f"{n:,}",
                oracle,
                *(_cell(cell[rule], best) for rule in _SHOWN),
            ]
        )
    titles = [title_of(rule) + ("" if _is_valid(rule) else " ✗") for rule in _SHOWN]
    return table(["set", "beta", "n", "oracle", *titles], lines)


def leads(results: Results) -> list[str]:
    """How much more than each valid rival the certified rule accepts, and in how many cells."""
    cells = list(by_cell(results).values())
    lines = []
    for rival in (
        rule for rule in _SHOWN if _is_valid(rule) and rule not in ("certified", TOP_FIFTH)
    ):
        lead = [cell[rival]["lead"] for cell in cells]
        more = sum(value > _SAME for value in lead)
        fewer = sum(value < -_SAME for value in lead)
        extent = [number(value, 3) for value in (min(lead), sum(lead) / len(lead), max(lead))]
        lines.append(
            [title_of(rival), f"{more} of {len(cells)}", f"{fewer} of {len(cells)}", *extent]
        )
    return table(
        ["rival", "ours accepts more", "the rival does", "smallest lead", "mean", "largest"], lines
    )


def _cell(row: dict[str, Any], best: float) -> str:
    text = f"{number(row['coverage'], 3)} / {number(row['violation'], 3)}"
    return f"**{text}**" if row["valid"] and 0.0 < best <= row["coverage"] + _SAME else text
