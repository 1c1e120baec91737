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
    return [
        -np.mean([row[name]["coverage"] for row in results["rows"]]) for name in ("logistic", "pairwise", "boosted")
    ]


FIGURES["ranker-cost-min"] = "rankers", lambda found: min(_ranker_costs(found))
FIGURES["ranker-cost-max"] = "rankers", lambda found: max(_ranker_costs(found))


def _by_set(results: Any) -> dict[str, dict[str, float]]:
    """Log loss by set and method, as the methods come."""
    found: dict[str, dict[str, float]] = {}
    for row in results["rows"]:
        if not row["option"]:
            found.setdefault(row["set"], {})[row["method"]] = row["nll"]
    return found


FIGURES["dirichlet-below-temperature"] = (
    "calibrators",
    lambda found: sum(own["dirichlet"] < own["temperature"] for own in _by_set(found).values()),
)
FIGURES["dirichlet-lowest"] = (
    "calibrators",
    lambda found: sum(own["dirichlet"] == min(own.values()) for own in _by_set(found).values()),
)


def _standard_errors(results: Any) -> list[float]:
    """Standard error of the mean ECE over the splits, of each calibrated method on the networks that the paper has."""
    elsewhere = ("cifar100-resnet110-mit", "langid176-sentences")
    rows = [row for row in results["rows"] if row["method"] in ("ts", "ets", "gpc") and row["data"] not in elsewhere]
    own = [row["columns"]["ece_published"] for row in rows]
    return [one["sd"] / one["n"] ** 0.5 for one in own]


FIGURES["largest-standard-error"] = "paper/paper", lambda found: max(_standard_errors(found))
FIGURES["gp-changed"] = (
    "calibrators",
    lambda found: sum(
        row["changed"] > 0 for row in found["rows"] if row["method"] == "gaussian-process" and not row["option"]
    ),
)


def _of_oracle(results: Any, rule: str, n: int) -> float:
    """Mean over the sets of the coverage as a share of the oracle's."""
    own = [row for row in results["rows"] if (row["rule"], row["n"]) == (rule, n)]
    return float(np.mean([row["coverage"] / row["oracle"] for row in own]))


for _n in (300, 1000, 5000):
    FIGURES[f"selective-loss-{_n}"] = "selective/selective", lambda found, n=_n: 1 - _of_oracle(found, "certified", n)
    FIGURES[f"selective-mapie-{_n}"] = "selective/selective", lambda found, n=_n: _of_oracle(found, "mapie", n)


def _paper_pairs(results: Any, one: str, other: str) -> list[float]:
    """Coverage of one rule less that of another, or of the oracle, on every set."""
    by = {(row["data"], row["method"]): row for row in results["rows"]}
    sets = dict.fromkeys(row["data"] for row in results["rows"])
    if other == "oracle":
        return [by[name, one]["true_coverage"] - by[name, one]["oracle_coverage"] for name in sets]
    return [by[name, one]["true_coverage"] - by[name, other]["true_coverage"] for name in sets]


for _kind in ("acc", "mis"):
    for _end, _choose in (("min", min), ("max", max)):
        FIGURES[f"paper-{_kind}-gain-{_end}"] = (
            "paper/paper",
            lambda found, k=_kind, c=_choose: c(_paper_pairs(found, f"meta-{k}", f"meta-{k}-paper")),
        )
        FIGURES[f"paper-{_kind}-loss-{_end}"] = (
            "paper/paper",
            lambda found, k=_kind, c=_choose: c(map(abs, _paper_pairs(found, f"meta-{k}", "oracle"))),
        )


def _block_seconds(results: Any) -> float:
    """Seconds of one core for the largest block, 2²⁶ elements, from Parquet."""
    return 2**26 * results["ns_a_row_and_class"]["1000"]["read .parquet (zstd)"] * 1e-9


FIGURES["block-seconds"] = "scale-cost", _block_seconds
FIGURES["scheduler-cores"] = (
    "scale-cost",
    lambda found: _block_seconds(found) / (1e-3 * found["scheduler_ms_a_block"]),
)


def _langid(results: Any, *beginnings: str) -> float:
    """The lowest log loss on the languages at 5,000 rows, as they are, of methods whose names begin so."""
    at = {name: k for k, name in enumerate(results["columns"])}
    own = [
        row[at["nll"]]
        for row in results["rows"]
        if (row[at["data"]], row[at["variant"]], row[at["n"]]) == ("langid176-sentences", "plain", 5000)
        and row[at["method"]].startswith(beginnings)
    ]
    return min(own)


for _name in ("auto", "probmetrics", "temperature"):
    FIGURES[f"quality-langid-{_name}"] = "quality/quality", lambda found, name=_name: _langid(found, name)
FIGURES["base-harmed"] = (
    "default-base",
    lambda found: sum(
        any(row[k] - row[f"{k}_plain"] > row[f"{k}_error"] for k in ("ece", "nll")) for row in found["rows"]
    ),
)
