"""Columns read from a file of predictions: the result of every reader.

The terms *table* and *role* are defined in `metacal.io.request`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from metacal.display import format_names
from metacal.errors import MissingLabelsError, TooFewRowsError
from metacal.io.request import REQUEST_FIELD_OF_ROLE, ClassNames
from metacal.rows.stored import SelectedRows, StoredTable
from metacal.spelling import format_option


@dataclass(frozen=True, eq=False)
class Columns:
    """Table of a file, and the columns of its rows that have a role.

    Attributes
    ----------
    path : str
        Name of the file; "-" is standard input.

    table : array or StoredTable of shape (n_rows, n_classes), or array of shape (n_rows,)
        Logits or probabilities as stored, or scores. A large table of an .npy, safetensors or
        Parquet file stays there as a `StoredTable`. Estimators and `Rows` accept it unchanged;
        `np.asarray(table)` reads all of it.

    labels, ids : array of shape (n_rows,) or None
        None if the file has no such column.

    predictions : array of shape (n_rows,) or None
        Answers to compare with the labels. None if they were not requested.

    groups, units, cases : array of shape (n_rows,) or None
        None if the column was not requested.

    class_names : tuple or None
        Class names in column order. They are integers if all of them are whole numbers. Labels are
        either class names or column numbers from 0.

    unused_names : tuple of str
        Arrays or columns of the file that were not used.

    class_column_positions : tuple of int or None
        If the file has one column per class, the position of each class column in the file.

    column_of_role : mapping of str to str
        Column name of each role, as the file has it.

    kept : mapping of str to array of shape (n_rows,)
        Columns to copy to the results.

    keeps_all_columns : bool
        Whether `kept` has every column that can be kept, and not those that the user named.

    line_numbers : sequence of int or None
        For text files of scores, the line number of each row.

    remarks : tuple of str
        Warnings about columns that may not be classes.

    missing_label_column : str or None
        Column from which the gate reads labels, if the file lacks it.
    """

    path: str
    table: NDArray[Any] | StoredTable
    labels: NDArray[Any] | None = None
    ids: NDArray[Any] | None = None
    predictions: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    units: NDArray[Any] | None = None
    cases: NDArray[Any] | None = None
    class_names: ClassNames | None = None
    unused_names: tuple[str, ...] = ()
    class_column_positions: tuple[int, ...] | None = None
    column_of_role: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    keeps_all_columns: bool = False
    line_numbers: Sequence[int] | None = None
    remarks: tuple[str, ...] = ()
    missing_label_column: str | None = None

    def __len__(self) -> int:
        return len(self.table)

    @property
    def has_column_per_class(self) -> bool:
        """Whether the file has one column per class, whose names are the class names."""
        return self.class_column_positions is not None

    @property
    def array_of_role(self) -> dict[str, NDArray[Any]]:
        """Arrays of the columns that the file contains, keyed by role."""
        columns: dict[str, NDArray[Any]] = {}
        for role in REQUEST_FIELD_OF_ROLE:
            column = getattr(self, role)
            if column is not None:
                columns[role] = column
        return columns

    def raise_if_gate_label_column_missing(self, parameter: str) -> None:
        """Raise InputError if the gate reads labels from a column that the file lacks.

        Parameters
        ----------
        parameter : str
            Parameter with which the user can name another column, for use in the message.
        """
        if self.missing_label_column is None:
            return
        names_besides_table = [*self.column_of_role.values(), *self.unused_names, *self.kept]
        content_text = "the file has no other column"
        if names_besides_table:
            content_text = f"besides its input, the file has {format_names(names_besides_table)}"
        raise MissingLabelsError(
            f"{self.path}: no column {self.missing_label_column!r} found, so metacal cannot tell"
            f" which predictions are correct; {content_text}. If the column has another name, pass"
            f" {format_option(parameter)}."
        )

    def describe_row_position(self, row: int) -> str:
        """Return the file and the line or row number of a row, for error messages."""
        if self.line_numbers is None:
            return f"{self.path}: row {row}"
        return f"{self.path}:{self.line_numbers[row]}"

    def select_table_columns(self, column_indices: Sequence[int]) -> Self:
        """Return a copy whose table has only the given columns, in the given order."""
        if isinstance(self.table, StoredTable):
            table: Any = self.table.select_columns(column_indices)
        else:
            table = np.ascontiguousarray(self.table[:, column_indices])

        class_names = self.class_names
        if class_names is not None:
            class_names = tuple(class_names[index] for index in column_indices)

        class_column_positions = self.class_column_positions
        if class_column_positions is not None:
            class_column_positions = tuple(
                class_column_positions[index] for index in column_indices
            )
        return replace(
            self,
            table=table,
            class_names=class_names,
            class_column_positions=class_column_positions,
        )

    def select_rows(self, indices: NDArray[np.intp]) -> Self:
        """Return a copy with only the rows at the given indices.

        The indices must be in ascending order. A `StoredTable` stays in its file.
        """
        if isinstance(self.table, StoredTable):
            table: Any = SelectedRows(self.table, indices)
        else:
            table = self.table[indices]
        selected_array_of_role: dict[str, Any] = {
            role: np.asarray(column)[indices] for role, column in self.array_of_role.items()
        }
        line_numbers = self.line_numbers
        if line_numbers is not None:
            line_numbers = [line_numbers[index] for index in indices.tolist()]
        return replace(
            self,
            table=table,
            kept={name: column[indices] for name, column in self.kept.items()},
            line_numbers=line_numbers,
            **selected_array_of_role,
        )

    def draw_part(self, start: float, stop: float) -> Self:
        """Return a random part of the rows, drawn with a fixed seed.

        Parameters
        ----------
        start, stop : float
            Beginning and end of the part, as fractions of the rows in a shuffled order. Parts that
            do not overlap share no row and, if there are `units` or `cases`, no cluster or case.

        Returns
        -------
        Columns
            The rows of the part, in the order of the file.

        Raises
        ------
        InputError
            If the part has no rows.

        Examples
        --------
        >>> columns = Columns("val.csv", np.arange(10.0))
        >>> columns.draw_part(0, 0.7).table, columns.draw_part(0.7, 1).table
        (array([2., 3., 4., 5., 6., 7., 9.]), array([0., 1., 8.]))
        """
        cluster_of_row = self._number_clusters()
        n_clusters = int(cluster_of_row.max(initial=-1)) + 1
        shuffled_clusters = np.random.default_rng(0).permutation(n_clusters)
        drawn_clusters = shuffled_clusters[round(start * n_clusters) : round(stop * n_clusters)]
        is_cluster_drawn = np.zeros(n_clusters, dtype=bool)
        is_cluster_drawn[drawn_clusters] = True
        row_indices = np.flatnonzero(is_cluster_drawn[cluster_of_row])
        if not len(row_indices):
            raise TooFewRowsError(
                f"{self.path}: the range {start:g}:{stop:g} contains none of the {len(self):,}"
                f" rows. Pass a larger range with {format_option('rows', metavar='START:STOP')}."
            )
        return self.select_rows(row_indices)

    def _number_clusters(self) -> NDArray[np.intp]:
        """Number the clusters from 0, and return the cluster number of each row.

        The rows of one case are a cluster. Without cases, the rows of one unit are a cluster, and
        without both, each row is its own cluster.
        """
        cluster_ids = self.units if self.cases is None else self.cases
        if cluster_ids is None:
            return np.arange(len(self))
        _, cluster_of_row = np.unique(cluster_ids, return_inverse=True)
        return cluster_of_row.ravel()
