"""Reading of items and their cases, to fit or to judge a gate on scores.

An item with a missing label makes its case unusable if a decision on the item may decide the outcome of
the case. For a recall any unlabelled item may be a true one. For a limit on errors an item without a
score is never accepted, so its label does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.certificates.notes import Note, note_unlabelled_cases
from metacal.certificates.quantity import Quantity
from metacal.certification.case_items import Cases
from metacal.certification.units import find_missing_names
from metacal.errors import CasesError, MissingLabelsError, NoRowsError, ShapeError
from metacal.formulas import Codes, Flags
from metacal.gate.thresholds import check_groups
from metacal.rows.arrays import as_plain_array
from metacal.rows.score_columns import check_known_correctness, check_scores
from metacal.spelling import choose_spelling


class _ItemColumns(NamedTuple):
    """Validated columns with one entry for each item.

    Attributes
    ----------
    scores : array of float of shape (n_items,)
        Score of each item, NaN if it has none.

    is_correct : array of bool of shape (n_items,)
        Whether each item is correct. False if it is not known.

    has_label : array of bool of shape (n_items,)
        Whether it is known if the item is correct.
    """

    scores: NDArray[np.floating[Any]]
    is_correct: Flags
    has_label: Flags


@dataclass(frozen=True, eq=False)
class UsableItems:
    """Items of the cases whose outcome is known.

    Attributes
    ----------
    row_indices : array of int of shape (n_items,)
        Index of each item in the input.

    scores : array of float of shape (n_items,)
        Score of each item, NaN if it has none.

    correct : array of bool of shape (n_items,)
        Whether each item is correct. False for an item whose label is missing and does not matter.

    cases : Cases
        Case of each item.

    notes : tuple of Note
        Note about cases that were left out.
    """

    row_indices: Codes
    scores: NDArray[np.floating[Any]]
    correct: Flags
    cases: Cases
    notes: tuple[Note, ...]

    @property
    def has_score(self) -> Flags:
        """Whether each item has a score."""
        return ~np.isnan(self.scores)

    def take(self, positions: Codes) -> UsableItems:
        """Select items by their positions."""
        return UsableItems(
            row_indices=self.row_indices[positions],
            scores=self.scores[positions],
            correct=self.correct[positions],
            cases=self.cases.take(positions),
            notes=self.notes,
        )


def read_usable_items(
    score: ArrayLike,
    correct: ArrayLike | None,
    cases: ArrayLike | None,
    quantity: Quantity,
    random_state: int | None = None,
) -> UsableItems:
    """Read the items of all cases whose outcome does not depend on a missing label.

    Parameters
    ----------
    score : array-like of shape (n_rows,)
        Score of each item. None or NaN if it has none.

    correct : array-like of shape (n_rows,) or None
        Whether each item is correct. None or NaN if it is not known.

    cases : array-like of shape (n_rows,) or None
        Name of the case of each item.

    quantity : Quantity
        Quantity about cases.

    random_state : int, optional
        Seed that the user chose.

    Returns
    -------
    UsableItems

    Raises
    ------
    InputError
        If a column is missing or invalid, an item has no case, or no case is usable.
    """
    item_columns = _read_item_columns(score, correct, quantity)
    case_codes = encode_cases(cases, len(item_columns.scores))
    is_unusable_case = _find_unusable_cases(item_columns, case_codes, quantity)
    notes: tuple[Note, ...] = ()
    n_unusable_cases = int(is_unusable_case.sum())
    if n_unusable_cases > 0:
        n_cases = len(is_unusable_case)
        notes = (note_unlabelled_cases(unlabelled=n_unusable_cases, cases=n_cases),)
    is_in_usable_case = ~is_unusable_case[case_codes]
    usable_scores = item_columns.scores[is_in_usable_case]
    usable_correct = item_columns.is_correct[is_in_usable_case]
    usable_cases = _renumber_cases(
        case_codes[is_in_usable_case],
        is_correct_without_score=usable_correct & np.isnan(usable_scores),
        random_state=random_state,
    )
    return UsableItems(
        row_indices=np.flatnonzero(is_in_usable_case),
        scores=usable_scores,
        correct=usable_correct,
        cases=usable_cases,
        notes=notes,
    )


def _renumber_cases(
    case_codes: Codes, *, is_correct_without_score: Flags, random_state: int | None
) -> Cases:
    """Number the cases of the remaining items from 0, without gaps."""
    distinct_codes, consecutive_codes = np.unique(case_codes, return_inverse=True)
    has_correct_item_without_score = np.zeros(len(distinct_codes), dtype=bool)
    has_correct_item_without_score[consecutive_codes[is_correct_without_score]] = True
    return Cases(
        codes=consecutive_codes,
        has_correct_item_without_score=has_correct_item_without_score,
        random_state=random_state,
    )


def _read_item_columns(
    score: ArrayLike, correct: ArrayLike | None, quantity: Quantity
) -> _ItemColumns:
    """Validate the score of each item, and whether it is correct."""
    scores = check_scores(score)
    if len(scores) == 0:
        raise NoRowsError(
            "score must have at least one entry, but it is empty. Pass the scores of the items of"
            " at least one case."
        )
    if correct is None:
        raise MissingLabelsError(
            f"A {quantity} requires the correctness of each item, but got None. Pass correct,"
            " with None for items without a label."
        )
    is_correct, has_label = check_known_correctness(correct)
    if scores.shape != is_correct.shape:
        raise ShapeError(
            f"scores and correct must have the same length, but got {len(scores)} and"
            f" {len(is_correct)} entries."
        )
    return _ItemColumns(scores=scores, is_correct=is_correct, has_label=has_label)


def _find_unusable_cases(columns: _ItemColumns, case_codes: Codes, quantity: Quantity) -> Flags:
    """Find the cases whose outcome may depend on an item without a label."""
    lacks_needed_label = ~columns.has_label
    if quantity.limits_accepted_errors_of_cases:
        # An item without a score is never accepted, so it cannot be an accepted error.
        is_never_accepted = np.isnan(columns.scores)
        lacks_needed_label &= ~is_never_accepted
    n_cases = int(case_codes.max()) + 1
    n_missing_labels_by_case = np.bincount(case_codes[lacks_needed_label], minlength=n_cases)
    is_unusable_case = n_missing_labels_by_case > 0
    if is_unusable_case.all():
        raise MissingLabelsError(
            f"Each of the {n_cases:,} cases has an item without a label, but at least one case"
            " must be fully labelled. Label its items, or leave out items without a label."
        )
    return is_unusable_case


def check_and_select_groups(groups: ArrayLike, n_rows: int, row_indices: Codes) -> NDArray[Any]:
    """Check that each row has a group, and return the groups of selected rows."""
    group_array = check_groups(groups)
    if group_array.shape != (n_rows,):
        raise ShapeError(
            f"groups must have one entry for each row, but got {len(group_array)} entries for"
            f" {n_rows} rows."
        )
    return group_array[row_indices]


def encode_cases(cases: ArrayLike | None, n_rows: int) -> Codes:
    """Encode the case name of each row as an integer, starting at 0.

    Raises
    ------
    InputError
        If there is not one case for each row, or an item has no case.

    Examples
    --------
    >>> encode_cases(["b", "a", "b"], 3)
    array([1, 0, 1])
    """
    if cases is None:
        raise CasesError(
            "A promise about cases requires the case of each item, for example the document of"
            " each field, but got none."
            f" {choose_spelling('Pass cases=....', 'Name its column with --case-key NAME.')}"
        )
    case_names = as_plain_array(cases, "cases")
    if case_names.shape != (n_rows,):
        raise CasesError(
            f"cases must have one entry for each of the {n_rows} items, but got an array of shape"
            f" {case_names.shape}."
        )
    is_missing = find_missing_names(case_names)
    if is_missing.any():
        first_row_without_case = int(np.argmax(is_missing))
        raise CasesError(
            f"Row {first_row_without_case} has no case in cases. Pass the case of every item."
            " An item that forms a case alone needs a unique name."
        )
    if case_names.dtype == object:
        case_names = case_names.astype(str)
    _, case_codes = np.unique(case_names, return_inverse=True)
    return case_codes.reshape(-1).astype(np.intp)
