"""The quality benchmark in Markdown: how every method compares with temperature scaling, and with
no calibration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

from benchmarks.quality.methods import UNCALIBRATED
from benchmarks.quality.peers import PEERS
from benchmarks.quality.runs import AUTO
from benchmarks.tables.markdown import number, table


@dataclass(frozen=True)
class Row:
    """One method on one variant of a set at one size: means over the splits."""

    data: str
    variant: str
    n: int
    method: str
    splits: int
    metrics: dict[str, float]

    @property
    def cell(self) -> tuple[str, str, int]:
        """What is compared within."""
        return self.data, self.variant, self.n


def rows_of(results: dict[str, Any]) -> list[Row]:
    """The rows of `quality_output.collect`."""
    names = results["columns"][5:]
    rows = []
    for data, variant, n, method, splits, *values in results["rows"]:
        metrics = {name: value for name, value in zip(names, values) if value is not None}
        rows.append(Row(data, variant, n, method, splits, metrics))
    return rows


def overall(rows: Iterable[Row], n: int) -> list[str]:
    """Every method at one size, over all sets and variants, the lowest mean log loss first."""
    chosen = [row for row in rows if row.n == n]
    cells = _cells(chosen)
    methods = [name for name in _methods(chosen) if all(name in cell for cell in cells)]
    head = ["method", "log loss", "less temperature's: mean (worst)", "ECE", "Brier", "win rate"]
    lines = []
    for name in sorted(
        methods, key=lambda name: fmean(cell[name].metrics["nll"] for cell in cells)
    ):
        here = [cell[name].metrics for cell in cells]
        away = [one["nll_difference"] for one in here]
        wins = [_below(cell, name, other) for cell in cells for other in methods if other != name]
        mean = [number(fmean(one[key] for one in here)) for key in ("nll", "ece", "brier")]
        gap = f"{number(fmean(away))} ({number(max(away))})"
        lines.append([_shown(name), mean[0], gap, mean[1], mean[2], number(fmean(wins), 2)])
    return table(head, lines)


def beside_auto(rows: Iterable[Row], n: int) -> list[str]:
    """Every method against `auto` at one size, where both were run: differences of the log loss,
    row by row.

    The standard error is that of the mean over sets: the variants of a set are made of the same
    rows.
    """
    cells = [cell for cell in _cells([row for row in rows if row.n == n]) if AUTO in cell]
    head = [
        "method",
        "cells",
        "log loss above `auto`'s",
        "`auto` lower",
        "within one standard error",
        "`auto` higher",
    ]
    lines = []
    for name in _methods(row for cell in cells for row in cell.values()):
        here = [
            cell[name] for cell in cells if name in cell and "auto_difference" in cell[name].metrics
        ]
        if name == AUTO or not here:
            continue
        pairs = [(row.metrics["auto_difference"], row.metrics["auto_error"]) for row in here]
        counts = [
            sum(gap > error for gap, error in pairs),
            sum(abs(gap) <= error for gap, error in pairs),
            sum(gap < -error for gap, error in pairs),
        ]
        mean, error = _over_sets([(row.data, gap) for row, (gap, _) in zip(here, pairs)])
        lines.append(
            (
                mean,
                [
                    _shown(name),
                    str(len(here)),
                    f"{number(mean)} ± {number(error)}",
                    *map(str, counts),
                ],
            )
        )
    return table(head, [line for _, line in sorted(lines, key=lambda pair: pair[0])])


class Standing(NamedTuple):
    """How `auto` stands in one cell: above the best peer, and the best of all others, with the
    differences' errors.
    """

    data: str
    variant: str
    n: int
    above_peers: float | None
    peers_error: float | None
    above_all: float | None
    all_error: float | None
    above_temperature: float


def standings(rows: Iterable[Row]) -> list[Standing]:
    """How `auto` stands in each cell where it was run."""
    found = []
    for cell in _cells(rows):
        if AUTO in cell:
            above, error = best_other(cell, PEERS) or (None, None)
            above_all, all_error = best_other(cell) or (None, None)
            away = cell[AUTO].metrics["nll_difference"]
            found.append(Standing(*cell[AUTO].cell, above, error, above_all, all_error, away))
    return found


def of_split(results: dict[str, Any], split: int) -> list[Standing]:
    """How `auto` stands in each cell of one split alone."""
    return [Standing(*values) for at, *values in results.get("auto_by_split", []) if at == split]


def lowest(known: Sequence[Standing]) -> list[str]:
    """In how many cells nobody's log loss is below `auto`'s by more than a standard error of their
    difference.
    """
    head = [
        "n",
        "cells",
        "lowest or tied: of all peers",
        "of all methods",
        "below the best peer, mean",
        "regret to the best of all, mean",
        "above temperature, most",
    ]
    sizes = sorted({one.n for one in known})
    groups = {f"{n:,}": [one for one in known if one.n == n] for n in sizes}
    if len(sizes) > 1:
        groups["all"] = list(known)
    lines = []
    for name, here in groups.items():
        peers = _won([(one.above_peers, one.peers_error) for one in here])
        every = _won([(one.above_all, one.all_error) for one in here])
        below = None if peers.above is None else -peers.above
        most = max(one.above_temperature for one in here)
        lines.append(
            [
                name,
                str(len(here)),
                peers.share,
                every.share,
                *map(number, (below, every.above, most)),
            ]
        )
    return table(head, lines)


class _Won(NamedTuple):
    """In how many cells `auto` is no more than an error above the others, and how far above them in
    the mean.
    """

    share: str
    above: float | None


def _won(pairs: Sequence[tuple[float | None, float | None]]) -> _Won:
    """What `auto` has won, of the cells where there are others."""
    found = [(above, error) for above, error in pairs if above is not None and error is not None]
    return _Won(
        _share([above <= error for above, error in found]),
        fmean(a for a, _ in found) if found else None,
    )


def best_other(
    cell: dict[str, Row], among: Iterable[str] | None = None
) -> tuple[float, float] | None:
    """How far `auto` lies above the lowest log loss of the others, and the standard error of that
    difference.

    The error is 0 where the rows' losses of that method were not kept: then only a lower loss
    counts.
    """
    known = set(cell) if among is None else set(among)
    others = [row for name, row in cell.items() if name != AUTO and name in known]
    if not others:
        return None
    best = min(others, key=lambda row: row.metrics["nll"])
    return cell[AUTO].metrics["nll"] - best.metrics["nll"], best.metrics.get("auto_error", 0.0)


def accepted(
    rows: Iterable[Row], methods: Sequence[str] = ("temperature", "composed", AUTO)
) -> list[str]:
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
                cell
                for cell in _cells([row for row in listed if row.n == n])
                if {name, UNCALIBRATED} <= set(cell)
            ]
            if not cells:
                continue
            here = [cell[name].metrics for cell in cells]
            errors = [one["ece_accepted"] for one in here]
            plain = fmean(cell[UNCALIBRATED].metrics["ece_accepted"] for cell in cells)
            worse = [
                f"{sum(one[f'{kind}_difference'] > one[f'{kind}_error'] for one in here)} of"
                f" {len(here)}"
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
            parts += [f"### Against `auto`, {n:,} rows", "\n".join(beside_auto(rows, n))]
    if any(row.method == AUTO for row in rows):
        parts += [
            "## `auto` against the best of all, in hindsight",
            "\n".join(lowest(standings(rows))),
        ]
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


def _over_sets(pairs: Iterable[tuple[str, float]]) -> tuple[float, float]:
    """The mean over sets of the means within them, and its standard error; 0 of a single set."""
    by_set: dict[str, list[float]] = {}
    for name, value in pairs:
        by_set.setdefault(name, []).append(value)
    means = [fmean(values) for values in by_set.values()]
    return fmean(means), stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0


def _share(hits: Sequence[bool]) -> str:
    return f"{sum(hits)} ({number(fmean(hits), 2)})" if hits else "-"


def _shown(name: str) -> str:
    return name if name in PEERS or name == UNCALIBRATED else f"`{name}`"
