"""Probabilities of two classes on real sets: ours beside scikit-learn's, beta calibration's and
Venn-Abers'.

    python -m benchmarks.two_class SETS.npz --processes 16 -o benchmarks/results/two-class.json

SETS.npz is what benchmarks.two_class_sets writes. Five classifiers are trained on two fifths of
each set, as it is and with positives thinned to 1:20, 1:100 and 1:200; of the other rows some
calibrate and the rest, which nobody has seen, is what log loss is measured on. A cell's *excess* is
a method's log loss above that of the best of eight peers in hindsight, over the latter or .01,
whichever is larger. About half of the sets (`tuned`) have been looked at while priors were chosen;
the others are the judges.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc

SIZES = (200, 500, 1000, 5000)
RATIOS = (None, 20, 100, 200)
DRAWS = 1
OURS = ("monotone", "auto", "composed")
LEAST_TEST = 600


def classifiers() -> dict[str, Any]:
    """Five kinds, one of them with class weights: its scores are off by an offset."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.svm import LinearSVC

    return {
        "boosting": HistGradientBoostingClassifier(random_state=0, max_iter=60),
        "forest": RandomForestClassifier(100, min_samples_leaf=2, random_state=0),
        "balanced logistic": LogisticRegression(class_weight="balanced", max_iter=1000),
        "naive Bayes": GaussianNB(),
        "linear SVM": LinearSVC(random_state=0, dual=False),
    }


def sets(path: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """All sets by name."""
    found = np.load(path)
    return {
        name[:-2]: (found[name] / 32.0, found[f"{name[:-2]}_y"])
        for name in found.files
        if name.endswith("_X")
    }


def tuned(name: str) -> bool:
    """Whether priors were chosen on this set, among others: then it is no judge of them."""
    return zlib.crc32(name.encode()) % 2 == 0


def log_odds(classifier: Any, X: np.ndarray) -> np.ndarray:
    """Its scores, as log-odds where it has probabilities."""
    if hasattr(classifier, "decision_function"):
        return np.asarray(classifier.decision_function(X), dtype=np.float64)
    p = np.clip(classifier.predict_proba(X)[:, 1].astype(np.float64), 1e-9, 1 - 1e-9)
    return np.log(p) - np.log1p(-p)


def scores(job: tuple[str, str, int | None, str]) -> tuple[np.ndarray, np.ndarray] | None:
    """A classifier's scores of the rows that it was not trained on, and their labels."""
    name, model, ratio, path = job
    X, y = sets(path)[name]
    rng = np.random.default_rng([zlib.crc32(name.encode()), ratio or 0])
    order = rng.permutation(len(y))
    if ratio is not None:
        positive = order[y[order]]
        kept = (len(y) - len(positive)) // ratio
        if kept >= len(positive) or kept < 20:
            return None
        order = rng.permutation(np.concatenate([positive[:kept], order[~y[order]]]))
    train, rest = order[: 2 * len(order) // 5], order[2 * len(order) // 5 :]
    if y[train].sum() < 5 or y[rest].sum() < 10 or len(rest) < SIZES[0] + LEAST_TEST:
        return None
    with warnings.catch_warnings(action="ignore"):
        return log_odds(classifiers()[model].fit(X[train], y[train]), X[rest]), y[rest].astype(int)


def draws(s: np.ndarray, y: np.ndarray) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """How many rows calibrate, the number of the draw, these rows and the others."""
    for n in SIZES:
        for draw in range(DRAWS if len(y) >= n + LEAST_TEST else 0):
            at = np.random.default_rng([n, draw]).permutation(len(y))
            fit, test = at[:n], at[n:]
            if 0 < y[fit].sum() < n and 0 < y[test].sum() < len(test):
                yield n, draw, fit, test


def scored(job: tuple[str, str, int | None, str]) -> list[dict[str, Any]]:
    """All cells of a set, a classifier and a ratio."""
    found = scores(job)
    if found is None:
        return []
    s, y = found
    about = {"set": job[0], "model": job[1], "ratio": job[2], "tuned": tuned(job[0])}
    with warnings.catch_warnings(action="ignore"):
        return [
            {**about, "n": n, "losses": losses(s[fit], y[fit], s[test], y[test])}
            for n, _, fit, test in draws(s, y)
        ]


def losses(s: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Log loss of each method on the rows of the test, and the seconds of ours."""
    chances = peers(s, y, new)
    found = {name: _log_loss(p, truth) for name, p in chances.items()}
    plain = _row_losses(chances["uncalibrated"], truth)
    for name in OURS:
        begin = time.perf_counter()
        estimator = mc.AutoCalibrator() if name == "auto" else _named(name)
        p = estimator.fit(s, y).predict_proba(new)[:, 1]
        found[name], found[f"{name} seconds"] = _log_loss(p, truth), time.perf_counter() - begin
        if name != "composed":
            worse = _row_losses(p, truth) - plain
            found[f"{name} worse"] = float(
                worse.mean() / max(worse.std() / np.sqrt(len(worse)), 1e-12)
            )
            order = np.argsort(new, kind="stable")
            found[f"{name} falls"] = float(max(0.0, -np.diff(p[order]).min()))
    return found


def _named(name: str) -> Any:
    from metacal.maps.methods import get_calibrator_class

    return get_calibrator_class(name)()


def peers(s: np.ndarray, y: np.ndarray, new: np.ndarray) -> dict[str, np.ndarray]:
    """Probabilities of the second class by each peer that is installed, and by none."""
    from scipy.special import expit
    from sklearn.calibration import _SigmoidCalibration
    from sklearn.isotonic import IsotonicRegression

    found = {"uncalibrated": expit(new), "sigmoid": _SigmoidCalibration().fit(s, y).predict(new)}
    found["isotonic"] = IsotonicRegression(out_of_bounds="clip").fit(s, y).predict(new)
    found["platt"] = mc.PlattScaling().fit(s, y).predict_proba(new)[:, 1]
    found["temperature"] = mc.TemperatureScaling().fit(s, y).predict_proba(new)[:, 1]
    try:
        from betacal import BetaCalibration

        squeezed = (np.clip(expit(v), 1e-9, 1 - 1e-9).reshape(-1, 1) for v in (s, new))
        old, fresh = squeezed
        for kind in ("abm", "am"):
            found[f"beta {kind}"] = BetaCalibration(parameters=kind).fit(old, y).predict(fresh)
    except ImportError:
        pass
    try:
        from venn_abers import VennAbers

        machine, p = VennAbers(), expit(s)
        machine.fit(np.column_stack([1 - p, p]), y)
        q = expit(new)
        found["Venn-Abers"] = np.asarray(machine.predict_proba(np.column_stack([1 - q, q]))[0])[
            :, 1
        ]
    except ImportError:
        pass
    return found


def _row_losses(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    p = np.clip(np.asarray(p, dtype=np.float64).reshape(-1), 1e-15, 1 - 1e-15)
    return np.asarray(-np.where(y == 1, np.log(p), np.log1p(-p)))


def _log_loss(p: np.ndarray, y: np.ndarray) -> float:
    return float(_row_losses(p, y).mean())


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean excess of each method over the best peer, by number of rows, and how often it is
    near.
    """
    names = [
        name for name in cells[0]["losses"] if not name.endswith((" seconds", " falls", " worse"))
    ]
    rivals = [name for name in names if name not in OURS]
    table: dict[str, Any] = {}
    for name in names:
        excess, sizes = [], []
        for cell in cells:
            best = min(cell["losses"][rival] for rival in rivals)
            excess.append((cell["losses"][name] - best) / max(best, 0.01))
            sizes.append(cell["n"])
        by, n = np.array(excess), np.array(sizes)
        table[name] = {
            "mean excess": float(by.mean()),
            "by rows": {
                str(size): float(by[n == size].mean()) for size in SIZES if (n == size).any()
            },
            "from 500 rows": float(by[n >= 500].mean()),
            "from 1,000 rows": float(by[n >= 1000].mean()),
            "within 2%": float((by <= 0.02).mean()),
            "worst": float(by.max()),
        }
        ratios = np.array([cell["ratio"] or 0 for cell in cells])
        table[name]["by ratio"] = {
            str(ratio): float(by[ratios == ratio].mean()) for ratio in np.unique(ratios)
        }
        if f"{name} seconds" in cells[0]["losses"]:
            table[name]["median seconds"] = float(
                np.median([cell["losses"][f"{name} seconds"] for cell in cells])
            )
        if f"{name} worse" in cells[0]["losses"]:
            bare = np.array([cell["losses"]["uncalibrated"] for cell in cells])
            beyond = np.array([cell["losses"][f"{name} worse"] for cell in cells]) > 1.0
            above = (np.array([cell["losses"][name] for cell in cells]) - bare) / np.maximum(
                bare, 0.01
            )
            table[name]["worse than uncalibrated by a standard error"] = float(beyond.mean())
            table[name]["worse than uncalibrated, at most"] = float(above.max())
        if f"{name} falls" in cells[0]["losses"]:
            table[name]["largest fall"] = float(
                max(cell["losses"][f"{name} falls"] for cell in cells)
            )
    return table


def table(result: dict[str, Any]) -> list[str]:
    """The table of docs/two-classes.md, line by line."""
    lines = [
        "| method | all | 200 rows | 500 | 1,000 | 5,000 | within 2% |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in (
        "monotone",
        "auto",
        "beta am",
        "beta abm",
        "sigmoid",
        "Venn-Abers",
        "isotonic",
        "composed",
    ):
        row = result["methods"][name]
        shares = [row["mean excess"], *(row["by rows"][str(size)] for size in SIZES)]
        cells = [f"{100 * share:.1f}%" for share in shares]
        lines.append(f"| {name} | {' | '.join(cells)} | {100 * row['within 2%']:.0f}% |")
    return lines


def main() -> None:
    """Run, and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", help="sets to look at, comma separated")
    parser.add_argument("-o", "--output", default="benchmarks/results/two-class.json")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else sorted(sets(options.sets))
    jobs = [
        (name, model, ratio, options.sets)
        for name in names
        for model in classifiers()
        for ratio in RATIOS
    ]
    with ProcessPoolExecutor(options.processes) as pool:
        cells = [cell for found in pool.map(scored, jobs, chunksize=1) for cell in found]
    judges = [cell for cell in cells if not cell["tuned"]]
    found = summary(judges)
    result = {"sets": len({cell["set"] for cell in judges}), "cells": len(judges), "methods": found}
    result["on the sets that priors were chosen on"] = summary(
        [cell for cell in cells if cell["tuned"]]
    )
    Path(options.output).write_text(json.dumps(result, indent=1) + "\n")
    for name, row in found.items():
        print(
            f"{name:<14} {100 * row['mean excess']:7.2f}%  within 2%: {row['within 2%']:.2f}  worst"
            f" {row['worst']:.2f}"
        )


if __name__ == "__main__":
    main()
