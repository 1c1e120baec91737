"""Numbers of the pages that take some arithmetic, each from one committed result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks.pages.numbers import loaded

#: Name -> the result it comes from, and how.
FIGURES: dict[str, tuple[str, Callable[[Any], float]]] = {}


def figure(name: str) -> float:
    """A number by its name."""
    result, compute = FIGURES[name]
    return float(compute(loaded(result)))


def _accuracy_gains(results: Any, n: int | None = None) -> list[float]:
    """Coverage of the present rule less that of the former one, as shares of the oracle's, cell by cell."""
    own = {(r["set"], r["beta"], r["n"], r["rule"]): r["coverage"] for r in results["records"]}
    cells = [key[:3] for key in own if key[3] == "former" and n in (None, key[2])]
    present = next(key[3] for key in own if key[3] != "former")
    return [own[(*cell, present)] - own[(*cell, "former")] for cell in cells]


for _n in (300, 1000, 5000):
    FIGURES[f"accuracy-gain-{_n}"] = "accuracy-rule", lambda found, n=_n: np.mean(_accuracy_gains(found, n))
FIGURES["accuracy-loss"] = "accuracy-rule", lambda found: min(_accuracy_gains(found))


def _differences(results: Any, way: str, n: int) -> Iterable[float]:
    return (r[way] - r["entropy"] for r in results["records"] if r["n"] == n)


for _n in (1000, 5000):
    FIGURES[f"auto-loss-{_n}"] = (
        "score-choice",
        lambda found, n=_n: -min(_differences(found, "auto: shares .8, .1, .1", n)),
    )


def _ranker_costs(results: Any) -> list[float]:
    """What each learned ranking loses in certified coverage against entropy, mean over the sets."""
    return [-np.mean([row[name]["coverage"] for row in results["rows"]]) for name in ("logistic", "pairwise", "boosted")]


FIGURES["ranker-cost-min"] = "rankers", lambda found: min(_ranker_costs(found))
FIGURES["ranker-cost-max"] = "rankers", lambda found: max(_ranker_costs(found))
