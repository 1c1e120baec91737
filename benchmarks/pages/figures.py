"""Numbers of the pages that take some arithmetic, each from one committed result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.pages.numbers import loaded
from benchmarks.selective.held_out import TOP_FIFTH
from benchmarks.tables.held_out import by_cell

Compute = Callable[[Any], float]


def figure(name: str) -> float:
    """A number by its name."""
    result, compute = FIGURES[name]
    return float(compute(loaded(result)))


def _gains(results: Any, n: int | None = None) -> list[float]:
    """Coverage of the present rule on accuracy less that of the former one, as shares of the
    oracle's, cell by cell.
    """
    own = {(r["set"], r["beta"], r["n"], r["rule"]): r["coverage"] for r in results["records"]}
    cells = [key[:3] for key in own if key[3] == "former" and n in (None, key[2])]
    present = next(key[3] for key in own if key[3] != "former")
    return [own[(*cell, present)] - own[(*cell, "former")] for cell in cells]


def _mean_gain(results: Any, n: int) -> float:
    return float(np.mean(_gains(results, n)))


def _worst_gain(results: Any) -> float:
    return min(_gains(results))


def _auto_loss(results: Any, n: int) -> float:
    """The most that the choice among three scores loses against entropy."""
    way = "auto: shares .8, .1, .1"
    return float(max(r["entropy"] - r[way] for r in results["records"] if r["n"] == n))


def _ranker_cost(results: Any, choose: Callable[[Sequence[float]], float]) -> float:
    """What a learned ranking loses in certified coverage against entropy, mean over the sets."""
    kinds = ("logistic", "pairwise")
    return choose(
        [-float(np.mean([row[kind]["coverage"] for row in results["rows"]])) for kind in kinds]
    )


def _log_losses(results: Any) -> list[dict[str, float]]:
    """Of each set the log loss by method, as the methods come."""
    found: dict[str, dict[str, float]] = {}
    for row in results["rows"]:
        if not row["option"]:
            found.setdefault(row["set"], {})[row["method"]] = row["nll"]
    return list(found.values())


def _dirichlet_below(results: Any) -> float:
    return sum(own["dirichlet"] < own["temperature"] for own in _log_losses(results))


def _dirichlet_lowest(results: Any) -> float:
    return sum(own["dirichlet"] == min(own.values()) for own in _log_losses(results))


def _gp_changed(results: Any) -> float:
    """On how many sets a Gaussian process changed a prediction."""
    own = [
        row for row in results["rows"] if row["method"] == "gaussian-process" and not row["option"]
    ]
    return sum(bool(row["changed"]) for row in own)


def _largest_standard_error(results: Any) -> float:
    """Standard error of a mean ECE over the splits, of the calibrated methods on CIFAR's networks:
    the largest.
    """
    elsewhere = ("cifar100-resnet110-mit", "langid176-sentences", "imagenet5000-efficientnet-lite0")
    rows = [
        row
        for row in results["rows"]
        if row["method"] in ("ts", "ets", "gpc") and row["data"] not in elsewhere
    ]
    own = [row["columns"]["ece_published"] for row in rows]
    return float(max(one["sd"] / one["n"] ** 0.5 for one in own))


def _paper_coverage(
    results: Any, kind: str, other: str, choose: Callable[[Sequence[float]], float]
) -> float:
    """Coverage of a certified rule less that of the paper's, or its distance to the oracle's, over
    the sets.
    """
    by = {(row["data"], row["method"]): row for row in results["rows"]}
    sets = list(dict.fromkeys(row["data"] for row in results["rows"]))
    own = [by[name, f"meta-{kind}"] for name in sets]
    if other == "oracle":
        return choose([abs(row["true_coverage"] - row["oracle_coverage"]) for row in own])
    rivals = [by[name, f"meta-{kind}-paper"] for name in sets]
    return choose(
        [row["true_coverage"] - rival["true_coverage"] for row, rival in zip(own, rivals)]
    )


def _of_oracle(results: Any, rule: str, n: int) -> float:
    """Mean over the sets of the coverage as a share of the oracle's."""
    own = [row for row in results["rows"] if (row["rule"], row["n"]) == (rule, n)]
    return float(np.mean([row["coverage"] / row["oracle"] for row in own]))


def _oracle_loss(results: Any, n: int) -> float:
    return 1.0 - _of_oracle(results, "certified", n)


def _langid(results: Any, beginning: str) -> float:
    """The lowest log loss on the languages at 5,000 rows, as they are, of methods whose names begin
    so.
    """
    at = {name: k for k, name in enumerate(results["columns"])}
    own = [
        row[at["nll"]]
        for row in results["rows"]
        if (row[at["data"]], row[at["variant"]], row[at["n"]])
        == ("langid176-sentences", "plain", 5000)
        and row[at["method"]].startswith(beginning)
    ]
    return float(min(own))


def _cells(results: Any) -> float:
    """Sets, variants and sizes that `auto` was measured on."""
    at = {name: k for k, name in enumerate(results["columns"])}
    return len({(row[at["data"]], row[at["variant"]], row[at["n"]]) for row in results["rows"]})


def _harmed(results: Any) -> float:
    """Fits whose accepted rows the default base has made worse by more than a standard error."""
    kinds = ("ece", "nll")
    rows = results["rows"]
    return sum(any(row[k] - row[f"{k}_plain"] > row[f"{k}_error"] for k in kinds) for row in rows)


def _block_seconds(results: Any) -> float:
    """Seconds of one core for the largest block, 2²⁶ elements, from Parquet."""
    return float(2**26 * results["ns_a_row_and_class"]["1000"]["read .parquet (zstd)"] * 1e-9)


def _scheduler_cores(results: Any) -> float:
    """Cores that one scheduler keeps busy with such blocks."""
    return float(_block_seconds(results) / (1e-3 * results["scheduler_ms_a_block"]))


def _bars(results: Any) -> float:
    return sum(ratio["bar"] is not None for ratio in results["ratios"])


def _distinct(results: Any, key: str) -> float:
    return len({row[key] for row in results["rows"]})


def _ranker_changes(results: Any, key: str, sign: int) -> float:
    """Count the networks on which the logistic ranker changes a number by two standard errors in
    one direction.
    """
    rankers = [row["logistic"] for row in results["rows"]]
    return sum(sign * ranker[key] > 2.0 * ranker["errors"][key] for ranker in rankers)


def _keeps_accuracy(results: Any) -> float:
    """Count the sets on which GPC has the accuracy of no calibration, to the last digit of the
    mean.
    """
    accuracy = {
        (row["data"], row["method"]): row["columns"]["coverage_accuracy"]["mean"]
        for row in results["rows"]
        if row["method"] in ("uncal", "gpc")
    }
    return sum(
        accuracy[name, "uncal"] == accuracy[name, "gpc"] for name in {data for data, _ in accuracy}
    )


def _apart(row: Any, other: Any, column: str) -> float:
    """Return the difference of two means of one column, in standard errors."""
    one, two = row["columns"][column], other["columns"][column]
    return float(
        (one["mean"] - two["mean"])
        / np.hypot(one["sd"] / one["n"] ** 0.5, two["sd"] / two["n"] ** 0.5)
    )


def _dirichlet_ece(results: Any, method: str, sign: int, among: str = "") -> float:
    """Count the sets on which the ECE of Dirichlet calibration is above (+1) or below (-1)
    temperature scaling's.
    """
    by = {(row["data"], row["method"]): row for row in results["rows"]}
    names = [data for data, kind in by if kind == method and among in data]
    return sum(
        sign * _apart(by[name, method], by[name, "ts"], "ece_published") > 2.0 for name in names
    )


def _not_below_scaling(results: Any, method: str, column: str) -> float:
    """Count the sets on which the mean of a column is not below that of temperature scaling."""
    mean = {(row["data"], row["method"]): row["columns"][column]["mean"] for row in results["rows"]}
    names = [data for data, kind in mean if kind == method]
    return sum(mean[name, method] >= mean[name, "ts"] for name in names)


def _gates(results: Any, methods: tuple[str, ...], column: str, sign: int) -> float:
    """Count the gates, set by set, whose paired difference is two standard errors on one side of
    0.
    """
    count = 0
    for row in results["rows"]:
        if row["method"] in methods:
            gain = row["columns"][column]
            count += sign * gain["mean"] > 2.0 * gain["sd"] / gain["n"] ** 0.5
    return count


def _held_out(results: Any, rare: bool, ours_best: bool) -> float:
    """Count the held-out cells of sets where correct rows are rare, or of the others; all, or those
    that ours leads.
    """
    shares = {one["set"]: one["accuracy"] for one in results["sets"]}
    count = 0
    for (name, _, _), cell in by_cell(results).items():
        if (shares[name] < 0.5) != rare:
            continue
        rivals = [row for rule, row in cell.items() if row["valid"] and rule != TOP_FIFTH]
        beaten = any(row["lead"] < -5e-5 for row in rivals)
        count += not (ours_best and beaten)
    return count


def _most_missed(results: Any, method: str) -> float:
    """Find the largest share of missed intervals over all areas and populations, for one method."""
    summary = results["summary"]
    return max(summary[key]["highest"] for key in summary if key.endswith(f", {method}"))


def _certified_pairs(results: Any) -> float:
    """Return the share of draws of Abt-Buy pairs in which a threshold is certified."""
    return float(1.0 - results["tasks"]["abt_buy"]["methods"]["metacal"]["infeasible"])


def _most_broken(results: Any, way: str) -> float:
    """Find the largest share of broken promises over all kinds of draws, for one way to seed."""
    return max(kind[way] for kind in results.values() if isinstance(kind, dict) and way in kind)


_SIZES = (300, 1000, 5000)
_ENDS = {"min": min, "max": max}
#: Name -> the result it comes from, and how.
FIGURES: dict[str, tuple[str, Compute]] = {
    **{f"accuracy-gain-{n}": ("accuracy-rule", partial(_mean_gain, n=n)) for n in _SIZES},
    "accuracy-loss": ("accuracy-rule", _worst_gain),
    **{f"auto-loss-{n}": ("score-choice", partial(_auto_loss, n=n)) for n in (1000, 5000)},
    **{
        f"ranker-cost-{end}": ("rankers", partial(_ranker_cost, choose=choose))
        for end, choose in _ENDS.items()
    },
    "ranker-type-2-lower": ("rankers", partial(_ranker_changes, key="type_2_at_alpha", sign=-1)),
    "ranker-type-2-higher": ("rankers", partial(_ranker_changes, key="type_2_at_alpha", sign=1)),
    "ranker-ece-lower": ("rankers", partial(_ranker_changes, key="ece", sign=-1)),
    "area-intervals-missed": ("area-intervals", partial(_most_missed, method="package")),
    "plain-bootstrap-missed": ("area-intervals", partial(_most_missed, method="plain")),
    "derived-seeds-broken": ("derived-seeds", partial(_most_broken, way="derived")),
    "searched-seeds-broken": ("derived-seeds", partial(_most_broken, way="20 seeds")),
    "dirichlet-below-temperature": ("calibrators", _dirichlet_below),
    "dirichlet-lowest": ("calibrators", _dirichlet_lowest),
    "gpc-keeps-accuracy": ("paper/paper", _keeps_accuracy),
    **{
        f"{method}-ece-{word}": ("paper/paper", partial(_dirichlet_ece, method=method, sign=sign))
        for method in ("dirichlet", "dirichlet-odir")
        for word, sign in (("lower", -1), ("higher", 1))
    },
    **{
        f"{name}-{column}-{word}": (
            "paper/paper",
            partial(_gates, methods=methods, column=column, sign=sign),
        )
        for name, methods in (
            ("gates", ("meta-mis-paper", "meta-acc-paper")),
            ("mis-gates", ("meta-mis-paper",)),
            ("acc-gates", ("meta-acc-paper",)),
        )
        for column in ("ece_gain", "ece_gain_refitted")
        for word, sign in (("lower", -1), ("higher", 1))
    },
    **{
        f"{method}-{column}-not-lower": (
            "paper/paper",
            partial(_not_below_scaling, method=method, column=column),
        )
        for method in ("meta-mis-paper", "meta-acc-paper")
        for column in ("ece_published", "ece_debiased")
    },
    "gp-changed": ("calibrators", _gp_changed),
    "largest-standard-error": ("paper/paper", _largest_standard_error),
    **{
        f"paper-{kind}-{word}-{end}": (
            "paper/paper",
            partial(_paper_coverage, kind=kind, other=other, choose=choose),
        )
        for kind in ("acc", "mis")
        for word, other in (("gain", "paper"), ("loss", "oracle"))
        for end, choose in _ENDS.items()
    },
    **{f"selective-loss-{n}": ("selective/selective", partial(_oracle_loss, n=n)) for n in _SIZES},
    **{
        f"selective-mapie-{n}": ("selective/selective", partial(_of_oracle, rule="mapie", n=n))
        for n in _SIZES
    },
    "selective-metacal-1000": (
        "selective/selective",
        partial(_of_oracle, rule="certified", n=1000),
    ),
    "selective-mapie-sequence-1000": (
        "selective/selective",
        partial(_of_oracle, rule="mapie-sequence", n=1000),
    ),
    **{
        f"quality-langid-{name}": ("quality/quality", partial(_langid, beginning=name))
        for name in ("auto", "probmetrics", "temperature")
    },
    "quality-cells": ("quality/quality", _cells),
    **{
        f"held-out-{kind}-{word}": (
            "selective-held-out",
            partial(_held_out, rare=kind == "rare", ours_best=best),
        )
        for kind in ("rare", "usual")
        for word, best in (("cells", False), ("led", True))
    },
    "constant-threshold-certified": ("constant-threshold", _certified_pairs),
    "base-harmed": ("default-base", _harmed),
    "block-seconds": ("scale-cost", _block_seconds),
    "scheduler-cores": ("scale-cost", _scheduler_cores),
    "speed-bars": ("speed", _bars),
    "parity-calibrators": ("onnx-parity", partial(_distinct, key="calibrator")),
    "parity-sets": ("onnx-parity", partial(_distinct, key="set")),
}
