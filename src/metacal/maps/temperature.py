"""Temperature scaling: softmax(x / T) with one positive temperature T.

Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, warn_caller
from metacal.formulas import Codes, Float
from metacal.formulas.temperature import temperature
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import TemperedMap
from metacal.rows import Rows

#: Bounds on b · (median margin), the calibrated log-odds of a typical row: beyond e^-100 no data
#: can speak.
_SMALLEST_MARGIN, _LARGEST_MARGIN = 1e-3, 100.0
#: Relative accuracy of b: on few rows, and where a sample of the rows gave the start, so that one
#: pass may do.
TOLERANCE, _TOLERANCE_FROM_SAMPLE = 1e-9, 1e-6
#: Rows of the first sample, within these bounds so many entries; where it starts; rows of the
#: second one, a tenth of all within these bounds.
_FIRST_SAMPLE, _FIRST_ENTRIES, _SAMPLED_FROM = (250, 1_000), 1 << 18, 4_000
_SECOND_SAMPLE, SAMPLED_TWICE_FROM = (4_000, 20_000), 8_000
#: What is asked of the samples' solutions: they differ from that of all rows by far more.
TOLERANCE_OF_SAMPLE = 1e-3
_MAX_PASSES = 100
#: The smallest margin, and one over the largest, of a typical row: 100 times its inverse is well
#: inside float32.
_SMALLEST_SCALE = 1e-30


@dataclass(frozen=True)
class TemperatureMap(TemperedMap):
    """softmax(b·x) with the inverse temperature b = 1/T > 0.

    Examples
    --------
    >>> TemperatureMap(inverse_temperature=0.5)(np.array([[2.0, 0.0]])).round(3)
    array([[0.731, 0.269]])
    """

    inverse_temperature: float

    preserves_accuracy = in_table_precision = ends_in_softmax = on_device = whole_blocks = True
    formula = staticmethod(temperature)

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        kernels.softmax(block, self.inverse_temperature, out)


def fit_temperature(rows: Rows, labels: Codes, weights: Weights = None) -> TemperatureMap:
    """Minimise the mean negative log-likelihood of softmax(b·x) over b = 1/T.

    The loss is convex in b. Steps of third order from its first three derivatives, kept inside a
    shrinking bracket, start from the solution on every s-th row, which itself starts from that on a
    thousand rows at most: one or two passes over a large table reach a relative error of 1e-6, and
    fewer than 4,000 rows are solved to 1e-9.

    When every row is right the likelihood has no maximum; the temperature is then bounded and a
    warning given. Rows whose true class is masked (-inf) have probability zero at every
    temperature: they are left out, with a warning.
    """
    return fit_temperature_of_scale(Labelled(rows, labels, weights))


def fit_temperature_of_scale(
    sample: Labelled, scale: float | None = None, tolerance: float = TOLERANCE
) -> TemperatureMap:
    """The same where the margin of a typical row may be known, and few rows solved to a tolerance
    of one's own.
    """
    sample = sample.counted().beside()
    try:
        return _fit(sample, scale, tolerance)
    except _MaskedTruth:  # only now is it worth looking for the rows
        return _fit(sample.usable(), scale, tolerance, masks_are_gone=True)


class _MaskedTruth(Exception):
    """The loss is infinite: the true class of some row is masked."""


def _fit(
    sample: Labelled, scale: float | None, tolerance: float, *, masks_are_gone: bool = False
) -> TemperatureMap:
    steps = _strides(len(sample.rows), sample.rows.n_classes)
    samples = [sample.every(step) for step in steps]
    if scale is None:
        scale = typical_margin(samples[0].rows) or (
            typical_margin(sample.rows) if len(steps) > 1 else 0.0
        )
    if scale == 0.0:
        warn_caller(
            "all logits are equal in every row: the temperature has no effect and is set to 1."
        )
        return TemperatureMap(1.0)
    if (
        not _SMALLEST_SCALE <= scale <= 1.0 / _SMALLEST_SCALE
    ):  # float32 must hold it, and it must be a number
        what, do = ("small", "Multiply") if scale < 1.0 else ("large", "Divide")
        raise InputError(
            f"the logits are too {what} for a temperature: the two largest of a typical row differ"
            f" by {scale:.3g}. {do} all logits by a constant, the same for new rows."
        )
    bounds = inverse_temperature_bounds(scale)
    b = float(np.clip(1.0, *bounds))
    for part, step in zip(samples, steps, strict=True):
        asked = (
            TOLERANCE_OF_SAMPLE
            if step > 1
            else tolerance
            if len(steps) == 1
            else _TOLERANCE_FROM_SAMPLE
        )
        b = _minimise(partial(_loss, part, masks_are_gone), b, bounds, asked)
    if b in bounds:
        warn_bounded(b == bounds[1], 1.0 / b)
    return TemperatureMap(b)


def _loss(sample: Labelled, masks_are_gone: bool, b: float) -> Float:
    sums = sample.rows.sum(
        partial(kernels.tempered_loss, inverse_temperature=b), sample.labels, sample.weights
    )
    if np.isfinite(sums[1]):
        return sums
    if not masks_are_gone:
        raise _MaskedTruth
    raise InputError(
        "the logits of some row lie so far apart that their difference overflows; divide all logits"
        " by a constant, and check what made them so large."
    )


def _strides(n: int, n_classes: int) -> list[int]:
    """The strides of the samples, coarsest first, and 1: every s-th row.

    Examples
    --------
    >>> _strides(3_000, 10), _strides(5_000, 10), _strides(25_000, 10), _strides(1_000_000, 1_000)
    ([1], [5, 1], [25, 6, 1], [3816, 50, 1])
    """
    fewest, usual = _FIRST_SAMPLE
    first = (
        [n // min(max(_FIRST_ENTRIES // n_classes, fewest), usual)] if n >= _SAMPLED_FROM else []
    )
    return [*first, *second_stride(n), 1]


def second_stride(n: int) -> list[int]:
    """The stride of a second sample, a tenth of the rows within bounds; of fewer rows none."""
    least, most = _SECOND_SAMPLE
    return [n // min(max(n // 10, least), most)] if n >= SAMPLED_TWICE_FROM else []


def typical_margin(rows: Rows) -> float:
    """The median distance of the two largest logits; 0 where all logits of a row are equal."""
    margins = -rows.collect(kernels.negative_margin)
    margins = margins[margins < np.finfo(np.float64).max]
    if not len(margins):
        return 0.0
    middle = float(np.median(margins))
    # More than half of the rows tie at the top: fall back on the mean, then on the distance to the
    # lowest class.
    return middle or float(margins.mean()) or float(rows.collect(kernels.spread).mean())


def _minimise(
    loss: Callable[[float], Float], b: float, bounds: tuple[float, float], tolerance: float
) -> float:
    """The root of the increasing derivative in [low, high]; a bound when the root lies beyond
    it.
    """
    low, high = bounds
    for _ in range(_MAX_PASSES):
        _, slope, curvature, third = loss(b)
        if slope == 0.0 or (b == bounds[1] and slope < 0.0) or (b == bounds[0] and slope > 0.0):
            return b
        low, high = (low, b) if slope > 0.0 else (b, high)
        step, doubt = _step(slope, curvature, third)
        proposal = b - step
        if not low < proposal < high:
            # Try the bound itself first, so that an answer at a bound is found at once; else halve
            # the bracket.
            bound = bounds[1] if slope < 0.0 else bounds[0]
            proposal = bound if bound in (low, high) else float(np.sqrt(low * high))
        elif max(abs(step / proposal) ** 3, doubt / proposal) < tolerance:
            return float(proposal)
        b = float(proposal)
    warn_caller(f"the temperature did not converge: slope {slope:.3g} after {_MAX_PASSES} passes.")
    return b


def _step(slope: float, curvature: float, third: float) -> tuple[float, float]:
    """How far to go down, and the distance between two ways to say so, which estimates the error.

    Both are of third order, with r = slope · third / curvature²: Halley's step n / (1 - r/2) on
    Newton's n, and n · (-log(1 - r) / r), exact where the curvature falls exponentially. The latter
    is taken where it exists: its error was the smaller one on all tables tried, and from far above
    it does not overshoot.
    """
    if curvature <= 0.0:
        return float(np.copysign(np.inf, slope)), np.inf
    newton, r = slope / curvature, slope * third / curvature**2
    halley = newton / (1.0 - 0.5 * min(r, 1.5))
    if not r < 0.9:  # the curvature falls too fast for a root in sight
        return float(halley), np.inf
    step = newton * (-np.log1p(-r) / r) if abs(r) > 1e-8 else halley
    return float(step), float(abs(step - halley))


def inverse_temperature_bounds(scale: float) -> tuple[float, float]:
    """Between which inverse temperatures rows can speak, by the margin of a typical one."""
    return _SMALLEST_MARGIN / scale, _LARGEST_MARGIN / scale


def warn_bounded(all_right: bool, temperature: float) -> None:
    """Say that the temperature is bounded, and why."""
    why = (
        "every row is right, so ever lower temperatures fit ever better (is this the training"
        " data?)"
        if all_right
        else "the logits say nothing about the labels, so ever higher temperatures fit ever better"
    )
    warn_caller(f"{why}; the temperature is bounded at {temperature:.3g}.")
