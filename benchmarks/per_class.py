"""Every predicted class at least beta right: coverage and broken classes, beside MAPIE and the
oracle.

    python -m benchmarks.per_class --out benchmarks/results/per-class.json

The whole set is the truth; calibration rows are drawn from it with replacement. A rule is broken in
a draw when some class, accepted at all, is right less than beta of the time. The oracle knows the
truth: for each class the largest threshold that keeps beta. MAPIE's rows need `pip install
mapie==1.6`; without it those that are committed stay: its `MultiClassificationLTTController` looks
for one threshold on the largest probability that keeps the precision of every class (its default
grid and Bonferroni-Holm, the fewest abstentions wanted); "a controller a class" is a user's own
loop over classes, each at delta / K, which is what MAPIE has nearest to a threshold a class.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np

import metacal as mc
from benchmarks.experiments.pool import in_order
from metacal import datasets
from metacal.certificates.certificate import accept_up_to_threshold
from metacal.gate.thresholds import get_certified_thresholds
from metacal.promises import Sample
from metacal.rows import Rows
from metacal.scores import score_rows

DELTA, N = 0.1, 5000
DRAWS = 50
#: Of MAPIE, which takes seconds a draw: with few classes, and with many.
MAPIE_DRAWS, MAPIE_DRAWS_OF_MANY = 20, 4
SETS = ("cifar10-resnet110", "cifar10-densenet40", "cifar100-resnet110", "cifar100-wrn32")
BETAS = (0.95, 0.85)
DATA = Path(__file__).parent / "data"
RESULTS = Path(__file__).parent / "results" / "per-class.json"


class Population:
    """All rows of a set: score, largest probability, predicted class, label."""

    def __init__(self, name: str) -> None:
        folder = None if name in datasets.names() else DATA
        found = datasets.load(name, folder=folder)
        self.name, self.labels = name, found.labels
        self.scores = score_rows(Rows(found.logits), "entropy")
        shifted = np.exp(found.logits.astype(np.float64) - found.logits.max(axis=1, keepdims=True))
        self.probs = shifted / shifted.sum(axis=1, keepdims=True)
        self.top, self.n_classes = found.logits.argmax(axis=1), found.logits.shape[1]
        self.correct = self.top == self.labels

    def judged(self, accept: np.ndarray, beta: float) -> tuple[float, bool, float]:
        """Coverage, whether some class is broken, and the share of classes that are."""
        kept = np.bincount(self.top[accept], minlength=self.n_classes)
        right = np.bincount(self.top[accept & self.correct], minlength=self.n_classes)
        broken = (kept > 0) & (right < beta * kept - 1e-9)
        return float(accept.mean()), bool(broken.any()), float(broken.mean())

    def oracle(self, beta: float) -> float:
        """Coverage of the largest threshold of each class that keeps beta."""
        kept = 0
        for k in range(self.n_classes):
            own = np.flatnonzero(self.top == k)
            order = own[np.argsort(self.scores[own], kind="stable")]
            accuracy = np.cumsum(self.correct[order]) / np.arange(1, len(order) + 1)
            good = np.flatnonzero(accuracy >= beta)
            kept += int(good[-1]) + 1 if len(good) else 0
        return kept / len(self.top)


def one_threshold(population: Population, rows: np.ndarray, beta: float) -> np.ndarray:
    """The usual gate: the promise is about all rows together."""
    found = mc.MinAccuracy(beta, DELTA).certify(population.scores[rows], population.correct[rows])
    return population.scores <= found.threshold


def per_class(**options: object) -> object:
    """PerClass with these options, as a rule."""

    def rule(population: Population, rows: np.ndarray, beta: float) -> np.ndarray:
        classes = np.arange(population.n_classes)
        promise = mc.PerClass(mc.MinAccuracy(beta, DELTA), **options)
        top = population.top[rows]
        sample = Sample.of(
            population.scores[rows], population.correct[rows], part=top, names=classes.tolist()
        )
        try:
            found = promise.certify(sample)
        except mc.InfeasibleTargetError:
            return np.zeros(len(population.top), dtype=bool)
        return accept_up_to_threshold(
            population.scores,
            get_certified_thresholds(found, classes).get_row_thresholds(population.top),
        )

    return rule


def mapie_rules() -> dict[str, object]:
    """MAPIE's controller for all classes, and one for each; nothing where it is not installed."""
    try:
        from mapie.risk_control import MultiClassificationLTTController
        from mapie.risk_control.risks import abstention_rate, build_precision_ovr
    except ImportError:
        return {}

    def controlled(
        population: Population, rows: np.ndarray, beta: float, classes: list[int], delta: float
    ) -> float:
        controller = MultiClassificationLTTController(
            predict_function=lambda table: table,
            risks=build_precision_ovr(classes),
            target_level=[beta] * len(classes),
            confidence_level=1.0 - delta,
            best_predict_param_choice=abstention_rate,
            classes=np.arange(population.n_classes),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            controller.calibrate(population.probs[rows], population.labels[rows])
        found = controller.best_predict_param
        return np.inf if found is None else float(found)

    def for_all(population: Population, rows: np.ndarray, beta: float) -> np.ndarray:
        classes = list(range(population.n_classes))
        return population.probs.max(axis=1) >= controlled(population, rows, beta, classes, DELTA)

    def for_each(population: Population, rows: np.ndarray, beta: float) -> np.ndarray:
        share = DELTA / population.n_classes
        own = [controlled(population, rows, beta, [k], share) for k in range(population.n_classes)]
        return population.probs.max(axis=1) >= np.array(own)[population.top]

    return {
        "MAPIE 1.6, one threshold for all classes": for_all,
        "MAPIE 1.6, a controller a class at delta/K": for_each,
    }


RULES = {
    "one threshold": one_threshold,
    "PerClass, together": per_class(),
    "PerClass, each": per_class(shares="each"),
    "PerClass, together, small ones pooled": per_class(fallback="pooled"),
}


def measured(name: str, beta: float, rule: str) -> dict[str, object]:
    """One rule on one set."""
    peers = mapie_rules() if rule not in RULES else {}
    population = Population(name)
    rng, started = np.random.default_rng(7), time.perf_counter()
    fewer = MAPIE_DRAWS if population.n_classes <= 32 else MAPIE_DRAWS_OF_MANY
    draws = fewer if rule in peers else DRAWS
    accepts = {**RULES, **peers}[rule]
    found = []
    for _ in range(draws):
        rows = rng.integers(len(population.top), size=N)
        found.append(population.judged(accepts(population, rows, beta), beta))
    coverage, broken, share = np.mean(found, axis=0)
    return {
        "set": name,
        "beta": beta,
        "n": N,
        "delta": DELTA,
        "rule": rule,
        "draws": draws,
        "coverage": round(float(coverage), 4),
        "some_class_broken": round(float(broken), 4),
        "share_of_classes_broken": round(float(share), 4),
        "oracle_coverage": round(population.oracle(beta), 4),
        "seconds_a_draw": round((time.perf_counter() - started) / draws, 3),
    }


def committed_peers() -> list[dict[str, object]]:
    """MAPIE's rows of the committed results: nothing of metacal is in them, so they need not be
    made again.
    """
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    return [row for row in rows if row["rule"].startswith("MAPIE")]


def main() -> None:
    """Write the results as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    peers = mapie_rules()
    tasks = [(name, beta, rule) for name in SETS for beta in BETAS for rule in (*RULES, *peers)]
    results = list(in_order(measured, tasks, options.jobs))
    if not peers:
        results += committed_peers()
    places = {
        (name, beta): k
        for k, (name, beta) in enumerate((name, beta) for name in SETS for beta in BETAS)
    }
    results.sort(key=lambda row: places[row["set"], row["beta"]])
    options.out.write_text(json.dumps({"results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
