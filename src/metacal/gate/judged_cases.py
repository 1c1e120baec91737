"""Judged cases: decisions of a gate on the items of cases whose labels are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from metacal.certification.case_outcomes import compute_case_outcomes
from metacal.certification.case_statements import (
    build_unsupported_case_columns_error,
    build_unused_cases_error,
)
from metacal.errors import CasesError
from metacal.gate.case_rows import check_and_select_groups, read_usable_items
from metacal.gate.gate import Gate
from metacal.gate.judged import JudgedRows, judge_rows_of_one_stage
from metacal.promises.case_errors import CasePromise
from metacal.rows.score_tables import flatten_labelled_table, has_several_columns


class CaseItems(NamedTuple):
    """Columns with one entry for each item of some cases.

    Attributes
    ----------
    scores : array-like of shape (n_items,)
        Score of each item.
    correct : array-like of shape (n_items,)
        Whether each item is correct.
    cases : array-like of shape (n_items,) or None
        Case of each item.
    types : array-like of shape (n_items,) or None
        Type of each item, if the types have their own thresholds.
    """

    scores: Any
    correct: Any
    cases: Any
    types: Any


def is_about_cases(gate: Gate) -> bool:
    """Check whether the promise of a gate is about cases."""
    return gate.certificate is not None and gate.certificate.cases is not None


def check_takes_cases(gate: Gate | None, cases: Any) -> None:
    """Raise InputError if cases are passed for a promise that is not about cases."""
    takes_cases = gate is not None and is_about_cases(gate)
    if cases is None or takes_cases:
        return
    if gate is not None and gate.certificate is not None:
        raise build_unused_cases_error(gate.promise)
    raise CasesError(
        "cases requires a gate with a promise about cases, but this gate has another"
        " promise. Leave out cases."
    )


def check_case_columns(gate: Gate, units: Any = None) -> None:
    """Raise InputError unless the promise is about cases, and no units are given."""
    promise = gate.promise
    if not isinstance(promise, CasePromise):
        raise build_unused_cases_error(promise)
    if units is not None:
        raise build_unsupported_case_columns_error(promise)


def judge_case_rows(
    gate: Gate,
    score: Any,
    correct: Any,
    cases: Any,
    groups: Any = None,
    *,
    probabilities: bool = False,
) -> JudgedRows:
    """Decide on the items of cases, and compute the outcome of each case.

    Parameters
    ----------
    gate : Gate
        Gate whose promise is about cases.
    score : array-like of shape (n_rows,) or (n_rows, n_types)
        Score of each item. In a table, each row is a case.
    correct : array-like of the same shape
        Whether each item is correct. Cases in which an item of unknown correctness could decide the
        outcome are left out.
    cases : array-like of shape (n_rows,) or None
        Case of each item. None for a table.
    groups : array-like or None, default=None
        Type of each item, or of each column of a table, if the types have their own thresholds.
    probabilities : bool, default=False
        Whether to compute the confidence of each item.

    Returns
    -------
    JudgedRows
        Decisions on the items that have a score, with `case_outcomes`.

    Raises
    ------
    InputError
        If a column is missing or invalid.
    """
    assert gate.certificate is not None
    assert isinstance(gate.promise, CasePromise)
    items = CaseItems(scores=score, correct=correct, cases=cases, types=groups)
    if has_several_columns(score):
        items = flatten_case_table(gate, score, correct, cases, groups)
    quantity = gate.certificate.quantity
    usable_items = read_usable_items(items.scores, items.correct, items.cases, quantity)
    for note in usable_items.notes:
        note.issue_warning()
    usable_types = None
    if items.types is not None:
        n_items = len(np.asarray(items.scores))
        usable_types = check_and_select_groups(items.types, n_items, usable_items.row_indices)
    judged_rows = judge_rows_of_one_stage(
        gate,
        stage_inputs=[usable_items.scores],
        truth=usable_items.correct,
        groups=usable_types,
        probabilities=probabilities,
    )
    # Items without a score are not judged.
    judged_items = usable_items.take(judged_rows.row_indices)
    case_outcomes = compute_case_outcomes(
        quantity,
        cases=judged_items.cases,
        accept=judged_rows.accept,
        correct=judged_items.correct,
        max_counted_errors=gate.promise.largest_number_of_errors,
    )
    return replace(
        judged_rows,
        row_indices=judged_items.row_indices,
        row_subgroups=None,
        case_outcomes=case_outcomes,
    )


def flatten_case_table(gate: Gate, score: Any, correct: Any, cases: Any, groups: Any) -> CaseItems:
    """Flatten a table of scores to items, one case per row and one type per column."""
    if cases is not None:
        raise CasesError(
            "In a table of scores, each row is a case, so cases has no effect. Leave out cases."
        )
    entries = flatten_labelled_table(score, correct, groups)
    item_types = entries.column_names if gate.has_group_thresholds else None
    return CaseItems(
        scores=entries.scores, correct=entries.truth, cases=entries.row_of_entry, types=item_types
    )
