"""Composed calibration: one map after another, then(log first(x)).

The first map is a front that makes any table fit to look at: temperature scaling with a uniform
part (`uniform.py`) leaves no class with a probability below ε/K, so that a few rows with an almost
impossible true class do not rule what follows. Zhang, Kailkhura & Han, "Mix-n-Match", ICML 2020,
compose temperature scaling and isotonic regression so.

The usual pair, a monotone spline on a temperature with a uniform part, fitted on all rows, is what
a gate's base map is by default beyond two classes. Why not a temperature on the accepted rows:
accepted rows have few errors, and a few rows with an almost impossible true class among them rule
T. The uniform part takes those over, and the spline mends the confidence, which is what a gate
shows. Both parts keep every prediction, so a promise about the largest logit stays one about the
largest probability. Measured in `docs/quality.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.formulas.parts import composed, lifted
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import CombinedMap, Map
from metacal.maps.methods import METHODS
from metacal.maps.monotone import plain_monotone
from metacal.maps.spline import SplineMap, fit_averaged
from metacal.maps.uniform import UniformTemperatureMap, fit_uniform_seen
from metacal.rows import Rows
from metacal.rows.arrays import on_host
from metacal.rows.stored import ConvertedTable

_Map = TypeVar("_Map", bound=Map)

#: Elements of a table in memory that is mapped once and held; a larger one, or one on disk, is
#: mapped again each pass.
_HELD, _HELD_OF_STORED = 1 << 25, 1 << 22
#: The parts that are fitted and applied together.
USUAL = ("uniform-temperature", "spline")
#: The logarithm of a probability that was rounded to zero, of a class that is not masked.
SMALLEST = float(np.log(np.finfo(np.float64).tiny))


@dataclass(frozen=True, eq=False)
class ComposedMap(CombinedMap):
    """then(log first(x)).

    A spline on a temperature with a uniform part, the usual pair, is one kernel: it makes no table
    of logarithms.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> quarter = ComposedMap(TemperatureMap(0.5), TemperatureMap(0.5))
    >>> quarter(np.array([[4.0, 0.0]])).round(3)
    array([[0.731, 0.269]])
    """

    first: Map
    then: Map

    @property
    def formula(self) -> Callable[..., Any]:  # type: ignore[override]
        """One map after another; of the usual pair that which kernels write at once."""
        return composed if self.usual is None else lifted

    @property
    def in_table_precision(self) -> bool:  # type: ignore[override]
        """Whether single precision is enough for a float32 table: of the usual pair, which a kernel
        writes.
        """
        return self.usual is not None

    on_device = whole_blocks = in_table_precision

    @property
    def usual(self) -> tuple[UniformTemperatureMap, SplineMap] | None:
        """Both parts where they are those of the kernel."""
        first, then = self.first, self.then
        if (
            isinstance(first, UniformTemperatureMap)
            and isinstance(then, SplineMap)
            and then.inverse_temperature == 1.0
        ):
            return first, then
        return None

    def check(self) -> None:
        """Raise unless the fields make a map."""
        if not (isinstance(self.first, Map) and isinstance(self.then, Map)):
            raise InputError(
                f"first and then must be fitted maps, got {self.first!r} and {self.then!r}."
            )
        if (
            None not in (self.first.n_classes, self.then.n_classes)
            and self.first.n_classes != self.then.n_classes
        ):
            raise InputError(
                f"the maps were fitted on {self.first.n_classes} and on {self.then.n_classes}"
                " classes; compose maps of the same classes."
            )

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        if self.usual is None:
            self.then.write(logarithms(self.first, block), out)
        else:
            front, spline = self.usual
            kernels.lifted_softmax(
                block, front.inverse_temperature, front.uniform, spline.curve, out
            )


def fit_composed(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    first: str = "uniform-temperature",
    then: str = "spline",
) -> ComposedMap:
    """Fit the method `first`, then the method `then` on the logarithms of its probabilities, both
    on all rows.

    The usual pair is fitted together: what the last walk for the temperature saw of each row, its
    tail and whether it is right, is all that the spline needs (`fit_averaged`). It costs no walk,
    and of a table on a device two columns come to the host.
    """
    for name in (first, then):
        if name not in METHODS:
            raise InputError(f"unknown calibrator {name!r}; there are {', '.join(METHODS)}.")
    if (first, then) == USUAL:
        fitted, seen = fit_uniform_seen(Labelled(rows, labels, weights))
        own = None if seen.weights is None else np.asarray(on_host(seen.weights))
        usual = as_front(fitted, seen, own)
        return ComposedMap(usual, fit_averaged(seen.log_odds(usual), seen.right, own))
    front = as_front(METHODS[first].fit_function()(rows, labels, weights), rows, weights)
    return ComposedMap(
        front, METHODS[then].fit_function()(seen_through(front, rows), labels, weights)
    )


def default_base(n_classes: int | None) -> str:
    """The name of the method that fits a gate's base map where nothing else is asked for.

    Of two classes an increasing curve with an offset, which no temperature can learn.

    >>> default_base(2), default_base(10)
    ('monotone', 'composed')
    """
    return "monotone" if n_classes == 2 else "composed"


def plain_softmax(n_classes: int) -> Map:
    """The default base that changes nothing.

    Examples
    --------
    >>> [plain_softmax(2)(np.array([[2.0, 0.0]])).round(3), plain_softmax(3)(np.array([[2.0, 0.0, 0.0]])).round(3)]
    [array([[0.881, 0.119]]), array([[0.787, 0.107, 0.107]])]
    """
    if n_classes == 2:
        return plain_monotone()
    return ComposedMap(UniformTemperatureMap(1.0, 0.0), SplineMap(np.zeros(1), np.ones(1), 0.0))


def as_front(fitted: _Map, rows: Sized, weights: Weights) -> _Map:
    """The map as others see through it: a uniform part of at least 1/(n + 1), one row's worth.

    A row of weight 2 counts as two: of weighted rows n is Σw or, where weights are small numbers
    that say shares, the effective number of rows, (Σw)² / Σw².

    Examples
    --------
    >>> as_front(UniformTemperatureMap(1.0, 0.0), Rows(np.zeros((99, 2))), None)
    UniformTemperatureMap(inverse_temperature=1.0, uniform=0.01)
    """
    if not isinstance(fitted, UniformTemperatureMap):
        return fitted
    n_rows = float(len(rows))
    if weights is not None:
        total = float(weights.sum())
        n_rows = max(total, total**2 / float(weights @ weights))
    return replace(fitted, uniform=max(fitted.uniform, 1.0 / (n_rows + 1.0)))


def seen_through(front: Map, rows: Rows) -> Rows:
    """The rows with log front(x) in place of x: held in memory where they are, else made anew as
    they are read.
    """
    rows = rows.on_host()
    in_memory = isinstance(rows.table, np.ndarray) and not isinstance(rows.table, np.memmap)
    if len(rows) * rows.n_classes <= (_HELD if in_memory else _HELD_OF_STORED):
        table = np.empty((len(rows), rows.n_classes))
        return Rows(rows.fill(partial(_write_logarithms, front), table), executor=rows.executor)
    return rows.replaced(table=ConvertedTable(rows.table, partial(logarithms, front), np.float64))


def logarithms(front: Map, block: NDArray[Any]) -> Float:
    """log front(x) in float64; -inf where a class is masked, and nowhere else."""
    found = np.empty(block.shape)
    _write_logarithms(front, block, found)
    return found


def _write_logarithms(front: Map, block: NDArray[Any], out: NDArray[Any]) -> None:
    double = np.asarray(block, dtype=np.float64)
    masked = np.isneginf(double) if double.min(initial=0.0) == -np.inf else None
    front.write(double, out)
    with np.errstate(divide="ignore"):
        np.log(out, out=out)
    np.maximum(out, SMALLEST, out=out)
    if masked is not None:
        out[masked] = -np.inf
