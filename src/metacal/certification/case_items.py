"""Cases and their items: the data that promises about cases are certified on.

Terms used by all rules about cases:

- *case*: an independent draw from the source, such as a document, a tweet or a run of an agent.
- *item*: a row of a case, such as a field of a document. Items of one case may depend on each other.
- *type*: kind of an item, such as the name of the field. Each type has its own threshold.
- *cleared*: an item on the lenient side of its threshold. It is an accepted item if incorrect accepted
  items are limited, and a rejected item if true items must be accepted.
- *harmful*: an item that breaks the promise for its case if it is cleared: an incorrect item, or a true
  item that must be accepted.
- *safety*: score of an item, with the sign for which higher means safer to clear. An item is cleared
  iff its safety is strictly above the cutoff of its type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from metacal.formulas import Codes, Flags, Float
from metacal.rows.draws import RowDraws

if TYPE_CHECKING:
    from metacal.certification.rows import CalibrationRows

# Cutoffs on the safety that accept every item of a type, or no item.
CLEAR_EVERY_ITEM = -math.inf
CLEAR_NO_ITEM = math.inf

# Subgroup code of a row that is added for a case without items.
_NO_SUBGROUP = -1


@dataclass(frozen=True, eq=False)
class Cases:
    """Case of each row, and which cases have a correct item without a score.

    Attributes
    ----------
    codes : array of int of shape (n_rows,)
        Case of each row, an index from 0 to n_cases - 1. A case may have no rows.

    has_correct_item_without_score : array of bool of shape (n_cases,)
        Whether a correct item of each case has no score, so that no threshold accepts it.

    random_state : int, optional
        Seed of the division of the cases that the user chose. By default it is derived from the rows.
    """

    codes: Codes
    has_correct_item_without_score: Flags
    random_state: int | None = None

    @property
    def n_cases(self) -> int:
        """Number of cases, with or without rows."""
        return len(self.has_correct_item_without_score)

    def take(self, index: Flags | Codes) -> Cases:
        """Return the cases of the selected rows. The number of cases does not change."""
        return replace(self, codes=self.codes[index])

    def any_item(self, item_mask: Flags) -> Flags:
        """Check for each case whether a mask selects any of its items.

        >>> cases = Cases(np.array([0, 0, 2]), has_correct_item_without_score=np.zeros(3, dtype=bool))
        >>> cases.any_item(np.array([False, True, False]))
        array([ True, False, False])
        """
        return self.count_items(item_mask) > 0

    def count_items(self, item_mask: Flags) -> Codes:
        """Count the items selected by a mask for each case."""
        return np.bincount(self.codes[item_mask], minlength=self.n_cases)


def draw_case_order(rows: CalibrationRows, cases: Cases) -> Codes:
    """Draw a random order of the cases that does not depend on their input order.

    Returns
    -------
    array of int of shape (n_cases,)
        Cases in random order.
    """
    n_items_per_case = np.bincount(cases.codes, minlength=cases.n_cases)
    empty_cases = np.flatnonzero(n_items_per_case == 0)
    # One row is added for each case without items, so that the random order contains it.
    n_added_rows = len(empty_cases)
    case_by_row = np.concatenate([cases.codes, empty_cases])
    scores = np.concatenate([rows.scores, np.zeros(n_added_rows)])
    is_correct = np.concatenate([rows.is_correct, np.zeros(n_added_rows, dtype=bool)])
    subgroup_codes = np.zeros(len(rows), dtype=np.intp)
    if rows.subgroups is not None:
        subgroup_codes = rows.subgroups.codes
    subgroup_codes = np.concatenate([subgroup_codes, np.full(n_added_rows, _NO_SUBGROUP)])
    case_has_unscored_correct_item = cases.has_correct_item_without_score[case_by_row]
    seed_columns = (
        scores,
        is_correct,
        subgroup_codes,
        case_has_unscored_correct_item,
    )
    row_draws = RowDraws(seed_columns, cluster_codes=case_by_row, random_state=cases.random_state)
    # The random number of a case is its position in the random order.
    random_position_by_row = row_draws.draw_cluster_numbers(purpose="division of cases")
    case_order = np.empty(cases.n_cases, dtype=np.intp)
    case_order[random_position_by_row] = case_by_row
    return case_order


@dataclass(frozen=True, eq=False)
class CaseItems:
    """Items of some cases, with their safety, harmfulness and type.

    Attributes
    ----------
    safety : array of float of shape (n_items,)
        Safety of each item.

    is_harmful : array of bool of shape (n_items,)
        Whether each item breaks the promise for its case if it is cleared.

    types : array of int of shape (n_items,)
        Type of each item, an index from 0 to n_types - 1.

    cases : array of int of shape (n_items,)
        Case of each item.

    n_types : int
        Number of types.
    """

    safety: Float
    is_harmful: Flags
    types: Codes
    cases: Codes
    n_types: int

    def take(self, index: Flags | Codes) -> CaseItems:
        """Return the items that a mask or an index selects."""
        return replace(
            self,
            safety=self.safety[index],
            is_harmful=self.is_harmful[index],
            types=self.types[index],
            cases=self.cases[index],
        )

    def select_cases(self, case_mask: Flags) -> CaseItems:
        """Return the items of the selected cases."""
        return self.take(case_mask[self.cases])

    def find_cleared(self, cutoffs: Float) -> Flags:
        """Return a mask of the items with a safety above the cutoff of their type."""
        return self.safety > cutoffs[self.types]
