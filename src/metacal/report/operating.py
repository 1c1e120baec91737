"""The operating points of the report: a grid of thresholds, what these rows show there, and what
the bands promise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import RELATIVE
from metacal.promises.rules.bands import Band, certified_frontier, operating_bands, run_ends

#: Promises are rounded to so many decimals, to the safe side.
_DECIMALS = 4
#: Thresholds looked at for the frontier, of which the page shows a tenth; each is as valid as with
#: all of them.
_FRONTIER_THRESHOLDS, _FRONTIER_POINTS = 2000, 200


@dataclass(frozen=True, eq=False)
class Series:
    """A curve with its simultaneous band: low <= truth <= high at every point at once."""

    estimate: Float
    low: Float
    high: Float


@dataclass(frozen=True, eq=False)
class Curves:
    """Operating points by rising threshold, about 400 of them; accept iff score <= threshold.

    All bands together hold at every threshold at once with probability 1 - delta: a point may be
    picked after looking.

    Attributes
    ----------
    threshold : array
        The shortest decimal that separates the rows accepted at this point from the next.
    accepted : array
        Rows accepted.
    coverage, accuracy, miscoverage, review : Series
        P(accept); P(right | accept); P(reject | right); rows for review per 1,000 = 1,000 (1 -
        coverage).
    min_accuracy, max_miscoverage : arrays
        The promises this point can carry: `accuracy.low` rounded down and `miscoverage.high`
        rounded up to four decimals; NaN where nothing can be promised (then the command leaves that
        option out).
    command, command_end : str or None, str
        `command` + " --min-accuracy B" + " --max-miscoverage A" + " --at-threshold=T" +
        `command_end` certifies this very point (see `command_at`); None when the ranking score is
        no named one.
    threshold_text : tuple of str
        Each threshold as the command has it.
    current : int or None
        The point of the gate's own threshold; None without a gate.
    delta : float
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
        """The `metacal fit` command that certifies a point; None where nothing can be promised."""
        asked = {
            "min-accuracy": self.min_accuracy[point],
            "max-miscoverage": self.max_miscoverage[point],
        }
        promises = "".join(
            f" --{name} {value:g}" for name, value in asked.items() if not math.isnan(value)
        )
        if self.command is None or not promises:
            return None
        return (
            f"{self.command}{promises}"
            f" --at-threshold={self.threshold_text[point]}{self.command_end}"
        )


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
    """The curves of a ranking on about 400 thresholds, and the gate's own if there is one.

    Scores are doubts; where a higher score is surer, the command names the threshold as the score
    is written.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> curves = operating_curves(scores, rng.random(2000) > scores**3 / 2, delta=0.1, command="metacal fit val.npz")
    >>> at = int(np.searchsorted(curves.coverage.estimate, 0.5))
    >>> curves.command_at(at)
    'metacal fit val.npz --min-accuracy 0.9638 --max-miscoverage 0.4754 --at-threshold=0.499'
    """
    ordered = np.sort(scores)
    own = 0 if threshold is None else int(np.searchsorted(ordered, threshold, side="right"))
    accepted = grid(ordered, 400, own)
    at = thresholds_between(ordered, accepted)
    bands = operating_bands(scores, correct, delta, at)
    coverage = series_of(bands.coverage)
    return Curves(
        threshold=at,
        accepted=accepted.astype(np.float64),
        coverage=coverage,
        accuracy=series_of(bands.accuracy),
        miscoverage=series_of(bands.miscoverage),
        review=Series(
            *(1000.0 * (1.0 - part) for part in (coverage.estimate, coverage.high, coverage.low))
        ),
        min_accuracy=_promised(np.floor(bands.accuracy.lower * 10**_DECIMALS) / 10**_DECIMALS),
        max_miscoverage=_promised(np.ceil(bands.miscoverage.upper * 10**_DECIMALS) / 10**_DECIMALS),
        command=command,
        command_end=command_end,
        current=int(np.searchsorted(accepted, own)) if own else None,
        delta=delta,
        threshold_text=tuple(
            repr(float(value) + 0.0) for value in (-at if higher_is_surer else at)
        ),
    )


def frontier_points(scores: Float, correct: Flags, *, delta: float) -> dict[str, Any]:
    """Both promises together: for each accuracy `beta` the smallest miscoverage `alpha` certified
    along with it.

    All pairs hold at once with probability 1 - delta, at the threshold beside them; they are
    thinned to about 200 at even steps of miscoverage. `coverage` is that of these rows.
    """
    ends = run_ends(scores, correct)
    found = certified_frontier(
        scores, correct, delta, ends[:: max(1, len(ends) // _FRONTIER_THRESHOLDS)]
    )
    worthwhile = np.flatnonzero((found.beta > 0.0) & (found.alpha < 1.0))
    if len(worthwhile) > _FRONTIER_POINTS:
        alpha = found.alpha[worthwhile]
        steps = np.linspace(alpha[0], alpha[-1], _FRONTIER_POINTS)
        # The last pair at or below each step: what is kept is certified itself, not interpolated.
        worthwhile = worthwhile[np.unique(np.searchsorted(alpha, steps, side="right") - 1)]
    threshold = found.threshold[worthwhile]
    coverage = np.searchsorted(np.sort(scores), threshold, side="right") / max(len(scores), 1)
    pairs = {"beta": found.beta[worthwhile], "alpha": found.alpha[worthwhile]}
    return {**pairs, "threshold": threshold, "coverage": coverage, "delta": delta}


def grid(ordered: Float, points: int, also: int = 0) -> Codes:
    """How many rows each operating point accepts: even steps, finer at both ends, rising, each the
    end of a tie block.

    Examples
    --------
    >>> grid(np.array([0.1, 0.2, 0.2, 0.3]), 400)
    array([1, 3, 4])
    """
    n = len(ordered)
    fine = np.geomspace(1, n, max(2, points // 8))
    ranks = np.concatenate([np.linspace(1, n, 3 * points // 4), fine, n + 1 - fine, [max(also, 1)]])
    ends = np.searchsorted(
        ordered, ordered[np.clip(np.round(ranks).astype(np.intp), 1, n) - 1], side="right"
    )
    return np.unique(ends)


def thresholds_between(ordered: Float, accepted: Codes) -> Float:
    """For each count the shortest decimal that accepts just so many rows.

    Examples
    --------
    >>> thresholds_between(np.array([0.12345, 0.2, 0.31]), np.array([1, 3]))
    array([0.13, 0.4 ])
    """
    following = np.append(ordered, np.inf)
    return np.array([_shortest(float(ordered[m - 1]), float(following[m])) for m in accepted])


def _shortest(low: float, high: float) -> float:
    """The decimal of fewest digits in [low, high)."""
    if not math.isfinite(low) or low == 0.0:
        return low
    magnitude = math.floor(math.log10(abs(low)))
    for digits in range(1, 17):
        scale = magnitude - digits + 1
        steps = math.ceil(low / 10.0**scale) if scale >= 0 else math.ceil(low * 10.0**-scale)
        for candidate in (steps, steps + 1):
            value = float(f"{candidate}e{scale}")
            # Nor the score of the next row as people write it: scores are rounded, 0.9 stands for
            # 0.8999…
            if low <= value < high and RELATIVE.rounded([value])[0] != high:
                return value
    return low


def series_of(band: Band) -> Series:
    """The same, as the page has it."""
    return Series(band.estimate, band.lower, band.upper)


def _promised(values: Float) -> Float:
    return np.where((values > 0.0) & (values < 1.0), values, np.nan)
