"""Division of calibration cases into tested cases and pilot cases."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from metacal.certification.case_items import CaseItems, Cases, draw_case_order
from metacal.certification.rows import CalibrationRows
from metacal.formulas import Codes, Flags


@dataclass(frozen=True, eq=False)
class CaseDivision:
    """Tested cases and pilot cases, and the items of both.

    Attributes
    ----------
    tested_cases : array of int of shape (n_tested,)
        Tested cases in random order.

    is_counted, is_uncovered : array of bool of shape (n_tested,)
        For each tested case, whether the quantity counts it, and whether it breaks whatever the
        cuts are.

    tested_items : CaseItems
        Items of the tested cases, which are numbered by their position in `tested_cases`.

    pilot_items : CaseItems
        Items of the pilot cases, which are numbered from 0.

    n_pilot : int
        Number of pilot cases.
    """

    tested_cases: Codes
    is_counted: Flags
    is_uncovered: Flags
    tested_items: CaseItems
    pilot_items: CaseItems
    n_pilot: int

    @property
    def n_counted(self) -> int:
        """Number of tested cases that the quantity counts."""
        return int(self.is_counted.sum())


def divide_cases(
    rows: CalibrationRows,
    items: CaseItems,
    cases: Cases,
    is_counted: Flags,
    is_uncovered: Flags,
    n_tested: int,
) -> CaseDivision:
    """Divide the cases at random so that `n_tested` counted cases are tested.

    The tested cases are the first ones in a random order, up to the last counted one of them. The
    division reads which cases are counted, and nothing else of a case, so the tested counted cases
    are i.i.d. given the pilot cases.

    Parameters
    ----------
    rows : CalibrationRows
        Rows from which the random order is derived.

    items : CaseItems
        Items of all cases.

    cases : Cases
        Case of each item.

    is_counted, is_uncovered : array of bool of shape (n_cases,)
        Whether the quantity counts each case, and whether the case breaks whatever the cuts are.

    n_tested : int
        Number of counted cases to test. If it is the number of all counted cases, all cases are
        tested.

    Returns
    -------
    CaseDivision
    """
    case_order = draw_case_order(rows, cases)
    n_counted_up_to = np.cumsum(is_counted[case_order])
    n_first = len(case_order)
    if n_tested < is_counted.sum():
        n_first = int(np.searchsorted(n_counted_up_to, n_tested)) + 1 if n_tested else 0
    tested_cases, pilot_cases = np.split(case_order, [n_first])
    return CaseDivision(
        tested_cases=tested_cases,
        is_counted=is_counted[tested_cases],
        is_uncovered=is_uncovered[tested_cases],
        tested_items=_take_cases(items, tested_cases, cases.n_cases),
        pilot_items=_take_cases(items, pilot_cases, cases.n_cases),
        n_pilot=len(pilot_cases),
    )


def _take_cases(items: CaseItems, selected_cases: Codes, n_cases: int) -> CaseItems:
    """Return the items of some cases, numbered by their position among the selected cases."""
    position = np.full(n_cases, -1)
    position[selected_cases] = np.arange(len(selected_cases))
    positions_of_items = position[items.cases]
    selected_items = items.take(positions_of_items >= 0)
    return replace(selected_items, cases=positions_of_items[positions_of_items >= 0])
