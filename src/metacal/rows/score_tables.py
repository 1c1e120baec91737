"""Tables of scores, with a row for each example and a column for each label or field."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError


def has_several_columns(score: Any) -> bool:
    """Check whether scores are a table with several columns, one per label."""
    return np.ndim(score) == 2 and np.shape(score)[1] > 1


def flatten_score_table(score: Any, labels: Any = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Flatten a table of scores, and return the label of each entry.

    Parameters
    ----------
    score : array of shape (n, n_labels)
        Scores.

    labels : sequence, default=None
        Name of each column. None stands for column numbers.

    Returns
    -------
    scores, labels : arrays of shape (n * n_labels,)

    Raises
    ------
    InputError
        If the number of names differs from the number of columns.

    Examples
    --------
    >>> flatten_score_table([[0.9, 0.2], [0.4, 0.8]], ["name", "date"])
    (array([0.9, 0.2, 0.4, 0.8]), array(['name', 'date', 'name', 'date'], dtype='<U4'))
    """
    table = np.asarray(score)
    n_labels = table.shape[1]
    names = np.arange(n_labels) if labels is None else np.asarray(labels)
    if names.shape != (n_labels,):
        raise InputError(f"groups must name the {n_labels} labels; got shape {names.shape}.")
    return table.reshape(-1), np.tile(names, len(table))
