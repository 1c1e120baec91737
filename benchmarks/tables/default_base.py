"""The table of `benchmarks/default_base.py`: accepted rows of a gate as it comes, with its
calibrator and without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.tables.markdown import number, table

GATES = {"miscoverage": "at most 10% of the right rejected", "accuracy": "accuracy halfway to one"}


def cells(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int, str, str], dict[str, float]]:
    """(gate, n, set, variant) -> means over the splits, of errors too: splits are measured on
    nearly the same rows.
    """
    found: dict[tuple[str, int, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["gate"], row["n"], row["set"], row["variant"]), []).append(row)
    keys = (
        "ece",
        "ece_floor",
        "ece_line",
        "ece_plain",
        "ece_error",
        "nll",
        "nll_plain",
        "nll_error",
    )
    return {
        at: {key: float(np.mean([row[key] for row in own])) for key in keys}
        for at, own in found.items()
    }


def accepted(results: Mapping[str, Any]) -> list[str]:
    """A row for each gate and size: mean and worst ECE, and in how many cells something is worse
    than before.

    Examples
    --------
    >>> row = {"gate": "accuracy", "n": 500, "set": "a", "variant": "plain", "split": 0, "gave_way": False}
    >>> row |= {"ece": 0.01, "ece_plain": 0.05, "ece_error": 0.001, "nll": 0.2, "nll_plain": 0.3, "nll_error": 0.01}
    >>> accepted({"rows": [row | {"ece_floor": 0.004, "ece_line": 0.009}]})[-1]
    '| accuracy halfway to one | 500 | .0100, .0100 | .0040 | .0090 | .0500 | .2000 | .3000 | 0 of 1 | 0 of 1 |'
    """
    found = cells(results["rows"])
    lines = []
    for gate, words in GATES.items():
        for n in sorted({at[1] for at in found}):
            own = [values for at, values in found.items() if at[:2] == (gate, n)]
            if not own:
                continue
            means = {key: float(np.mean([one[key] for one in own])) for key in own[0]}
            worst = max(one["ece"] for one in own)
            worse = [
                sum(one[k] - one[f"{k}_plain"] > one[f"{k}_error"] for one in own)
                for k in ("ece", "nll")
            ]
            lines.append(
                [
                    words,
                    f"{n:,}",
                    f"{number(means['ece'])}, {number(worst)}",
                    number(means["ece_floor"]),
                    number(means["ece_line"]),
                    number(means["ece_plain"]),
                    number(means["nll"]),
                    number(means["nll_plain"]),
                    *(f"{count} of {len(own)}" for count in worse),
                ]
            )
    head = [
        "gate",
        "n",
        "ECE: mean, worst",
        "of a right map",
        "knowing all but a line",
        "uncalibrated",
    ]
    head += ["log loss", "uncalibrated", "cells with a higher ECE", "cells with a higher log loss"]
    return table(head, lines)


def by_set(results: Mapping[str, Any], n: int = 1000) -> list[str]:
    """A row for each set: the mean ECE over its variants, gate by gate, and what it could be.

    Examples
    --------
    >>> row = {"gate": "accuracy", "n": 1000, "set": "a", "variant": "plain", "split": 0, "gave_way": False}
    >>> row |= {"ece": 0.01, "ece_plain": 0.05, "ece_error": 0.001, "nll": 0.2, "nll_plain": 0.3, "nll_error": 0.01}
    >>> by_set({"rows": [row | {"ece_floor": 0.004, "ece_line": 0.009}]})[-1]
    '| `a` | - | .0100 (.0040, .0090) |'
    """
    found = {at: one for at, one in cells(results["rows"]).items() if at[1] == n}
    lines = []
    for name in sorted({at[2] for at in found}):
        line = [f"`{name}`"]
        for gate in GATES:
            own = [one for at, one in found.items() if (at[0], at[2]) == (gate, name)]
            ece, floor, known = (
                [one[key] for one in own] for key in ("ece", "ece_floor", "ece_line")
            )
            mean = (
                [number(float(np.mean(column))) for column in (ece, floor, known)] if own else None
            )
            line.append("-" if mean is None else f"{mean[0]} ({mean[1]}, {mean[2]})")
        lines.append(line)
    return table(["set", *GATES.values()], lines)
