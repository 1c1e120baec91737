"""Promises about cases on receipts, tweets and synthetic cases: items accepted and promises broken.

    python -m benchmarks.case_promises --data DATA --jobs 2 --out benchmarks/results/case-promises.json

DATA holds `receipt_fields.npz` (four fields of 476 receipts) and `redaction_btc.npz` (the words of
tweets, of which those with a name are used). The cases of a file are the population. They are drawn
with replacement, so that a draw may have more cases than the file, and a promise is broken if it fails
on the whole file. Synthetic cases are judged on 20,000 others.

Methods beside metacal's, with the same confidence level: one threshold on the raw scores of all
fields; an order statistic for each field at a quarter of the limit and of delta (Bonferroni); and the
best thresholds in hindsight, found by coordinate ascent on the whole file: within the limit, and
within the share of broken cases that metacal's rule has on average. "Scale of the file" is metacal's
rule with a scale that was fitted on all receipts, which no method knows: so much remains if the scale
is learned without loss. "Monotone scale of the file" is the same with a scale of any monotone shape,
which fits the receipts that judge it too closely: no scale that can be learned accepts more. For synthetic cases there is one threshold on the true log-odds of the items,
which no method knows either.

MAPIE has no promise about cases. But if one reduces each case to the score of the item that breaks it
first, the share of broken cases is a false-positive rate, and the share of cases without a miss is a
recall. MAPIE's controller for binary classification gets these scores of the same cases, and finds one
threshold for all items. If MAPIE is not installed (`pip install mapie==1.6`), its committed results
stay, because nothing of metacal is in them.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit, logit

import metacal as mc
from benchmarks.experiments.pool import in_order
from metacal.certification import case_procedures, case_sequence_procedure
from metacal.certification.case_cutoffs import compute_max_broken_cases, count_tested_cases
from metacal.certification.case_items import CaseItems
from metacal.certification.case_scale import HarmlessnessModel, fit_harmlessness_model

DELTA = 0.1
COMMITTED = Path(__file__).parent / "results" / "case-promises.json"
#: Number of cases and limit of each cell about receipts.
RECEIPT_CELLS = ((300, 0.1), (300, 0.05), (150, 0.1), (150, 0.05), (1000, 0.02), (1000, 0.05))
AUTOMATED_CELLS = ((300, 0.1), (300, 0.2), (1000, 0.05))
MEAN_CELLS = ((300, 0.1), (300, 0.05), (1000, 0.05))
#: Number of tweets with a name, limit, and share of the names that no candidate covers.
TWEET_CELLS = (
    (400, 0.1, 0.0),
    (1000, 0.1, 0.0),
    (1000, 0.05, 0.0),
    (400, 0.1, 0.01),
    (1000, 0.1, 0.01),
    (400, 0.1, 0.03),
    (1000, 0.1, 0.03),
)
SYNTHETIC = (
    "six scales",
    "one hopeless",
    "correlated",
    "1 to 100 items",
    "steps",
    "30 types, one scale",
)
N_SYNTHETIC_CASES, N_POPULATION = 300, 20_000
#: Multiple tests of MAPIE: its default, and the one that accepts most in the comparison of accuracies.
MAPIE_METHODS = ("bonferroni_holm", "fixed_sequence")
#: Log-odds of a word at which the probability that MAPIE receives is a half. In a tenth of the tweets
#: with a name the lowest true score is below it, so MAPIE's grid is fine where the threshold lies.
MAPIE_OFFSET = -7.0
#: Standard deviation of the kernel of the monotone scale, as a share of the receipts.
MONOTONE_BANDWIDTH = 0.04
#: Coordinate ascents for the best thresholds, and the steps of each.
N_ASCENTS, N_ASCENT_STEPS = 12, 4000


@dataclass(frozen=True)
class Items:
    """Items of cases: score, correctness, case and type of each.

    For synthetic items also the log-odds with which each is correct.
    """

    score: np.ndarray
    correct: np.ndarray
    case: np.ndarray
    kind: np.ndarray
    log_odds: np.ndarray | None = None

    @property
    def with_true_scores(self) -> Items:
        """The same items, with their true log-odds as scores."""
        assert self.log_odds is not None
        return replace(self, score=self.log_odds)

    @property
    def n_cases(self) -> int:
        """Number of cases."""
        return int(self.case.max()) + 1

    def take(self, cases: np.ndarray) -> Items:
        """Return the items of some cases, each as a case of its own if it is drawn twice."""
        order = np.argsort(self.case, kind="stable")
        ends = np.cumsum(np.bincount(self.case, minlength=self.n_cases))
        starts = np.concatenate([[0], ends[:-1]])
        index = np.concatenate([order[starts[case] : ends[case]] for case in cases])
        sizes = (ends - starts)[cases]
        return Items(
            self.score[index],
            self.correct[index],
            np.repeat(np.arange(len(cases)), sizes),
            self.kind[index],
        )

    def share_of_broken_cases(self, accept: np.ndarray) -> float:
        """Return the share of cases with a wrong accepted item."""
        return float((self.count_errors(accept) > 0).mean())

    def count_errors(self, accept: np.ndarray) -> np.ndarray:
        """Count the wrong accepted items of each case."""
        return np.bincount(self.case[accept & ~self.correct], minlength=self.n_cases)

    def count_accepted(self, accept: np.ndarray) -> np.ndarray:
        """Count the accepted items of each case."""
        return np.bincount(self.case[accept], minlength=self.n_cases)


@cache
def load_receipts(folder: str) -> Items:
    """Return the fields of all receipts."""
    data = np.load(Path(folder) / "receipt_fields.npz")
    n_cases, n_fields = data["score"].shape
    return Items(
        data["score"].ravel(),
        data["correct"].ravel(),
        np.repeat(np.arange(n_cases), n_fields),
        np.tile(np.arange(n_fields), n_cases),
    )


@cache
def load_tweets(folder: str) -> Items:
    """Return the words of the tweets that have a name."""
    data = np.load(Path(folder) / "redaction_btc.npz")
    has_name = np.bincount(data["case"], data["gold"]) > 0
    is_kept = has_name[data["case"]]
    _, case = np.unique(data["case"][is_kept], return_inverse=True)
    return Items(
        data["score"][is_kept].astype(np.float64),
        data["gold"][is_kept],
        case,
        np.zeros(is_kept.sum(), dtype=int),
    )


# ── methods ───────────────────────────────────────────────────────────────────────────────────────

#: From items to a mask of accepted ones.
Decide = Callable[[Items], np.ndarray]


def fit_gate(promise: Any, items: Items, *, has_types: bool = True) -> Decide | None:
    """Certify a promise; None if the cases do not support it."""
    groups = items.kind if has_types else None
    try:
        gate = mc.ScoreGate(promise).fit(
            items.score, items.correct, cases=items.case, groups=groups
        )
    except mc.InfeasibleTargetError:
        return None
    return lambda new: gate.accepts(new.score, new.kind if has_types else None)


@cache
def fit_scale_of_file(folder: str) -> HarmlessnessModel:
    """Fit the scale of the receipt fields on all receipts."""
    items = load_receipts(folder)
    case_items = CaseItems(
        safety=items.score,
        is_harmful=~items.correct,
        types=items.kind,
        cases=items.case,
        n_types=int(items.kind.max()) + 1,
    )
    return fit_harmlessness_model(case_items, same_scale=False)


@dataclass(frozen=True)
class MonotoneScale:
    """Scale from safety to harmless log-odds by a rising, piecewise linear function of each type.

    It has the methods of `HarmlessnessModel` that the rule of `MaxCaseErrors` calls.

    Attributes
    ----------
    knots, log_odds : list of array
        For each type, rising safeties, and the harmless log-odds of each.
    """

    knots: list[np.ndarray]
    log_odds: list[np.ndarray]

    def compute_harmless_log_odds(self, safety: np.ndarray, types: np.ndarray) -> np.ndarray:
        """Compute the log-odds that each item is harmless."""
        values = np.full(len(safety), -np.inf)
        for kind, (knots, log_odds) in enumerate(zip(self.knots, self.log_odds, strict=True)):
            is_kind = (types == kind) & np.isfinite(safety)
            values[is_kind] = np.interp(safety[is_kind], knots, log_odds)
        return values

    def convert_log_odds_to_safety(self, harmless_log_odds: float | np.ndarray) -> np.ndarray:
        """Convert harmless log-odds, or one number for each type, to the cutoff of each type."""
        log_odds_of_type = np.broadcast_to(harmless_log_odds, len(self.knots))
        return np.array(
            [
                np.interp(log_odds_of_type[kind], log_odds, knots, left=-np.inf, right=np.inf)
                for kind, (knots, log_odds) in enumerate(
                    zip(self.knots, self.log_odds, strict=True)
                )
            ]
        )


@cache
def fit_monotone_scale_of_file(folder: str) -> MonotoneScale:
    """Fit a smooth monotone scale of the receipt fields on all receipts."""
    items = load_receipts(folder)
    knots, log_odds = [], []
    for kind in range(int(items.kind.max()) + 1):
        order = np.argsort(items.score[items.kind == kind])
        safety = items.score[items.kind == kind][order]
        is_correct = items.correct[items.kind == kind][order].astype(float)
        ranks = np.arange(len(safety))
        bandwidth = MONOTONE_BANDWIDTH * len(safety)
        weights = np.exp(-0.5 * ((ranks[:, None] - ranks) / bandwidth) ** 2)
        # A part of a right and of a wrong item keeps the log-odds finite.
        share_correct = (weights @ is_correct + 0.15) / (weights.sum(axis=1) + 0.3)
        monotone = isotonic_regression(share_correct).x
        distinct, first = np.unique(safety, return_index=True)
        # A small slope makes the function invertible where it is flat.
        rising = logit(monotone)[first] + 1e-6 * first
        knots.append(np.concatenate([[distinct[0] - 1], distinct, [distinct[-1] + 1e-6]]))
        log_odds.append(np.concatenate([[rising[0] - 1], rising, [rising[-1] + 1e-3]]))
    return MonotoneScale(knots, log_odds)


def fit_gate_with_scale(
    promise: Any, items: Items, scale: HarmlessnessModel | MonotoneScale
) -> Decide | None:
    """Certify a promise with a scale that is known beforehand."""
    with (
        mock.patch.object(case_procedures, "fit_harmlessness_model", return_value=scale),
        mock.patch.object(case_sequence_procedure, "fit_harmlessness_model", return_value=scale),
    ):
        return fit_gate(promise, items)


def find_mapie_threshold(scores: np.ndarray, risk: str, level: float, method: str) -> float | None:
    """Find MAPIE's threshold for cases that are reduced to one score each.

    Parameters
    ----------
    scores : array of shape (n_cases,)
        Score between 0 and 1 of the item that breaks each case first.

    risk : str
        "fpr" if a case breaks above the threshold, and "recall" if it breaks below.

    level : float
        Promised level of the risk.

    method : str
        One of `MAPIE_METHODS`.

    Returns
    -------
    float or None
        None if MAPIE certifies no threshold.
    """
    control = importlib.import_module("mapie.risk_control")
    controller = control.BinaryClassificationController(
        lambda p: np.column_stack([1.0 - p, p]),
        risk,
        level,
        1.0 - DELTA,
        "recall" if risk == "fpr" else "fpr",
        fwer_method=method,
    )
    labels = np.full(len(scores), risk == "recall").astype(int)
    with warnings.catch_warnings(action="ignore"):
        controller.calibrate(scores, labels)
    if len(controller.valid_predict_params) == 0:
        return None
    choose = min if risk == "fpr" else max
    return float(choose(np.ravel(controller.valid_predict_params)))


def fit_mapie(items: Items, limit: float, method: str) -> Decide | None:
    """Let MAPIE limit the share of cases with a wrong accepted item."""
    safest = np.zeros(items.n_cases)
    is_wrong = ~items.correct
    np.maximum.at(safest, items.case[is_wrong], items.score[is_wrong])
    threshold = find_mapie_threshold(safest, "fpr", limit, method)
    return None if threshold is None else lambda new: new.score >= threshold


def fit_mapie_recall(items: Items, limit: float, method: str) -> Decide | None:
    """Let MAPIE limit the share of cases with a missed true item."""
    # A true item without a score is a miss at every threshold, so it lies below the lowest one.
    scores = np.nan_to_num(expit(items.score[items.correct] - MAPIE_OFFSET), nan=-1.0)
    lowest = np.ones(items.n_cases)
    np.minimum.at(lowest, items.case[items.correct], scores)
    threshold = find_mapie_threshold(lowest, "recall", 1 - limit, method)
    if threshold is None:
        return None
    lowest_score = float(logit(threshold)) + MAPIE_OFFSET
    return lambda new: new.score >= lowest_score


def fit_each_type(items: Items, limit: float) -> Decide | None:
    """Certify an order statistic for each type, at its share of the limit and of delta."""
    kinds = np.unique(items.kind)
    promise = mc.MaxCaseErrors(limit / len(kinds), delta=DELTA / len(kinds))
    thresholds = {}
    for kind in kinds:
        is_kind = items.kind == kind
        try:
            gate = mc.ScoreGate(promise).fit(
                items.score[is_kind], items.correct[is_kind], cases=items.case[is_kind]
            )
        except mc.InfeasibleTargetError:
            return None
        thresholds[kind] = gate.threshold_
    return lambda new: -new.score <= np.array([thresholds[kind] for kind in new.kind.tolist()])


def find_best_in_hindsight(items: Items, limit: float) -> float:
    """Find the largest share of items that thresholds on the whole file accept within a limit."""
    rng = np.random.default_rng(0)
    n_kinds = int(items.kind.max()) + 1
    scores_of_kind = [items.score[items.kind == kind] for kind in range(n_kinds)]
    best = 0.0
    for _ in range(N_ASCENTS):
        cuts = np.array([np.quantile(scores, rng.uniform(0.5, 1)) for scores in scores_of_kind])
        accepted, broken = _measure_cuts(items, cuts)
        for _ in range(N_ASCENT_STEPS):
            changed = cuts.copy()
            for kind in rng.integers(n_kinds, size=rng.integers(1, 3)):
                changed[kind] = rng.choice(scores_of_kind[kind])
            new_accepted, new_broken = _measure_cuts(items, changed)
            improves = new_broken <= limit and (broken > limit or new_accepted >= accepted)
            if improves or (broken > limit and new_broken < broken):
                cuts, accepted, broken = changed, new_accepted, new_broken
        if broken <= limit:
            best = max(best, accepted)
    return best


def _measure_cuts(items: Items, cuts: np.ndarray) -> tuple[float, float]:
    """Return the accepted share of items and the broken share of cases at some cuts."""
    accept = items.score > cuts[items.kind]
    return float(accept.mean()), items.share_of_broken_cases(accept)


def mean_broken_share(n_cases: int, limit: float) -> float:
    """Return the mean share of broken cases of the rule with learned cuts."""
    n_tested = count_tested_cases(n_cases, limit, DELTA)
    return (compute_max_broken_cases(n_tested, limit, DELTA) + 1) / (n_tested + 1)


# ── cells ─────────────────────────────────────────────────────────────────────────────────────────


def summarize(measured: list[tuple[float, bool] | None]) -> dict[str, float]:
    """Average the accepted share and the broken promises over the draws."""
    accepted = [0.0 if one is None else one[0] for one in measured]
    broken = [False if one is None else one[1] for one in measured]
    return {
        "accepted": round(float(np.mean(accepted)), 4),
        "broken": round(float(np.mean(broken)), 4),
        "infeasible": round(float(np.mean([one is None for one in measured])), 4),
    }


def measure_errors(
    decide: Decide | None, population: Items, breaks: Callable[[Items, np.ndarray], bool]
) -> tuple[float, bool] | None:
    """Return the accepted share of the population, and whether the promise is broken there."""
    if decide is None:
        return None
    accept = decide(population)
    return float(accept.mean()), breaks(population, accept)


def run_receipts(
    folder: str, kind: str, n_cases: int, limit: float, n_draws: int
) -> dict[str, Any]:
    """Measure the methods on draws of receipts."""
    population = load_receipts(folder)
    results: dict[str, list[tuple[float, bool] | None]] = {}
    for draw in range(n_draws):
        rng = np.random.default_rng([n_cases, round(1000 * limit), draw])
        items = population.take(rng.integers(population.n_cases, size=n_cases))
        for method, (decide, breaks) in fit_methods(kind, items, limit, folder).items():
            measured = measure_errors(decide, population, breaks)
            results.setdefault(method, []).append(measured)
    cell: dict[str, Any] = {
        "data": "receipts",
        "promise": kind,
        "cases": n_cases,
        "limit": limit,
        "draws": n_draws,
        "methods": {method: summarize(measured) for method, measured in results.items()},
    }
    if kind == "MaxCaseErrors":
        aimed = mean_broken_share(n_cases, limit)
        cell["hindsight within the limit"] = round(find_best_in_hindsight(population, limit), 4)
        cell["hindsight within the mean share"] = round(
            find_best_in_hindsight(population, aimed), 4
        )
    return cell


def fit_methods(
    kind: str, items: Items, limit: float, folder: str
) -> dict[str, tuple[Decide | None, Callable[[Items, np.ndarray], bool]]]:
    """Fit the methods of one promise on the items of a draw."""

    def breaks_share(population: Items, accept: np.ndarray) -> bool:
        return population.share_of_broken_cases(accept) > limit

    def breaks_automated_share(population: Items, accept: np.ndarray) -> bool:
        n_automated = (population.count_accepted(accept) > 0).sum()
        return bool((population.count_errors(accept) > 0).sum() > limit * n_automated)

    def breaks_mean(population: Items, accept: np.ndarray) -> bool:
        return bool(population.count_errors(accept).mean() > limit)

    scale = fit_scale_of_file(folder)
    monotone_scale = fit_monotone_scale_of_file(folder)
    if kind == "automated":
        automated = mc.MaxCaseErrors(limit, among="automated")
        return {
            "metacal": (fit_gate(automated, items), breaks_automated_share),
            "scale of the file": (
                fit_gate_with_scale(automated, items, scale),
                breaks_automated_share,
            ),
        }
    if kind == "MaxErrorsPerCase":
        mean_errors = mc.MaxErrorsPerCase(limit, largest=4)
        return {"metacal": (fit_gate(mean_errors, items), breaks_mean)}
    promise = mc.MaxCaseErrors(limit)
    methods = {
        "metacal": fit_gate(promise, items),
        "scale of the file": fit_gate_with_scale(promise, items, scale),
        "monotone scale of the file": fit_gate_with_scale(promise, items, monotone_scale),
        "one raw scale": fit_gate(promise, items, has_types=False),
        "each type": fit_each_type(items, limit),
    }
    if has_mapie():
        for name in MAPIE_METHODS:
            methods[f"MAPIE {name}"] = fit_mapie(items, limit, name)
    return {name: (decide, breaks_share) for name, decide in methods.items()}


def has_mapie() -> bool:
    """Return whether MAPIE is installed."""
    return importlib.util.find_spec("mapie") is not None


def run_tweets(
    folder: str, n_cases: int, limit: float, uncovered: float, n_draws: int
) -> dict[str, Any]:
    """Measure the masked share of harmless words, and the tweets with a name that is not masked."""
    tweets = load_tweets(folder)
    rng = np.random.default_rng(round(1000 * uncovered))
    is_uncovered = tweets.correct & (rng.random(len(tweets.score)) < uncovered)
    population = replace(tweets, score=np.where(is_uncovered, np.nan, tweets.score))
    results: dict[str, list[tuple[float, float] | None]] = {}
    for draw in range(n_draws):
        rng = np.random.default_rng([n_cases, round(1000 * limit), draw])
        items = population.take(rng.integers(population.n_cases, size=n_cases))
        methods = {"metacal": fit_gate(mc.MinCaseRecall(1 - limit), items, has_types=False)}
        if has_mapie():
            for name in MAPIE_METHODS:
                methods[f"MAPIE {name}"] = fit_mapie_recall(items, limit, name)
        for method, decide in methods.items():
            results.setdefault(method, []).append(measure_masks(decide, population))
    has_uncovered = np.bincount(population.case[is_uncovered], minlength=population.n_cases) > 0
    return {
        "data": "tweets",
        "promise": "MinCaseRecall",
        "cases": n_cases,
        "limit": limit,
        "uncovered": uncovered,
        "floor": round(float(has_uncovered.mean()), 4),
        "draws": n_draws,
        "methods": {method: summarize_masks(found, limit) for method, found in results.items()},
    }


def measure_masks(decide: Decide | None, population: Items) -> tuple[float, float] | None:
    """Return the masked share of harmless words, and the share of tweets that leak a name."""
    if decide is None:
        return None
    accept = decide(population)
    is_missed = population.correct & ~accept
    misses = np.bincount(population.case[is_missed], minlength=population.n_cases)
    return float(accept[~population.correct].mean()), float((misses > 0).mean())


def summarize_masks(
    measured: list[tuple[float, float] | None], limit: float
) -> dict[str, float | None]:
    """Average over the draws with a threshold. Of all draws, count the broken and the refused ones."""
    found = [one for one in measured if one is not None]
    masked, leaking = np.mean(found, axis=0) if found else (None, None)
    return {
        "masked": None if masked is None else round(float(masked), 4),
        "leaking": None if leaking is None else round(float(leaking), 4),
        "broken": round(sum(leak > limit for _, leak in found) / len(measured), 4),
        "infeasible": round(1.0 - len(found) / len(measured), 4),
    }


def draw_synthetic(name: str, n_cases: int, rng: np.random.Generator) -> Items:
    """Draw synthetic cases, whose items are right with the probability that their log-odds say."""
    n_types = 30 if name == "30 types, one scale" else 6
    log_odds = rng.normal(4.5 if n_types == 30 else 2.5, 2.0, size=(n_cases, n_types))
    if name == "correlated":
        log_odds += rng.normal(0.0, 1.0, size=(n_cases, 1))
    score = log_odds.copy()
    if name == "one hopeless":
        log_odds[:, -1] = -0.8
    correct = rng.random((n_cases, n_types)) < expit(log_odds)
    if name == "six scales":
        score = score * np.linspace(0.5, 2.0, n_types) + np.linspace(-2.0, 2.0, n_types)
    if name == "steps":
        score = np.round(score)
    items = Items(
        score.ravel(),
        correct.ravel(),
        np.repeat(np.arange(n_cases), n_types),
        np.tile(np.arange(n_types), n_cases),
        log_odds.ravel(),
    )
    if name != "1 to 100 items":
        return items
    # A case has from 1 to 100 items of random types, few of them in most cases.
    sizes = np.maximum(1, (100 ** rng.random(n_cases)).astype(int))
    case = np.repeat(np.arange(n_cases), sizes)
    kind = rng.integers(n_types, size=len(case))
    log_odds = rng.normal(4.0, 2.0, size=len(case))
    correct = rng.random(len(case)) < expit(log_odds)
    return Items(log_odds * np.linspace(0.5, 2.0, n_types)[kind], correct, case, kind, log_odds)


def run_synthetic(name: str, limit: float, n_draws: int) -> dict[str, Any]:
    """Measure the methods on draws of synthetic cases."""
    population = draw_synthetic(name, N_POPULATION, np.random.default_rng(SYNTHETIC.index(name)))
    same_scale = name == "30 types, one scale"

    def breaks(items: Items, accept: np.ndarray) -> bool:
        return items.share_of_broken_cases(accept) > limit

    results: dict[str, list[tuple[float, bool] | None]] = {}
    for draw in range(n_draws):
        rng = np.random.default_rng([SYNTHETIC.index(name), round(1000 * limit), draw])
        items = draw_synthetic(name, N_SYNTHETIC_CASES, rng)
        gates = {
            "metacal": fit_gate(mc.MaxCaseErrors(limit, same_scale=same_scale), items),
            "one raw scale": fit_gate(mc.MaxCaseErrors(limit), items, has_types=False),
            "each type": fit_each_type(items, limit),
        }
        for method, decide in gates.items():
            results.setdefault(method, []).append(measure_errors(decide, population, breaks))
        true_scale = fit_gate(mc.MaxCaseErrors(limit), items.with_true_scores, has_types=False)
        measured = measure_errors(true_scale, population.with_true_scores, breaks)
        results.setdefault("true log-odds", []).append(measured)
    return {
        "data": "synthetic",
        "population": name,
        "promise": "MaxCaseErrors",
        "cases": N_SYNTHETIC_CASES,
        "limit": limit,
        "draws": n_draws,
        "methods": {method: summarize(measured) for method, measured in results.items()},
    }


def run_cell(job: tuple[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Run one cell of the result."""
    warnings.simplefilter("ignore")
    function, arguments = job
    cell: dict[str, Any] = globals()[function](*arguments)
    return cell


def list_jobs(folder: str, n_draws: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """List the cells, the slowest first."""
    for name in SYNTHETIC:
        for limit in (0.1, 0.05):
            yield "run_synthetic", (name, limit, max(1, n_draws // 4))
    for n_cases, limit in RECEIPT_CELLS:
        yield "run_receipts", (folder, "MaxCaseErrors", n_cases, limit, n_draws)
    for n_cases, limit in AUTOMATED_CELLS:
        yield "run_receipts", (folder, "automated", n_cases, limit, n_draws)
    for n_cases, limit in MEAN_CELLS:
        yield "run_receipts", (folder, "MaxErrorsPerCase", n_cases, limit, n_draws)
    for n_cases, limit, uncovered in TWEET_CELLS:
        yield "run_tweets", (folder, n_cases, limit, uncovered, n_draws)


def keep_committed_mapie(cells: list[dict[str, Any]]) -> None:
    """Copy MAPIE's committed results into cells that were measured without it."""

    def identify(cell: dict[str, Any]) -> tuple[Any, ...]:
        names = ("data", "population", "promise", "cases", "limit", "uncovered")
        return tuple(cell.get(name) for name in names)

    committed = {
        identify(cell): cell["methods"]
        for cell in json.loads(COMMITTED.read_text(encoding="utf-8"))["cells"]
    }
    for cell in cells:
        for method, measured in committed.get(identify(cell), {}).items():
            if method.startswith("MAPIE"):
                cell["methods"].setdefault(method, measured)


def main() -> None:
    """Run all cells and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", default=COMMITTED)
    options = parser.parse_args()
    jobs = list(list_jobs(options.data, options.draws))
    cells = []
    for cell in in_order(run_cell, [(job,) for job in jobs], options.jobs):
        cells.append(cell)
        print(f"cell {len(cells)} of {len(jobs)}", file=sys.stderr)
    if not has_mapie() and COMMITTED.exists():
        keep_committed_mapie(cells)
    result = {"delta": DELTA, "cells": cells}
    Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
