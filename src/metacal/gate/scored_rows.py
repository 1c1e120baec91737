"""Calibration rows of a gate on scores: reading, validation and conversion to uncertainties.

The uncertainty of a row is its score on the scale of certificates, where a higher value is less
certain. It is the negated score if a higher score is surer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.notes import Note, note_unlabelled_entries, note_unlabelled_table_rows
from metacal.certification.case_items import Cases
from metacal.certification.row_losses import Losses
from metacal.certification.row_selection import RowSelection, SelectedRows
from metacal.certification.rows import CalibrationRows, Subgroups
from metacal.errors import (
    ColumnError,
    CombinationError,
    InputError,
    MissingLabelsError,
    OneOutcomeError,
    ShapeError,
    UnsupportedPromiseError,
)
from metacal.formulas import Codes, Flags, Float
from metacal.gate.certify_selected_rows import encode_groups_as_subgroups
from metacal.gate.score_source import ScoreSource, clean_score_name
from metacal.promises.max_risk import CostPromise
from metacal.promises.promise import Promise
from metacal.rows.score_columns import (
    check_known_correctness,
    check_known_losses,
    check_losses,
    check_scores,
    check_scores_and_correctness,
)
from metacal.rows.score_tables import LabelledEntries, build_all_unlabelled_error

# Maximum number of possible score values that an error message lists.
_MAX_LISTED_SCORES = 10


@dataclass(frozen=True, eq=False)
class InputColumns:
    """Validated columns of the caller, with one entry per row.

    Attributes
    ----------
    scores : array of float of shape (n_rows,)
        Score of each row. NaN if the row has none.

    correct : array of bool of shape (n_rows,)
        Whether each row is correct. With losses, whether its loss is zero.

    losses : array of float of shape (n_rows,) or None
        Loss of each row, from 0 to 1. None if the caller passed correctness.

    has_label : array of bool of shape (n_rows,)
        Whether the correctness or the loss of each row is known.
    """

    scores: Any
    correct: Flags
    losses: Float | None
    has_label: Flags

    @property
    def has_score(self) -> Flags:
        """Whether each row has a score."""
        return ~np.isnan(self.scores)

    @property
    def is_usable(self) -> Flags:
        """Whether each row has a score and a label."""
        return self.has_score & self.has_label

    def take(self, is_selected: Flags) -> InputColumns:
        """Return the columns of the selected rows."""
        selected_losses = None
        if self.losses is not None:
            selected_losses = self.losses[is_selected]
        return InputColumns(
            scores=self.scores[is_selected],
            correct=self.correct[is_selected],
            losses=selected_losses,
            has_label=self.has_label[is_selected],
        )


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Calibration rows that have a score and a label.

    Attributes
    ----------
    uncertainties : array of float of shape (n_usable,)
        Uncertainty of each row.

    correct : array of bool of shape (n_usable,)
        Whether each row is correct.

    graded_losses : array of float of shape (n_usable,) or None
        Loss of each row, if the caller passed losses.

    losses_limited_by_promise : Losses or None
        Losses that a promise about costs or risks limits.

    subgroups : Subgroups or None
        Group of each row, for a promise per group or about cases.

    cases : Cases or None
        Case of each row, for a promise about cases.
    """

    uncertainties: Float
    correct: Flags
    graded_losses: Float | None
    losses_limited_by_promise: Losses | None
    subgroups: Subgroups | None
    cases: Cases | None = None

    @property
    def subgroup_codes(self) -> Codes | None:
        """Group of each row as an integer."""
        if self.subgroups is None:
            return None
        return self.subgroups.codes

    @property
    def is_correct_or_has_small_loss(self) -> Flags:
        """Whether each row is correct or, with losses, has at most the mean loss."""
        if self.graded_losses is None:
            return self.correct
        return self.graded_losses <= self.graded_losses.mean()

    def to_calibration_rows(self) -> CalibrationRows:
        """Convert the rows to `CalibrationRows`, the input of certification."""
        return CalibrationRows(
            scores=self.uncertainties,
            correct=self.correct,
            losses=self.losses_limited_by_promise,
            subgroups=self.subgroups,
            cases=self.cases,
        )

    def draw_selected_rows(self, selection: RowSelection | None) -> SelectedRows | None:
        """Draw the rows to certify, or return None if all rows are used."""
        if selection is None:
            return None
        return selection.draw(
            self.uncertainties, self.correct, self.graded_losses, self.subgroup_codes
        )


def read_columns(
    score: ArrayLike,
    correct: ArrayLike | None,
    loss: ArrayLike | None,
    promise: Promise,
    *,
    allows_missing_labels: bool = False,
) -> InputColumns:
    """Validate the scores and either the correctness or the losses of the rows.

    Parameters
    ----------
    score : array-like of shape (n_rows,)
        Score of each row.

    correct : array-like of shape (n_rows,) or None
        Whether each row is correct.

    loss : array-like of shape (n_rows,) or None
        Loss of each row, from 0 to 1.

    promise : Promise
        Promise to certify.

    allows_missing_labels : bool, default=False
        Whether `correct` and `loss` may have missing entries, because the rows are entries of a
        table.

    Returns
    -------
    InputColumns

    Raises
    ------
    InputError
        If not exactly one of `correct` and `loss` is given, if the promise is not about losses, or
        if the columns are invalid.
    """
    has_both_or_neither = (loss is None) == (correct is None)
    if has_both_or_neither:
        raise CombinationError(
            "correct (whether each row is correct) and loss (a number between 0 and 1 for each"
            " row) cannot be combined. Pass one of them."
        )
    if loss is None:
        scores, is_correct, has_label = _read_correctness(
            score, correct, allows_missing_labels=allows_missing_labels
        )
        return InputColumns(scores=scores, correct=is_correct, losses=None, has_label=has_label)
    if not promise.supports_row_losses:
        raise MissingLabelsError(
            f"{type(promise).__name__} requires the correctness of each prediction. Pass correct,"
            " or promise MaxRisk(0.1)."
        )
    scores = check_scores(score)
    if allows_missing_labels:
        row_losses, has_label = check_known_losses(loss)
    else:
        row_losses = check_losses(loss)
        has_label = np.ones(len(row_losses), dtype=bool)
    if scores.shape != row_losses.shape:
        raise ShapeError(
            f"score and loss must have the same length, but got {len(scores)} and"
            f" {len(row_losses)} entries."
        )
    return InputColumns(
        scores=scores, correct=row_losses == 0.0, losses=row_losses, has_label=has_label
    )


def _read_correctness(
    score: ArrayLike, correct: ArrayLike | None, *, allows_missing_labels: bool
) -> tuple[Any, Flags, Flags]:
    """Return the scores, the correctness, and a mask of the rows with a label."""
    if not allows_missing_labels:
        scores, is_correct = check_scores_and_correctness(score, correct)
        return scores, is_correct, np.ones(len(scores), dtype=bool)
    is_correct, has_label = check_known_correctness(correct)
    # Rows without a label count as incorrect here, and are left out later.
    scores, is_correct = check_scores_and_correctness(score, is_correct)
    return scores, is_correct, has_label


def check_any_score(has_score: Flags, score_name: str) -> None:
    """Raise InputError if no row has a score."""
    if not has_score.any():
        raise ColumnError(
            f"No row has a score (n_samples={len(has_score)}), because"
            f" {clean_score_name(score_name)!r} holds no number. Check the column of scores."
        )


def read_marks(marks: ArrayLike | None, source: ScoreSource, scores: Float) -> Float | None:
    """Convert the possible values of a score to uncertainties, in rising order.

    Parameters
    ----------
    marks : array-like of float or None
        All values that the score can have, if the caller passed them.

    source : ScoreSource
        Source that turns scores into uncertainties.

    scores : array of float of shape (n_usable,)
        Scores of the rows, which must be among the marks.

    Returns
    -------
    array of float or None
        None if the caller passed no marks.

    Raises
    ------
    InputError
        If there are fewer than two values, or if a score is not one of them.
    """
    if marks is None:
        return None
    possible_scores = source.read(marks)
    has_too_few_values = len(possible_scores) < 2
    if has_too_few_values or np.isnan(possible_scores).any():
        raise InputError(
            "marks must be at least two numbers, the possible values of the score, but got"
            f" {marks!r}."
        )
    possible_uncertainties = source.uncertainty_scores(possible_scores)
    is_among_marks = np.isin(source.uncertainty_scores(scores), possible_uncertainties)
    scores_outside_marks = scores[~is_among_marks]
    if len(scores_outside_marks) > 0:
        scores_in_message = possible_scores[:_MAX_LISTED_SCORES]
        marks_text = ", ".join(f"{score:g}" for score in scores_in_message)
        raise InputError(
            f"{len(scores_outside_marks):,} scores are not one of the marks {marks_text}, for"
            f" example {float(scores_outside_marks[0]):g}. Add these values to marks, or leave out"
            " marks."
        )
    return np.unique(possible_uncertainties)


def build_scored_rows(
    usable_columns: InputColumns,
    source: ScoreSource,
    promise: Promise,
    groups: ArrayLike | None,
    is_usable: Flags,
) -> ScoredRows:
    """Convert columns of the input to uncertainties, losses and groups of usable rows.

    Parameters
    ----------
    usable_columns : InputColumns
        Columns of the rows that have a score and a label.

    source : ScoreSource
        Source that turns scores into uncertainties.

    promise : Promise
        Promise to certify.

    groups : array-like of shape (n_rows,) or None
        Group of each row, usable or not.

    is_usable : array of bool of shape (n_rows,)
        Whether each row has a score and a label.

    Returns
    -------
    ScoredRows

    Raises
    ------
    InputError
        If no row is correct, or if the groups do not suit the promise.
    """
    uncertainties = source.uncertainty_scores(usable_columns.scores)
    is_correct = usable_columns.correct
    graded_losses = usable_columns.losses
    if graded_losses is None and not is_correct.any():
        raise OneOutcomeError(
            f"No row is correct (n_samples={len(is_correct)}), so no promise can be certified."
            " Check the column of correctness, in which 1, true or yes means correct."
        )
    subgroups = _find_subgroups(promise, groups, is_usable)
    losses_limited_by_promise = None
    if isinstance(promise, CostPromise):
        losses_limited_by_promise = promise.losses_from_correctness(is_correct)
    if graded_losses is not None:
        losses_limited_by_promise = Losses.from_graded(graded_losses)
    return ScoredRows(
        uncertainties=uncertainties,
        correct=is_correct,
        graded_losses=graded_losses,
        losses_limited_by_promise=losses_limited_by_promise,
        subgroups=subgroups,
    )


def _find_subgroups(
    promise: Promise, groups: ArrayLike | None, is_usable: Flags
) -> Subgroups | None:
    """Return the group of each usable row, for a promise per group.

    Raises
    ------
    InputError
        If the promise is per class, because rows of scores have no classes.
    """
    is_per_class = promise.scope is not None and promise.scope.by == "class"
    if is_per_class:
        raise UnsupportedPromiseError(
            f"{type(promise).__name__} has one threshold for each predicted class, but scores"
            " have no classes. Leave out PerClass, or use PerGroup with groups=..."
        )
    subgroups = encode_groups_as_subgroups(promise, len(is_usable), groups)
    if subgroups is None:
        return None
    return subgroups.take(is_usable)


def warn_about_unlabelled_table_rows(entries: LabelledEntries) -> tuple[Note, ...]:
    """Warn about rows of a table that were left out, and return the note."""
    if entries.n_rows_left_out == 0:
        return ()
    note = note_unlabelled_table_rows(unlabelled=entries.n_rows_left_out, rows=entries.n_rows)
    return (note.issue_warning(),)


def warn_about_unlabelled_entries(has_score: Flags, has_label: Flags) -> tuple[Note, ...]:
    """Warn about entries left out for lack of a label, and return the note.

    Raises
    ------
    MissingLabelsError
        If no entry with a score has a label.
    """
    n_entries = len(has_score)
    n_unlabelled = int((has_score & ~has_label).sum())
    if n_unlabelled == 0:
        return ()
    if not (has_score & has_label).any():
        raise build_all_unlabelled_error(n_entries, "entries")
    return (note_unlabelled_entries(unlabelled=n_unlabelled, entries=n_entries).issue_warning(),)
