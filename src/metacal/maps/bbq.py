"""BBQ, Bayesian binning into quantiles: histograms of every reasonable number of bins, averaged by
their evidence.

Naeini, Cooper & Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI
2015.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from metacal.formulas import Codes, Float
from metacal.maps.curves import (
    Curve,
    PiecewiseMap,
    TopLabelMap,
    fit_piecewise,
    fit_top_label,
)
from metacal.maps.labelled import Weights
from metacal.rows import Rows

#: The paper's C: numbers of bins from N^(1/3)/C to C·N^(1/3).
_RANGE = 10.0
#: The paper's N': rows' worth of prior, spread over the bins.
_PRIOR_ROWS = 2.0
#: More rows than these ask for no more bins; sample weights may amount to any number of rows.
_MOST_ROWS = 1e7
#: Binnings less than this times as probable as the best are left out.
_NEGLIGIBLE = 1e-3


def fit_bbq(rows: Rows, labels: Codes, weights: Weights = None) -> PiecewiseMap:
    """Fit the average of histograms M_B of B equally heavy bins, B from N^(1/3)/10 to 10·N^(1/3),
    by their evidence.

    With N' = 2, π_b the middle of bin b, α = N'·π_b/B and β = N'·(1 - π_b)/B::

        P(data | M_B) = Π_b  Γ(N'/B) / Γ(N_b + N'/B) · Γ(N₊ + α) / Γ(α) · Γ(N₋ + β) / Γ(β)
        q = Σ_B P(M_B | data) · (N₊ + α) / (N_b + N'/B)     in the bin b of M_B that p falls in

    with a uniform prior over B. Two departures from the paper: π_b is kept 1/(N + 2) away from zero
    and one, for a network's probability of 1e-12 is no prior knowledge; and binnings less than
    1/1000 as probable as the best are dropped, to keep the answer small. The average of step
    functions is one step function, and that is what is kept.
    """
    return fit_piecewise(rows, labels, weights, bbq_curve, "step")


def fit_top_label_bbq(
    rows: Rows, labels: Codes, weights: Weights = None, *, tempered: bool = True
) -> TopLabelMap:
    """Fit BBQ on the predicted class's confidence alone, after temperature scaling if
    `tempered`.
    """
    return fit_top_label(rows, labels, weights, bbq_curve, "step", tempered)


def bbq_curve(points: Float, total: Float, positive: Float) -> Curve:
    """The averaged step function: O(N log N) for the order, O(N^(2/3)) for the binnings."""
    ends, first = _binnings(total)
    weight, shown = (_per_bin(np.cumsum(column), ends, first) for column in (total, positive))
    right = np.where(ends == len(points) - 1, 1.0, points[ends])
    left = np.append(0.0, right[:-1])
    left[first] = 0.0
    nearest = 1.0 / (total.sum() + 2.0)
    middle = np.clip(0.5 * (left + right), nearest, 1.0 - nearest)
    size = np.diff(np.append(first, len(ends)))
    prior = np.repeat(_PRIOR_ROWS / size, size)
    evidence = np.add.reduceat(_log_evidence(weight, shown, prior, middle), first)
    posterior = np.exp(evidence - evidence.max())
    posterior[posterior < _NEGLIGIBLE] = 0.0
    posterior /= posterior.sum()
    value = (shown + prior * middle) / (weight + prior)
    all_ends = np.unique(ends[np.repeat(posterior > 0.0, size)])
    average = np.zeros(len(all_ends))
    for m in np.flatnonzero(posterior):
        own = ends[first[m] : first[m] + size[m]]
        average += posterior[m] * value[first[m] + np.searchsorted(own, all_ends, side="left")]
    return np.append(0.0, points[all_ends[:-1]]), np.clip(average, 0.0, 1.0)


def _binnings(weights: Float) -> tuple[Codes, Codes]:
    """The last point of each bin, binning after binning into equal weights, and where each binning
    begins there.

    At most a bin for five rows. Ties merge bins, and a binning that comes out like the one before
    counts once.
    """
    below = np.cumsum(weights)
    rows = min(float(below[-1]), _MOST_ROWS)
    fewest = max(1, int(rows ** (1.0 / 3.0) / _RANGE))
    most = max(fewest, int(min(np.ceil(rows / 5.0), np.ceil(rows ** (1.0 / 3.0) * _RANGE))))
    counts = np.arange(fewest, most + 1)
    parts = np.repeat(counts, counts)
    step = np.arange(1, len(parts) + 1) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = np.searchsorted(below, below[-1] * step / parts, side="left")
    ends[step == parts] = len(weights) - 1  # whatever the rounding of the sum
    new = np.append(True, (ends[1:] > ends[:-1]) | (step[1:] == 1))
    ends, parts = ends[new], parts[new]
    first = np.flatnonzero(np.append(True, np.diff(parts) > 0))
    if not new.all():
        pieces = np.split(ends, first[1:])
        pieces = [
            piece
            for i, piece in enumerate(pieces)
            if i == 0 or not np.array_equal(piece, pieces[i - 1])
        ]
        ends = np.concatenate(pieces)
        first = np.append(0, np.cumsum([len(piece) for piece in pieces])[:-1])
    return ends, first


def _per_bin(below: Float, ends: Codes, first: Codes) -> Float:
    """What falls in each bin, from the running total; `first` tells where a new binning begins."""
    inside = np.diff(below[ends], prepend=0.0)
    inside[first] = below[ends[first]]
    return inside


def _log_evidence(weight: Float, shown: Float, prior: Float, middle: Float) -> Float:
    """The logarithm of each bin's factor in the evidence of its binning."""
    alpha, beta = prior * middle, prior * (1.0 - middle)
    hidden = np.maximum(weight - shown, 0.0)
    positive = gammaln(prior) - gammaln(weight + prior) + gammaln(shown + alpha) - gammaln(alpha)
    return np.asarray(positive + gammaln(hidden + beta) - gammaln(beta))
