"""Base class of all fitted calibration maps.

A map turns logits into calibrated probabilities. It is a frozen dataclass of numbers and
read-only arrays. Its formula, one of `metacal.formulas`, runs in NumPy, torch and ONNX. The
base class handles everything that is common to all maps: large tables in blocks, threads,
`out=` and devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import ClassMismatchError, InputError
from metacal.formulas import Codes, Float
from metacal.formulas.logits import limit_logits
from metacal.formulas.operations import NUMPY
from metacal.kernels.columns import RowMap
from metacal.rows import Rows
from metacal.rows.validate import get_probability_buffer, to_numpy

#: Data type of the arrays of a field, by the annotation of the field.
_DTYPES = {"Float": np.float64, "NDArray[np.float64]": np.float64, "NDArray[np.int64]": np.int64}


class Map(ABC):
    """Fitted map from logits (n_rows × n_classes) to probabilities of the same shape.

    A subclass is a `@dataclass(frozen=True, eq=False)`. It defines `preserves_accuracy` and
    `formula`, and `n_classes` if it was fitted for a number of classes. `check` validates
    the fields. If a kernel is faster than the formula in NumPy, `write_probabilities` calls
    the kernel.

    Attributes
    ----------
    formula : function or None
        Static method formula(xp, fitted, x) that returns probabilities. None if the map can
        only be computed in Python.
    derived : tuple of str
        Attributes that the formula reads in addition to the fields.
    supports_single_precision : bool
        Whether float32 tables are computed in single precision. Smooth maps of one
        exponential allow it.
    on_device : bool
        Whether the map is fitted and applied on the GPU of a tensor. Otherwise the table is
        copied to the host.
    allows_any_block_size : bool
        Whether `write_probabilities` returns the same bits for any division into blocks and
        allocates no table.
    ends_in_softmax : bool
        Whether the last step is a softmax or a mixture of softmaxes. A row with NaN then has
        NaN in every class.
    """

    formula: Callable[..., Any] | None = None
    derived: tuple[str, ...] = ()
    supports_single_precision = False
    on_device = False
    allows_any_block_size = False
    ends_in_softmax = False

    @property
    @abstractmethod
    def preserves_accuracy(self) -> bool:
        """Whether the most probable class of a row never changes."""

    @property
    def n_classes(self) -> int | None:
        """Number of classes the map was fitted for, or None if it takes any number."""
        return None

    def write_probabilities(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`.

        The default evaluates the formula in float64.
        """
        assert self.formula is not None
        predictions = kernels.predict_classes(block) if self.preserves_accuracy else None
        logits = np.asarray(limit_logits(block), dtype=np.float64)
        probabilities = NUMPY.evaluate(self.formula, self, logits)
        np.copyto(out, probabilities, casting="same_kind")
        if predictions is not None:
            kernels.ensure_predictions_are_largest(predictions, out)

    def try_writing_clipped_probabilities(self, block: NDArray[Any], out: NDArray[Any]) -> bool:
        """Write clipped probabilities in one pass if a kernel supports the map.

        Returns
        -------
        bool
            False if no kernel supports the map. Nothing is written then.
        """
        return False

    def write_clipped_probabilities(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block, clipped so that none of them is 0 or 1.

        Maps that contain other maps call `write_probabilities` on them instead.
        """
        was_written = self.try_writing_clipped_probabilities(block, out)
        if was_written:
            return
        is_unmasked = None
        if isinstance(block, np.ndarray) and np.may_share_memory(block, out):
            # `write_probabilities` overwrites the logits, so their masks are determined first.
            is_unmasked = block > -np.inf
        self.write_probabilities(block, out)
        kernels.clip_probabilities(out, block, is_unmasked)

    def try_computing_confidences(
        self, block: NDArray[Any], rows: Codes | None = None
    ) -> Float | None:
        """Compute the clipped probability of the predicted class of each row.

        Parameters
        ----------
        block : array of shape (n_rows, n_classes)
            Logits.

        rows : array of int, optional
            Indices of the rows to use, by default all.

        Returns
        -------
        array of shape (n_rows,) or None
            None if no kernel supports the map.
        """
        return None

    @property
    def single_pass_map(self) -> RowMap | None:
        """Equivalent map that a device can compute in one pass, or None."""
        return None

    def check(self) -> None:  # noqa: B027 a few maps have nothing to check
        """Raise InputError unless the fields are valid."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            if field.type in _DTYPES:
                array = np.array(getattr(self, field.name), dtype=_DTYPES[str(field.type)])
                array.flags.writeable = False
                object.__setattr__(self, field.name, array)
        self.check()

    def __eq__(self, other: object) -> bool:
        """Check whether the other map has the same class and equal fields."""
        if type(self) is not type(other):
            return NotImplemented
        field_names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return all(_is_equal(getattr(self, name), getattr(other, name)) for name in field_names)

    def __hash__(self) -> int:
        return hash(type(self))

    def __call__(
        self, logits: NDArray[Any], *, rows: Rows | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Compute the probabilities of a table of logits.

        Parameters
        ----------
        logits : array or tensor of shape (n_rows, n_classes)
            Logits.

        rows : Rows, optional
            The same logits as `Rows`, to reuse its block size and executor. A table on a device may
            be unvalidated.

        out : array, optional
            Table to write to.

        Returns
        -------
        array or tensor of shape (n_rows, n_classes)
            float32 stays float32, float16 becomes float32, and a tensor on a GPU gives a
            tensor.
        """
        if self.n_classes not in (None, logits.shape[1]):
            raise ClassMismatchError(
                f"This map was fitted on {self.n_classes} classes, but the table has"
                f" {logits.shape[1]} columns. Pass logits of the same classes."
            )
        if rows is None:
            rows = Rows(logits)
        probabilities = get_probability_buffer(logits, out)
        if rows.is_on_device and self.single_pass_map is not None:
            self._write_on_device(rows, self.single_pass_map, probabilities)
            return probabilities
        rows = rows.as_validated()
        if not rows.is_on_device or self.on_device:
            return rows.fill_columns(
                self.write_clipped_probabilities,
                probabilities,
                allows_any_block_size=self.allows_any_block_size,
            )
        host_probabilities = self(to_numpy(rows.table))
        probabilities[...] = kernels.device_kernels().move_to_device_of(host_probabilities, logits)
        return probabilities

    @staticmethod
    def _write_on_device(rows: Rows, single_pass_map: RowMap, probabilities: Any) -> None:
        """Write the probabilities of a table on a device, and validate its logits."""
        device_kernels = kernels.device_kernels()
        # Logits that are overwritten in place must be validated before the first write.
        is_in_place = rows.table.data_ptr() == probabilities.data_ptr()
        if rows.is_unvalidated and not is_in_place:
            was_written = device_kernels.write_probabilities_if_valid(
                rows.table, single_pass_map, probabilities
            )
            if was_written:
                return
        validated_table = rows.as_validated().table
        device_kernels.write_probabilities(validated_table, single_pass_map, probabilities)


class TemperedMap(Map):
    """Map of the scaled logits b x, with the inverse temperature b = 1/T > 0."""

    inverse_temperature: float

    @property
    def temperature(self) -> float:
        """Temperature T = 1/b."""
        return 1.0 / self.inverse_temperature

    def check(self) -> None:
        """Raise InputError unless the fields are valid."""
        check_positive("inverse_temperature", self.inverse_temperature)
        super().check()


class CombinedMap(Map):
    """Map that is built from other maps."""

    @property
    def preserves_accuracy(self) -> bool:
        """Whether no component ever changes the most probable class of a row."""
        return all(component.preserves_accuracy for component in find_component_maps(self))

    @property
    def n_classes(self) -> int | None:
        """Number of classes of the components, or None if they take any number."""
        for component in find_component_maps(self):
            if component.n_classes is not None:
                return component.n_classes
        return None


def find_component_maps(fitted: object) -> list[Map]:
    """Return the maps that a map is built from, usually none.

    Examples
    --------
    >>> from metacal.maps.composed import ComposedMap
    >>> from metacal.maps.temperature import TemperatureMap
    >>> find_component_maps(ComposedMap(TemperatureMap(1.0), TemperatureMap(2.0)))
    [TemperatureMap(inverse_temperature=1.0), TemperatureMap(inverse_temperature=2.0)]
    """
    components: list[Map] = []
    for field in fields(fitted):  # type: ignore[arg-type]
        field_value = getattr(fitted, field.name)
        candidates = field_value if isinstance(field_value, tuple) else (field_value,)
        components += [candidate for candidate in candidates if isinstance(candidate, Map)]
    return components


def check_positive(name: str, value: object) -> None:
    """Raise InputError unless `value` is a positive finite number.

    Examples
    --------
    >>> check_positive("inverse_temperature", 0.0)
    Traceback (most recent call last):
    metacal.errors.InputError: inverse_temperature must be a positive finite number, but got 0.0.
    """
    if not _is_number(value) or not 0.0 < value < np.inf:  # type: ignore[operator]
        raise InputError(f"{name} must be a positive finite number, but got {value!r}.")


def check_count(name: str, value: object, usual: int) -> int:
    """Return a whole number of at least one as an int, or raise InputError."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < 1:  # type: ignore[operator]
        raise InputError(
            f"{name} must be a positive integer, but got {value!r}. A usual value is {usual}."
        )
    return int(value)  # type: ignore[call-overload]


def check_prior_rows(prior_rows: object) -> float:
    """Return a non-negative number of pseudo-rows as a float, or raise InputError."""
    if not _is_number(prior_rows) or not 0.0 <= float(prior_rows) < np.inf:  # type: ignore[arg-type]
        raise InputError(
            f"prior_rows must be a nonnegative number, but got {prior_rows!r}. A usual value is 1."
        )
    return float(prior_rows)  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    """Check whether a value is a Python or NumPy number, but not a bool."""
    is_numeric = isinstance(value, int | float | np.integer | np.floating)
    return is_numeric and not isinstance(value, bool)


def _is_equal(value: Any, other_value: Any) -> bool:
    """Check whether two field values, which may be arrays, are equal."""
    if isinstance(value, np.ndarray):
        return np.array_equal(value, other_value)
    return bool(value == other_value)


#: Function fit(rows, labels, weights or None) that fits a map, as in `Method.get_fit_function`.
FitMap = Callable[[Rows, Codes, Float | None], Map]
