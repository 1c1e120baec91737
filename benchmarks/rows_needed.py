"""Is "about N rows would certify it in 4 of 5 cases" right in 4 of 5 cases? On populations of real
and made rows.

    python -m benchmarks.rows_needed --data FOLDER [--cases 1000] [--jobs 16] [--out FILE]

Rows are drawn with replacement from each population. With a third and with half of the rows that an
accuracy takes in truth (found by trying), many draws certify nothing; each of those names a number
of rows, as many are drawn anew, and certified or not. `tuned` are populations that were looked at
while the constants of `certification.rows_needed` were chosen, `unseen` eight that were made
afterwards and measured once. A made population's accuracy leaves a quarter of its errors.

`knowing` is what the same rule reaches that knows the profile of each population of its group, not
which it sees: where that is far from 4 of 5, the rows do not tell the populations apart, whatever
is made of them.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from benchmarks.experiments.pool import in_order
from metacal.certification.error_curves import (
    ROW_SHARE_GRID,
    ErrorCurves,
    build_error_curves,
    weight_error_curves,
)
from metacal.certification.ranking import Ranking
from metacal.certification.rows_needed import estimate_rows_needed, find_smallest_sample_size
from metacal.certification.rules.accuracy_shortfall import plan_starting_tests
from metacal.certification.rules.fixed_sequence import find_last_passed_rank
from metacal.scores import score_rows

HERE = Path(__file__).parent
Right = np.ndarray[Any, np.dtype[np.bool_]]
#: Populations, and the accuracy that is asked for; None: a quarter of the errors.
TUNED: tuple[tuple[str, float | None], ...] = (
    ("cifar10-resnet110", 0.99),
    ("cifar10-densenet40", 0.99),
    ("cifar10-resnet110sd", 0.995),
    ("cifar10-wrn32", 0.995),
    ("cifar100-resnet110", 0.95),
    ("cifar100-densenet40", 0.95),
    ("cifar100-resnet110sd", 0.97),
    ("cifar100-wrn32", 0.97),
    ("langid176_sentences", 0.98),
    ("cifar10_densenet40_paper", 0.98),
    ("cifar100_resnet110_mit", 0.9),
    ("digits, logistic regression", None),
    ("five classes, forest", None),
    ("five classes, 1% flipped, extra trees", None),
    ("ten Gaussians, boosted", None),
    ("moons, neighbours", None),
)
UNSEEN: tuple[tuple[str, float | None], ...] = (
    ("digits, naive Bayes", None),
    ("five classes, network", None),
    ("eight classes, logistic regression", None),
    ("three classes, 2% flipped, network", None),
    ("two classes in 40 columns, forest", None),
    ("circles, neighbours", None),
    ("shells, network", None),
    ("ten blobs, naive Bayes", None),
)
STARTS = {"a third": 1 / 3, "half": 1 / 2}
DELTA, TRAINED = 0.1, 3_000


def ranked(name: str, folder: Path) -> Right:
    """Whether each row of a population is right, the surest first."""
    if "," in name:
        return _made(name)
    if "_" in name:
        with np.load(folder / f"{name}.npz") as file:
            logits, labels = file["logits"], file["labels"]
    else:
        own = name in mc.datasets.names()
        data = mc.datasets.load(name, folder=None if own else HERE / "data")
        logits, labels = data.logits, data.labels
    order = np.argsort(
        score_rows(mc.Rows(np.asarray(logits, dtype=np.float32)), "entropy"), kind="stable"
    )
    return np.asarray((logits.argmax(axis=1) == labels)[order])


def _made(name: str) -> Right:
    """Rows of a generator of scikit-learn's, and a model that learned from the first of them, or
    from other folds.
    """
    from sklearn.model_selection import cross_val_predict

    rows, model = _generators()[name.rpartition(", ")[0]](), _models()[name.rpartition(", ")[2]]()
    x, y = rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if len(y) < 2 * TRAINED:
            chance = cross_val_predict(model, x, y, method="predict_proba")
        else:
            chance, y = model.fit(x[:TRAINED], y[:TRAINED]).predict_proba(x[TRAINED:]), y[TRAINED:]
    right = np.unique(y)[chance.argmax(axis=1)] == y
    chance = np.clip(chance, 1e-12, 1.0)
    ties = 1e-9 * np.random.default_rng(0).random(len(y))
    return np.asarray(right[np.argsort(ties - (chance * np.log(chance)).sum(axis=1))])


def _generators() -> dict[str, Callable[[], Any]]:
    from sklearn import datasets as made

    def digits() -> Any:
        x, y = made.load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        return (x[order] + np.random.default_rng(1).normal(0, 4, x.shape)) / 16, y[order]

    n, of = 20_000 + TRAINED, partial(made.make_classification, class_sep=1.5, flip_y=0.0)
    some = partial(of, n, 20, n_informative=8, n_redundant=4)
    return {
        "digits": digits,
        "five classes": lambda: some(n_classes=5, random_state=0),
        "five classes, 1% flipped": lambda: some(n_classes=5, flip_y=0.01, random_state=1),
        "ten Gaussians": lambda: made.make_hastie_10_2(n, random_state=0),
        "moons": lambda: made.make_moons(n, noise=0.35, random_state=0),
        "eight classes": lambda: some(n_classes=8, class_sep=2.5, random_state=2),
        "three classes, 2% flipped": lambda: some(n_classes=3, flip_y=0.02, random_state=3),
        "two classes in 40 columns": lambda: of(
            n, 40, n_informative=20, class_sep=1.0, random_state=4
        ),
        "circles": lambda: made.make_circles(n, noise=0.2, factor=0.5, random_state=5),
        "shells": lambda: made.make_gaussian_quantiles(
            n_samples=n, n_features=6, n_classes=4, random_state=6
        ),
        "ten blobs": lambda: made.make_blobs(n, 8, centers=10, cluster_std=4.0, random_state=7),
    }


def _models() -> dict[str, Callable[[], Any]]:
    from sklearn import ensemble, linear_model, naive_bayes, neighbors, neural_network

    return {
        "logistic regression": lambda: linear_model.LogisticRegression(max_iter=300),
        "naive Bayes": naive_bayes.GaussianNB,
        "forest": lambda: ensemble.RandomForestClassifier(100, random_state=0),
        "extra trees": lambda: ensemble.ExtraTreesClassifier(100, random_state=0),
        "boosted": lambda: ensemble.GradientBoostingClassifier(random_state=0),
        "neighbours": lambda: neighbors.KNeighborsClassifier(50),
        "network": lambda: neural_network.MLPClassifier((64,), max_iter=60, random_state=0),
    }


def drawn(right: Right, n: int, rng: np.random.Generator) -> Ranking:
    """Rows of the set, without ties."""
    return Ranking.from_scores(
        np.arange(float(n)), right[np.sort(rng.integers(len(right), size=n))]
    )


def certifies(right: Right, n: int, beta: float, rng: np.random.Generator) -> bool:
    """Whether n rows certify anything."""
    return find_last_passed_rank(drawn(right, n, rng), beta, DELTA) > 0


def taken(right: Right, beta: float, rng: np.random.Generator) -> int:
    """How many rows certify the target in 4 of 5 cases, to an eighth of a doubling."""
    for step in range(40, 160):
        n = round(2 ** (step / 8))
        if np.mean([certifies(right, n, beta, rng) for _ in range(400)]) >= 0.8:
            return n
    raise AssertionError("no number of rows")


def wrong_up_to(right: Right) -> Any:
    """The profile of a population."""
    return np.interp(
        ROW_SHARE_GRID * len(right), np.arange(len(right) + 1), np.append(0, np.cumsum(~right))
    ) / len(right)


@lru_cache(maxsize=1)
def _known(profiles: tuple[tuple[float, ...], ...]) -> ErrorCurves:
    return build_error_curves(np.array([profiles]), np.ones(len(profiles)))


def failed(right: Right, n: int, beta: float, rng: np.random.Generator) -> Iterator[Ranking]:
    """Draws of n rows that certify nothing."""
    while True:
        sample = drawn(right, n, rng)
        if find_last_passed_rank(sample, beta, DELTA) == 0:
            yield sample


def measured(
    name: str,
    beta: float,
    right: Right,
    start: float,
    n_cases: int,
    others: tuple[tuple[float, ...], ...],
) -> dict[str, Any]:
    """One population, from one number of rows."""
    rng = np.random.default_rng([*name.encode(), round(1000 * beta)])
    truly = taken(right, beta, rng)
    plan = partial(plan_starting_tests, limit=beta, significance_level=DELTA)
    n = round(truly * start)
    found: dict[str, list[int | None]] = {"named": [], "knowing": []}
    for _, sample in zip(range(n_cases), failed(right, n, beta, rng)):
        found["named"].append(estimate_rows_needed(sample, plan))
        found["knowing"].append(
            find_smallest_sample_size(n, weight_error_curves(sample, _known(others)), plan)
        )
    named, knowing = ([needed for needed in said if needed is not None] for said in found.values())
    return {
        "set": name,
        "accuracy": beta,
        "rows": n,
        "truly_needed": truly,
        "none_named": round(1 - len(named) / n_cases, 4),
        "median_named": float(np.median(named)),
        "certified": round(
            float(np.mean([certifies(right, needed, beta, rng) for needed in named])), 4
        ),
        "knowing": round(
            float(np.mean([certifies(right, needed, beta, rng) for needed in knowing])), 4
        ),
    }


def together(shares: list[float]) -> dict[str, Any]:
    """How near to 4 of 5 the shares are."""
    return {
        "mean": round(float(np.mean(shares)), 4),
        "lowest": min(shares),
        "highest": max(shares),
        "within .05": sum(0.75 <= share <= 0.85 for share in shares),
        "of": len(shares),
        "root mean square": round(
            float(np.mean([(share - 0.8) ** 2 for share in shares]) ** 0.5), 4
        ),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=["tuned", "unseen"])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "how-many-rows.json")
    options = parser.parse_args()
    groups = {
        name: of
        for name, of in (("tuned", TUNED), ("unseen", UNSEEN))
        if options.only in (None, name)
    }
    asked = [(group, name, beta) for group, of in groups.items() for name, beta in of]
    populations = list(
        in_order(ranked, [(name, options.data) for _, name, _ in asked], options.jobs)
    )
    profiles = {group: tuple(tuple(wrong_up_to(right).tolist()) for (of, *_), right in zip(asked, populations)
                             if of == group) for group in groups}  # fmt: skip
    tasks, where = [], []
    for words, start in STARTS.items():
        for (group, name, beta), right in zip(asked, populations):
            accuracy = round(200 * (1 - np.mean(~right) / 4)) / 200 if beta is None else beta
            tasks.append((name, accuracy, right, start, options.cases, profiles[group]))
            where.append((group, words))
    result: dict[str, Any] = {"cases": options.cases}
    for (group, words), row in zip(where, in_order(measured, tasks, options.jobs)):
        result.setdefault(group, {}).setdefault(words, []).append(row)
        print(f"{group} {words:8} {row}", flush=True)
    for group in groups:
        rows = [row for words in STARTS for row in result[group][words]]
        result[f"{group}, in all"] = together([row["certified"] for row in rows])
        result[f"{group}, knowing"] = together([row["knowing"] for row in rows])
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
