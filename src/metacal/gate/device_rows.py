"""Decisions on rows in GPU memory in one pass over the table.

One pass suffices if one threshold holds for all rows, the score has a formula and, for
probabilities, the map needs only a few numbers of each row. Other gates take several passes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from metacal import kernels
from metacal.formulas import Flags
from metacal.gate.thresholds import SingleThreshold, Thresholds
from metacal.maps.map import Map
from metacal.rows import Rows
from metacal.scores import Score, get_rounding_grid, resolve_score

if TYPE_CHECKING:
    from metacal.kernels.triton_decisions import DecisionBuffers


def accept_rows_on_device(rows: Rows, score: str | Score, thresholds: Thresholds) -> Flags | None:
    """Accept rows on a device by their scores, without storing the scores.

    Parameters
    ----------
    rows : Rows
        Decision logits, which may be unvalidated.
    score : str or callable
        Ranking score.
    thresholds : SingleThreshold or SubgroupThresholds
        Largest score of an accepted row.

    Returns
    -------
    ndarray of bool, shape (n_rows,), or None
        None if the rows are not on a device, or need more than one pass.
    """
    score_formula = _get_score_formula(score)
    has_single_threshold = isinstance(thresholds, SingleThreshold)
    if score_formula is None or not rows.is_on_device or not has_single_threshold:
        return None
    device_kernels = kernels.device_kernels()
    # For each row, the kernel returns ACCEPTED, MISSING_SCORE, or 0 for a rejected row.
    compute_acceptance_codes = partial(
        device_kernels.acceptance_codes,
        formula=score_formula,
        threshold=_get_threshold_of_unrounded_scores(thresholds, score),
    )
    if rows.is_unvalidated:
        # If every row has a score, every row is valid and needs no further validation.
        acceptance_codes = rows.compute_column(
            partial(compute_acceptance_codes, is_unvalidated=True)
        )
        every_row_has_score = not (acceptance_codes == device_kernels.MISSING_SCORE).any()
        if every_row_has_score:
            return np.asarray(acceptance_codes == device_kernels.ACCEPTED)
        rows = rows.as_validated()
    acceptance_codes = rows.compute_column(compute_acceptance_codes)
    return np.asarray(acceptance_codes == device_kernels.ACCEPTED)


def decide_rows_in_one_pass(
    rows: Rows,
    fitted_map: Map,
    score: str | Score,
    thresholds: Thresholds,
    probabilities_out: Any,
    *,
    rejected_are_uniform: bool,
) -> DecisionBuffers | None:
    """Decide on rows on a device, and write their probabilities, in one pass.

    Parameters
    ----------
    rows : Rows
        Checked logits in GPU memory, which are also the decision logits.
    fitted_map : Map
        Calibration map.
    score : str or callable
        Ranking score.
    thresholds : SingleThreshold or SubgroupThresholds
        Largest score of an accepted row.
    probabilities_out : tensor of shape (n_rows, n_classes)
        Output table, unchanged if None is returned.
    rejected_are_uniform : bool
        Whether rejected rows have the same probability in every class.

    Returns
    -------
    DecisionBuffers or None
        Columns of the decision, on the device. None if the rows need more than one pass.
    """
    score_formula = _get_score_formula(score)
    single_pass_map = fitted_map.single_pass_map
    has_single_threshold = isinstance(thresholds, SingleThreshold)
    if score_formula is None or single_pass_map is None or not has_single_threshold:
        return None
    threshold = _get_threshold_of_unrounded_scores(thresholds, score)
    columns_on_device: DecisionBuffers = kernels.device_kernels().decide_rows(
        rows.table,
        single_pass_map,
        score_formula,
        threshold,
        probabilities_out,
        rejected_are_uniform=rejected_are_uniform,
    )
    return columns_on_device


def _get_score_formula(score: str | Score) -> Callable[..., Any] | None:
    """Return the formula of a score on a device, or None if it has no formula."""
    score_kernel = resolve_score(score).compute_unrounded
    return score_kernel.formula if isinstance(score_kernel, kernels.FormulaKernel) else None


def _get_threshold_of_unrounded_scores(thresholds: Thresholds, score: str | Score) -> float:
    """Return the equivalent threshold for scores that are not rounded."""
    return thresholds.for_unrounded_scores(get_rounding_grid(score)).threshold
