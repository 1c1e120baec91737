"""The abstention comparison in Markdown: coverage and violation rate of every rule, set and
size.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from benchmarks.selective.rules import RULES
from benchmarks.selective.runs import Row
from benchmarks.tables.markdown import number, table

#: Differences of mean coverage below this are no difference.
_SAME = 5e-5


def rows_of(results: dict[str, Any]) -> list[Row]:
    """The rows of `selective_runs.results`."""
    return [Row(**row) for row in results["rows"]]


def comparison(rows: Iterable[Row], n: int) -> list[str]:
    """Coverage and violation rate at one size: a line per data set, a column per rule; the best
    valid one in bold.
    """
    chosen = [row for row in rows if row.n == n]
    rules = list(dict.fromkeys(row.rule for row in chosen))
    head = [
        "set",
        "beta",
        "oracle",
        *(RULES[rule].title + ("" if RULES[rule].valid else " ✗") for rule in rules),
    ]
    lines = []
    for name in dict.fromkeys(row.data for row in chosen):
        here = {row.rule: row for row in chosen if row.data == name}
        first = next(iter(here.values()))
        best = max((row.coverage for row in here.values() if row.valid), default=None)
        cells = [_cell(here.get(rule), best) for rule in rules]
        lines.append([f"`{name}`", f"{first.beta:g}", number(first.oracle, 3), *cells])
    return table(head, lines)


def means(rows: Iterable[Row]) -> list[str]:
    """Coverage as a share of the oracle's and violation rate, averaged over the data sets."""
    listed = list(rows)
    sizes = list(dict.fromkeys(row.n for row in listed))
    rules = list(dict.fromkeys(row.rule for row in listed))
    head = ["rule", "promise valid", *(f"n = {n:,}" for n in sizes)]
    return table(
        head,
        [
            [RULES[rule].title, _yes(RULES[rule].valid), *_over_sets(listed, rule, sizes)]
            for rule in rules
        ],
    )


def leads(rows: Iterable[Row]) -> list[str]:
    """How much more than each valid rival the certified rule accepts, and on how many sets at least
    as much.
    """
    listed = list(rows)
    sizes = list(dict.fromkeys(row.n for row in listed))
    rivals = [
        rule
        for rule in dict.fromkeys(row.rule for row in listed)
        if RULES[rule].valid and rule != "certified"
    ]
    head = ["rival", *(f"n = {n:,}: sets, smallest / mean / largest lead" for n in sizes)]
    lines = []
    for rival in rivals:
        cells = []
        for n in sizes:
            lead = [row.lead for row in listed if row.rule == rival and row.n == n]
            ahead = sum(value >= -_SAME for value in lead)
            extent = f"{number(min(lead), 3)} / {number(fmean(lead), 3)} / {number(max(lead), 3)}"
            cells.append(f"{ahead} of {len(lead)}, {extent}")
        lines.append([RULES[rival].title, *cells])
    return table(head, lines)


def beaten(rows: Iterable[Row]) -> list[Row]:
    """Where a valid rival accepts more than the certified rule."""
    return [row for row in rows if row.valid and row.lead < -_SAME]


def page(results: dict[str, Any]) -> str:
    """All tables as one Markdown text."""
    rows = rows_of(results)
    draws = sorted({row.draws for row in rows})
    deltas = sorted({header["delta"] for header in results["sets"]})
    parts = [
        "# Accepting with a promise",
        (
            f"Mean coverage / violation rate over {', '.join(map(str, draws))} draws, delta"
            f" {', '.join(f'{delta:g}' for delta in deltas)}. ✗: not valid. Bold: the valid rule"
            " that accepts most."
        ),
        "## Means over the sets",
        "Coverage as a share of the oracle's / violation rate (worst set).",
        "\n".join(means(rows)),
    ]
    if any(row.rule == "certified" for row in rows):
        parts += ["## Lead of the certified rule", "\n".join(leads(rows)), _verdict(rows)]
    for n in dict.fromkeys(row.n for row in rows):
        parts += [f"## {n:,} calibration rows", "\n".join(comparison(rows, n))]
    return "\n\n".join(parts) + "\n"


def _verdict(rows: list[Row]) -> str:
    lost = beaten(rows)
    if not lost:
        return (
            "None of the other valid rules here accepts more than the certified one, on any set at"
            " any size."
        )
    told = [
        f"{RULES[row.rule].title} on `{row.data}` at n = {row.n:,} by {-row.lead:.4f}"
        for row in lost
    ]
    return f"Valid rules that accept more than the certified one: {'; '.join(told)}."


def _cell(row: Row | None, best: float | None) -> str:
    if row is None:
        return "-"
    text = f"{number(row.coverage, 3)} / {number(row.violation, 3)}"
    return (
        f"**{text}**" if row.valid and best is not None and row.coverage >= best - _SAME else text
    )


def _over_sets(rows: list[Row], rule: str, sizes: list[int]) -> list[str]:
    cells = []
    for n in sizes:
        here = [row for row in rows if row.rule == rule and row.n == n]
        share = fmean(row.coverage / row.oracle for row in here)
        broken = [row.violation for row in here]
        cells.append(f"{number(share, 3)} / {number(fmean(broken), 3)} ({number(max(broken), 3)})")
    return cells


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
