"""Tables of scores, with a row for each example and a column for each label or field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metacal.errors import MissingLabelsError, ShapeError
from metacal.formulas import Codes
from metacal.rows.score_columns import check_scores, find_missing_labels

#: What is left out if an entry of a table has a score and no label: the entry, its row, or nothing.
Omitted = Literal["entry", "row", "nothing"]


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
        raise ShapeError(
            f"groups must have a name for each of the {n_labels} labels, but got an array of"
            f" shape {names.shape}."
        )
    return table.reshape(-1), np.tile(names, len(table))


@dataclass(frozen=True, eq=False)
class LabelledEntries:
    """Entries of a table of scores that can be used, with their labels.

    Attributes
    ----------
    scores, truth : array of shape (n_entries,)
        Score of each entry, and whether it is correct, or its loss.

    columns : array of shape (n_entries,)
        Name of the column of each entry.

    rows : array of int of shape (n_entries,)
        Row of each entry.

    n_unlabelled : int
        Number of scored entries without a label, or of rows with such an entry, that were left out.

    n_total : int
        Number of entries, or of rows, before that.
    """

    scores: NDArray[Any]
    truth: NDArray[Any]
    columns: NDArray[Any]
    rows: Codes
    n_unlabelled: int
    n_total: int


def flatten_labelled_table(
    score: Any, truth: Any, columns: Any = None, *, omitted: Omitted
) -> LabelledEntries:
    """Flatten a table of scores and a table of labels, without what lacks a label.

    Parameters
    ----------
    score : array of shape (n, n_columns)
        Scores.

    truth : array of the same shape
        Whether each entry is correct, or its loss. None and NaN are missing labels.

    columns : sequence, default=None
        Name of each column. None stands for column numbers.

    omitted : {"entry", "row", "nothing"}
        What is left out if an entry has a score and no label.

    Returns
    -------
    LabelledEntries

    Raises
    ------
    InputError
        If the shapes differ, or every entry or row would be left out.

    Examples
    --------
    >>> score, correct = [[0.9, 0.2], [0.4, 0.8]], [[True, None], [False, True]]
    >>> flatten_labelled_table(score, correct, omitted="entry").rows
    array([0, 1, 1])
    >>> flatten_labelled_table(score, correct, omitted="row").rows
    array([1, 1])
    """
    if np.shape(truth) != np.shape(score):
        raise ShapeError(
            f"Labels and scores of a table must have the same shape, but got {np.shape(truth)}"
            f" and {np.shape(score)}. Pass a label for each entry, and None for an unknown label."
        )
    n_rows, n_columns = np.shape(score)
    flat_scores, flat_columns = flatten_score_table(score, columns)
    flat_truth = np.asarray(truth).reshape(-1)
    row_of_entry = np.repeat(np.arange(n_rows), n_columns)
    lacks_label = find_missing_labels(flat_truth)
    if omitted != "nothing":
        # A row without a score is left out anyway.
        lacks_label &= ~np.isnan(check_scores(flat_scores))
    is_kept = ~lacks_label
    n_unlabelled, n_total = int(lacks_label.sum()), len(is_kept)
    if omitted == "row":
        has_gap = np.bincount(row_of_entry[lacks_label], minlength=n_rows) > 0
        is_kept = ~has_gap[row_of_entry]
        n_unlabelled, n_total = int(has_gap.sum()), n_rows
    if omitted == "nothing":
        is_kept = np.ones(n_total, dtype=bool)
    if not is_kept.any():
        raise MissingLabelsError(
            f"Each of the {n_total:,} {'rows' if omitted == 'row' else 'entries'} lacks a label."
            " Label some of them completely."
        )
    return LabelledEntries(
        scores=flat_scores[is_kept],
        truth=flat_truth[is_kept],
        columns=flat_columns[is_kept],
        rows=row_of_entry[is_kept],
        n_unlabelled=n_unlabelled,
        n_total=n_total,
    )
