"""Operating points of a report: a grid of thresholds with simultaneous confidence bands.

A row is *accepted* at a threshold if its score is at most the threshold. Scores are higher for less
confident rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import RELATIVE
from metacal.statistics.accepted_counts import candidate_thresholds
from metacal.statistics.bands import Band, certified_frontier, operating_bands

#: Limits of promises are rounded to this many decimals, to the safe side.
_LIMIT_DECIMALS = 4
#: Number of operating points, approximately.
_N_OPERATING_POINTS = 400
#: Number of thresholds tested for the frontier, and of the points that the page shows. Every point
#: is valid by itself.
_N_FRONTIER_THRESHOLDS = 2000
_N_FRONTIER_POINTS = 200
#: Largest number of significant digits of a threshold.
_MAX_DIGITS = 16


@dataclass(frozen=True, eq=False)
class Series:
    """Curve with a simultaneous band: low <= truth <= high at all points at once."""

    estimate: Float
    low: Float
    high: Float


@dataclass(frozen=True, eq=False)
class Curves:
    """About 400 operating points, in increasing order of the threshold.

    All bands hold at all thresholds at once with probability 1 - delta, so a point may be chosen
    after looking at the curves.

    Attributes
    ----------
    threshold : array of shape (n_points,)
        Shortest decimal that separates the rows accepted at this point from the next row.

    accepted : array of shape (n_points,)
        Number of accepted rows.

    coverage, accuracy, miscoverage, review : Series
        P(accept), P(correct | accept), P(reject | correct), and the rows for review per 1,000.

    min_accuracy, max_miscoverage : array of shape (n_points,)
        Promises that the data support at this point: `accuracy.low` rounded down and
        `miscoverage.high` rounded up to four decimals. NaN if nothing can be promised. The command
        then omits the option.

    command, command_end : str or None, str
        `command` + " --min-accuracy B" + " --max-miscoverage A" + " --at-threshold=T" +
        `command_end` certifies this point (see `command_at`). `command` is None if the ranking
        score has no name.

    current : int or None
        Index of the operating point of the gate. None without a gate.

    delta : float
        Error probability of the bands.

    threshold_text : tuple of str
        Thresholds as they are written in the command.
    """

    threshold: Float
    accepted: Float
    coverage: Series
    accuracy: Series
    miscoverage: Series
    review: Series
    min_accuracy: Float
    max_miscoverage: Float
    command: str | None
    command_end: str
    current: int | None
    delta: float
    threshold_text: tuple[str, ...] = ()

    def command_at(self, point: int) -> str | None:
        """Return the `metacal fit` command that certifies a point, or None if there is none."""
        min_accuracy = self.min_accuracy[point]
        max_miscoverage = self.max_miscoverage[point]
        promises = ""
        if not math.isnan(min_accuracy):
            promises += f" --min-accuracy {min_accuracy:g}"
        if not math.isnan(max_miscoverage):
            promises += f" --max-miscoverage {max_miscoverage:g}"
        if self.command is None or not promises:
            return None
        threshold = f" --at-threshold={self.threshold_text[point]}"
        return f"{self.command}{promises}{threshold}{self.command_end}"


def operating_curves(
    scores: Float,
    correct: Flags,
    *,
    delta: float,
    threshold: float | None = None,
    higher_is_surer: bool = False,
    command: str | None = None,
    command_end: str = "",
) -> Curves:
    """Compute coverage, accuracy and miscoverage at about 400 thresholds.

    Parameters
    ----------
    scores : array of shape (n_rows,)
        Ranking scores, of which higher values are less confident.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.

    delta : float
        Error probability of the bands.

    threshold : float, default=None
        Threshold of the gate, which is one of the operating points.

    higher_is_surer : bool, default=False
        Whether `scores` are negated scores of the user. The command then has the user's threshold.

    command, command_end : str
        Start and end of the command that certifies a point.

    Returns
    -------
    Curves

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> correct = rng.random(2000) > scores**3 / 2
    >>> curves = operating_curves(scores, correct, delta=0.1, command="metacal fit val.npz")
    >>> point = int(np.searchsorted(curves.coverage.estimate, 0.5))
    >>> curves.command_at(point)
    'metacal fit val.npz --min-accuracy 0.9638 --max-miscoverage 0.4754 --at-threshold=0.499'
    """
    sorted_scores = np.sort(scores)
    n_gate_accepted = 0
    if threshold is not None:
        n_gate_accepted = int(np.searchsorted(sorted_scores, threshold, side="right"))
    n_accepted = choose_accepted_counts(sorted_scores, _N_OPERATING_POINTS, n_gate_accepted)
    thresholds = choose_thresholds_between(sorted_scores, n_accepted)
    bands = operating_bands(scores, correct, delta, thresholds)
    coverage = series_of(bands.coverage)
    user_thresholds = -thresholds if higher_is_surer else thresholds
    unit = 10**_LIMIT_DECIMALS
    return Curves(
        threshold=thresholds,
        accepted=n_accepted.astype(np.float64),
        coverage=coverage,
        accuracy=series_of(bands.accuracy),
        miscoverage=series_of(bands.miscoverage),
        review=Series(
            estimate=1000.0 * (1.0 - coverage.estimate),
            low=1000.0 * (1.0 - coverage.high),
            high=1000.0 * (1.0 - coverage.low),
        ),
        min_accuracy=_nan_unless_fraction(np.floor(bands.accuracy.lower * unit) / unit),
        max_miscoverage=_nan_unless_fraction(np.ceil(bands.miscoverage.upper * unit) / unit),
        command=command,
        command_end=command_end,
        current=int(np.searchsorted(n_accepted, n_gate_accepted)) if n_gate_accepted else None,
        delta=delta,
        # Adding 0.0 turns -0.0 into 0.0.
        threshold_text=tuple(repr(float(value) + 0.0) for value in user_thresholds),
    )


def frontier_points(scores: Float, correct: Flags, *, delta: float) -> dict[str, Any]:
    """Compute the pairs of accuracy and miscoverage that can be certified together.

    Parameters
    ----------
    scores : array of shape (n_rows,)
        Ranking scores, of which higher values are less confident.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.

    delta : float
        All pairs hold at once with probability 1 - delta.

    Returns
    -------
    dict
        For each accuracy "beta" the smallest miscoverage "alpha" certified with it, the "threshold",
        and the "coverage" of these rows, for about 200 pairs at even steps of miscoverage. "delta"
        is that of the arguments.
    """
    block_ends = candidate_thresholds(scores, correct)
    step = max(1, len(block_ends) // _N_FRONTIER_THRESHOLDS)
    frontier = certified_frontier(scores, correct, delta, block_ends[::step])
    points = np.flatnonzero((frontier.beta > 0.0) & (frontier.alpha < 1.0))
    if len(points) > _N_FRONTIER_POINTS:
        alpha = frontier.alpha[points]
        even_steps = np.linspace(alpha[0], alpha[-1], _N_FRONTIER_POINTS)
        # The last pair at or below each step, so that every point is certified, not interpolated.
        points = points[np.unique(np.searchsorted(alpha, even_steps, side="right") - 1)]
    thresholds = frontier.threshold[points]
    n_accepted = np.searchsorted(np.sort(scores), thresholds, side="right")
    return {
        "beta": frontier.beta[points],
        "alpha": frontier.alpha[points],
        "threshold": thresholds,
        "coverage": n_accepted / max(len(scores), 1),
        "delta": delta,
    }


def choose_accepted_counts(sorted_scores: Float, n_points: int, n_gate_accepted: int = 0) -> Codes:
    """Choose the numbers of accepted rows of the operating points.

    Parameters
    ----------
    sorted_scores : array of shape (n_rows,)
        Scores in increasing order.

    n_points : int
        Approximate number of points.

    n_gate_accepted : int, default=0
        Number of rows that the gate accepts, which is added to the grid.

    Returns
    -------
    array of int
        Increasing numbers, at even steps that are finer at both ends. Tied rows are accepted
        together.

    Examples
    --------
    >>> choose_accepted_counts(np.array([0.1, 0.2, 0.2, 0.3]), 400)
    array([1, 3, 4])
    """
    n_rows = len(sorted_scores)
    even_ranks = np.linspace(1, n_rows, 3 * n_points // 4)
    fine_ranks = np.geomspace(1, n_rows, max(2, n_points // 8))
    ranks = np.concatenate(
        [even_ranks, fine_ranks, n_rows + 1 - fine_ranks, [max(n_gate_accepted, 1)]]
    )
    whole_ranks = np.clip(np.round(ranks).astype(np.intp), 1, n_rows)
    tie_ends = np.searchsorted(sorted_scores, sorted_scores[whole_ranks - 1], side="right")
    return np.unique(tie_ends)


def choose_thresholds_between(sorted_scores: Float, n_accepted: Codes) -> Float:
    """Return the shortest decimal thresholds that accept the given numbers of rows.

    Examples
    --------
    >>> choose_thresholds_between(np.array([0.12345, 0.2, 0.31]), np.array([1, 3]))
    array([0.13, 0.4 ])
    """
    next_scores = np.append(sorted_scores, np.inf)
    thresholds = []
    for n_rows in n_accepted:
        last_accepted_score = float(sorted_scores[n_rows - 1])
        thresholds.append(_shortest_decimal(last_accepted_score, float(next_scores[n_rows])))
    return np.array(thresholds)


def _shortest_decimal(low: float, high: float) -> float:
    """Return the decimal with the fewest digits in [low, high)."""
    if not math.isfinite(low) or low == 0.0:
        return low
    magnitude = math.floor(math.log10(abs(low)))
    for n_digits in range(1, _MAX_DIGITS + 1):
        exponent = magnitude - n_digits + 1
        if exponent >= 0:
            n_steps = math.ceil(low / 10.0**exponent)
        else:
            n_steps = math.ceil(low * 10.0**-exponent)
        for candidate in (n_steps, n_steps + 1):
            value = float(f"{candidate}e{exponent}")
            # Scores are compared after rounding, so that 0.8999… counts as 0.9. The threshold must
            # stay below the next score after rounding, too.
            if low <= value < high and RELATIVE.rounded([value])[0] != high:
                return value
    return low


def series_of(band: Band) -> Series:
    """Convert a `Band` to a `Series`."""
    return Series(estimate=band.estimate, low=band.lower, high=band.upper)


def _nan_unless_fraction(values: Float) -> Float:
    """Replace values outside of (0, 1) by NaN."""
    return np.where((values > 0.0) & (values < 1.0), values, np.nan)
