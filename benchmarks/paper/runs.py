"""The paper's experiments, run by run: random splits for its tables, draws for what its tables leave out.

A *split* merges all rows of a file, fits every method on some of them and measures on the others (5,000 and 10,000 for
CIFAR, 25,000 and 25,000 for ImageNet): the paper's protocol. A *draw* takes as many rows with replacement from the
whole file, which is then the truth, and asks which thresholds keep their promise: no test rows blur the answer.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

import metacal as mc
from benchmarks.experiments.journal import Entry, Line
from benchmarks.experiments.logits_files import Found, digest_of, read
from benchmarks.experiments.population import Population, population
from metacal import __version__, metrics
from metacal.errors import InfeasibleTargetError, InputError, MetacalWarning
from metacal.metrics import coverage, coverage_accuracy, miscoverage, nll, top_label
from metacal.promises.promise import Promise

FORMAT = 1
#: Draws in one task.
BLOCK = 50
ALPHA = 0.05
DELTA = 0.1

#: Method -> what tables call it. The paper's six, then the certified two.
METHODS = {
    "uncal": "Uncal",
    "ts": "TS",
    "ets": "ETS",
    "gpc": "GPC",
    "meta-mis-paper": "MetaMis",
    "meta-acc-paper": "MetaAcc",
    "meta-mis": "MetaMis, certified",
    "meta-acc": "MetaAcc, certified",
}

#: What is measured on the test rows of a split.
COLUMNS = (
    "ece_published", "ece", "ece_accepted", "coverage", "miscoverage", "coverage_accuracy", "nll", "nll_accepted",
)  # fmt: skip

Rule = Callable[[float, Sequence[int]], Promise]

#: Gate -> its promise, given beta and a seed.
RULES: dict[str, Rule] = {
    "meta-mis-paper": lambda beta, seed: mc.paper.MaxMiscoverage(ALPHA, random_state=list(seed)),
    "meta-acc-paper": lambda beta, seed: mc.paper.MinCoverageAccuracy(beta, random_state=list(seed)),
    "meta-mis": lambda beta, seed: mc.MaxMiscoverage(ALPHA, DELTA),
    "meta-acc": lambda beta, seed: mc.MinAccuracy(beta, DELTA),
}

_CALIBRATORS: dict[str, Callable[[], Any]] = {
    "ts": mc.TemperatureScaling,
    "ets": partial(mc.EnsembleTemperatureScaling, loss="sequential"),  # T alone first, as published
    "gpc": mc.GaussianProcessCalibration,
}


@dataclass(frozen=True)
class Settings:
    """What decides every number, beside the data."""

    methods: tuple[str, ...] = tuple(METHODS)
    runs: int = 40
    draws: int = 1000
    seed: int = 0

    def tasks(self) -> list[tuple[str, int]]:
        """The splits, then the blocks of draws."""
        return [("split", run) for run in range(self.runs)] + [("draws", k) for k in range(0, self.draws, BLOCK)]

    def header(self, found: Found) -> Line:
        """The journal's first line for one file."""
        family = found.file.family
        return {
            "format": FORMAT,
            "bench": "paper",
            "set": found.name,
            "digest": digest_of(*read(found)),
            "rows": len(read(found)[1]),
            "classes": int(read(found)[0].shape[1]),
            "fit_rows": family.fit_rows,
            "alpha": ALPHA,
            "beta": family.beta,
            "delta": DELTA,
            "metacal": __version__,
            **{name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()},
        }


def parse_methods(text: str) -> list[str]:
    """The names in a list with commas; "all" means every one.

    Examples
    --------
    >>> parse_methods("ts,uncal")
    ['uncal', 'ts']
    """
    if text == "all":
        return list(METHODS)
    wanted = [name.strip().lower() for name in text.split(",")]
    for name in wanted:
        if name not in METHODS:
            raise InputError(f"there is no method {name!r}; there are {', '.join(METHODS)}, or all.")
    return [name for name in METHODS if name in wanted]


def run_task(found: Found, settings: Settings, kind: str, number: int) -> Entry:
    """The answer to one task of `Settings.tasks`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetacalWarning)  # about single fits; the tables tell the same
        return _split(found, settings, number) if kind == "split" else _draws(found, settings, number)


def _split(found: Found, settings: Settings, run: int) -> Entry:
    logits, labels = read(found)
    family = found.file.family
    order = np.random.default_rng([settings.seed, 0, run]).permutation(len(labels))
    fit, test = order[: family.fit_rows], order[family.fit_rows :]
    tables = logits[fit], labels[fit], logits[test], labels[test]
    _warm_up(settings.methods, found)
    computed, seconds = {}, {}
    for method in settings.methods:
        computed[method], seconds[method] = _measured(method, *tables, family.beta, (settings.seed, 2, run))
    return Entry({"split": run, "methods": computed}, {"split": run, "methods": seconds})


@lru_cache(maxsize=1)
def _warm_up(methods: tuple[str, ...], found: Found) -> None:
    """Fit everything once on a few rows: what is imported on first use is not the method's time."""
    logits, labels = (column[:1000] for column in read(found))
    for method in methods:
        _measured(method, logits, labels, logits, labels, 0.5, (0,))


def _measured(
    method: str,
    logits: NDArray[Any],
    labels: NDArray[Any],
    new_logits: NDArray[Any],
    new_labels: NDArray[Any],
    beta: float,
    seed: tuple[int, ...],
) -> tuple[Line | None, Line]:
    """Columns of one method on the test rows (None: infeasible), and the CPU seconds to fit and to predict."""
    gate = method in RULES
    started = time.process_time()
    try:
        fitted = _fitted(method, logits, labels, beta, seed)
    except InfeasibleTargetError:
        return None, {"fit": round(time.process_time() - started, 6), "predict": 0.0}
    done = time.process_time()
    proba = softmax(new_logits.astype(np.float64), axis=1) if fitted is None else fitted.predict_proba(new_logits)
    seconds = {"fit": round(done - started, 6), "predict": round(time.process_time() - done, 6)}
    accept = fitted.accepts(new_logits) if gate else np.ones(len(proba), dtype=bool)
    correct = (new_logits if gate else proba).argmax(axis=1) == new_labels
    top = top_label(proba, new_labels)
    values = {
        "ece_published": metrics.ece(proba.max(axis=1), (proba.argmax(axis=1) == new_labels).astype(np.float64)),
        "ece": metrics.ece(*top),
        "ece_accepted": metrics.ece(top.confidence[accept], top.correct[accept]) if accept.any() else math.nan,
        "coverage": coverage(accept),
        "miscoverage": miscoverage(accept, correct),
        "coverage_accuracy": coverage_accuracy(accept, correct),
        "nll": nll(proba, new_labels),
        "nll_accepted": nll(proba[accept], new_labels[accept]) if accept.any() else math.nan,
    }
    return {name: round(value, 7) if math.isfinite(value) else None for name, value in values.items()}, seconds


def _fitted(method: str, logits: NDArray[Any], labels: NDArray[Any], beta: float, seed: tuple[int, ...]) -> Any:
    if method == "uncal":
        return None
    if method in _CALIBRATORS:
        return _CALIBRATORS[method]().fit(logits, labels)
    # "Throughout the experimental part of this paper, we use temperature scaling" as the base (Section 5.1).
    return mc.MetaCal(RULES[method](beta, seed), mc.TemperatureScaling()).fit(logits, labels)


def _draws(found: Found, settings: Settings, first: int) -> Entry:
    """For every draw of the block: how many rows of the whole file each gate accepts (0: infeasible)."""
    whole, family = population(found), found.file.family
    gates = [method for method in settings.methods if method in RULES]
    accepted: dict[str, list[int]] = {gate: [] for gate in gates}
    for draw in range(first, min(first + BLOCK, settings.draws)):
        rows = whole.draw(family.fit_rows, settings.seed, 1, draw)
        for gate in gates:
            accepted[gate].append(_accepted(whole, RULES[gate](family.beta, (settings.seed, 3, draw)), *rows))
    return Entry({"draws": first, "accepted": accepted}, {"draws": first})


def _accepted(whole: Population, rule: Promise, scores: NDArray[np.float64], correct: NDArray[np.bool_]) -> int:
    chosen, _ = rule.split(correct)
    try:
        return whole.accepted(rule.certify(scores[chosen], correct[chosen]).threshold)
    except InfeasibleTargetError:
        return 0
