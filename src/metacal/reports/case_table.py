"""Cases and item types of a report on a gate whose promise is about cases.

An item without a score is rejected. Cases with an item whose unknown label could decide their outcome
are left out, as in `metacal.evaluate`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.formulas import Codes, Flags
from metacal.gate import Gate
from metacal.gate.case_rows import UsableItems, check_and_select_groups, read_usable_items
from metacal.gate.judged import JudgedRows
from metacal.reports.tables import list_subgroup_thresholds

#: Largest number of item types in the table.
_MAX_TYPES = 500


def count_cases(
    gate: Gate, judged_rows: JudgedRows, scores: Any, correct: Any, cases: Any, groups: Any
) -> dict[str, Any]:
    """Count cases by accepted items, and items by type.

    Parameters
    ----------
    gate : Gate
        Gate whose promise is about cases.

    judged_rows : JudgedRows
        Decisions on the items of the usable cases that have a score.

    scores, correct, cases : array-like of shape (n_items,)
        Items of the input.

    groups : array-like of shape (n_items,) or None
        Type of each item.

    Returns
    -------
    dict
        Facts about the cases, as `page/types.d.ts` describes them.
    """
    assert gate.certificate is not None
    assert judged_rows.case_outcomes is not None
    quantity = gate.certificate.quantity
    usable_items = read_usable_items(scores, correct, cases, quantity)
    # An item that was not judged is rejected.
    accept = np.zeros(len(usable_items.scores), dtype=bool)
    judged_positions = np.searchsorted(usable_items.row_indices, judged_rows.row_indices)
    accept[judged_positions] = judged_rows.accept
    every_item = np.ones(len(accept), dtype=bool)
    n_items_by_case = usable_items.cases.count_items(every_item)
    n_accepted_by_case = usable_items.cases.count_items(accept)
    has_all_accepted = n_accepted_by_case == n_items_by_case
    has_none_accepted = n_accepted_by_case == 0
    has_some_accepted = ~has_none_accepted & (n_accepted_by_case < n_items_by_case)

    outcomes = judged_rows.case_outcomes
    is_recall = quantity.limits_missed_items_of_cases
    is_accepted_error = accept & ~usable_items.correct
    if is_recall:
        # A recall counts the cases with a true item.
        # A case breaks the promise if a true item is rejected.
        is_broken_case = outcomes.correct & ~outcomes.accept
        is_violating_item = usable_items.correct & ~accept
    else:
        is_broken_case = ~outcomes.correct
        is_violating_item = is_accepted_error
    n_usable_cases = len(n_items_by_case)
    n_input_cases = len(np.unique(np.asarray(cases)))
    return {
        "n_cases": n_usable_cases,
        "n_left_out": n_input_cases - n_usable_cases,
        "n_all_accepted": int(has_all_accepted.sum()),
        "n_some_accepted": int(has_some_accepted.sum()),
        "n_none_accepted": int(has_none_accepted.sum()),
        "n_broken": int(is_broken_case.sum()),
        "broken_text": quantity.violations_text,
        "is_recall": is_recall,
        "n_items": len(accept),
        "n_accepted": int(accept.sum()),
        "n_incorrect": int(is_accepted_error.sum()),
        "n_without_score": int((~usable_items.has_score).sum()),
        "types": _count_items_by_type(gate, usable_items, accept, is_violating_item, groups),
    }


def _count_items_by_type(
    gate: Gate, usable_items: UsableItems, accept: Flags, is_violating_item: Flags, groups: Any
) -> dict[str, Any] | None:
    """Count the items of each type, the type with the most rejected items first.

    Return None if the items have no types.
    """
    if groups is None:
        return None
    item_types = check_and_select_groups(groups, len(np.asarray(groups)), usable_items.row_indices)
    all_type_names, type_codes = np.unique(item_types.astype(str), return_inverse=True)
    type_codes = type_codes.ravel()
    n_types = len(all_type_names)

    def count_by_type(is_counted: Flags) -> Codes:
        return np.bincount(type_codes[is_counted], minlength=n_types)

    n_items = np.bincount(type_codes, minlength=n_types)
    n_accepted = count_by_type(accept)
    # A case in which several items of a type break the promise counts once for this type.
    violating_types = type_codes[is_violating_item]
    violating_cases = usable_items.cases.codes[is_violating_item]
    type_and_case_pairs = np.unique(np.column_stack([violating_types, violating_cases]), axis=0)
    n_broken = np.bincount(type_and_case_pairs[:, 0], minlength=n_types)
    n_rejected = n_items - n_accepted
    type_order = np.lexsort((-n_broken, -n_rejected))[:_MAX_TYPES]
    type_names = tuple(str(name) for name in all_type_names[type_order])
    thresholds = list_subgroup_thresholds(
        gate.certificate, "group", [(name, None) for name in type_names]
    )
    return {
        "name": type_names,
        "n": n_items[type_order],
        "accepted": n_accepted[type_order],
        "incorrect": count_by_type(accept & ~usable_items.correct)[type_order],
        "missed": count_by_type(usable_items.correct & ~accept)[type_order],
        "broken": n_broken[type_order],
        "threshold": thresholds,
        "n_types": n_types,
    }
