"""Rows of two classes whose logits are shifted, so that the largest logit is the predicted class.

The second class is predicted if its log-odds exceed a *decision offset*. Subtracting the offset from
the logits of the second class makes this rule the same as predicting the largest logit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.formulas import Float
from metacal.rows import Rows
from metacal.rows.stored import ConvertedTable


def shift_second_class(block: NDArray[Any], decision_offset: float | Float) -> NDArray[np.float64]:
    """Subtract a decision offset from the logits of the second of two classes.

    Parameters
    ----------
    block : ndarray of shape (n_rows, 2)
        Logits.
    decision_offset : float or ndarray of shape (n_rows,)
        Log-odds above which the second class is predicted.

    Examples
    --------
    >>> shift_second_class(np.array([[0.0, 1.5]], dtype=np.float32), 2.0)
    array([[ 0. , -0.5]])
    """
    offset_by_column = np.stack(np.broadcast_arrays(0.0, decision_offset), axis=-1)
    return np.asarray(np.asarray(block, dtype=np.float64) - offset_by_column)


def shift_second_logit(rows: Rows, offset_in_log_odds: float | Float) -> Rows:
    """Subtract an offset from the logits of the second of two classes.

    If there is one offset for all rows, they are shifted when they are read. If each row has its
    own offset, the result is a new table.
    """
    # Most gates have the offset 0.0, for which the first test is faster than `np.any`.
    is_scalar_zero_offset = isinstance(offset_in_log_odds, float) and offset_in_log_odds == 0.0
    if is_scalar_zero_offset or not np.any(offset_in_log_odds):
        return rows
    host_rows = rows.to_host()
    if isinstance(offset_in_log_odds, np.ndarray):
        shifted_table = shift_second_class(host_rows.to_array(), offset_in_log_odds)
        return Rows(shifted_table, executor=host_rows.executor)
    shift_block = partial(shift_second_class, decision_offset=offset_in_log_odds)
    lazily_shifted_table = ConvertedTable(host_rows.table, shift_block, np.float64)
    return host_rows.copy_with(table=lazily_shifted_table)
