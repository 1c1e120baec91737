"""The quality benchmark in Markdown: how every method compares with temperature scaling, and with no calibration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from metacal.bench.markdown import number, table
from metacal.bench.quality_methods import PEERS, UNCALIBRATED
from metacal.bench.quality_runs import Row

AUTO = "auto"


def rows_of(results: dict[str, Any]) -> list[Row]:
    """The rows of `quality_runs.results`."""
    return [Row(**row) for row in results["rows"]]


def overall(rows: Iterable[Row], n: int) -> list[str]:
    """Every method at one size, over all sets and variants, the lowest mean log loss first."""
    chosen = [row for row in rows if row.n == n]
    cells = _cells(chosen)
    methods = [name for name in _methods(chosen) if all(name in cell for cell in cells)]
    head = ["method", "log loss", "less temperature's: mean (worst)", "ECE", "Brier", "win rate"]
    lines = []
    for name in sorted(methods, key=lambda name: fmean(cell[name].metrics["nll"] for cell in cells)):
        here = [cell[name].metrics for cell in cells]
        away = [one["nll_difference"] for one in here]
        wins = [_below(cell, name, other) for cell in cells for other in methods if other != name]
        mean = [number(fmean(one[key] for one in here)) for key in ("nll", "ece", "brier")]
        gap = f"{number(fmean(away))} ({number(max(away))})"
        lines.append([_shown(name), mean[0], gap, mean[1], mean[2], number(fmean(wins), 2)])
    return table(head, lines)


def lowest(rows: Iterable[Row]) -> list[str]:
    """In how many cells `auto` has the lowest log loss, or one within a standard error of the lowest."""
    head = ["n", "cells", "lowest of all", "or within one standard error", "mean regret", "above temperature, most"]
    lines = []
    listed = list(rows)
    for n in dict.fromkeys(row.n for row in listed):
        cells = [cell for cell in _cells([row for row in listed if row.n == n]) if AUTO in cell]
        regrets = [_regret(cell) for cell in cells]
        near = [regret <= cell[AUTO].metrics["nll_error"] for regret, cell in zip(regrets, cells)]
        most = max(cell[AUTO].metrics["nll_difference"] for cell in cells)
        counts = [sum(regret <= 0.0 for regret in regrets), sum(near)]
        lines.append([f"{n:,}", str(len(cells)), *map(str, counts), number(fmean(regrets)), number(most)])
    return table(head, lines)


def accepted(rows: Iterable[Row], methods: Sequence[str] = ("temperature", "composed", AUTO)) -> list[str]:
    """The accepted rows of the gate's base maps, against no calibration."""
    head = [
        "method",
        "n",
        "ECE: mean, worst",
        "uncalibrated",
        "cells with a higher ECE",
        "cells with a higher log loss",
    ]
    lines = []
    listed = list(rows)
    for name in methods:
        for n in dict.fromkeys(row.n for row in listed):
            cells = [
                cell for cell in _cells([row for row in listed if row.n == n]) if {name, UNCALIBRATED} <= set(cell)
            ]
            if not cells:
                continue
            here = [cell[name].metrics for cell in cells]
            errors = [one["ece_accepted"] for one in here]
            plain = fmean(cell[UNCALIBRATED].metrics["ece_accepted"] for cell in cells)
            worse = [
                f"{sum(one[f'{kind}_difference'] > one[f'{kind}_error'] for one in here)} of {len(here)}"
                for kind in ("ece_accepted", "nll_accepted")
            ]
            mean = f"{number(fmean(errors))}, {number(max(errors))}"
            lines.append([_shown(name), f"{n:,}", mean, number(plain), *worse])
    return table(head, lines)


def page(results: dict[str, Any]) -> str:
    """All tables as one Markdown text."""
    rows = rows_of(results)
    variants = ", ".join(dict.fromkeys(row.variant for row in rows))
    sets = ", ".join(f"`{name}`" for name in dict.fromkeys(row.data for row in rows))
    parts = ["# How good the probabilities are", f"Sets: {sets}. Variants: {variants}."]
    for n in dict.fromkeys(row.n for row in rows):
        parts += [f"## {n:,} rows to fit on", "\n".join(overall(rows, n))]
    if any(row.method == AUTO for row in rows):
        parts += ["## `auto` against the best of all, in hindsight", "\n".join(lowest(rows))]
    parts += ["## Accepted rows", "\n".join(accepted(rows))]
    return "\n\n".join(parts) + "\n"


def _cells(rows: Iterable[Row]) -> list[dict[str, Row]]:
    """The rows by cell (set, variant, size) and method."""
    found: dict[Any, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.cell, {})[row.method] = row
    return list(found.values())


def _methods(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row.method for row in rows))


def _below(cell: dict[str, Row], name: str, other: str) -> float:
    ours, theirs = (cell[method].metrics["nll"] for method in (name, other))
    return 0.5 if ours == theirs else float(ours < theirs)


def _regret(cell: dict[str, Row]) -> float:
    """How far `auto` lies above the lowest log loss of any other method; below zero where it is the lowest itself."""
    return cell[AUTO].metrics["nll"] - min(row.metrics["nll"] for name, row in cell.items() if name != AUTO)


def _shown(name: str) -> str:
    return name if name in PEERS or name == UNCALIBRATED else f"`{name}`"
