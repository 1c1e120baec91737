r"""Monotone calibration of log-odds, averaged over priors by their evidence.

For two classes, the log-odds s of the second class contain everything the classifier
reports. A temperature b s cannot correct an offset (class weights, a resampled training
set, another fraction of positives), Platt's a + b s cannot bend, and isotonic regression
returns probabilities of exactly 0 and 1. This method fits an increasing curve

    P(second | s) = σ(h(x)),
    h(x) = θ₀ + Σ_j w_j clip((x - k_{j-1}) / Δ_j, 0, 1),   w_j >= 0,

with knots k₀ < ... < k_J and Δ_j = k_j - k_{j-1}. Beyond the outer knots it continues with
its mean slope. The prior is a straight line near the identity plus a Brownian motion,
h ~ a + b x + √τ B(x) with a ~ N(0, s_a²) and b ~ N(1, s_b²):

    θ ~ N(G, s_b² GGᵀ + diag(s_a², τ min(Δ, 4))),   G = (k₀, Δ₁, ..., Δ_J).

The maximum a posteriori θ is a convex problem, solved by projected Newton steps. The
evidence of the prior follows from Laplace's approximation.

Three things are unknown, so the method averages over them, with the evidence as weights:

- the scales (s_a, s_b) and τ;
- whether x is s itself or the shrunken log-odds log((n p + ½) / (n (1 - p) + ½));
- whether the scores are log-odds or have a scale of their own, as the margins of a support
  vector machine do. Three of the priors therefore refer to (x - mean) / deviation.

Nine priors and two choices of x give 18 curves. An average of increasing curves is
increasing. Finally, a weight e = 2 / (k + 1)² goes to the class frequency
r = (k + 1) / (n + 2), where k counts the rows of the rarer class. So no probability is 0 or
1, and with a handful of rows every probability is near r. All constants were chosen on half
of the data sets of `benchmarks.two_class`.

The knots are quantiles of ½ F₁ + ½ F₀, where F₁ and F₀ are the distributions of x in the two
classes, because the rows of a rare class contain the most information. Their number is
J = 2 √(rows of the rarer class), between 4 and 16.

For more than two classes, the curve gives the probability that the prediction is correct,
and s are the log-odds of the confidence after temperature scaling. The other classes share
the rest in proportion.

In this module, a *positive* row is a row of the class whose probability the curve gives:
the rarer of two classes, or the correct predictions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.formulas import curves as formulas
from metacal.formulas.operations import NUMPY
from metacal.maps.binary_sample import (
    BinarySample,
    ClassFrequency,
    count_effective_rows,
    estimate_class_frequency,
    is_mostly_positive,
)
from metacal.maps.fitting.monotone_curves import CurveFamily, OutcomeCells, fit_curves
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import TemperedMap, check_positive
from metacal.maps.spline import compute_tempered_log_odds
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows
from metacal.rows.arrays import to_numpy

#: Number of cells into which the rows are grouped if there are more rows.
_N_CELLS = 2048
#: Relative weight below which a curve is omitted from the average.
_NEGLIGIBLE_WEIGHT = 1e-4
#: Largest distance of the sum of the weights of a saved map from one.
_MAX_WEIGHT_SUM_ERROR = 1e-6
#: Weight of the class frequency in the identity map.
_IDENTITY_FREQUENCY_WEIGHT = 1e-12


@dataclass(frozen=True, eq=False)
class MonotoneMap(TemperedMap):
    """Average of increasing curves of the log-odds, (1 - e) Σ_m w_m σ(h_m) + e r.

    Attributes
    ----------
    inverse_temperature : float
        Inverse temperature applied first; 1 for two classes.
    two_classes : bool
        Whether the curve gives the probability of one of two classes. Otherwise it gives
        the probability of the predicted class.
    turned : bool
        Whether the curve gives the probability of the first of two classes instead of the
        second. It is the rarer class, so that swapping the classes swaps the columns only.
    n_rows : float
        Total weight of the rows used for fitting.
    level, rest : float
        Class frequency r, and its weight e.
    low, width : array of shape (n_pieces,)
        Left ends and widths of the pieces of the curves in s.
    rise, start, weight : arrays of shape (n_pieces, n_curves), (n_curves,) and (n_curves,)
        Rise of each curve over each piece, its value at the left end, and its weight in the
        average. There are no curves if their weights are negligible.
    low_2, width_2, rise_2, start_2, weight_2 : arrays
        The same for the curves in the shrunken log-odds.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=2000)
    >>> labels = (rng.random(2000) < 1 / (1 + np.exp(4 - s))).astype(int)  # an offset of -4
    >>> fitted = fit_monotone(Rows(np.column_stack([0 * s, s])), labels)
    >>> fitted(np.array([[0.0, 0.0], [0.0, 2.0]]))[:, 1].round(2)
    array([0.01, 0.13])
    """

    inverse_temperature: float
    two_classes: bool
    turned: bool
    n_rows: float
    level: float
    rest: float
    low: Float
    width: Float
    rise: Float
    start: Float
    weight: Float
    low_2: Float
    width_2: Float
    rise_2: Float
    start_2: Float
    weight_2: Float

    formula = staticmethod(formulas.monotone)

    @property
    def n_classes(self) -> int | None:
        """Number of classes: 2 for a two-class map, None for a map of any number."""
        return 2 if self.two_classes else None

    @property
    def preserves_accuracy(self) -> bool:
        """Whether predictions never change. For two classes, this depends on the curve."""
        return not self.two_classes

    def check(self) -> None:
        """Raise InputError unless the curves increase and the weights sum to one."""
        super().check()
        check_positive("n_rows", self.n_rows)
        frequency = self.level
        frequency_weight = self.rest
        curves = _WeightedCurves(self.low, self.width, self.rise, self.start, self.weight)
        shrunken_curves = _WeightedCurves(
            self.low_2, self.width_2, self.rise_2, self.start_2, self.weight_2
        )
        if not curves.are_valid() or not shrunken_curves.are_valid():
            raise InputError(
                "The curves of a monotone map must not decrease, and their weights must"
                " not be negative."
            )
        total_weight = frequency_weight
        total_weight += float(curves.curve_weights.sum())
        total_weight += float(shrunken_curves.curve_weights.sum())
        sums_to_one = abs(total_weight - 1.0) <= _MAX_WEIGHT_SUM_ERROR
        are_fractions = 0.0 < frequency < 1.0 and 0.0 < frequency_weight < 1.0
        if not sums_to_one or not are_fractions:
            raise InputError(
                f"The weights of a monotone map must sum to 1, but they sum to {total_weight:.6g}."
            )


@dataclass(frozen=True)
class _WeightedCurves:
    """Curves that are linear on the same pieces, with their weights in the average.

    Attributes
    ----------
    piece_starts, piece_widths : arrays of shape (n_pieces,)
        Left ends and widths of the pieces.

    piece_rises : array of shape (n_pieces, n_curves)
        Rise of each curve over each piece.

    start_values : array of shape (n_curves,)
        Value of each curve at the left end of the first piece.

    curve_weights : array of shape (n_curves,)
        Weight of each curve in the average.
    """

    piece_starts: Float
    piece_widths: Float
    piece_rises: Float
    start_values: Float
    curve_weights: Float

    def are_valid(self) -> bool:
        """Check that the shapes match, no curve decreases and no weight is negative."""
        if self.piece_starts.ndim != 1 or self.start_values.ndim != 1:
            return False
        n_pieces = len(self.piece_starts)
        if n_pieces == 0:
            return False
        if self.piece_widths.shape != self.piece_starts.shape:
            return False
        if self.curve_weights.shape != self.start_values.shape:
            return False
        if self.piece_rises.shape != (n_pieces, len(self.start_values)):
            return False
        if not (self.piece_widths > 0.0).all():
            return False
        if not (self.piece_rises >= 0.0).all() or not (self.curve_weights >= 0.0).all():
            return False
        total_rise = self.piece_rises.sum()
        return bool(np.isfinite([*self.piece_starts, *self.start_values, total_rise]).all())


def fit_monotone(rows: Rows, labels: Codes, weights: Weights = None) -> MonotoneMap:
    """Fit 18 monotone curves and average them by their evidence.

    It takes one pass over the rows for the log-odds, then O(n J²) time per Newton step and
    about ten steps. More than 2,048 rows are grouped into 2,048 cells.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    Returns
    -------
    MonotoneMap
    """
    labelled_rows = LabelledRows(rows, labels, weights).drop_unusable_rows()
    has_two_classes = rows.n_classes == 2
    inverse_temperature = 1.0
    if has_two_classes:
        sample = _build_two_class_sample(labelled_rows)
    else:
        inverse_temperature = fit_temperature(
            labelled_rows.rows, labelled_rows.labels, labelled_rows.weights
        ).inverse_temperature
        sample = _build_confidence_sample(labelled_rows, inverse_temperature)
    first_is_positive = has_two_classes and is_mostly_positive(sample)
    if first_is_positive:
        sample = sample.swap_classes()
    # A row with only one unmasked class is certain, so it has no information.
    sample = sample.select(np.abs(sample.log_odds) < formulas.MAX_LOG_ODDS)

    n_rows = count_effective_rows(sample.weights)
    frequency = estimate_class_frequency(sample, n_rows)
    family, shrunken_family = _fit_both_families(sample, n_rows)
    curve_weights, shrunken_curve_weights = _divide_by_evidence(
        1.0 - frequency.weight, family, shrunken_family
    )
    return _build_monotone_map(
        inverse_temperature=inverse_temperature,
        has_two_classes=has_two_classes,
        first_is_positive=first_is_positive,
        n_rows=n_rows,
        frequency=frequency,
        curves=_select_used_curves(family, curve_weights),
        shrunken_curves=_select_used_curves(shrunken_family, shrunken_curve_weights),
    )


def make_identity_monotone_map() -> MonotoneMap:
    """Return a map for two classes that changes no probability by more than 1e-12.

    Examples
    --------
    >>> make_identity_monotone_map()(np.array([[0.0, 2.0]])).round(3)
    array([[0.119, 0.881]])
    """
    frequency = ClassFrequency(value=0.5, weight=_IDENTITY_FREQUENCY_WEIGHT)
    identity_line = _WeightedCurves(
        piece_starts=np.array([-0.5]),
        piece_widths=np.array([1.0]),
        piece_rises=np.array([[1.0]]),
        start_values=np.array([-0.5]),
        curve_weights=np.array([1.0 - frequency.weight]),
    )
    no_curves = replace(
        identity_line,
        piece_rises=np.zeros((1, 0)),
        start_values=np.zeros(0),
        curve_weights=np.zeros(0),
    )
    return _build_monotone_map(
        inverse_temperature=1.0,
        has_two_classes=True,
        first_is_positive=False,
        n_rows=1.0,
        frequency=frequency,
        curves=identity_line,
        shrunken_curves=no_curves,
    )


def log_odds(block: NDArray[Any]) -> Float:
    """Compute the log-odds of the second of two classes in float64."""
    logits = np.asarray(block, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(logits[:, 1] - logits[:, 0])


def _build_two_class_sample(labelled_rows: LabelledRows) -> BinarySample:
    """Build the sample of two classes, with the second class as the positive one."""
    return BinarySample(
        log_odds=labelled_rows.rows.compute_column(log_odds),
        is_positive=np.asarray(to_numpy(labelled_rows.labels)) == 1,
        weights=np.asarray(to_numpy(labelled_rows.weights_or_ones), dtype=np.float64),
    )


def _build_confidence_sample(
    labelled_rows: LabelledRows, inverse_temperature: float
) -> BinarySample:
    """Build the sample of confidences, with the correct predictions as positive rows."""
    compute_log_odds = partial(compute_tempered_log_odds, inverse_temperature)
    return BinarySample(
        log_odds=labelled_rows.rows.compute_column(compute_log_odds),
        is_positive=labelled_rows.compute_correctness() > 0.0,
        weights=np.asarray(to_numpy(labelled_rows.weights_or_ones), dtype=np.float64),
    )


def _fit_both_families(sample: BinarySample, n_rows: float) -> tuple[CurveFamily, CurveFamily]:
    """Fit curves of the log-odds and curves of the shrunken log-odds."""
    total_weight = float(sample.weights.sum())
    weight_scale = n_rows / total_weight if total_weight else 1.0
    cells = _group_into_cells(sample, weight_scale)
    shrunken_log_odds = NUMPY.evaluate(formulas.shrink_log_odds, n_rows, cells.log_odds)
    return fit_curves(cells.log_odds, cells), fit_curves(shrunken_log_odds, cells)


def _group_into_cells(sample: BinarySample, weight_scale: float) -> OutcomeCells:
    """Group the rows into cells of neighbouring log-odds.

    Parameters
    ----------
    sample : BinarySample
        Log-odds, outcome and weight of each row.

    weight_scale : float
        Factor on the weights.

    Returns
    -------
    OutcomeCells
        Cells without weight are omitted.
    """
    n_rows = len(sample.log_odds)
    if n_rows == 0:
        return OutcomeCells(
            log_odds=np.zeros(1), positive_weight=np.zeros(1), negative_weight=np.zeros(1)
        )
    weights = sample.weights * weight_scale
    rows_by_log_odds = np.argsort(sample.log_odds, kind="stable")
    cell_of_row = np.empty(n_rows, dtype=np.intp)
    cell_of_row[rows_by_log_odds] = np.arange(n_rows) * _N_CELLS // n_rows

    def sum_by_cell(row_values: Float) -> Float:
        return np.asarray(np.bincount(cell_of_row, weights=row_values, minlength=_N_CELLS))

    cell_weight = sum_by_cell(weights)
    weighted_log_odds = sum_by_cell(weights * sample.log_odds)
    positive_weight = sum_by_cell(weights * sample.is_positive)
    is_used = cell_weight > 0.0
    cell_weight = cell_weight[is_used]
    positive_weight = positive_weight[is_used]
    return OutcomeCells(
        log_odds=weighted_log_odds[is_used] / cell_weight,
        positive_weight=positive_weight,
        negative_weight=np.maximum(cell_weight - positive_weight, 0.0),
    )


def _divide_by_evidence(
    total_weight: float, family: CurveFamily, shrunken_family: CurveFamily
) -> list[Float]:
    """Divide a weight among the curves of both families by their evidence."""
    log_evidence = np.concatenate([family.log_evidence, shrunken_family.log_evidence])
    evidence = np.exp(log_evidence - log_evidence.max())
    evidence[evidence < _NEGLIGIBLE_WEIGHT * evidence.sum()] = 0.0
    curve_weights = evidence * (total_weight / evidence.sum())
    return np.split(curve_weights, 2)


def _select_used_curves(family: CurveFamily, curve_weights: Float) -> _WeightedCurves:
    """Return the curves of a family that have a positive weight, with their weights."""
    is_used = curve_weights > 0.0
    theta = family.theta[is_used]
    rises = np.maximum(theta[:, 1:], 0.0).T
    return _WeightedCurves(
        piece_starts=family.knots[:-1],
        piece_widths=np.diff(family.knots),
        # Arrays that are loaded from a file are contiguous, so this array is made contiguous, too.
        piece_rises=np.ascontiguousarray(rises),
        start_values=theta[:, 0],
        curve_weights=curve_weights[is_used],
    )


def _build_monotone_map(
    *,
    inverse_temperature: float,
    has_two_classes: bool,
    first_is_positive: bool,
    n_rows: float,
    frequency: ClassFrequency,
    curves: _WeightedCurves,
    shrunken_curves: _WeightedCurves,
) -> MonotoneMap:
    """Build the map, whose fields have the short names of saved files.

    Parameters
    ----------
    inverse_temperature, n_rows : float
        See `MonotoneMap`.

    has_two_classes : bool
        Whether the curves give the probability of one of two classes.

    first_is_positive : bool
        Whether it is the first of two classes.

    frequency : ClassFrequency
        Frequency of the class and its weight in the average.

    curves, shrunken_curves : _WeightedCurves
        Curves of the log-odds and of the shrunken log-odds.

    Returns
    -------
    MonotoneMap
    """
    return MonotoneMap(
        inverse_temperature=inverse_temperature,
        two_classes=has_two_classes,
        turned=first_is_positive,
        n_rows=n_rows,
        level=frequency.value,
        rest=frequency.weight,
        low=curves.piece_starts,
        width=curves.piece_widths,
        rise=curves.piece_rises,
        start=curves.start_values,
        weight=curves.curve_weights,
        low_2=shrunken_curves.piece_starts,
        width_2=shrunken_curves.piece_widths,
        rise_2=shrunken_curves.piece_rises,
        start_2=shrunken_curves.start_values,
        weight_2=shrunken_curves.curve_weights,
    )
