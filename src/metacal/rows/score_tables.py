"""Tables of scores with a row per example and a column per label or field."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, MissingLabelsError, ShapeError
from metacal.formulas import Codes, Flags
from metacal.rows.score_columns import check_scores, find_missing_labels


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
    label_names = np.arange(n_labels) if labels is None else np.asarray(labels)
    if label_names.shape != (n_labels,):
        raise ShapeError(
            f"groups must have a name for each of the {n_labels} labels, but got an array of"
            f" shape {label_names.shape}."
        )
    return table.reshape(-1), np.tile(label_names, len(table))


@dataclass(frozen=True, eq=False)
class LabelledEntries:
    """Entries of a table of scores, with their labels.

    Attributes
    ----------
    scores, truth : array of shape (n_entries,)
        Score of each entry, and whether it is correct, or its loss.

    column_names : array of shape (n_entries,)
        Name of the column of each entry.

    row_of_entry : array of int of shape (n_entries,)
        Row of each entry.

    n_rows_left_out : int
        Number of rows that were left out, because a scored entry has no label.

    n_rows : int
        Number of rows before that.
    """

    scores: NDArray[Any]
    truth: NDArray[Any]
    column_names: NDArray[Any]
    row_of_entry: Codes
    n_rows_left_out: int
    n_rows: int

    @property
    def lacks_label(self) -> Flags:
        """Whether the label of each entry is missing."""
        return find_missing_labels(self.truth)

    @property
    def has_score(self) -> Flags:
        """Whether each entry has a score."""
        return ~np.isnan(check_scores(self.scores))

    def take(self, mask: Flags) -> LabelledEntries:
        """Return the entries in a mask."""
        return replace(
            self,
            scores=self.scores[mask],
            truth=self.truth[mask],
            column_names=self.column_names[mask],
            row_of_entry=self.row_of_entry[mask],
        )

    def without_unlabelled_rows(self) -> LabelledEntries:
        """Drop each row in which an entry has a score but no label.

        Raises
        ------
        MissingLabelsError
            If every row would be left out.

        Examples
        --------
        >>> score, correct = [[0.9, 0.2], [0.4, None]], [[True, None], [False, None]]
        >>> entries = flatten_labelled_table(score, correct).without_unlabelled_rows()
        >>> entries.row_of_entry, entries.n_rows_left_out
        (array([1]), 1)
        """
        n_gaps = np.bincount(
            self.row_of_entry[self.has_score & self.lacks_label], minlength=self.n_rows
        )
        row_has_gap = n_gaps > 0
        if row_has_gap.all():
            raise build_all_unlabelled_error(self.n_rows, "rows")
        # An entry without a score is dropped, so it needs no label.
        is_kept = ~row_has_gap[self.row_of_entry] & ~self.lacks_label
        return replace(self.take(is_kept), n_rows_left_out=int(row_has_gap.sum()))


def flatten_labelled_table(score: Any, truth: Any, columns: Any = None) -> LabelledEntries:
    """Flatten a table of scores and a table of labels.

    Parameters
    ----------
    score : array of shape (n, n_columns)
        Scores.

    truth : array of the same shape
        Whether each entry is correct, or its loss. None and NaN are missing labels.

    columns : sequence, default=None
        Name of each column. None stands for column numbers.

    Returns
    -------
    LabelledEntries

    Raises
    ------
    InputError
        If the shapes differ.

    Examples
    --------
    >>> score, correct = [[0.9, 0.2], [0.4, 0.8]], [[True, None], [False, True]]
    >>> flatten_labelled_table(score, correct).row_of_entry
    array([0, 0, 1, 1])
    """
    if np.shape(truth) != np.shape(score):
        raise ShapeError(
            f"Labels and scores of a table must have the same shape, but got {np.shape(truth)}"
            f" and {np.shape(score)}. Pass a label for each entry, and None for an unknown label."
        )
    n_rows, n_columns = np.shape(score)
    flat_scores, flat_columns = flatten_score_table(score, columns)
    return LabelledEntries(
        scores=flat_scores,
        truth=np.asarray(truth).reshape(-1),
        column_names=flat_columns,
        row_of_entry=np.repeat(np.arange(n_rows), n_columns),
        n_rows_left_out=0,
        n_rows=n_rows,
    )


def build_all_unlabelled_error(n_total: int, unit: Literal["rows", "entries"]) -> InputError:
    """Build the error about a table of which every row or entry would be left out."""
    return MissingLabelsError(
        f"Each of the {n_total:,} {unit} lacks a label. Label some of them completely."
    )
