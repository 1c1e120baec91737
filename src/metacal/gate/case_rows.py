"""Reading of items and their cases, to fit or to judge a gate on scores.

An item with a missing label makes its case unusable if a decision on the item may decide the outcome of
the case. For a recall any unlabelled item may be a true one. For a limit on errors an item without a
score is never accepted, so its label does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.certificates.notes import Note, unlabelled_cases
from metacal.certificates.quantity import Quantity
from metacal.certification.case_items import Cases
from metacal.certification.units import find_missing_names
from metacal.errors import InputError, choose_spelling
from metacal.formulas import Codes, Flags
from metacal.gate.thresholds import check_groups
from metacal.rows.arrays import as_plain_array
from metacal.rows.score_columns import check_known_correctness, check_scores


@dataclass(frozen=True, eq=False)
class CaseRows:
    """Items of the usable cases.

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


def read_case_rows(
    score: ArrayLike,
    correct: ArrayLike | None,
    cases: ArrayLike | None,
    quantity: Quantity,
    random_state: int | None = None,
) -> CaseRows:
    """Read the items of cases, without those of cases that lack a label that matters.

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
    CaseRows

    Raises
    ------
    InputError
        If a column is missing or invalid, an item has no case, or no case is usable.
    """
    scores = check_scores(score)
    if correct is None:
        raise InputError(
            f"A {quantity} needs to know which items are correct; got None. Pass correct, with None"
            " for items that are not labelled."
        )
    is_correct, has_label = check_known_correctness(correct)
    if scores.shape != is_correct.shape:
        raise InputError(
            f"there are {len(scores)} scores but {len(is_correct)} entries of correct; give one"
            " each per row."
        )
    case_codes = encode_cases(cases, len(scores))
    is_deciding = np.ones(len(scores), dtype=bool)
    if quantity.case_outcome == "incorrect":
        is_deciding = ~np.isnan(scores)
    n_cases = int(case_codes.max()) + 1
    lacks_label = np.bincount(case_codes[is_deciding & ~has_label], minlength=n_cases) > 0
    notes: tuple[Note, ...] = ()
    if lacks_label.any():
        notes = (unlabelled_cases(unlabelled=int(lacks_label.sum()), cases=n_cases),)
    if lacks_label.all():
        raise InputError(
            f"Every one of the {n_cases:,} cases has an item without a label. At least one case needs"
            " all of its labels: label its items, or leave unlabelled ones out."
        )
    row_indices = np.flatnonzero(~lacks_label[case_codes])
    _, usable_codes = np.unique(case_codes[row_indices], return_inverse=True)
    is_correct = is_correct[row_indices]
    scores = scores[row_indices]
    uncovered_codes = usable_codes[is_correct & np.isnan(scores)]
    n_usable = int((~lacks_label).sum())
    return CaseRows(
        row_indices=row_indices,
        scores=scores,
        correct=is_correct,
        cases=Cases(
            codes=usable_codes,
            has_uncovered_item=np.bincount(uncovered_codes, minlength=n_usable) > 0,
            random_state=random_state,
        ),
        notes=notes,
    )


def select_group_rows(groups: ArrayLike, n_rows: int, row_indices: Codes) -> NDArray[Any]:
    """Return the groups of some of the rows. Raise InputError unless each row has one."""
    group_array = check_groups(groups)
    if group_array.shape != (n_rows,):
        raise InputError(
            f"there are {n_rows} rows but {len(group_array)} groups; each row needs one."
        )
    return group_array[row_indices]


def encode_cases(cases: ArrayLike | None, n_rows: int) -> Codes:
    """Encode the name of the case of each row as an integer from 0.

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
        raise InputError(
            "A promise about cases needs the case of each item, such as the document of each field;"
            f" got none. {choose_spelling('Pass cases=....', 'Name its column with --case-key NAME.')}"
        )
    names = as_plain_array(cases, "cases")
    if names.shape != (n_rows,):
        raise InputError(
            f"cases must have shape ({n_rows},), the case of each item; got {names.shape}."
        )
    is_missing = find_missing_names(names)
    if is_missing.any():
        raise InputError(
            f"cases: row {int(np.argmax(is_missing))} has no case. Pass the case of each item, or one"
            " of its own."
        )
    if names.dtype == object:
        names = names.astype(str)
    _, codes = np.unique(names, return_inverse=True)
    return codes.reshape(-1).astype(np.intp)
