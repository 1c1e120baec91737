"""What two models say about the same rows, which thresholds of a cascade are tested on them, and in
which order.

All of it comes from rows that are not tested on.

One threshold rises through quantiles of the small model's scores. Two, with people in the cascade,
are walked in Pareto order: of all pairs those that are cheapest at their risk, safest first. The
risk of a pair is estimated on labelled rows set aside: by the errors counted there, drawn towards
what a logistic curve of each model's errors along its own score says, since a few hundred rows hold
hardly an error where the models are sure. How good the estimate is decides how far a walk comes,
never whether its promise holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, expit

from metacal.certificates.certificate import accepts
from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import Grid
from metacal.rows.draws import RowDraws

#: Quantiles of the scores set aside that are thresholds to test, for one threshold and for each of
#: two.
_STEPS, _STEPS_OF_TWO = 100, 40
#: An accuracy is first tested where the small model answers this share, then upward; a part of
#: delta is kept for less.
_FIRST_SHARE, _FIRST_LEVEL = 0.4, 0.9
#: With so many rows set aside their errors and the fitted curve have equal weight.
_EQUAL_WEIGHT = 500
#: Of the slope of that curve: with few errors it would run away.
_RIDGE = 0.1


@dataclass(frozen=True)
class PairedPredictions:
    """What both models say about the same rows: ranking scores, whether each is right, whether a
    label is known.

    Where no label is known both `right` columns are False: such rows count where the two agree, as
    "neither".
    """

    small_score: Float
    large_score: Float
    small_correct: Flags
    large_correct: Flags
    models_agree: Flags
    has_label: Flags

    def __len__(self) -> int:
        return len(self.small_score)

    def take(self, rows: Codes) -> PairedPredictions:
        return PairedPredictions(*(column[rows] for column in vars(self).values()))


class Candidate(NamedTuple):
    """Thresholds of the two gates; the large one is +inf where nothing goes to people."""

    small_threshold: float
    large_threshold: float = math.inf


class OutcomeCounts(NamedTuple):
    """What a candidate does to rows."""

    n_small: int
    n_large: int
    n_worse: int
    n_better: int
    n_small_errors: int
    n_large_errors: int

    @property
    def n_answered(self) -> int:
        return self.n_small + self.n_large

    @property
    def n_errors(self) -> int:
        return self.n_small_errors + self.n_large_errors


def count_outcomes(rows: PairedPredictions, candidate: Candidate) -> OutcomeCounts:
    """Who answers how many of the rows, and how many of them are wrong.

    >>> flags = np.array([True, True, False, False])
    >>> rows = PairedPredictions(np.arange(4.0), np.arange(4.0), flags, ~flags, np.zeros(4, dtype=bool), np.ones(4, dtype=bool))
    >>> count_outcomes(rows, Candidate(0.5))
    OutcomeCounts(n_small=1, n_large=3, n_worse=0, n_better=1, n_small_errors=0, n_large_errors=1)
    """
    small = accepts(rows.small_score, candidate.small_threshold)
    large = ~small & accepts(rows.large_score, candidate.large_threshold)
    columns = (
        small,
        large,
        small & ~rows.small_correct & rows.large_correct,
        small & rows.small_correct & ~rows.large_correct,
        small & ~rows.small_correct,
        large & ~rows.large_correct,
    )
    return OutcomeCounts(*(int(np.count_nonzero(column)) for column in columns))


#: Rows set aside: their share, the fewest, the most. Scores alone choose thresholds well; an order
#: takes labels.
_SCORES_ASIDE, _LABELS_ASIDE = (0.05, 20, 500), (0.2, 20, 5000)


@dataclass(frozen=True)
class CascadePlan:
    """How a cascade is certified, besides the promise.

    Attributes
    ----------
    people : bool
        Whether what neither model accepts is left to people; else the large model answers all of
        the rest.
    review_cost : float
        What a row costs that a person answers, in calls of the large model: which of two cascades
        is cheaper.
    random_state : int, optional
        Seed of the draw of the rows that are set aside. By default it is derived from the scores.
    thresholds_from : array or None
        Scores of other rows, without labels: no row is set aside then. Not with `people`.
    """

    has_people: bool = False
    review_cost: float = 10.0
    random_state: int | None = None
    thresholds_from: Float | None = None


#: No people, thresholds from a part of the rows.
DEFAULT_PLAN = CascadePlan()


def draw_pilot_rows(
    small_score: Float, large_score: Float, agree: Flags, plan: CascadePlan
) -> Codes:
    """Draw the rows that are set aside to choose thresholds. There are none if these come from
    other rows.

    The draw depends on no label: before there are labels, `labels_needed` has to know which rows
    are tested.

    Parameters
    ----------
    small_score, large_score : array of shape (n_rows,)
        The ranking scores of both models.
    agree : array of bool of shape (n_rows,)
        Whether both models predict the same class.
    plan : Plan

    Returns
    -------
    array of int
        The positions of the rows, rising.
    """
    if plan.thresholds_from is not None:
        return np.empty(0, dtype=np.intp)
    share, fewest, most = _LABELS_ASIDE if plan.has_people else _SCORES_ASIDE
    size = min(most, max(fewest, math.ceil(share * len(agree))))
    draws = RowDraws(small_score, large_score, agree, random_state=plan.random_state)
    return np.sort(draws.order("thresholds of a cascade")[:size])


def split_pilot_rows(
    rows: PairedPredictions, plan: CascadePlan
) -> tuple[PairedPredictions, PairedPredictions]:
    """The rows that choose thresholds (their scores alone, if from elsewhere) and those that are
    tested.
    """
    n = len(rows)
    if plan.thresholds_from is not None:
        if plan.has_people:
            raise InputError(
                "thresholds_from gives scores alone; with people in the cascade their order takes"
                " labels."
            )
        scores = np.asarray(plan.thresholds_from, dtype=np.float64)
        if scores.ndim != 1 or not len(scores) or np.isnan(scores).any():
            raise InputError("thresholds_from needs one row or more, each with a score.")
        no = np.zeros(len(scores), dtype=bool)
        return PairedPredictions(scores, scores, no, no, no, no), rows
    aside = draw_pilot_rows(rows.small_score, rows.large_score, rows.models_agree, plan)
    if n <= 2 * len(aside):
        raise InputError(
            f"a cascade needs more than {2 * len(aside)} rows to be certified on; got {n}."
        )
    return rows.take(aside), rows.take(np.setdiff1d(np.arange(n), aside))


class CandidateSequence(NamedTuple):
    """Candidates to test one after the other, up to the first that fails, at a share of delta."""

    candidates: Sequence[Candidate]
    delta_fraction: float


def build_loss_sequence(aside: PairedPredictions, grid: Grid) -> list[CandidateSequence]:
    """From the rows that the small model is surest of, upward."""
    return [
        CandidateSequence([Candidate(s) for s in _quantiles(aside.small_score, _STEPS, grid)], 1.0)
    ]


def build_accuracy_sequences(aside: PairedPredictions, grid: Grid) -> list[CandidateSequence]:
    """From a middle share upward: there a cascade is about as accurate as the large model, or more.
    Then from none.
    """
    rising = [Candidate(s) for s in _quantiles(aside.small_score, _STEPS, grid)]
    start = float(np.quantile(aside.small_score, _FIRST_SHARE, method="lower"))
    at = next(k for k, candidate in enumerate(rising) if candidate.small_threshold >= start)
    return [
        CandidateSequence(rising[at:], _FIRST_LEVEL),
        CandidateSequence([Candidate(-math.inf), *rising[:at]], 1.0 - _FIRST_LEVEL),
    ]


def build_review_sequence(
    aside: PairedPredictions,
    n_tested: int,
    beta: float,
    review_cost: float,
    grids: tuple[Grid, Grid],
) -> list[CandidateSequence]:
    """Pairs of thresholds in Pareto order of cost and the p-value that is to be expected on the
    tested rows.

    >>> from metacal.kernels.grid import RELATIVE
    >>> rng = np.random.default_rng(0)
    >>> one, other = rng.random((2, 400))
    >>> right = [rng.random(400) > score / 4 for score in (one, other)]
    >>> rows = PairedPredictions(one, other, *right, right[0] == right[1], np.ones(400, dtype=bool))
    >>> (walk,) = build_review_sequence(rows, 1600, 0.95, 10.0, (RELATIVE, RELATIVE))
    >>> walk.delta_fraction, len(walk.candidates) > 10
    (1.0, True)
    """
    small = np.array([-math.inf, *_quantiles(aside.small_score, _STEPS_OF_TWO, grids[0])])
    large = np.array([-math.inf, *_quantiles(aside.large_score, _STEPS_OF_TWO, grids[1])])
    by_small, by_large = _totals(aside, small, large, np.ones(len(aside)), np.ones(len(aside)))
    risks = (
        estimate_risk(aside.small_score, aside.small_correct),
        estimate_risk(aside.large_score, aside.large_correct),
    )
    wrong_small, wrong_large = _totals(aside, small, large, *risks)
    n, scale = len(aside), n_tested / len(aside)
    answered, wrong = by_small[:, None] + by_large, wrong_small[:, None] + wrong_large
    cost = (n - by_small)[:, None] + review_cost * (n - answered)
    p_value = compute_expected_p_value(scale * answered, scale * wrong, beta)
    front: list[Candidate] = []
    cheapest = math.inf
    for place in np.lexsort((cost.ravel(), p_value.ravel())):
        s, t = divmod(int(place), len(large))
        if answered[s, t] > 0 and cost[s, t] < cheapest:
            front.append(Candidate(float(small[s]), float(large[t])))
            cheapest = float(cost[s, t])
    return [CandidateSequence(front, 1.0)]


def compute_expected_p_value(answered: Float, wrong: Float, beta: float) -> Float:
    """P(Bin(m, 1 - beta) <= e) for the m and e that are to be expected, no whole numbers."""
    return np.where(
        answered > 0, betainc(np.maximum(answered - wrong, 1e-9), wrong + 1.0, beta), 1.0
    )


def _quantiles(scores: Float, steps: int, grid: Grid) -> list[float]:
    """Thresholds at even shares of the scores, from 1/steps up, and +inf: accept every row."""
    levels = np.arange(1, steps + 1) / steps
    return [
        *sorted({grid.settled(float(s)) for s in np.quantile(scores, levels, method="lower")}),
        math.inf,
    ]


def _totals(
    rows: PairedPredictions, small: Float, large: Float, first: Float, second: Float
) -> tuple[Float, Float]:
    """Sums of `first` over what the small model answers, of `second` over what the large one does,
    for each pair.
    """
    at, beside = np.searchsorted(small, rows.small_score), np.searchsorted(large, rows.large_score)
    answered = np.bincount(at, weights=first, minlength=len(small) + 1)[:-1].cumsum()
    table = np.zeros((len(small) + 1, len(large) + 1))
    np.add.at(table, (at, beside), second)
    above = table.cumsum(axis=1)[::-1].cumsum(axis=0)[::-1]
    return answered, above[1:, :-1]


def estimate_risk(score: Float, right: Flags) -> Float:
    """An estimate of the chance that each row is wrong: what it is, and the curve of all rows along
    the score.
    """
    own = len(score) / (len(score) + _EQUAL_WEIGHT)
    return own * ~right + (1.0 - own) * fit_risk_curve(score, right)


def fit_risk_curve(score: Float | Float, right: Flags) -> Float:
    """P(wrong) by logistic regression on the logits of the ranks of one score or several, (n,) or
    (n, m).
    """
    columns = score.reshape(len(score), -1)
    rank = np.argsort(np.argsort(columns, axis=0, kind="stable"), axis=0, kind="stable")
    share = (rank + 0.5) / len(score)
    features = np.column_stack([np.ones(len(score)), np.log(share / (1.0 - share))])
    wrong = (~right).astype(np.float64)
    weights = np.zeros(features.shape[1])
    weights[0] = math.log((wrong.sum() + 1.0) / (right.sum() + 1.0))
    ridge = np.diag([1e-6, *[_RIDGE] * columns.shape[1]])
    for _ in range(30):  # Newton's method
        chance = expit(features @ weights)
        slope = features.T @ (wrong - chance) - ridge @ weights
        curvature = (features * (chance * (1.0 - chance))[:, None]).T @ features + ridge
        step = np.clip(np.linalg.solve(curvature, slope), -2.0, 2.0)
        weights = weights + step
        if np.abs(step).max() < 1e-8:
            break
    return np.asarray(expit(features @ weights))
