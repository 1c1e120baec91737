"""Rows on which the decisions of an exported gate are compared with Python."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from metacal.formulas import Array, Flags
from metacal.gate import Gate, LogitsSource, ScoreSource

# In a cascade, row i of a stage is combined with row i + shift of the next stage.
_SHIFTS_BETWEEN_STAGES = (0, 3, 7)


def generate_probe_rows(gate: Gate, dtype: str) -> tuple[list[Array], Flags]:
    """Generate the rows of each stage on which a gate is tested.

    Parameters
    ----------
    gate : Gate
        Gate to test.

    dtype : str
        Dtype of the rows.

    Returns
    -------
    rows : list of array
        Rows of each stage. In a cascade, each row of one stage is combined with several rows of
        the next.

    is_valid_input : array of bool of shape (n_rows, n_stages)
        Whether the row of a stage is valid.
    """
    rows_by_stage = []
    validity_by_stage = []
    for stage in gate.stages:
        source = stage.source
        if isinstance(source, LogitsSource):
            rows, is_valid = generate_probe_table(source, dtype)
        else:
            rows, is_valid = _generate_probe_scores(source, dtype)
        rows_by_stage.append(rows)
        validity_by_stage.append(is_valid)

    n_rows_by_stage = [len(rows) for rows in rows_by_stage]
    combined_rows = []
    combined_validity = []
    for rows, is_valid, row_indices in zip(
        rows_by_stage, validity_by_stage, _combine_rows_of_stages(n_rows_by_stage)
    ):
        combined_rows.append(rows[row_indices])
        combined_validity.append(is_valid[row_indices])
    return combined_rows, np.stack(combined_validity, axis=1)


def _combine_rows_of_stages(n_rows_by_stage: list[int]) -> list[NDArray[np.intp]]:
    """Return indices of the rows of each stage, such that rows of different stages are combined.

    Row indices are taken modulo the number of rows of a stage. A gate with a single stage gets each
    of its rows once.
    """
    is_cascade = len(n_rows_by_stage) > 1
    shifts = _SHIFTS_BETWEEN_STAGES if is_cascade else (0,)
    row_numbers = np.arange(max(n_rows_by_stage))
    row_indices_by_stage = []
    for stage_index, n_rows in enumerate(n_rows_by_stage):
        shifted_indices = [(row_numbers + stage_index * shift) % n_rows for shift in shifts]
        row_indices_by_stage.append(np.concatenate(shifted_indices))
    return row_indices_by_stage


def generate_probe_table(source: LogitsSource, dtype: str) -> tuple[Array, Flags]:
    """Generate a table of logits or probabilities on which a gate is tested.

    Parameters
    ----------
    source : LogitsSource
        Source of the gate.

    dtype : str
        Dtype of the rows.

    Returns
    -------
    table : array of shape (n_rows, n_classes)
        Ordinary rows of several scales, a tie, a masked class, all but one class masked, and three
        invalid rows: with NaN, with +inf, and with all classes masked.

    is_valid : array of bool of shape (n_rows,)
        Whether a row is valid.

    Examples
    --------
    >>> from metacal.gate import LogitsSource
    >>> from metacal.maps.temperature import TemperatureMap
    >>> source = LogitsSource(TemperatureMap(1.0), np.arange(3))
    >>> table, is_valid = generate_probe_table(source, "float32")
    >>> table.shape, bool(np.isnan(table[-3:]).any()), int(is_valid.sum())
    ((23, 3), True, 20)
    """
    rng = np.random.default_rng(0)
    n_classes = source.n_classes
    ordinary_rows = [scale * rng.normal(size=(5, n_classes)) for scale in (0.1, 1.0, 5.0)]

    increasing_logits = np.linspace(-1.0, 1.0, n_classes)
    two_tied_logits = increasing_logits.copy()
    two_tied_logits[:2] = 3.0
    equal_logits = np.zeros(n_classes)
    first_class_masked = increasing_logits.copy()
    first_class_masked[0] = -np.inf
    only_first_class_unmasked = increasing_logits.copy()
    only_first_class_unmasked[1:] = -np.inf
    # The largest probability of this row rounds to one.
    one_large_logit = increasing_logits.copy()
    one_large_logit[-1] = 60.0
    special_rows = [
        two_tied_logits,
        equal_logits,
        first_class_masked,
        only_first_class_unmasked,
        one_large_logit,
    ]
    row_with_nan = np.zeros(n_classes)
    row_with_nan[0] = np.nan
    row_with_infinity = np.zeros(n_classes)
    row_with_infinity[0] = np.inf
    all_classes_masked = np.full(n_classes, -np.inf)
    invalid_rows = [row_with_nan, row_with_infinity, all_classes_masked]
    table = np.concatenate([*ordinary_rows, special_rows, invalid_rows])
    is_valid = np.arange(len(table)) < len(table) - len(invalid_rows)
    if source.input == "probabilities":
        valid_logits = table[is_valid]
        exponentials = np.exp(valid_logits - valid_logits.max(axis=1, keepdims=True))
        table[is_valid] = exponentials / exponentials.sum(axis=1, keepdims=True)
        # In place of the row with all classes masked, a row that does not sum to one is invalid.
        table[-1] = 0.9
    return table.astype(dtype), is_valid


def _generate_probe_scores(source: ScoreSource, dtype: str) -> tuple[Array, Flags]:
    """Generate scores near the thresholds, scores at the knots, and extreme scores."""
    uncertainties = []
    for neighbours in source.threshold_neighbours:
        if neighbours.highest_accepted is not None:
            uncertainties.append(neighbours.highest_accepted)
        if neighbours.lowest_rejected is not None:
            uncertainties.append(neighbours.lowest_rejected)
    if source.curve is not None:
        uncertainties += source.curve.knots.tolist()
    scores = [source.uncertainty_sign * uncertainty for uncertainty in uncertainties]
    scores += [0.0, 1.0, -1.0, 3e4, -3e4, np.nan, np.inf, -np.inf]
    return np.array(scores).astype(dtype), np.ones(len(scores), dtype=bool)
