"""Cases and item types of a report on a gate whose promise is about cases.

An item without a score is rejected. Cases with an item whose unknown label could decide their outcome
are left out, as in `metacal.evaluate`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.formulas import Codes, Flags
from metacal.gate import Gate
from metacal.gate.case_rows import UsableItems, read_usable_items, take_groups
from metacal.gate.judged import JudgedRows
from metacal.reports.tables import list_subgroup_thresholds

#: Largest number of item types in the table.
_MAX_TYPES = 500


def count_cases(
    gate: Gate, judged_rows: JudgedRows, scores: Any, correct: Any, cases: Any, groups: Any
) -> dict[str, Any]:
    """Count the cases of a report by how many of their items are accepted, and the items by type.

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
    accept = np.zeros(len(usable_items.scores), dtype=bool)
    accept[np.searchsorted(usable_items.row_indices, judged_rows.row_indices)] = judged_rows.accept
    n_items = usable_items.cases.count_items(np.ones(len(accept), dtype=bool))
    n_accepted = usable_items.cases.count_items(accept)
    outcomes = judged_rows.case_outcomes
    # A recall counts the cases with a true item, and a case breaks it if one of these is rejected.
    is_recall = quantity.case_outcome == "missed"
    is_broken = outcomes.correct & ~outcomes.accept if is_recall else ~outcomes.correct
    is_violation = usable_items.correct & ~accept if is_recall else accept & ~usable_items.correct
    n_input_cases = len(np.unique(np.asarray(cases)))
    return {
        "n_cases": len(n_items),
        "n_left_out": n_input_cases - len(n_items),
        "n_all_accepted": int((n_accepted == n_items).sum()),
        "n_some_accepted": int(((n_accepted > 0) & (n_accepted < n_items)).sum()),
        "n_none_accepted": int((n_accepted == 0).sum()),
        "n_broken": int(is_broken.sum()),
        "broken_text": quantity.violations_text,
        "is_recall": is_recall,
        "n_items": len(accept),
        "n_accepted": int(accept.sum()),
        "n_incorrect": int((accept & ~usable_items.correct).sum()),
        "n_without_score": int((~usable_items.has_score).sum()),
        "types": _count_types(gate, usable_items, accept, is_violation, groups),
    }


def _count_types(
    gate: Gate, usable_items: UsableItems, accept: Flags, is_violation: Flags, groups: Any
) -> dict[str, Any] | None:
    """Count the items of each type, the type with the most rejected items first.

    Return None if the items have no types.
    """
    if groups is None:
        return None
    item_types = take_groups(groups, len(np.asarray(groups)), usable_items.row_indices)
    names, codes = np.unique(item_types.astype(str), return_inverse=True)
    codes = codes.ravel()

    def count(mask: Flags) -> Codes:
        return np.bincount(codes[mask], minlength=len(names))

    n_items = np.bincount(codes, minlength=len(names))
    n_accepted = count(accept)
    # A case in which several items of a type break the promise counts once for this type.
    broken_pairs = np.unique(
        np.column_stack([codes[is_violation], usable_items.cases.codes[is_violation]]), axis=0
    )
    n_broken = np.bincount(broken_pairs[:, 0], minlength=len(names))
    order = np.lexsort((-n_broken, n_accepted - n_items))[:_MAX_TYPES]
    type_names = tuple(str(name) for name in names[order])
    thresholds = list_subgroup_thresholds(
        gate.certificate, "group", [(name, None) for name in type_names]
    )
    return {
        "name": type_names,
        "n": n_items[order],
        "accepted": n_accepted[order],
        "incorrect": count(accept & ~usable_items.correct)[order],
        "missed": count(usable_items.correct & ~accept)[order],
        "broken": n_broken[order],
        "threshold": thresholds,
        "n_types": len(names),
    }
