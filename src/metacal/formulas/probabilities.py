"""Bounds that keep calibrated probabilities away from 0 and 1.

A map can assign a class a probability such as e^-200. In single precision this rounds
to 0, and the log loss of a single such row is infinite. Every map in every runtime
therefore ends with `limit_probabilities`, in the precision of the output:

- no unmasked class has less than the smallest normal number of that precision;
- no class has probability 1 while another class is unmasked.

Both changes are smaller than the rounding error of a sum, and no prediction changes. A
masked class keeps exactly 0, the only unmasked class of a row keeps exactly 1, and NaN
stays NaN.
"""

from __future__ import annotations

from typing import Any

from metacal.formulas.operations import Operations, formula

#: Upper limit of the probability floor, because the smallest normal float16 is too large.
_MAX_FLOOR = 2.0**-24


def probability_limits(info: Any) -> tuple[float, float]:
    """Return the smallest and the largest allowed probability of a precision.

    Parameters
    ----------
    info : finfo
        Floating-point limits of the precision (`numpy.finfo` or `torch.finfo`).

    Returns
    -------
    smallest, largest : float

    Examples
    --------
    >>> import numpy as np
    >>> probability_limits(np.finfo(np.float32)) == (float(np.finfo(np.float32).tiny), 1.0 - 2.0**-24)
    True
    """
    smallest_probability = min(float(info.tiny), _MAX_FLOOR)
    largest_probability = 1.0 - 0.5 * float(info.eps)
    return smallest_probability, largest_probability


@formula
def limit_probabilities(xp: Operations, x: Any, table: Any) -> Any:
    """Clip probabilities of unmasked classes strictly between 0 and 1.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    x : table of shape (n_rows, n_classes)
        Logits, which show the masked classes.

    table : table of shape (n_rows, n_classes)
        Probabilities of these logits.

    Returns
    -------
    table of shape (n_rows, n_classes)
    """
    is_unmasked = xp.find_unmasked(x)
    has_several_classes = xp.count_true(is_unmasked, table) > 1
    smallest_probability, largest_probability = probability_limits(xp.finfo(table))
    # If no class is masked, `has_floor` is a single column, which avoids a pass over the table.
    has_floor = is_unmasked & has_several_classes
    table = xp.where((table < smallest_probability) & has_floor, smallest_probability, table)
    return xp.where((table > largest_probability) & has_several_classes, largest_probability, table)
