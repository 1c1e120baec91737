"""Array operations in which formulas are written, and their NumPy implementation.

A formula of a map is a function `formula(xp, fitted, x)` that returns probabilities; the
formula of a score is `formula(xp, x)`. Here `xp` provides the operations of a runtime,
`fitted` has the parameters of the fitted map as attributes, and `x` are the logits, which
are -inf for a masked class. Values are *tables* (n_rows × n_classes) and *columns*
(n_rows × 1) of one precision. They support + - * / @, comparisons, & and |.

Rules for a formula:

- It does not branch on values of a table. It may branch on parameters that are known
  before the first row, such as `fitted.n_knots`.
- It may change in place what it has created itself (`d -= c`), which saves NumPy an
  array. It must not change `x`.

A runtime can register a faster kernel for a formula in `kernels`. Tests compare the kernel
with the formula. The NumPy runtime is defined here, the torch runtime in
`metacal.formulas.torch`, and the ONNX runtime in `metacal.export.onnx`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from typing import Any

import numpy as np


class Operations:
    """Array operations in NumPy, on one block of rows in float64.

    Other runtimes inherit from this class. To avoid needless work, the flags of a block
    without masked classes are the single value True, and an expensive operand of `where`
    can be passed as a function without parameters.

    Attributes
    ----------
    kernels : dict
        Kernels that replace formulas in this runtime, keyed by formula. A kernel takes
        the same arguments.
    exp, log, log1p, sqrt, absolute, maximum, minimum : functions
        Elementwise functions. log(0) is -inf, and log1p(x) is log(1 + x) without
        cancellation.

    Examples
    --------
    >>> from metacal.formulas.rowwise import mean_over_unmasked
    >>> xp, x = Operations(), np.array([[3.0, 1.0, -np.inf], [0.0, 3.0, 6.0]])
    >>> mean_over_unmasked(xp, x, xp.find_unmasked(x))
    array([[2.], [3.]])
    """

    kernels: dict[Callable[..., Any], Callable[..., Any]]

    def __init__(self) -> None:
        self.kernels = {}

    exp: Any = staticmethod(np.exp)
    log: Any = staticmethod(np.log)
    log1p: Any = staticmethod(np.log1p)
    sqrt: Any = staticmethod(np.sqrt)
    absolute: Any = staticmethod(np.abs)
    maximum: Any = staticmethod(np.maximum)
    minimum: Any = staticmethod(np.minimum)

    def logistic(self, x: Any) -> Any:
        """Compute 1 / (1 + e^-x)."""
        # SciPy is imported here, because scores do not need it and importing it takes time.
        from scipy.special import expit

        return expit(x)

    def softmax(self, x: Any) -> Any:
        """Compute the softmax of each row; a masked class gets exactly zero."""
        exponentials = x - x.max(axis=1, keepdims=True)
        np.exp(exponentials, out=exponentials)
        exponentials /= exponentials.sum(axis=1, keepdims=True)
        return exponentials

    def where(self, condition: Any, if_true: Any, if_false: Any) -> Any:
        """Choose `if_true` where the flag is true, else `if_false`.

        Parameters
        ----------
        condition : table or column of bool, or True
            Conditions.

        if_true, if_false : table, column, number or function without parameters
            Operands. A function is called only if its value is used.

        Returns
        -------
        table, column or number
        """
        if condition is True:
            return _evaluate(if_true)
        if_false_is_array = not callable(if_false) and np.ndim(if_false)
        if condition.shape[1] == 1 and if_false_is_array and not condition.any():
            return if_false
        return np.where(condition, _evaluate(if_true), _evaluate(if_false))

    def clip(self, x: Any, low: Any, high: Any) -> Any:
        """Limit x to the range from `low` to `high`."""
        return self.minimum(self.maximum(x, low), high)

    def sum(self, table: Any) -> Any:
        """Return the sum over the classes as a column."""
        return table.sum(axis=1, keepdims=True)

    def max(self, table: Any) -> Any:
        """Return the maximum over the classes as a column."""
        return table.max(axis=1, keepdims=True)

    def min(self, table: Any) -> Any:
        """Return the minimum over the classes as a column."""
        return table.min(axis=1, keepdims=True)

    def argmax(self, table: Any) -> Any:
        """Return the index of the largest value of each row, the first one for ties."""
        return table.argmax(axis=1)[:, None]

    def replace_class_entry(self, table: Any, class_index: Any, value: Any) -> Any:
        """Replace one entry of each row.

        Parameters
        ----------
        table : table
            Table to change. It may be overwritten, so do not use it afterwards.

        class_index : column of int
            Class index of the replaced entry in each row.

        value : number or column
            New entries.

        Returns
        -------
        table
        """
        row_indices = np.arange(len(table))
        if np.ndim(value):
            value = value[:, 0]
        table[row_indices, class_index[:, 0]] = value
        return table

    def find_unmasked(self, x: Any) -> Any:
        """Return flags of the unmasked classes, or True if no class is masked."""
        # If the table contains NaN, its minimum is NaN and the comparison is false.
        has_no_mask = bool(x.min(initial=0.0) > -np.inf)
        return has_no_mask or x > -np.inf

    def to_float(self, flags: Any) -> Any:
        """Convert flags to the numbers 1 and 0."""
        if flags is True:
            return 1.0
        return flags.astype(np.float64)

    def count_true(self, flags: Any, table: Any) -> Any:
        """Count the true flags of each row of `table`, as a column or one number."""
        if flags is True:
            return table.shape[1]
        return flags.sum(axis=1, keepdims=True)

    def column(self, table: Any, class_index: int) -> Any:
        """Return the column of the class with index `class_index`."""
        return table[:, class_index : class_index + 1]

    def join_columns(self, first: Any, second: Any) -> Any:
        """Join two columns into a table of two classes."""
        return np.concatenate([first, second], axis=1)

    def take(self, values: Any, indices: Any) -> Any:
        """Return the elements of a flat array at the given indices."""
        return values[indices]

    def find_last_knots_below(self, knots: Any, offsets: Any, max_knots: int, points: Any) -> Any:
        """Find the last knot below each entry, or the first knot if there is none.

        Parameters
        ----------
        knots : array
            Knots of all curves, concatenated.

        offsets : array of int
            Curve k has the knots `knots[offsets[k]:offsets[k + 1]]`. A single curve
            serves all columns.

        max_knots : int
            Largest number of knots of a curve. Runtimes without `searchsorted` need it.

        points : table
            Entries. Column k belongs to curve k.

        Returns
        -------
        table of int
            Indices into `knots`.
        """
        n_curves = len(offsets) - 1
        if n_curves == 1:
            return np.searchsorted(knots[1:], points, side="left")
        knot_indices = np.empty(points.shape, dtype=np.intp, order="F")
        for k, (curve_start, curve_stop) in enumerate(pairwise(offsets)):
            later_knots = knots[curve_start + 1 : curve_stop]
            n_later_below = np.searchsorted(later_knots, points[:, k], side="left")
            knot_indices[:, k] = curve_start + n_later_below
        return knot_indices

    def finfo(self, x: Any) -> Any:
        """Return the floating-point limits of the precision of x (`max`, `tiny`)."""
        return np.finfo(np.float64)

    def apply_map(self, fitted: Any, x: Any) -> Any:
        """Compute the probabilities of a map that is a component of another map."""
        probabilities = np.empty(x.shape)
        fitted.write_probabilities(x, probabilities)
        return probabilities

    def evaluate(self, formula: Callable[..., Any], *values: Any) -> Any:
        """Evaluate a formula without floating-point warnings.

        Formulas rely on the IEEE results of division by zero and overflow.
        """
        with np.errstate(all="ignore"):
            return formula(self, *values)


def formula(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a formula so that a runtime's registered kernel replaces it."""

    @wraps(function)
    def dispatch(xp: Operations, *values: Any) -> Any:
        kernel = xp.kernels.get(dispatch, function)
        return kernel(xp, *values)

    return dispatch


def _evaluate(operand: Any) -> Any:
    """Call the operand if it is a function; otherwise return it."""
    if callable(operand):
        return operand()
    return operand


#: NumPy runtime. Modules with faster kernels register them in its `kernels`.
NUMPY = Operations()
