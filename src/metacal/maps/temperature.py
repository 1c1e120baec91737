"""Temperature scaling: softmax(x / T) with one positive temperature T.

Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.rows import Rows

#: Bounds on b · (median margin), the calibrated log-odds of a typical row: beyond e^-100 no data can speak.
_SMALLEST_MARGIN, _LARGEST_MARGIN = 1e-3, 100.0
#: Relative accuracy of b. Halley's error is about the cube of the last relative step.
_TOLERANCE = 1e-9
_MAX_PASSES = 100


@dataclass(frozen=True)
class TemperatureMap:
    """softmax(b·x) with the inverse temperature b = 1/T > 0.

    Examples
    --------
    >>> TemperatureMap(inverse_temperature=0.5)(np.array([[2.0, 0.0]])).round(3)
    array([[0.731, 0.269]])
    """

    inverse_temperature: float

    preserves_accuracy: ClassVar[bool] = True
    #: Fitted and applied where a tensor on a GPU lies.
    on_device: ClassVar[bool] = True

    def __post_init__(self) -> None:
        b = self.inverse_temperature
        if not (isinstance(b, int | float) and 0.0 < b < np.inf):
            raise InputError(f"inverse_temperature must be a positive finite number, got {b!r}.")

    @property
    def temperature(self) -> float:
        """T = 1/b."""
        return 1.0 / self.inverse_temperature

    def __call__(self, logits: NDArray[Any], *, rows: Rows | None = None) -> NDArray[Any]:
        """Probabilities of the same shape; float32 stays float32, float16 becomes float32, a GPU's tensor a tensor."""
        rows = rows if rows is not None else Rows(logits)
        if rows.on_device:
            out = kernels.device_kernels().empty_probabilities(logits)
            return rows.fill(partial(_softmax, self.inverse_temperature), out)
        out = np.empty(logits.shape, dtype=np.float64 if logits.dtype == np.float64 else np.float32)
        return rows.fill(partial(_softmax, self.inverse_temperature), out)


def fit_temperature(rows: Rows, labels: NDArray[np.intp], weights: NDArray[np.float64] | None = None) -> TemperatureMap:
    """Minimise the mean negative log-likelihood of softmax(b·x) over b = 1/T.

    The loss is convex in b. Halley steps from its first three derivatives, kept inside a shrinking bracket, start from
    the solution on every s-th row: one or two passes over a large table reach a relative error of 1e-9.

    When every row is right the likelihood has no maximum; the temperature is then bounded and a warning given. Rows
    whose true class is masked (-inf) have probability zero at every temperature: they are left out, with a warning.

    Examples
    --------
    >>> logits = np.log([[0.9, 0.1]] * 10) * 3.0                  # three times too confident
    >>> round(fit_temperature(Rows(logits), np.array([0] * 9 + [1])).temperature, 6)
    3.0
    """
    rows, labels, weights = usable_rows(rows, rows.column(labels), weights)
    weights = rows.column(weights)
    step = _stride(len(rows))
    sample, _ = rows.every(step)
    scale = _typical_margin(sample)
    if scale == 0.0:
        warnings.warn(
            "all logits are equal in every row: the temperature has no effect and is set to 1.",
            MetacalWarning,
            stacklevel=3,
        )
        return TemperatureMap(1.0)
    bounds = (_SMALLEST_MARGIN / scale, _LARGEST_MARGIN / scale)
    start = float(np.clip(1.0, *bounds))
    if len(sample) < len(rows):
        on_sample = _loss(sample, labels[::step], None if weights is None else weights[::step])
        start = _minimise(on_sample, start, bounds, 1e-3)
    b = _minimise(_loss(rows, labels, weights), start, bounds, _TOLERANCE)
    if b in bounds:
        _warn_bounded(b == bounds[1], 1.0 / b)
    return TemperatureMap(b)


def _softmax(inverse_temperature: float, block: NDArray[Any], out: NDArray[Any]) -> None:
    kernels.softmax(block, inverse_temperature, out)


def _loss(
    rows: Rows, labels: NDArray[np.intp], weights: NDArray[np.float64] | None
) -> Callable[[float], NDArray[np.float64]]:
    return lambda b: rows.sum(partial(kernels.tempered_loss, inverse_temperature=b), labels, weights)


def _stride(n: int) -> int:
    """The warm start uses n/10 rows, between 2,000 and 20,000."""
    return max(1, n // min(max(n // 10, 2_000), 20_000))


def _typical_margin(rows: Rows) -> float:
    margins = -rows.collect(kernels.negative_margin)
    margins = margins[margins < np.finfo(np.float64).max]
    if not len(margins):
        return 0.0
    middle = float(np.median(margins))
    # More than half of the rows tie at the top: fall back on the mean, then on the distance to the lowest class.
    return middle or float(margins.mean()) or float(rows.collect(kernels.spread).mean())


def _minimise(
    loss: Callable[[float], NDArray[np.float64]], b: float, bounds: tuple[float, float], tolerance: float
) -> float:
    """The root of the increasing derivative in [low, high]; a bound when the root lies beyond it."""
    low, high = bounds
    for _ in range(_MAX_PASSES):
        _, slope, curvature, third = loss(b)
        if slope > 0.0:
            high = b
        elif slope < 0.0:
            low = b
        if slope == 0.0 and b not in bounds:
            return b
        if (b == bounds[1] and slope <= 0.0) or (b == bounds[0] and slope >= 0.0):
            return b
        step = _halley(slope, curvature, third)
        proposal = b - step
        if not low < proposal < high:
            # Try the bound itself first, so that an answer at a bound is found at once; else halve the bracket.
            proposal = (
                bounds[1]
                if high == bounds[1] and slope < 0.0
                else (bounds[0] if low == bounds[0] and slope > 0.0 else float(np.sqrt(low * high)))
            )
        elif abs(step / proposal) ** 3 < tolerance:
            return float(proposal)
        b = float(proposal)
    warnings.warn(
        f"the temperature did not converge: slope {slope:.3g} after {_MAX_PASSES} passes.", MetacalWarning, stacklevel=4
    )
    return b


def _halley(slope: float, curvature: float, third: float) -> float:
    """The Halley step, or Newton's where Halley's denominator is not safely positive."""
    if curvature <= 0.0:
        return float(np.copysign(np.inf, slope))
    denominator = curvature - 0.5 * slope * third / curvature
    return float(slope / (denominator if denominator > 0.25 * curvature else curvature))


def usable_rows(
    rows: Rows, labels: NDArray[np.intp], weights: NDArray[np.float64] | None
) -> tuple[Rows, NDArray[np.intp], NDArray[np.float64] | None]:
    """Leave out rows of weight zero and rows whose true class is masked."""
    finite = rows.collect(kernels.label_is_possible, labels)
    if not finite.all():
        if not finite.any():
            raise InputError("the true class has logit -inf in every row; there is nothing to fit a temperature on.")
        warnings.warn(
            f"{int((~finite).sum())} of {len(rows)} rows have a true class whose logit is -inf; no temperature gives "
            "it any probability, so these rows are left out of the temperature fit.",
            MetacalWarning,
            stacklevel=4,
        )
    used = finite if weights is None else finite & (weights > 0.0)
    if used.all():
        return rows, labels, weights
    return rows.where(used), labels[used], None if weights is None else weights[used]


def _warn_bounded(all_right: bool, temperature: float) -> None:
    why = (
        "every row is right, so ever lower temperatures fit ever better (is this the training data?)"
        if all_right
        else "the logits say nothing about the labels, so ever higher temperatures fit ever better"
    )
    warnings.warn(f"{why}; the temperature is bounded at {temperature:.3g}.", MetacalWarning, stacklevel=4)
