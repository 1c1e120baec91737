"""I-Max binning: bins that keep as much as possible of what the log-odds say about the label.

Patel, Beluch, Yang, Pfeiffer & Zhang, "Multi-class uncertainty calibration via mutual information
maximization-based binning", ICLR 2021. With λ the log-odds of a class and Q(λ) its bin, the edges
maximise I(y; Q(λ)), and the answer of a bin is the frequency in it. Equal-width bins waste most of
their number where few rows lie, equal-mass bins cut where all rows are alike; these cut where the
answer changes.

**One set of bins for all classes** (`shared`, the paper's "shared class-wise"): the n·K pairs (λ,
is it this class?) are one problem, so that a class with few rows has bins as well founded as any.

**Where this departs from the paper.** It alternates between edges and representatives from a random
start, with σ(λ) in place of P(y = 1 | λ), and ends where neither moves: a local maximum, of the
information under a network that is taken to be calibrated. Here P(y = 1 | λ) is estimated, by
isotonic regression over narrow cells of λ, and the best edges among the cells' are found exactly,
by dynamic programming. For a posterior that rises with λ no quantizer of as many values, contiguous
or not, keeps more (Kurkoski & Yagi, "Quantization of binary-input discrete memoryless channels",
2014).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit, xlogy

from metacal.formulas import Codes, Float
from metacal.maps.curves import Curve, PiecewiseMap, columns, identity_curve, joined
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import check_count, check_prior_rows
from metacal.rows import Rows

#: The log-odds are counted in cells of 1/32 up to this far from zero, where p is 1.3e-14 or as far
#: from 1.
_FARTHEST, _PER_UNIT = 32, 32
#: Groups of cells that edges are chosen among, at most: few enough for every pair of them to be
#: weighed.
_CELLS = 256


def fit_imax(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    n_bins: int = 15,
    shared: bool = True,
    prior_rows: float = 1.0,
) -> PiecewiseMap:
    """Fit bins of the log-odds with the largest mutual information; one set for all classes if
    `shared`.

    A bin answers (N₊ + s·p̄) / (N + s): its weight N, that of its positives N₊, the mean
    probability p̄ in it, and s = `prior_rows` as in histogram binning.
    """
    n_bins, prior_rows = check_count("n_bins", n_bins, usual=15), check_prior_rows(prior_rows)
    cells = [
        _counted_cells(*column) for column in columns(Labelled(rows, labels, weights).counted())
    ]
    parts = [np.sum(cells, axis=0)] if shared else cells
    curves = [_curve(part, n_bins, prior_rows) for part in parts]
    return joined(curves * len(cells) if shared else curves, "step")


def most_informative_ends(weight: Float, positive: Float, n_bins: int) -> Codes:
    """The last cell of each bin, for the partition into at most `n_bins` runs of cells with the
    largest information.

    I(y; bin) = H(y) - Σ_b (N_b/N)·H(N₊_b/N_b): what is minimised is the sum of bin entropies, each
    from two cumulative sums, by dynamic programming over the last end: O(cells² · bins).

    Examples
    --------
    >>> most_informative_ends(np.ones(6), np.array([0.0, 0.1, 0.0, 0.9, 1.0, 1.0]), 2)
    array([2, 5])
    """
    n = len(weight)
    total, positives = (np.append(0.0, np.cumsum(column)) for column in (weight, positive))
    # lost[i, j]: the entropy of a bin of the cells i … j, times its weight; infinite where i > j.
    mass = total[None, 1:] - total[:-1, None]
    yes = np.clip(positives[None, 1:] - positives[:-1, None], 0.0, np.maximum(mass, 0.0))
    runs = np.arange(n)[:, None] <= np.arange(n)[None, :]
    entropy = (
        xlogy(mass, np.where(runs, mass, 1.0)) - xlogy(yes, yes) - xlogy(mass - yes, mass - yes)
    )
    lost = np.where(runs, entropy, np.inf)
    best, from_cell = lost[0], [np.zeros(n, dtype=np.intp)]
    for _ in range(min(n_bins, n) - 1):
        joined = (
            np.append(np.inf, best[:-1])[:, None] + lost
        )  # cells before i in the bins so far, i … j in one more
        from_cell.append(joined.argmin(axis=0))
        best = joined.min(axis=0)
    ends, end = [], n - 1
    for start in reversed(from_cell):
        ends.append(end)
        end = int(start[end]) - 1
        if end < 0:
            break
    return np.array(ends[::-1], dtype=np.intp)


def _counted_cells(at: Float, outcomes: Float, weights: Float) -> Float:
    """For each narrow cell of the log-odds: the weight, the positives' weight, and the sum of the
    probabilities.
    """
    with np.errstate(divide="ignore"):
        odds = np.log(at) - np.log1p(-at)
    n_cells = 2 * _FARTHEST * _PER_UNIT
    cell = np.ceil((odds + _FARTHEST) * _PER_UNIT) - 1  # right-closed, as the map's steps are
    code = np.clip(cell, 0, n_cells - 1).astype(np.intp)
    return np.stack(
        [
            np.bincount(code, column, n_cells)
            for column in (weights, weights * outcomes, weights * at)
        ]
    )


def _curve(cells: Float, n_bins: int, prior_rows: float) -> Curve:
    """Where the bins begin, as probabilities, and what each answers."""
    held = np.flatnonzero(cells[0] > 0.0)
    if not len(held):
        return identity_curve("step")
    merged = _merged(cells[:, held])
    last_cell = held[merged]
    weight, positive, probability = np.add.reduceat(cells, np.append(0, last_cell[:-1] + 1), axis=1)
    posterior = np.asarray(isotonic_regression(positive / weight, weights=weight).x)
    ends = most_informative_ends(weight, posterior * weight, n_bins)
    starts = np.append(0, ends[:-1] + 1)
    n, yes, mean = (np.add.reduceat(column, starts) for column in (weight, positive, probability))
    edges = (
        last_cell[ends[:-1]] + 1
    ) / _PER_UNIT - _FARTHEST  # the right end of the last cell of each bin but one
    return np.append(0.0, expit(edges)), np.clip(
        (yes + prior_rows * mean / n) / (n + prior_rows), 0.0, 1.0
    )


def _merged(cells: Float) -> Codes:
    """The last cell of each group, where positives and negatives, a half each, are dealt out to at
    most 256 groups.
    """
    positive, negative = cells[1], cells[0] - cells[1]
    halves = [column / column.sum() for column in (positive, negative) if column.sum() > 0.0]
    share = np.cumsum(np.sum(halves, axis=0))
    group = np.ceil(share / share[-1] * _CELLS - 1e-9)
    return np.flatnonzero(np.append(group[1:] != group[:-1], True))
