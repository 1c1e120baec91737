"""The map of the Meta-Cal paper: calibrated probabilities, and 1/K for rejected rows.

The paper assigns 1/K to each of the K classes of a rejected row. The ranking of the rejected rows
is then lost, so gates return calibrated probabilities for every row unless the caller asks for
`rejected="uniform"`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from numpy.typing import NDArray

from metacal import kernels
from metacal.formulas import Codes
from metacal.gate.device_rows import decide_rows_in_one_pass
from metacal.gate.logits_source import LogitsSource
from metacal.gate.thresholds import Thresholds
from metacal.rows import Rows
from metacal.rows.validate import get_probability_buffer
from metacal.scores import resolve_score


def compute_probabilities_uniform_if_rejected(
    source: LogitsSource,
    thresholds: Thresholds,
    rows: Rows,
    group_codes: Codes | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Compute calibrated probabilities of accepted rows, and 1/K for rejected rows.

    Parameters
    ----------
    source : LogitsSource
        Map and ranking score.
    thresholds : SingleThreshold or SubgroupThresholds
        Largest score of an accepted row.
    rows : Rows
        Checked logits.
    group_codes : ndarray of int, shape (n_rows,), or None
        Code of the group of each row, if the thresholds depend on the group.
    out : ndarray or None, default=None
        Output array.

    Returns
    -------
    ndarray or tensor of shape (n_rows, n_classes)
        A tensor if the rows are a tensor on a GPU.
    """
    rows = rows.as_validated()
    probabilities_out = get_probability_buffer(rows.table, out)
    if rows.is_on_device:
        return _compute_on_device(source, thresholds, rows, group_codes, probabilities_out)
    columns_to_read = [] if group_codes is None else [group_codes]
    write_probabilities_of_block = partial(_write_block, source, thresholds)
    return rows.fill_columns(
        write_probabilities_of_block,
        probabilities_out,
        *columns_to_read,
        allows_any_block_size=source.allows_any_block_size,
    )


def _compute_on_device(
    source: LogitsSource,
    thresholds: Thresholds,
    rows: Rows,
    group_codes: Codes | None,
    probabilities_out: Any,
) -> Any:
    """Compute the probabilities of rows in GPU memory, in one pass if possible.

    The arguments are those of `compute_probabilities_uniform_if_rejected`. The result is
    written to `probabilities_out`, a tensor of shape (n_rows, n_classes).
    """
    if not source.has_decision_offset:
        decision_columns = decide_rows_in_one_pass(
            rows,
            source.map,
            source.score,
            thresholds,
            probabilities_out=probabilities_out,
            rejected_are_uniform=True,
        )
        one_pass_sufficed = decision_columns is not None
        if one_pass_sufficed:
            return probabilities_out
    is_accepted = source.accepts(rows, thresholds, group_codes)
    probabilities = source.map(rows.table, rows=rows, out=probabilities_out)
    if not is_accepted.all():
        uniform_probability = 1.0 / rows.n_classes
        kernels.device_kernels().fill_rows(probabilities, ~is_accepted, uniform_probability)
    return probabilities


def _write_block(
    source: LogitsSource,
    thresholds: Thresholds,
    block: NDArray[Any],
    out: NDArray[Any],
    group_codes: Codes | None = None,
) -> None:
    """Write the probabilities of a block of logits to `out`.

    The output may be the block itself.
    """
    # Acceptance is decided first, because the map may overwrite the logits.
    decision_logits = source.compute_decision_logits(block, thresholds, group_codes)
    unrounded_scores = resolve_score(source.score).compute_unrounded(decision_logits)
    is_accepted = source.accept_by_unrounded_scores(
        thresholds,
        unrounded_scores=unrounded_scores,
        decision_logits=decision_logits,
        group_codes=group_codes,
    )
    source.map.write_clipped_probabilities(block, out)
    if not is_accepted.all():
        out[~is_accepted] = 1.0 / block.shape[1]
