"""Temperature with a uniform part: (1 - ε)·softmax(x/T) + ε/K, both numbers fitted together.

A temperature answers for every row by itself: a true class with probability e^-20 costs as much as a hundred doubtful
rows, and T rises until it costs less. Where the logits are logarithms of floored probabilities, or a few labels are
wrong, those rows alone decide T. The uniform part takes them over; it is zero where nothing is wrong. These are two of
the three members of ensemble temperature scaling (Zhang, Kailkhura & Han, ICML 2020), who fit T before the weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.maps.fitting.lbfgs import Minimum
from metacal.maps.map import Map, positive
from metacal.maps.temperature import fit_temperature, inverse_temperature_bounds, usable_rows, warn_bounded
from metacal.rows import Rows

Float = NDArray[np.float64]

#: The uniform part never takes more than this: what is left keeps every prediction.
MOST_UNIFORM = 1.0 - 2.0**-10
#: Where the search starts besides (T, 1/400): a temperature of one, and of a third of T, with a larger uniform part.
_SMALL, _LARGE, _SHARPER = 1.0 / 400.0, 1.0 / 20.0, 3.0
#: Rows that the starts are compared on.
_SAMPLE = 2_000
#: The fit ends with the step that promises less than this per row: on few rows, and where a sample gave the start.
_TOLERANCE, _TOLERANCE_FROM_SAMPLE = 1e-14, 1e-10
#: A uniform part must lower the mean loss by more than this.
_EQUAL = 1e-9
#: From here on a step is taken without looking whether the loss falls; it must promise less and less.
_NEAR = 1e-6
#: What rounding may leave when no step helps any more.
_ROUNDING = 1e-8
_MAX_STEPS, _MAX_HALVINGS = 100, 30


@dataclass(frozen=True)
class UniformTemperatureMap(Map):
    """(1 - ε)·softmax(b·x) + ε/K with the inverse temperature b = 1/T > 0 and 0 <= ε < 1.

    Over masked classes (-inf) the uniform part has no weight: ε is shared by the others.

    Examples
    --------
    >>> UniformTemperatureMap(inverse_temperature=0.5, uniform=0.1)(np.array([[2.0, 0.0]])).round(3)
    array([[0.708, 0.292]])
    """

    inverse_temperature: float
    uniform: float

    preserves_accuracy = True
    on_device = True

    def check(self) -> None:
        """Raise unless the fields make a map."""
        positive("inverse_temperature", self.inverse_temperature)
        if not (isinstance(self.uniform, int | float) and 0.0 <= self.uniform < 1.0):
            raise InputError(f"uniform must be a number of at least 0 and less than 1, got {self.uniform!r}.")

    @property
    def temperature(self) -> float:
        """T = 1/b."""
        return 1.0 / self.inverse_temperature

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        if self.uniform == 0.0:
            kernels.softmax(block, self.inverse_temperature, out)
            return
        kernels.mixed_softmax(block, self.inverse_temperature, self.uniform, out)


def fit_uniform(
    rows: Rows, labels: NDArray[np.intp], weights: NDArray[np.float64] | None = None
) -> UniformTemperatureMap:
    """Minimise -Σ w log[(1 - ε)·softmax(b·x)_y + ε/K] over b = 1/T and ε.

    Newton steps in (log b, ε) with ε >= 0, halved until the loss falls. The problem is convex in ε but not in b: it is
    started from the plain temperature with a small ε, from b = 1 and from a sharper temperature with a larger one, on
    up to some 4,000 rows, and the lowest end is where all rows start from: two or three passes over a large table.

    When every row is right, or rows have a true class that is masked, the same holds as for `fit_temperature`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(0.0, 3.0, (2000, 5))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> labels[:200] = rng.integers(5, size=200)                                 # every tenth label is a guess
    >>> fit = fit_uniform(Rows(2.0 * logits), labels)
    >>> round(fit.temperature, 1), round(fit.uniform, 2)
    (2.0, 0.09)
    """
    rows, labels, weights = usable_rows(rows, labels, weights)
    labels, weights = rows.column(labels), rows.column(weights)
    step = max(1, len(rows) // _SAMPLE)
    few = rows if step == 1 else rows.every(step)[0]
    own = labels[::step], None if weights is None else weights[::step]
    with warnings.catch_warnings():
        if step > 1:  # a sample may be all right where the rows are not
            warnings.simplefilter("ignore", MetacalWarning)
        plain = fit_temperature(few, *own).inverse_temperature
    bounds = inverse_temperature_bounds(few) or inverse_temperature_bounds(rows)
    if bounds is None:
        return UniformTemperatureMap(plain, 0.0)
    box = np.array([[np.log(bounds[0]), 0.0], [np.log(bounds[1]), MOST_UNIFORM]])
    best = _from_everywhere(_loss(few, *own), plain, box)
    if step > 1:
        best = _on_all_rows(_loss(rows, labels, weights), best.point, plain, len(rows), box)
    best.warn_unless_converged("temperature scaling with a uniform part")
    log_b, uniform = best.point
    if step > 1 and log_b in box[:, 0]:  # of fewer rows the plain temperature has said so
        warn_bounded(bool(log_b == box[1, 0]), float(np.exp(-log_b)))
    return UniformTemperatureMap(float(np.exp(log_b)), float(uniform))


def _from_everywhere(loss: _Loss, plain: float, box: Float) -> Minimum:
    """The lowest end of the searches; the plain temperature where a uniform part makes no difference to the loss."""
    starts = [(plain, _SMALL), (1.0, _LARGE), (plain * _SHARPER, _LARGE)]
    ends = [_newton(loss, np.clip([np.log(b), uniform], *box), box) for b, uniform in starts]
    best = min(ends, key=lambda end: end.value)
    without = np.clip([np.log(plain), 0.0], *box)
    value = float(loss(without)[0])
    return best if value > best.value + _EQUAL else Minimum(without, value, 0.0, 0.0, 0, True)


def _on_all_rows(loss: _Loss, point: Float, plain: float, n_rows: int, box: Float) -> Minimum:
    """From the sample's end or, where the loss is lower there, from the plain temperature.

    ε starts at 1/(n + 1) at least: few rows that ask for it may all be missing from the sample.
    """
    point = np.maximum(point, [box[0, 0], 1.0 / (n_rows + 1.0)])
    other = np.clip([np.log(plain), 1.0 / (n_rows + 1.0)], *box)
    if point[1] > other[1] and loss(other)[0] < loss(point)[0]:
        point = other
    return _newton(loss, point, box, _TOLERANCE_FROM_SAMPLE)


#: (log b, ε) -> mean loss, gradient, curvature as six numbers.
_Loss = Callable[[Float], Float]


def _loss(rows: Rows, labels: Any, weights: Any) -> _Loss:
    total = float(len(rows)) if weights is None else float(weights.sum())

    def loss(point: Float) -> Float:
        kernel = partial(kernels.mixed_loss, inverse_temperature=float(np.exp(point[0])), uniform=float(point[1]))
        return np.asarray(rows.sum(kernel, labels, weights) / total)

    return loss


def _newton(loss: _Loss, point: Float, box: Float, tolerance: float = _TOLERANCE) -> Minimum:
    """Newton steps within the box, halved until the loss falls."""
    here, last = loss(point), np.inf
    for step in range(1, _MAX_STEPS + 1):  # noqa: B007 the minimum says how many
        move, promise = _step(here, box - point)
        if promise <= tolerance or (last <= _NEAR and promise > 0.25 * last):
            point = np.clip(point + move, *box)
            break
        # Near the end the loss of float32 logits is too coarse to tell better from worse; its slope is not.
        found = (point + move, loss(point + move)) if promise <= _NEAR else _backtrack(loss, point, here, move)
        if found is None:
            break
        (point, here), last = found, promise
    norm = float(np.linalg.norm(here[1:3]))
    return Minimum(point, float(here[0]), promise, norm, step, promise <= _ROUNDING)


def _step(here: Float, room: Float) -> tuple[Float, float]:
    """The lowest point within the box of the parabola that touches the loss here, and how far it lies below.

    Where the loss bends down, the parabola bends up as much: its curvature has the eigenvalues' signs turned positive.
    """
    gradient = here[1:3]
    values, vectors = np.linalg.eigh([[here[3], here[4]], [here[4], here[5]]])
    values = np.maximum(np.abs(values), 1e-12 * max(1.0, float(np.abs(values).max())))
    hessian = (vectors * values) @ vectors.T
    move = -np.linalg.solve(hessian, gradient)
    for first, other in ((1, 0), (0, 1)):
        kept = float(np.clip(move[first], *room[:, first]))
        if kept != move[first]:
            move[first] = kept
            move[other] = -(gradient[other] + hessian[0, 1] * kept) / hessian[other, other]
    move = np.clip(move, *room)
    move[0] = np.clip(move[0], -1.0, 1.0)  # no temperature changes more than e-fold at once
    return move, -float(gradient @ move + 0.5 * move @ hessian @ move)


def _backtrack(loss: _Loss, point: Float, here: Float, move: Float) -> tuple[Float, Float] | None:
    for _ in range(_MAX_HALVINGS):
        there = loss(point + move)
        if there[0] <= here[0] + 1e-4 * float(here[1:3] @ move):
            return point + move, there
        move = 0.5 * move
    return None
