"""Operating points of a report: a grid of thresholds with simultaneous confidence bands.

A row is *accepted* at a threshold if its score is at most the threshold. Less confident rows have
higher scores. The *frontier* is the set of pairs of accuracy and miscoverage that can be certified
together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import RELATIVE_GRID
from metacal.reports.fit_command import FitCommand
from metacal.statistics.accepted_counts import find_candidate_thresholds
from metacal.statistics.bands import Band, certified_frontier, operating_bands

#: Number of decimals of the limits that a command promises.
_LIMIT_DECIMALS = 4
#: Target for the number of operating points. Tied rows and small tables give fewer.
_N_OPERATING_POINTS = 400
#: Approximate number of thresholds that are tested for the frontier.
_N_FRONTIER_THRESHOLDS = 2000
#: Largest number of frontier points on the page.
_N_FRONTIER_POINTS = 200
#: Largest number of significant digits of a threshold.
_MAX_THRESHOLD_DIGITS = 16


@dataclass(frozen=True, eq=False)
class CurveWithBand:
    """Estimated curve with a simultaneous confidence band from `low` to `high`."""

    estimate: Float
    low: Float
    high: Float


@dataclass(frozen=True, eq=False)
class OperatingCurves:
    """Curves of a gate at about 400 operating points, by increasing threshold.

    All bands hold at all thresholds at once with probability 1 - delta, so you may choose a point
    after you have seen the curves.

    Attributes
    ----------
    threshold : array of shape (n_points,)
        Shortest decimal that separates the rows accepted at this point from the next row. At the
        point of the gate, the threshold as its certificate prints it, if it accepts the same rows.

    accepted : array of shape (n_points,)
        Number of accepted rows.

    coverage, accuracy, miscoverage : CurveWithBand
        P(accept), P(correct | accept) and P(reject | correct).

    min_accuracy, max_miscoverage : array of shape (n_points,)
        Promises that the data support at this point: `accuracy.low` rounded down and
        `miscoverage.high` rounded up to four decimals. NaN if nothing can be promised. The command
        then omits the option.

    command_language : {"shell", "python"} or None
        Whether `command_at` returns a command, a promise in Python, or nothing.

    command, command_end : str or None, str
        `command` + " --min-accuracy B" + " --max-miscoverage A" + " --at-threshold=T" +
        `command_end` certifies this point. `command` is None unless the language is "shell".

    current : int or None
        Index of the operating point of the gate. None without a gate.

    delta : float
        Error probability of the bands.

    threshold_text : tuple of str
        Thresholds as they are written in the command.
    """

    threshold: Float
    accepted: Float
    coverage: CurveWithBand
    accuracy: CurveWithBand
    miscoverage: CurveWithBand
    min_accuracy: Float
    max_miscoverage: Float
    command_language: Literal["shell", "python"] | None
    command: str | None
    command_end: str
    current: int | None
    delta: float
    threshold_text: tuple[str, ...] = ()

    def command_at(self, point: int) -> str | None:
        """Return the shell command or the Python promise that certifies an operating point.

        Returns None if the data support no promise at this point, or if there is no language.
        """
        min_accuracy = self.min_accuracy[point]
        max_miscoverage = self.max_miscoverage[point]
        threshold_text = self.threshold_text[point]
        python_arguments = []
        shell_options = []
        # A limit that the data do not support is NaN.
        if not math.isnan(min_accuracy):
            python_arguments.append(f"beta={min_accuracy:g}")
            shell_options.append(f"--min-accuracy {min_accuracy:g}")
        if not math.isnan(max_miscoverage):
            python_arguments.append(f"alpha={max_miscoverage:g}")
            shell_options.append(f"--max-miscoverage {max_miscoverage:g}")
        has_promise = len(shell_options) > 0
        if self.command_language is None or not has_promise:
            return None
        if self.command_language == "python":
            python_arguments.append(f"threshold={threshold_text}")
            return f"mc.AfterLooking({', '.join(python_arguments)})"
        shell_options.append(f"--at-threshold={threshold_text}")
        return f"{self.command} {' '.join(shell_options)}{self.command_end}"


def compute_operating_curves(
    scores: Float,
    correct: Flags,
    *,
    delta: float,
    gate_threshold: float | None = None,
    scores_are_negated: bool = False,
    highest_score: float = math.inf,
    fit_command: FitCommand | None = None,
) -> OperatingCurves:
    """Compute coverage, accuracy and miscoverage at about 400 thresholds.

    Parameters
    ----------
    scores : array of shape (n_rows,)
        Ranking scores, of which higher values are less confident.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.

    delta : float
        Error probability of the bands.

    gate_threshold : float, default=None
        Threshold of the gate, which becomes one of the operating points.

    scores_are_negated : bool, default=False
        Whether `scores` are the user's scores with the opposite sign. The command has the threshold
        of the user's scores.

    highest_score : float, default=inf
        Highest possible score. No threshold is higher.

    fit_command : FitCommand, default=None
        How a point is certified. None if there is no way.

    Returns
    -------
    OperatingCurves

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> correct = rng.random(2000) > scores**3 / 2
    >>> command = FitCommand("shell", "metacal fit val.npz")
    >>> curves = compute_operating_curves(scores, correct, delta=0.1, fit_command=command)
    >>> point = int(np.searchsorted(curves.coverage.estimate, 0.5))
    >>> curves.command_at(point)
    'metacal fit val.npz --min-accuracy 0.9638 --max-miscoverage 0.4754 --at-threshold=0.499'
    """
    sorted_scores = np.sort(scores)
    n_gate_accepted = 0
    if gate_threshold is not None:
        n_gate_accepted = int(np.searchsorted(sorted_scores, gate_threshold, side="right"))
    n_accepted = choose_accepted_counts(sorted_scores, _N_OPERATING_POINTS, n_gate_accepted)
    thresholds = choose_short_thresholds(sorted_scores, n_accepted, highest_score)
    gate_point = None
    if n_gate_accepted and gate_threshold is not None:
        gate_point = int(np.searchsorted(n_accepted, n_gate_accepted))
        # A certificate prints six digits. The point of the gate has this printed threshold, unless
        # the printed threshold accepts other rows than the gate.
        printed_threshold = float(f"{gate_threshold:.6g}")
        if _count_accepted(sorted_scores, printed_threshold) == n_gate_accepted:
            thresholds[gate_point] = printed_threshold
    bands = operating_bands(scores, correct, delta, thresholds)
    fit_command = fit_command or FitCommand(language=None)
    # A shell command reads the scores of the user. A promise in Python gets ranking scores.
    shows_user_score = scores_are_negated and fit_command.language == "shell"
    command_thresholds = -thresholds if shows_user_score else thresholds
    decimal_scale = 10**_LIMIT_DECIMALS
    min_accuracy = np.floor(bands.accuracy.lower * decimal_scale) / decimal_scale
    max_miscoverage = np.ceil(bands.miscoverage.upper * decimal_scale) / decimal_scale
    return OperatingCurves(
        threshold=thresholds,
        accepted=n_accepted.astype(np.float64),
        coverage=convert_band(bands.coverage),
        accuracy=convert_band(bands.accuracy),
        miscoverage=convert_band(bands.miscoverage),
        min_accuracy=_replace_outside_unit_interval(min_accuracy),
        max_miscoverage=_replace_outside_unit_interval(max_miscoverage),
        command_language=fit_command.language,
        command=fit_command.before_promise,
        command_end=fit_command.after_promise,
        current=gate_point,
        delta=delta,
        # Adding 0.0 turns a threshold of -0.0 into 0.0, which users expect in a command.
        threshold_text=tuple(repr(float(threshold) + 0.0) for threshold in command_thresholds),
    )


def compute_frontier_points(scores: Float, correct: Flags, *, delta: float) -> dict[str, Any]:
    """Compute pairs of accuracy and miscoverage that can be certified together.

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
        Columns of about 200 pairs at even steps of miscoverage: accuracy "beta", smallest
        miscoverage "alpha" that is certified with it, "threshold", and "coverage" of these rows.
        "delta" is the argument.
    """
    candidates = find_candidate_thresholds(scores, correct)
    stride = max(1, len(candidates) // _N_FRONTIER_THRESHOLDS)
    tested_thresholds = candidates[::stride]
    frontier = certified_frontier(scores, correct, delta, tested_thresholds)
    certified_accuracy = frontier.beta
    certified_miscoverage = frontier.alpha
    is_nontrivial = (certified_accuracy > 0.0) & (certified_miscoverage < 1.0)
    shown_points = np.flatnonzero(is_nontrivial)
    if len(shown_points) > _N_FRONTIER_POINTS:
        miscoverages = certified_miscoverage[shown_points]
        even_miscoverages = np.linspace(miscoverages[0], miscoverages[-1], _N_FRONTIER_POINTS)
        # Interpolated pairs would not be certified, so the last pair up to each step is taken.
        n_points_up_to_step = np.searchsorted(miscoverages, even_miscoverages, side="right")
        shown_points = shown_points[np.unique(n_points_up_to_step - 1)]
    thresholds = frontier.threshold[shown_points]
    n_accepted = np.searchsorted(np.sort(scores), thresholds, side="right")
    return {
        "beta": certified_accuracy[shown_points],
        "alpha": certified_miscoverage[shown_points],
        "threshold": thresholds,
        "coverage": n_accepted / max(len(scores), 1),
        "delta": delta,
    }


def choose_accepted_counts(sorted_scores: Float, n_points: int, n_gate_accepted: int = 0) -> Codes:
    """Choose how many rows each operating point accepts.

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
        Increasing numbers of accepted rows, at even steps and finer steps at both ends. Tied rows
        are accepted together.

    Examples
    --------
    >>> choose_accepted_counts(np.array([0.1, 0.2, 0.2, 0.3]), 400)
    array([1, 3, 4])
    """
    n_rows = len(sorted_scores)
    n_even_points = 3 * n_points // 4
    n_points_at_each_end = max(2, n_points // 8)
    even_ranks = np.linspace(1, n_rows, n_even_points)
    ranks_dense_at_start = np.geomspace(1, n_rows, n_points_at_each_end)
    ranks_dense_at_end = n_rows + 1 - ranks_dense_at_start
    last_rank_of_gate = max(n_gate_accepted, 1)
    all_ranks = np.concatenate(
        [even_ranks, ranks_dense_at_start, ranks_dense_at_end, [last_rank_of_gate]]
    )
    integer_ranks = np.clip(np.round(all_ranks).astype(np.intp), 1, n_rows)
    scores_at_ranks = sorted_scores[integer_ranks - 1]
    n_accepted_with_ties = np.searchsorted(sorted_scores, scores_at_ranks, side="right")
    return np.unique(n_accepted_with_ties)


def choose_short_thresholds(
    sorted_scores: Float, n_accepted: Codes, highest_score: float = math.inf
) -> Float:
    """Choose, for each number of accepted rows, the threshold with the fewest digits.

    No threshold is above `highest_score`.

    Examples
    --------
    >>> choose_short_thresholds(np.array([0.12345, 0.2, 0.31]), np.array([1, 3]))
    array([0.13, 0.4 ])
    >>> choose_short_thresholds(np.array([0.12, 0.2, 0.3123]), np.array([3]), highest_score=0.35)
    array([0.32])
    """
    # If every row is accepted, the first number above the highest score is rejected.
    impossible_score = np.nextafter(highest_score, np.inf)
    extended_scores = np.append(sorted_scores, impossible_score)
    thresholds = []
    for n_accepted_rows in n_accepted:
        last_accepted_score = float(sorted_scores[n_accepted_rows - 1])
        first_rejected_score = float(extended_scores[n_accepted_rows])
        threshold = _find_shortest_threshold(last_accepted_score, first_rejected_score)
        thresholds.append(threshold)
    return np.array(thresholds)


def _count_accepted(sorted_scores: Float, threshold: float) -> int | None:
    """Count the scores up to a rounded threshold, or return None if it is infinite."""
    if not math.isfinite(threshold):
        return None
    rounded_threshold = _round_as_gates_round_scores(threshold)
    return int(np.searchsorted(sorted_scores, rounded_threshold, side="right"))


def _round_as_gates_round_scores(threshold: float) -> float:
    """Round a threshold to the grid of numbers to which gates round their scores."""
    return float(RELATIVE_GRID.round([threshold])[0])


def _find_shortest_threshold(accepted_score: float, rejected_score: float) -> float:
    """Find the threshold with the fewest digits that separates two scores.

    It is in the interval [accepted_score, rejected_score), because a score that equals the
    threshold is accepted.
    """
    if not math.isfinite(accepted_score) or accepted_score == 0.0:
        return accepted_score
    magnitude = math.floor(math.log10(abs(accepted_score)))
    for n_digits in range(1, _MAX_THRESHOLD_DIGITS + 1):
        exponent = magnitude - n_digits + 1
        if exponent >= 0:
            smallest_mantissa = math.ceil(accepted_score / 10.0**exponent)
        else:
            smallest_mantissa = math.ceil(accepted_score * 10.0**-exponent)
        for mantissa in (smallest_mantissa, smallest_mantissa + 1):
            candidate = float(f"{mantissa}e{exponent}")
            separates_scores = accepted_score <= candidate < rejected_score
            # A threshold that rounds to the rejected score would accept it.
            rounds_to_rejected_score = _round_as_gates_round_scores(candidate) == rejected_score
            if separates_scores and not rounds_to_rejected_score:
                return candidate
    return accepted_score


def convert_band(band: Band) -> CurveWithBand:
    """Convert a confidence band of `metacal.statistics` to a curve of the report."""
    return CurveWithBand(estimate=band.estimate, low=band.lower, high=band.upper)


def _replace_outside_unit_interval(values: Float) -> Float:
    """Replace values outside of the open interval (0, 1) by NaN."""
    return np.where((values > 0.0) & (values < 1.0), values, np.nan)
