"""Temperature with a uniform part: (1 - ε)·softmax(x/T) + ε/K, both numbers fitted together.

A temperature answers for every row by itself: a true class with probability e^-20 costs as much as
a hundred doubtful rows, and T rises until it costs less. Where the logits are logarithms of floored
probabilities, or a few labels are wrong, those rows alone decide T. The uniform part takes them
over; it is zero where nothing is wrong. These are two of the three members of ensemble temperature
scaling (Zhang, Kailkhura & Han, ICML 2020), who fit T before the weights.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.formulas import Codes, Float
from metacal.formulas.temperature import uniform_temperature
from metacal.kernels.columns import OWN, RIGHT
from metacal.maps.fitting.lbfgs import Minimum
from metacal.maps.labelled import Labelled, Weights, no_possible_truth, warn_masked
from metacal.maps.map import TemperedMap
from metacal.maps.temperature import (
    SAMPLED_TWICE_FROM,
    TOLERANCE,
    TOLERANCE_OF_SAMPLE,
    fit_temperature_of_scale,
    inverse_temperature_bounds,
    second_stride,
    typical_margin,
    warn_bounded,
)
from metacal.rows import Rows
from metacal.rows.arrays import on_host

#: The uniform part never takes more than this: what is left keeps every prediction.
MOST_UNIFORM = 1.0 - 2.0**-10
#: Where the search starts besides (T, 1/400): a temperature of one, and of a third of T, with a
#: larger uniform part.
_SMALL, _LARGE, _SHARPER = 1.0 / 400.0, 1.0 / 20.0, 3.0
#: Rows that the starts are compared on; and the most that are walked at all, every s-th of more:
#: they settle T to a ten thousandth.
_SAMPLE, MOST_ROWS = 1_000, 1 << 21
#: How far a walk at one temperature speaks for others, in log b; and the error of the answer, about
#: the last step in log b to the fourth, that ends the walks: of few rows, of all rows after a
#: sample, and of a sample.
_REACH, _ACCURACY, _ACCURACY_FROM_SAMPLE, _ACCURACY_OF_SAMPLE = 0.5, 1e-10, 1e-7, 1e-4
#: The steps between two walks end with one that promises less than this per row, of a sample less
#: than the second: the one after it would promise about the square.
_TOLERANCE, _TOLERANCE_OF_SAMPLE = 1e-9, 1e-5
#: A uniform part must lower the mean loss by more than this, and a walk may raise it by no more.
_EQUAL = 1e-9
#: A walk that lowers the mean loss by no more was the last: where all rows are alike T runs away
#: for nothing.
_FLAT = 1e-10
#: Two searches that end with losses as near as this have found the same.
_ALIKE = 1e-4
#: From here on a step is taken without looking whether the loss falls; it must promise less and
#: less.
_NEAR = 1e-6
#: What rounding may leave when no step helps any more.
_ROUNDING = 1e-8
_MAX_WALKS, _MAX_STEPS, _MAX_HALVINGS = 50, 100, 30


@dataclass(frozen=True)
class UniformTemperatureMap(TemperedMap):
    """(1 - ε)·softmax(b·x) + ε/K with the inverse temperature b = 1/T > 0 and 0 <= ε < 1.

    Over masked classes (-inf) the uniform part has no weight: ε is shared by the others.

    Examples
    --------
    >>> UniformTemperatureMap(inverse_temperature=0.5, uniform=0.1)(np.array([[2.0, 0.0]])).round(3)
    array([[0.708, 0.292]])
    """

    inverse_temperature: float
    uniform: float

    preserves_accuracy = in_table_precision = ends_in_softmax = on_device = True
    formula = staticmethod(uniform_temperature)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        super().check()
        if not (isinstance(self.uniform, int | float) and 0.0 <= self.uniform < 1.0):
            raise InputError(
                f"uniform must be a number of at least 0 and less than 1, got {self.uniform!r}."
            )

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        if self.uniform == 0.0:
            kernels.softmax(block, self.inverse_temperature, out)
            return
        kernels.mixed_softmax(block, self.inverse_temperature, self.uniform, out)


def fit_uniform(rows: Rows, labels: Codes, weights: Weights = None) -> UniformTemperatureMap:
    """Minimise -Σ w log[(1 - ε)·softmax(b·x)_y + ε/K] over b = 1/T and ε.

    A walk over the table says of each row what its loss is at one b and, by a series, at others
    nearby (`mixed_rows`). Newton steps in (log b, ε) with ε >= 0, halved until the loss falls, cost
    no walk; the next one is at their end. The problem is convex in ε but not in b: it is started
    from the plain temperature with a small ε, from b = 1 and, where these end apart, from a sharper
    temperature with a larger one, on some 1,000 rows, and the lowest end is where the others start
    from: one or two walks over a large table.

    When every row is right, or rows have a true class that is masked, the same holds as for
    `fit_temperature`.
    """
    return fit_uniform_seen(Labelled(rows, labels, weights))[0]


@dataclass(frozen=True)
class Seen:
    """What a walk at the inverse temperature `walked` says of each row: the columns of
    `mixed_rows`, and the weights.

    The columns lie one after another; on a device they stay there. The threads of a pool share sums
    over them.
    """

    columns: Any
    weights: Any
    walked: float
    pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def loss(self, point: Float) -> Float:
        """Mean loss at (log b, ε), its gradient and its curvature: six numbers."""
        total = float(len(self)) if self.weights is None else float(self.weights.sum())
        b, uniform = float(np.exp(point[0])), float(point[1])
        with np.errstate(
            divide="ignore", over="ignore", invalid="ignore"
        ):  # an impossible true class: the loss is inf
            return (
                kernels.mixed_sums(self.columns, self.weights, self.walked, b, uniform, self.pool)
                / total
            )

    def log_odds(self, fitted: UniformTemperatureMap) -> Float:
        """The log-odds of each row's confidence under a map with a uniform part, on the host."""
        b, uniform = fitted.inverse_temperature, fitted.uniform
        return kernels.mixed_log_odds(self.columns, self.walked, b, uniform, self.pool)

    @property
    def right(self) -> Float:
        """1 where the largest logit is the true class, on the host."""
        return np.asarray(on_host(self.columns[RIGHT]))

    def with_possible_truth(self) -> Seen:
        """Without the rows whose true class is masked: these have no probability whatever the
        map.
        """
        finite = self.columns[OWN] > -np.inf
        return self if bool(finite.all()) else self.where(finite)

    def where(self, keep: Any) -> Seen:
        """Some of the rows."""
        weights = None if self.weights is None else self.weights[keep]
        return replace(self, columns=self.columns[:, keep], weights=weights)


#: What a walk at this inverse temperature sees.
_Look = Callable[[float], Seen]


def _looking(sample: Labelled) -> _Look:
    rows, labels, _ = sample
    pool = rows.executor if isinstance(rows.executor, ThreadPoolExecutor) else None
    there = (
        len(rows) >= SAMPLED_TWICE_FROM
    )  # few rows are sooner added up on the host than a device is asked
    weights = sample.weights if there else on_host(sample.weights)

    @lru_cache(maxsize=2 if there else 8)
    def look(b: float) -> Seen:
        if rows.in_place:  # threads write straight to where the columns lie
            columns = np.empty((8, len(rows)))
            rows.fill(partial(_write_columns, b), columns.T, labels, whole=True)
            return Seen(columns, weights, b, pool)
        found = rows.collect(
            partial(kernels.mixed_rows, inverse_temperature=b), labels, there=there
        )
        columns = (
            np.ascontiguousarray(found.T) if isinstance(found, np.ndarray) else found.T.contiguous()
        )
        return Seen(columns, weights, b, pool)

    return look


def _write_columns(b: float, block: NDArray[Any], out: Float, labels: Codes) -> None:
    kernels.mixed_rows(block, labels, b, out=out)


def fit_uniform_seen(sample: Labelled) -> tuple[UniformTemperatureMap, Seen]:
    """The map, and what the last walk saw of the rows that count: what is fitted on top of it needs
    no other.
    """
    sample = sample.counted()
    sample = sample.every(-(-len(sample.rows) // MOST_ROWS)).beside()
    n = len(sample.rows)
    # Every s-th row, of large tables with a second and smaller s; last all rows.
    samples = [
        sample.every(step) for step in dict.fromkeys((max(1, n // _SAMPLE), *second_stride(n), 1))
    ]
    with warnings.catch_warnings():
        if len(samples) > 1:  # a sample may be all right where the rows are not
            warnings.simplefilter("ignore", MetacalWarning)
        scale = typical_margin(samples[0].rows)
        tolerance = TOLERANCE_OF_SAMPLE if len(samples) > 1 else TOLERANCE
        plain = fit_temperature_of_scale(samples[0], scale, tolerance).inverse_temperature
    looks = [_looking(part) for part in samples]
    scale = scale or typical_margin(sample.rows)
    if scale == 0.0:
        return UniformTemperatureMap(plain, 0.0), looks[-1](plain)
    bounds = inverse_temperature_bounds(scale)
    box = np.array([[np.log(bounds[0]), 0.0], [np.log(bounds[1]), MOST_UNIFORM]])
    best, seen = _from_everywhere(
        looks[0], plain, box, _ACCURACY if len(samples) == 1 else _ACCURACY_OF_SAMPLE
    )
    for look in looks[1:]:
        # Few rows that ask for a uniform part may all be missing from the sample.
        start = np.maximum(best.point, [box[0, 0], 1.0 / (n + 1.0)])
        best, seen = _search(
            look, start, box, _ACCURACY_FROM_SAMPLE if look is looks[-1] else _ACCURACY_OF_SAMPLE
        )
    best.warn_unless_converged("temperature scaling with a uniform part")
    log_b, uniform = best.point
    if len(samples) > 1:  # of fewer rows the plain temperature has said so
        if left := len(seen) - len(seen.with_possible_truth()):
            warn_masked(left, len(seen))
        if log_b in box[:, 0]:
            warn_bounded(bool(log_b == box[1, 0]), float(np.exp(-log_b)))
    return UniformTemperatureMap(float(np.exp(log_b)), float(uniform)), seen


def _from_everywhere(
    look: _Look, plain: float, box: Float, accuracy: float
) -> tuple[Minimum, Seen]:
    """The lowest end of the searches; the plain temperature where a uniform part makes no
    difference to the loss.
    """
    ends: list[tuple[Minimum, Seen]] = []
    for b, uniform in ((plain, _SMALL), (1.0, _LARGE), (plain * _SHARPER, _LARGE)):
        if (
            len(ends) < 2 or abs(ends[0][0].value - ends[1][0].value) > _ALIKE
        ):  # two of a kind need no third
            ends.append(_search(look, np.clip([np.log(b), uniform], *box), box, accuracy))
    best = min(ends, key=lambda end: end[0].value)
    without = np.clip([np.log(plain), 0.0], *box)
    seen = look(float(np.exp(without[0])))
    value = float(seen.with_possible_truth().loss(without)[0])
    return (
        best
        if value > best[0].value + _EQUAL
        else (Minimum(without, value, 0.0, 0.0, 0, True), seen)
    )


def _search(look: _Look, point: Float, box: Float, accuracy: float) -> tuple[Minimum, Seen]:
    """Walk, go to the lowest point nearby of what was seen, and walk again there, until the last
    step is small.
    """
    tolerance = _TOLERANCE if accuracy < _ACCURACY_OF_SAMPLE else _TOLERANCE_OF_SAMPLE
    seen = look(float(np.exp(point[0])))
    view, reach = seen.with_possible_truth(), _REACH
    if not len(view):
        raise no_possible_truth()
    here = view.loss(point)
    for _ in range(_MAX_WALKS):
        near = np.clip(box, [point[0] - reach, 0.0], [point[0] + reach, 1.0])
        end = newton(view.loss, point, near, tolerance, here)
        moved = abs(end.point[0] - point[0])
        if moved**4 <= accuracy:
            return end, seen
        there = look(float(np.exp(end.point[0])))
        found = there.with_possible_truth()
        new = found.loss(end.point)
        if new[0] > here[0] + _EQUAL:  # the series led astray
            reach = 0.25 * moved
            continue
        if here[0] - new[0] <= _FLAT:
            return end, there
        point, seen, view, here = end.point, there, found, new
    return Minimum(point, float(here[0]), np.inf, np.inf, _MAX_WALKS, False), seen


#: (log b, ε) -> mean loss, gradient, curvature as six numbers.
_Loss = Callable[[Float], Float]


def newton(
    loss: _Loss, point: Float, box: Float, tolerance: float = _TOLERANCE, here: Float | None = None
) -> Minimum:
    """Newton steps within the box, halved until the loss falls; `here` is the loss at the point,
    where it is known.
    """
    here, last, gained = loss(point) if here is None else here, np.inf, 0.0
    for step in range(1, _MAX_STEPS + 1):  # noqa: B007 the minimum says how many
        move, promise = _step(here, box - point)
        if promise <= tolerance or (last <= _NEAR and promise > 0.25 * last):
            point, gained = np.clip(point + move, *box), max(promise, 0.0)
            break
        # Near the end the loss of float32 logits is too coarse to tell better from worse; its slope
        # is not.
        found = (
            (point + move, loss(point + move))
            if promise <= _NEAR
            else _backtrack(loss, point, here, move)
        )
        if found is None:
            break
        (point, here), last = found, promise
    norm = math.hypot(here[1], here[2])
    return Minimum(point, float(here[0]) - gained, promise, norm, step, promise <= _ROUNDING)


def _step(here: Float, room: Float) -> tuple[Float, float]:
    """The lowest point within the box of the parabola that touches the loss here, and how far it
    lies below.

    Where the loss bends down, the parabola bends up as much: its curvature has the eigenvalues'
    signs turned positive. With mean m and half the distance r of the eigenvalues λ, and |λ| in
    place of λ, a matrix H = m + (H - m) becomes m' + (H - m)·r'/r.
    """
    _, first, second, aa, ae, ee = here.tolist()
    if not math.isfinite(first + second + aa + ae + ee):
        return np.zeros(2), math.inf
    mean, half = 0.5 * (aa + ee), math.hypot(0.5 * (aa - ee), ae)
    low, high = abs(mean - half), abs(mean + half)
    least = 1e-12 * max(1.0, low, high)
    if mean - half < least:
        low, high = max(low, least), max(high, least)
        share, middle = 0.5 * (high - low) / half if half > 0.0 else 0.0, 0.5 * (low + high)
        aa, ae, ee = middle + share * (aa - mean), share * ae, middle + share * (ee - mean)
    scale = aa * ee - ae * ae
    move = [(ae * second - ee * first) / scale, (ae * first - aa * second) / scale]
    (least_a, least_e), (most_a, most_e) = room.tolist()
    for at, least, most, own, other in (
        (1, least_e, most_e, aa, first),
        (0, least_a, most_a, ee, second),
    ):
        if not least <= move[at] <= most:
            move[at] = min(max(move[at], least), most)
            move[1 - at] = -(other + ae * move[at]) / own
    # No temperature changes more than e-fold at once.
    a, e = min(max(move[0], least_a, -1.0), most_a, 1.0), min(max(move[1], least_e), most_e)
    promise = -(first * a + second * e + 0.5 * (aa * a * a + 2.0 * ae * a * e + ee * e * e))
    return np.array([a, e]), promise


def _backtrack(loss: _Loss, point: Float, here: Float, move: Float) -> tuple[Float, Float] | None:
    for _ in range(_MAX_HALVINGS):
        there = loss(point + move)
        if there[0] <= here[0] + 1e-4 * float(here[1:3] @ move):
            return point + move, there
        move = 0.5 * move
    return None
