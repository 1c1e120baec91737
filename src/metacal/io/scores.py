"""Scores read from files: one confidence score per row, and its correctness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import format_names
from metacal.errors import CombinationError, MissingLabelsError, ShapeError
from metacal.io.columns import Columns
from metacal.io.formats.item_lists import LINE_NAME_KEY, find_item_list_key
from metacal.io.input_paths import Paths
from metacal.io.reading import read_columns
from metacal.io.request import DEFAULT_AGREEMENT_NAMES, DEFAULT_CORRECT_NAMES, Request
from metacal.rows.score_columns import (
    RowNamer,
    check_correctness,
    check_known_correctness,
    check_known_losses,
    check_losses,
    check_scores,
    compare_answers,
)
from metacal.spelling import format_option


@dataclass(frozen=True, eq=False)
class Scores(Columns):
    """Scores of a file, whose table is a single column.

    Attributes
    ----------
    name : str
        Name of the score column.

    agreement : bool
        Whether `labels` marks agreement with the last model of a cascade instead of correctness.
    """

    name: str = "score"
    agreement: bool = False

    @property
    def score(self) -> NDArray[np.floating[Any]]:
        """Score of each row, NaN if the row has none.

        It is float32 if the file has float32.
        """
        return np.asarray(self.table)

    @property
    def correct(self) -> NDArray[Any] | None:
        """Correctness or loss of each row, or None if the file has no such column."""
        return self.labels

    def require_truth(self) -> NDArray[Any]:
        """Return the correctness or the loss of each row.

        Raise InputError if there are none.
        """
        if self.labels is not None:
            return self.labels
        self.raise_if_gate_label_column_missing("correct_key")
        meaning = "which rows are correct"
        parameter = "correct_key"
        default_names: tuple[str, ...] = DEFAULT_CORRECT_NAMES
        if self.agreement:
            meaning = "which predictions agree with the last model"
            parameter = "agree_key"
            default_names = DEFAULT_AGREEMENT_NAMES
        other_columns = ""
        if self.unused_names:
            other_columns = f"; the file also holds {format_names(self.unused_names)}"
        raise MissingLabelsError(
            f"{self.path}: no column marks {meaning}{other_columns}. Name the column with"
            f" {format_option(parameter)}, or rename it to"
            f" {' or '.join(map(repr, default_names))}."
        )


def read_scores(
    path: Paths,
    *,
    score_key: str,
    correct_key: str | None = None,
    label_key: str | None = None,
    prediction_key: str | None = None,
    loss_key: str | None = None,
    losses: bool = False,
    agreement: bool = False,
    id_key: str | None = None,
    group_key: str | None = None,
    unit_key: str | None = None,
    case_key: str | None = None,
    keep: Sequence[str] | None = (),
    format: str | None = None,
    unpack_limit: int | None = None,
) -> Scores:
    r"""Read scores from a file. Columns are found by name, and pickles are never read.

    Parameters
    ----------
    path : path or sequence of paths
        A file, a directory, a pattern, a URL or a list of these, as in `read_predictions`; "-" is
        standard input. Files in jsonl, csv, tsv, parquet, arrow and feather have one row per item.
        Files in npz, safetensors and pt have arrays of equal length. An npy file has records.

    score_key : str
        Name of the score. A cell that is empty, null, NaN or infinite is a missing score.

    correct_key : str, optional
        Name of the column that marks a row as correct, with true or false, 1 or 0, yes or no. The
        default is "correct" or "ok", if the file has such a column.

    prediction_key : str, optional
        Name of a column of answers, instead of `correct_key`. An answer is correct if it equals the
        label.

    label_key : str, optional
        With `prediction_key`, name of the labels. The default is "labels", "label" or "y".

    loss_key : str, optional
        Name of a column of losses from 0 to 1, instead of `correct_key`.

    losses : bool, default=False
        Whether to read a column "loss" instead of "correct" if `loss_key` is not given.

    agreement : bool, default=False
        Whether to read a column "agrees" instead of "correct", for a cascade that was fitted on
        agreement with its last model.

    id_key : str, optional
        Name of the ids. The default is "id" or "ids", if the file has such a column.

    group_key, unit_key, case_key : str, optional
        Names of the groups, for a promise per group, of the clusters of dependent rows, and of the
        cases of items, for a promise about cases. If each line of a jsonl file has a list of items,
        such as the fields of a document, `score_key="fields[*].score"` reads each item as a row;
        `group_key="fields[*].name"` is an entry of the item, and `case_key="document"` one of the
        whole line. The default of `case_key` is then "line": the file and number of the line. A
        line without items gives no row.

    keep, format, unpack_limit
        See `read_predictions`.

    Returns
    -------
    Scores

    Raises
    ------
    InputError
        If the file cannot be read, or lacks a named column.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "judge.jsonl")
    >>> with open(path, "w") as file:
    ...     _ = file.write('{"mark": 0.9, "ok": true}\n{"mark": null, "ok": false}\n')
    >>> scores = read_scores(path, score_key="mark")
    >>> scores.score, scores.correct
    (array([0.9, nan]), array([ True, False]))
    """
    reads_items_of_lines = find_item_list_key(score_key) is not None
    if reads_items_of_lines and case_key is None and unit_key is None:
        # The items of one line depend on each other, so the line is their case.
        case_key = LINE_NAME_KEY
    request = build_score_request(
        score_key=score_key,
        correct_key=correct_key,
        label_key=label_key,
        prediction_key=prediction_key,
        loss_key=loss_key,
        losses=losses,
        agreement=agreement,
        id_key=id_key,
        group_key=group_key,
        unit_key=unit_key,
        case_key=case_key,
        keep=keep,
        format=format,
    )
    return read_requested_scores(path, request, unpack_limit=unpack_limit)


def build_score_request(
    *,
    score_key: str,
    correct_key: str | None,
    label_key: str | None,
    prediction_key: str | None,
    loss_key: str | None,
    losses: bool,
    agreement: bool,
    keep: Sequence[str] | None,
    **other_fields: Any,
) -> Request:
    """Build the request that reads a file of scores.

    Parameters
    ----------
    score_key, correct_key, label_key, prediction_key, loss_key, losses, agreement, keep
        See `read_scores`.

    **other_fields
        Fields of `Request` of the same name.

    Returns
    -------
    Request

    Raises
    ------
    InputError
        If more than one parameter says which rows are correct.
    """
    _check_truth_keys(correct_key, label_key, prediction_key, loss_key)
    return Request(
        path="",
        logits_key=score_key,
        label_key=loss_key or correct_key or label_key,
        prediction_key=prediction_key,
        kept_names=tuple(keep or ()),
        keeps_other_columns=keep is None,
        table_is_score_column=True,
        labels_are_losses=losses or loss_key is not None,
        labels_are_agreement=agreement,
        **other_fields,
    )


def read_requested_scores(
    path: Paths, request: Request, *, unpack_limit: int | None = None
) -> Scores:
    """Read the scores that a request describes; see `read_scores`."""
    columns = read_columns(path, request, _convert_score_columns, unpack_limit=unpack_limit)
    return Scores(
        **vars(columns), name=str(request.logits_key), agreement=request.labels_are_agreement
    )


def _check_truth_keys(
    correct_key: str | None,
    label_key: str | None,
    prediction_key: str | None,
    loss_key: str | None,
) -> None:
    """Raise InputError if more than one parameter specifies the correct rows."""
    if loss_key is not None and correct_key is not None:
        raise CombinationError(
            f"{format_option('correct_key')} and {format_option('loss_key')} cannot be combined,"
            " because a row has either correctness or a loss. Pass one of them."
        )
    if prediction_key is not None and (correct_key is not None or loss_key is not None):
        other_key = "loss_key" if correct_key is None else "correct_key"
        raise CombinationError(
            f"{format_option('prediction_key')} and {format_option(other_key)} cannot be"
            " combined, because correctness follows from predictions and labels. Pass one of"
            " them."
        )
    if label_key is not None and prediction_key is None:
        raise CombinationError(
            f"{format_option('label_key', label_key)} requires {format_option('prediction_key')},"
            f" the column of predictions to compare with the labels. If {label_key!r} marks"
            f" correct predictions, pass {format_option('correct_key', label_key)} instead."
        )


def _convert_score_columns(request: Request, columns: Columns) -> Columns:
    """Convert the scores to floats and the labels to booleans or losses.

    Raise InputError if the columns differ in length.
    """
    scores = check_scores(
        columns.table, name=str(request.logits_key), get_row_name=columns.describe_row_position
    )
    missing_label_column = request.find_missing_label_column(columns)
    if request.prediction_key is not None:
        columns = _compare_predictions(request, columns)
    array_of_role: dict[str, Any] = columns.array_of_role
    if "labels" in array_of_role:
        convert_labels: Callable[..., NDArray[Any]] = check_correctness
        if request.labels_are_losses:
            convert_labels = check_losses
        # In a table of groups, clusters or cases, some rows may have no label.
        entry_keys = (request.case_key, request.group_key, request.unit_key)
        if any(key is not None for key in entry_keys):
            convert_labels = _check_partly_labelled
            if request.labels_are_losses:
                convert_labels = _check_partly_known_losses
        array_of_role["labels"] = convert_labels(
            array_of_role["labels"],
            name=columns.column_of_role["labels"],
            get_row_name=columns.describe_row_position,
        )
    for role, column in array_of_role.items():
        flat_column = np.asarray(column).ravel()
        array_of_role[role] = flat_column
        if len(flat_column) != len(scores):
            role_name = "entries of correctness" if role == "labels" else role
            raise ShapeError(
                f"{request.path}: expected one of each for every row, but got {len(scores)}"
                f" scores and {len(flat_column)} {role_name}."
            )
    return replace(
        columns,
        table=scores,
        missing_label_column=missing_label_column,
        keeps_all_columns=request.keeps_other_columns,
        **array_of_role,
    )


def _check_partly_labelled(
    values: Any, *, name: str, get_row_name: RowNamer
) -> NDArray[np.floating[Any]]:
    """Return 1 for correct items, 0 for incorrect ones and NaN for unlabelled ones."""
    is_correct, is_known = check_known_correctness(values, name=name, get_row_name=get_row_name)
    return np.where(is_known, is_correct, np.nan)


def _check_partly_known_losses(
    values: Any, *, name: str, get_row_name: RowNamer
) -> NDArray[np.floating[Any]]:
    """Return the loss of each item, and NaN for items without one."""
    losses, is_known = check_known_losses(values, name=name, get_row_name=get_row_name)
    if is_known.all():
        # The integer type is kept, because it shows that every loss is 0 or 1.
        return losses
    return np.where(is_known, losses, np.nan)


def _compare_predictions(request: Request, columns: Columns) -> Columns:
    """Replace the labels by booleans that mark correct predictions.

    Without predictions, correctness is unknown, so the labels are dropped.
    """
    if columns.labels is None or columns.predictions is None:
        return replace(columns, labels=None, predictions=None)
    is_correct = compare_answers(
        columns.predictions,
        columns.labels,
        name=columns.column_of_role["labels"],
        get_row_name=columns.describe_row_position,
    )
    return replace(columns, labels=is_correct, predictions=None)
