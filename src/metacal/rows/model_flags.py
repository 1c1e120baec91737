"""Correctness or agreement flags for each row and model of a cascade."""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.errors import ShapeError
from metacal.formulas import Flags
from metacal.rows.labels import is_missing
from metacal.rows.score_columns import check_correctness


def read_model_flags(values: Any, n_rows: int, name: str) -> tuple[Flags, Flags]:
    """Read a flag for each row and model of a cascade.

    Parameters
    ----------
    values : array of shape (n, m), (m, n) or (n,)
        True or false, 1 or 0, "yes" or "no". A row that lacks every entry is unknown.

    n_rows : int
        Number of rows.

    name : str
        Name of the flags in messages: "agrees" or "correct".

    Returns
    -------
    flags, known : array of bool of shape (n, m) and (n,)

    Raises
    ------
    InputError
        If the shape is wrong, or a value is not a flag.

    Examples
    --------
    >>> read_model_flags([[True, None, False]], 3, "agrees")[1]
    array([ True, False,  True])
    """
    table = np.array(values, dtype=object)
    if table.ndim == 1:
        table = table[:, None]
    else:
        is_transposed = table.shape[0] != n_rows and table.shape[1] == n_rows
        if is_transposed:
            table = table.T
    if table.ndim != 2 or len(table) != n_rows:
        raise ShapeError(
            f"{name} must have an entry for each of the {n_rows} rows and for each model, but got"
            f" an array of shape {table.shape}."
        )
    is_known = np.array([not all(map(is_missing, row_flags)) for row_flags in table])
    known_rows = np.flatnonzero(is_known)

    def known_row_name(index: int) -> str:
        return f"row {known_rows[index]}"

    flags = np.zeros(table.shape, dtype=bool)
    for model, column in enumerate(table.T):
        flags[known_rows, model] = check_correctness(
            column[known_rows], name=name, get_row_name=known_row_name
        )
    return flags, is_known
