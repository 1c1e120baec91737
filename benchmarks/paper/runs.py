"""The paper's experiments, run by run: random splits for its tables, draws for what its tables
leave out.

A *split* merges all rows of a file, fits every method on some of them and measures on the others
(5,000 and 10,000 for CIFAR, 25,000 and 25,000 for ImageNet, 2,500 and 2,500 for a tenth of
ImageNet): the paper's protocol. A *draw* takes as many rows with replacement from the whole file,
which is then the truth, and asks which thresholds keep their promise: no test rows blur the answer.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
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
from metacal.metrics import coverage, miscoverage, nll, selective_accuracy, top_label
from metacal.promises.promise import Promise

FORMAT = 2
#: Draws in one task.
BLOCK = 50
ALPHA = 0.05
DELTA = 0.1

#: Method -> what tables call it: the paper's six, the certified two, and what the paper left out.
METHODS = {
    "uncal": "Uncal",
    "ts": "TS",
    "ets": "ETS",
    "gpc": "GPC",
    "meta-mis-paper": "MetaMis",
    "meta-acc-paper": "MetaAcc",
    "meta-mis": "MetaMis, certified",
    "meta-acc": "MetaAcc, certified",
    "dirichlet": "Dirichlet",
    "dirichlet-odir": "Dirichlet, ODIR",
}

#: Method -> data sets that it is not run on, because one fit takes more than ten seconds of a core.
LEFT_OUT = {
    "dirichlet": ("langid176-sentences",),
    "dirichlet-odir": ("langid176-sentences", "imagenet5000-efficientnet-lite0"),
}

#: What is measured on the test rows of a split. `ece_ts_accepted` is the ECE of temperature scaling
#: on the test rows that the gate accepts, and `ece_gain` is `ece_accepted` less that.
#: `ece_refitted` is the ECE on the same rows of temperature scaling that was fitted only on rows
#: that the gate accepts, and `ece_gain_refitted` is the difference.
COLUMNS = (
    "ece_published",
    "ece_debiased",
    "ece",
    "ece_accepted",
    "ece_accepted_debiased",
    "ece_ts_accepted",
    "ece_gain",
    "ece_refitted",
    "ece_gain_refitted",
    "coverage",
    "miscoverage",
    "coverage_accuracy",
    "nll",
    "nll_accepted",
)

Rule = Callable[[float, Sequence[int]], Promise]

#: Gate -> its promise, given beta and a seed.
RULES: dict[str, Rule] = {
    "meta-mis-paper": lambda beta, seed: mc.paper.MaxMiscoverage(ALPHA, random_state=list(seed)),
    "meta-acc-paper": lambda beta, seed: mc.paper.MinCoverageAccuracy(
        beta, random_state=list(seed)
    ),
    "meta-mis": lambda beta, seed: mc.MaxMiscoverage(ALPHA, DELTA),
    "meta-acc": lambda beta, seed: mc.MinAccuracy(beta, DELTA),
}

_CALIBRATORS: dict[str, Callable[[], Any]] = {
    "ts": mc.TemperatureScaling,
    "ets": partial(mc.EnsembleTemperatureScaling, loss="sequential"),  # T alone first, as published
    "gpc": mc.GaussianProcessCalibration,
    "dirichlet": mc.DirichletCalibration,
    "dirichlet-odir": partial(
        mc.DirichletCalibration, penalty="odir"
    ),  # as Kull et al. (2019) regularise it
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
        return [("split", run) for run in range(self.runs)] + [
            ("draws", k) for k in range(0, self.draws, BLOCK)
        ]

    def methods_for(self, found: Found) -> list[str]:
        """Return the methods that are run on a file."""
        return [method for method in self.methods if found.name not in LEFT_OUT.get(method, ())]

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
            **asdict(self),
            "methods": self.methods_for(found),
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
            raise InputError(
                f"there is no method {name!r}; there are {', '.join(METHODS)}, or all."
            )
    return [name for name in METHODS if name in wanted]


def run_task(found: Found, settings: Settings, kind: str, number: int) -> Entry:
    """The answer to one task of `Settings.tasks`."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", MetacalWarning
        )  # about single fits; the tables tell the same
        return (
            _split(found, settings, number) if kind == "split" else _draws(found, settings, number)
        )


@dataclass(frozen=True)
class _Split:
    """The rows of one split, what they are asked, and temperature scaling's probabilities of the
    test rows.
    """

    fit_logits: NDArray[Any]
    fit_labels: NDArray[Any]
    test_logits: NDArray[Any]
    test_labels: NDArray[Any]
    beta: float
    seed: tuple[int, ...]

    @cached_property
    def scaled_proba(self) -> NDArray[Any]:
        """Temperature scaling, fitted on all rows to fit on."""
        scaling = mc.TemperatureScaling().fit(self.fit_logits, self.fit_labels)
        return np.asarray(scaling.predict_proba(self.test_logits))


def _split(found: Found, settings: Settings, run: int) -> Entry:
    logits, labels = read(found)
    family = found.file.family
    order = np.random.default_rng([settings.seed, 0, run]).permutation(len(labels))
    fit_rows, test_rows = order[: family.fit_rows], order[family.fit_rows :]
    split = _Split(
        fit_logits=logits[fit_rows],
        fit_labels=labels[fit_rows],
        test_logits=logits[test_rows],
        test_labels=labels[test_rows],
        beta=family.beta,
        seed=(settings.seed, 2, run),
    )
    methods = settings.methods_for(found)
    _warm_up(tuple(methods), found)
    computed, seconds = {}, {}
    for method in methods:
        computed[method], seconds[method] = _measured(method, split)
    return Entry({"split": run, "methods": computed}, {"split": run, "methods": seconds})


@lru_cache(maxsize=1)
def _warm_up(methods: tuple[str, ...], found: Found) -> None:
    """Fit the methods once on a few rows, so that what they import on first use is not counted as
    their time.
    """
    logits, labels = (column[:1000] for column in read(found))
    few = _Split(logits, labels, logits, labels, beta=0.5, seed=(0,))
    for method in methods:
        if not method.startswith("dirichlet"):  # it imports nothing, and its fit is the slowest
            _measured(method, few)


def _measured(method: str, split: _Split) -> tuple[Line | None, Line]:
    """Columns of one method on the test rows (None: infeasible), and the CPU seconds to fit and to
    predict.
    """
    started = time.process_time()
    try:
        fitted = _fitted(method, split.fit_logits, split.fit_labels, split.beta, split.seed)
    except InfeasibleTargetError:
        return None, {"fit": round(time.process_time() - started, 6), "predict": 0.0}
    done = time.process_time()
    if fitted is None:
        proba = softmax(split.test_logits.astype(np.float64), axis=1)
    elif method in RULES:
        proba = fitted.predict_proba(split.test_logits, rejected="uniform")
    else:
        proba = fitted.predict_proba(split.test_logits)
    seconds = {"fit": round(done - started, 6), "predict": round(time.process_time() - done, 6)}
    if method in RULES:
        values = _gate_columns(fitted, proba, split)
    else:
        values = _columns(
            proba, np.ones(len(proba), dtype=bool), proba.argmax(axis=1) == split.test_labels, split
        )
    rounded = {
        name: round(value, 7) if math.isfinite(value) else None for name, value in values.items()
    }
    return rounded, seconds


def _columns(
    proba: NDArray[Any], accept: NDArray[np.bool_], correct: NDArray[np.bool_], split: _Split
) -> dict[str, float]:
    """Measure probabilities on all test rows and on the accepted ones."""
    labels = split.test_labels
    published = proba.max(axis=1), (proba.argmax(axis=1) == labels).astype(np.float64)
    top = top_label(proba, labels)
    accepted = top.confidence[accept], top.correct[accept]
    any_accepted = bool(accept.any())
    return {
        "ece_published": metrics.ece(*published),
        "ece_debiased": metrics.debiased_ece(*published),
        "ece": metrics.ece(*top),
        "ece_accepted": metrics.ece(*accepted) if any_accepted else math.nan,
        "ece_accepted_debiased": metrics.debiased_ece(*accepted) if any_accepted else math.nan,
        "coverage": coverage(accept),
        "miscoverage": miscoverage(accept, correct),
        "coverage_accuracy": selective_accuracy(accept, correct),
        "nll": nll(proba, labels),
        "nll_accepted": nll(proba[accept], labels[accept]) if any_accepted else math.nan,
    }


def _gate_columns(gate: mc.MetaCal, proba: NDArray[Any], split: _Split) -> dict[str, float]:
    """Measure a gate, and on the rows that it accepts also temperature scaling, fitted on all rows
    and on such rows.
    """
    accept = gate.accepts(split.test_logits)
    correct = split.test_logits.argmax(axis=1) == split.test_labels
    values = _columns(proba, accept, correct, split)
    fit_accept = gate.accepts(split.fit_logits)
    if accept.any() and fit_accept.any():
        refitted = mc.TemperatureScaling().fit(
            split.fit_logits[fit_accept], split.fit_labels[fit_accept]
        )
        labels = split.test_labels[accept]
        values["ece_ts_accepted"] = metrics.ece(split.scaled_proba[accept], labels)
        values["ece_gain"] = values["ece_accepted"] - values["ece_ts_accepted"]
        values["ece_refitted"] = metrics.ece(
            refitted.predict_proba(split.test_logits[accept]), labels
        )
        values["ece_gain_refitted"] = values["ece_accepted"] - values["ece_refitted"]
    return values


def _fitted(
    method: str, logits: NDArray[Any], labels: NDArray[Any], beta: float, seed: tuple[int, ...]
) -> Any:
    if method == "uncal":
        return None
    if method in _CALIBRATORS:
        return _CALIBRATORS[method]().fit(logits, labels)
    # "Throughout the experimental part of this paper, we use temperature scaling" as the base
    # (Section 5.1).
    return mc.MetaCal(RULES[method](beta, seed), mc.TemperatureScaling()).fit(logits, labels)


def _draws(found: Found, settings: Settings, first: int) -> Entry:
    """For every draw of the block: how many rows of the whole file each gate accepts (0:
    infeasible).
    """
    whole, family = population(found), found.file.family
    gates = [method for method in settings.methods if method in RULES]
    accepted: dict[str, list[int]] = {gate: [] for gate in gates}
    for draw in range(first, min(first + BLOCK, settings.draws)):
        rows = whole.draw(family.fit_rows, settings.seed, 1, draw)
        for gate in gates:
            accepted[gate].append(
                _accepted(whole, RULES[gate](family.beta, (settings.seed, 3, draw)), *rows)
            )
    return Entry({"draws": first, "accepted": accepted}, {"draws": first})


def _accepted(
    whole: Population, rule: Promise, scores: NDArray[np.float64], correct: NDArray[np.bool_]
) -> int:
    chosen, _ = rule.split_rows(correct)
    try:
        return whole.accepted(rule.certify(scores[chosen], correct[chosen]).threshold)
    except InfeasibleTargetError:
        return 0
