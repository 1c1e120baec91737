"""The table of `benchmarks/default_base.py`: accepted rows of a gate as it comes, with its calibrator and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metacal.bench.markdown import number, table

GATES = {"miscoverage": "at most 10% of the right turned away", "accuracy": "accuracy halfway to one"}


def cells(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int, str, str], dict[str, float]]:
    """(gate, n, set, variant) -> means over the splits, of errors too: splits are measured on nearly the same rows."""
    found: dict[tuple[str, int, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["gate"], row["n"], row["set"], row["variant"]), []).append(row)
    keys = ("ece", "ece_plain", "ece_error", "nll", "nll_plain", "nll_error")
    return {at: {key: float(np.mean([row[key] for row in own])) for key in keys} for at, own in found.items()}


def accepted(results: Mapping[str, Any]) -> list[str]:
    """A row for each gate and size: mean and worst ECE, and in how many cells something is worse than before.

    Examples
    --------
    >>> row = {"gate": "accuracy", "n": 500, "set": "a", "variant": "plain", "split": 0, "gave_way": False}
    >>> row |= {"ece": 0.01, "ece_plain": 0.05, "ece_error": 0.001, "nll": 0.2, "nll_plain": 0.3, "nll_error": 0.01}
    >>> accepted({"rows": [row]})[-1]
    '| accuracy halfway to one | 500 | .0100, .0100 | .0500 | .2000 | .3000 | 0 of 1 | 0 of 1 |'
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
            worse = [sum(one[k] - one[f"{k}_plain"] > one[f"{k}_error"] for one in own) for k in ("ece", "nll")]
            lines.append(
                [
                    words,
                    f"{n:,}",
                    f"{number(means['ece'])}, {number(worst)}",
                    number(means["ece_plain"]),
                    number(means["nll"]),
                    number(means["nll_plain"]),
                    *(f"{count} of {len(own)}" for count in worse),
                ]
            )
    head = ["gate", "n", "ECE: mean, worst", "uncalibrated", "log loss", "uncalibrated", "cells with a higher ECE"]
    return table([*head, "cells with a higher log loss"], lines)
