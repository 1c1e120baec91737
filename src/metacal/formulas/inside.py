"""No probability is 0 or 1: what rounding has made so is set to the nearest number that is not.

A map says that a class is as good as impossible, e^-200; in single precision that is 0, and the log
loss of the one row where it happens is infinite. So every map, in every runtime, ends with this, in
the precision of what is given out: no possible class has less than the smallest ordinary number,
and none has 1 while another is possible. Both differ from what was there by less than rounding a
sum does, and no prediction changes. A masked class keeps exactly 0, the only possible one exactly
1, NaN stays NaN.
"""

from __future__ import annotations

from typing import Any

from metacal.formulas.operations import Operations, formula

#: No floor is higher: in half precision the smallest ordinary number, times many classes, would be
#: a share.
_HIGHEST_FLOOR = 2.0**-24


def ends(info: Any) -> tuple[float, float]:
    """The least and the largest probability in a precision, by its `finfo`.

    >>> import numpy as np
    >>> ends(np.finfo(np.float32)) == (float(np.finfo(np.float32).tiny), 1.0 - 2.0**-24)
    True
    """
    return min(float(info.tiny), _HIGHEST_FLOOR), 1.0 - 0.5 * float(info.eps)


@formula
def inside(xp: Operations, x: Any, table: Any) -> Any:
    """The probabilities of logits x, none of them 0 or 1."""
    possible = xp.possible(x)
    several = xp.count(possible, table) > 1
    least, most = ends(xp.finfo(table))
    raised = (
        possible & several
    )  # without masks a column of flags, which costs no pass over the table
    table = xp.where((table < least) & raised, least, table)
    return xp.where((table > most) & several, most, table)
