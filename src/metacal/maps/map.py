"""Map: what every fitted calibration map is. Logits come in, probabilities go out, and nothing
changes in between.

A map is a frozen dataclass of numbers and read-only arrays. What it computes of a row is a formula
of `metacal.formulas`, which NumPy, torch and ONNX run; reading tables strip by strip, threads,
`out=` and devices are the same for all of them and stand here once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.formulas.logits import within_reach
from metacal.formulas.operations import NUMPY
from metacal.rows import Rows
from metacal.rows.validate import on_host, room_for_probabilities

#: What an array field of a map is kept as, by its annotation.
_DTYPES = {"Float": np.float64, "NDArray[np.float64]": np.float64, "NDArray[np.int64]": np.int64}


class Map(ABC):
    """A fitted map from logits (n × K) to probabilities of the same shape.

    A subclass is a `@dataclass(frozen=True, eq=False)` with `preserves_accuracy`, `formula`, and,
    where it was fitted for a number of classes, `n_classes`; what its fields must satisfy is said
    in `check`. Where a kernel is faster than the formula in NumPy, `write` calls it.

    Attributes
    ----------
    formula : function
        formula(xp, fitted, x) -> probabilities, a static method; None of what can only be computed
        in Python.
    derived : tuple of str
        Attributes with numbers that the formula reads besides the fields.
    in_table_precision : bool
        Whether single precision is enough for a float32 table: smooth maps of one exponential.
    on_device : bool
        Whether it is fitted and applied where a tensor on a GPU lies; otherwise the table is
        brought to the host.
    whole_blocks : bool
        Whether `write` gives the same bits whatever block its rows come in, and makes no table of
        its own.
    ends_in_softmax : bool
        Whether the last step is a softmax or a mixture of some: of a row with NaN every probability
        is then NaN.
    """

    formula: Callable[..., Any] | None = None
    derived: tuple[str, ...] = ()
    in_table_precision = False
    on_device = False
    whole_blocks = False
    ends_in_softmax = False

    @property
    @abstractmethod
    def preserves_accuracy(self) -> bool:
        """Whether no row's largest class ever changes."""

    @property
    def n_classes(self) -> int | None:
        """The number of classes the map was fitted for; None when it takes any."""
        return None

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`: the formula in float64."""
        assert self.formula is not None
        winner = kernels.predicted(block) if self.preserves_accuracy else None
        found = NUMPY.run(self.formula, self, np.asarray(within_reach(block), dtype=np.float64))
        np.copyto(out, found, casting="same_kind")
        if winner is not None:
            kernels.keep_winner(winner, out)

    def fill(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block, none of them 0 or 1: what others see; `write` is for
        maps inside maps.
        """
        over = isinstance(block, np.ndarray) and np.may_share_memory(block, out)
        possible = block > -np.inf if over else None
        self.write(block, out)
        kernels.put_inside(out, block, possible)

    def check(self) -> None:  # noqa: B027 most maps have something to check, a few have not
        """Raise InputError unless the fields make a map."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            if field.type in _DTYPES:
                array = np.array(getattr(self, field.name), dtype=_DTYPES[str(field.type)])
                array.flags.writeable = False
                object.__setattr__(self, field.name, array)
        self.check()

    def __eq__(self, other: object) -> bool:
        """Whether the other one is of the same kind with the same numbers."""
        if type(self) is not type(other):
            return NotImplemented
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)

    def __hash__(self) -> int:
        return hash(type(self))

    def __call__(
        self, logits: NDArray[Any], *, rows: Rows | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Probabilities of the same shape: float32 stays float32, float16 becomes float32, a GPU's
        tensor a tensor.
        """
        if self.n_classes not in (None, logits.shape[1]):
            raise InputError(
                f"this map was fitted on {self.n_classes} classes; the table has {logits.shape[1]}"
                " columns."
            )
        rows = rows if rows is not None else Rows(logits)
        if not rows.on_device or self.on_device:
            return rows.fill(
                self.fill, room_for_probabilities(logits, out), whole=self.whole_blocks
            )
        room = room_for_probabilities(logits, out)
        room[...] = kernels.device_kernels().beside(self(on_host(logits)), logits)
        return room


class TemperedMap(Map):
    """A map of b·x, with the inverse temperature b = 1/T > 0."""

    inverse_temperature: float

    @property
    def temperature(self) -> float:
        """T = 1/b."""
        return 1.0 / self.inverse_temperature

    def check(self) -> None:
        """Raise unless the fields make a map."""
        positive("inverse_temperature", self.inverse_temperature)
        super().check()


def _same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


def parts_of(fitted: object) -> list[Map]:
    """The maps that a map is made of; none for most.

    Examples
    --------
    >>> from metacal.maps.composed import ComposedMap
    >>> from metacal.maps.temperature import TemperatureMap
    >>> parts_of(ComposedMap(TemperatureMap(1.0), TemperatureMap(2.0)))
    [TemperatureMap(inverse_temperature=1.0), TemperatureMap(inverse_temperature=2.0)]
    """
    held = (getattr(fitted, field.name) for field in fields(fitted))  # type: ignore[arg-type]
    several = (value if isinstance(value, tuple) else (value,) for value in held)
    return [part for values in several for part in values if isinstance(part, Map)]


class CombinedMap(Map):
    """A map made of others: it keeps every prediction where they all do, and takes as many classes
    as they do.
    """

    @property
    def preserves_accuracy(self) -> bool:
        """Whether no part ever changes a row's largest class."""
        return all(part.preserves_accuracy for part in parts_of(self))

    @property
    def n_classes(self) -> int | None:
        """The number of classes the parts were fitted for; None when they take any."""
        return next((part.n_classes for part in parts_of(self) if part.n_classes is not None), None)


def positive(name: str, value: object) -> None:
    """Raise unless `value` is a positive finite number.

    Examples
    --------
    >>> positive("inverse_temperature", 0.0)
    Traceback (most recent call last):
    metacal.errors.InputError: inverse_temperature must be a positive finite number, got 0.0.
    """
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(
        value, bool
    )
    if not number or not 0.0 < value < np.inf:  # type: ignore[operator]
        raise InputError(f"{name} must be a positive finite number, got {value!r}.")


def check_count(name: str, value: object, usual: int) -> int:
    """Return a whole number of at least one, or raise."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(
            f"{name} must be a whole number of at least 1, got {value!r}; {usual} is the usual"
            " choice."
        )
    return int(value)


def check_prior_rows(prior_rows: object) -> float:
    """Return the number of pseudo-rows as a float, or raise."""
    number = isinstance(prior_rows, int | float | np.integer | np.floating) and not isinstance(
        prior_rows, bool
    )
    if not number or not 0.0 <= float(prior_rows) < np.inf:  # type: ignore[arg-type]
        raise InputError(
            f"prior_rows must be a number of at least 0, got {prior_rows!r}; 1 is the usual choice."
        )
    return float(prior_rows)  # type: ignore[arg-type]


#: Fits a map: fit(rows, labels, weights or None), labels being column numbers.
#: `Method.fit_function` is one.
FitMap = Callable[[Rows, Codes, Float | None], Map]
