"""Division of calibration cases into tested cases and pilot cases."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from metacal.certification.case_items import CaseItems, Cases, draw_case_order
from metacal.certification.rows import CalibrationRows
from metacal.formulas import Codes, Flags

# Placeholder for the new number of a case that is not selected.
_NOT_SELECTED = -1


@dataclass(frozen=True, eq=False)
class CaseDivision:
    """Tested cases and pilot cases, and the items of both.

    Attributes
    ----------
    tested_cases : array of int of shape (n_tested,)
        Tested cases in random order.

    is_counted_by_quantity : array of bool of shape (n_tested,)
        Whether the quantity counts each tested case.

    breaks_at_every_cutoff : array of bool of shape (n_tested,)
        Whether each tested case breaks the promise whatever the cutoffs are.

    tested_items : CaseItems
        Items of the tested cases, which are numbered by their position in `tested_cases`.

    pilot_items : CaseItems
        Items of the pilot cases, which are numbered from 0.

    n_pilot : int
        Number of pilot cases.
    """

    tested_cases: Codes
    is_counted_by_quantity: Flags
    breaks_at_every_cutoff: Flags
    tested_items: CaseItems
    pilot_items: CaseItems
    n_pilot: int

    @property
    def n_counted(self) -> int:
        """Number of tested cases that the quantity counts."""
        return int(self.is_counted_by_quantity.sum())

    def select_counted_items(self) -> CaseItems:
        """Return the items of the tested cases that the quantity counts."""
        counted_cases = np.flatnonzero(self.is_counted_by_quantity)
        return _select_and_renumber_cases(
            self.tested_items, selected_cases=counted_cases, n_cases=len(self.tested_cases)
        )


def divide_cases(
    rows: CalibrationRows,
    items: CaseItems,
    cases: Cases,
    is_counted_by_quantity: Flags,
    breaks_at_every_cutoff: Flags,
    n_counted_cases_to_test: int,
) -> CaseDivision:
    """Divide the cases at random into tested cases and pilot cases.

    The tested cases are the first ones in a random order, up to the last of `n_counted_cases_to_test`
    cases that the quantity counts. The division reads which cases are counted, and nothing else of a
    case, so the tested counted cases are i.i.d. given the pilot cases.

    Parameters
    ----------
    rows : CalibrationRows
        Rows from which the random order is derived.

    items : CaseItems
        Items of all cases.

    cases : Cases
        Case of each item.

    is_counted_by_quantity : array of bool of shape (n_cases,)
        Whether the quantity counts each case.

    breaks_at_every_cutoff : array of bool of shape (n_cases,)
        Whether each case breaks the promise whatever the cutoffs are.

    n_counted_cases_to_test : int
        Number of counted cases to test. If it is the number of all counted cases, all cases are
        tested.

    Returns
    -------
    CaseDivision
    """
    case_order = draw_case_order(rows, cases)
    n_tested = _find_number_of_cases_to_test(
        is_counted_by_quantity[case_order], n_counted_cases_to_test
    )
    tested_cases = case_order[:n_tested]
    pilot_cases = case_order[n_tested:]
    return CaseDivision(
        tested_cases=tested_cases,
        is_counted_by_quantity=is_counted_by_quantity[tested_cases],
        breaks_at_every_cutoff=breaks_at_every_cutoff[tested_cases],
        tested_items=_select_and_renumber_cases(items, tested_cases, cases.n_cases),
        pilot_items=_select_and_renumber_cases(items, pilot_cases, cases.n_cases),
        n_pilot=len(pilot_cases),
    )


def _find_number_of_cases_to_test(
    is_counted_by_quantity: Flags, n_counted_cases_to_test: int
) -> int:
    """Find the number of cases to test that contains enough counted cases.

    All cases are tested if there are not more counted ones than required.
    """
    n_cases = len(is_counted_by_quantity)
    if n_counted_cases_to_test >= is_counted_by_quantity.sum():
        return n_cases
    if n_counted_cases_to_test == 0:
        return 0
    cumulative_counted_cases = np.cumsum(is_counted_by_quantity)
    last_tested_index = int(np.searchsorted(cumulative_counted_cases, n_counted_cases_to_test))
    return last_tested_index + 1


def _select_and_renumber_cases(items: CaseItems, selected_cases: Codes, n_cases: int) -> CaseItems:
    """Select the items of some cases, and renumber these cases from 0."""
    new_case_numbers = np.full(n_cases, _NOT_SELECTED)
    new_case_numbers[selected_cases] = np.arange(len(selected_cases))
    new_case_by_item = new_case_numbers[items.cases]
    is_selected_item = new_case_by_item != _NOT_SELECTED
    selected_items = items.take(is_selected_item)
    return replace(selected_items, cases=new_case_by_item[is_selected_item])
