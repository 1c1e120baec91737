"""Rows on which an exported gate is compared with Python."""

from __future__ import annotations

import numpy as np

from metacal.formulas import Array, Flags
from metacal.gate import Gate, LogitsSource, ScoreSource

# Offsets between the probe rows of the stages of a cascade.
_STAGE_SHIFTS = (0, 3, 7)


def generate_probe_rows(gate: Gate, dtype: str) -> tuple[list[Array], Flags]:
    """Generate rows to test a gate on.

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

    is_usable : array of bool of shape (n_rows, n_stages)
        Whether the row of a stage is valid.
    """
    stage_rows = []
    stage_flags = []
    for stage in gate.stages:
        source = stage.source
        if isinstance(source, LogitsSource):
            rows, is_usable = generate_probe_table(source, dtype)
        else:
            rows, is_usable = _generate_probe_scores(source, dtype)
        stage_rows.append(rows)
        stage_flags.append(is_usable)

    is_cascade = len(stage_rows) > 1
    shifts = _STAGE_SHIFTS if is_cascade else (0,)
    n_rows = max(map(len, stage_rows))
    repeated_rows = []
    repeated_flags = []
    for index, (rows, is_usable) in enumerate(zip(stage_rows, stage_flags)):
        positions = [(np.arange(n_rows) + index * shift) % len(rows) for shift in shifts]
        row_indices = np.concatenate(positions)
        repeated_rows.append(rows[row_indices])
        repeated_flags.append(is_usable[row_indices])
    return repeated_rows, np.stack(repeated_flags, axis=1)


def generate_probe_table(source: LogitsSource, dtype: str) -> tuple[Array, Flags]:
    """Generate rows of logits or probabilities to test a gate on.

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

    is_usable : array of bool of shape (n_rows,)
        Whether a row is valid.

    Examples
    --------
    >>> from metacal.gate import LogitsSource
    >>> from metacal.maps.temperature import TemperatureMap
    >>> batch, is_usable = probe_batch(LogitsSource(TemperatureMap(1.0), np.arange(3)), "float32")
    >>> batch.shape, bool(np.isnan(batch[-3:]).any()), int(is_usable.sum())
    ((23, 3), True, 20)
    """
    rng = np.random.default_rng(0)
    n_classes = source.n_classes
    ordinary_rows = [scale * rng.normal(size=(5, n_classes)) for scale in (0.1, 1.0, 5.0)]

    special_rows = np.tile(np.linspace(-1.0, 1.0, n_classes), (5, 1))
    special_rows[0, :2] = 3.0  # a tie of the two largest logits
    special_rows[1] = 0.0
    special_rows[2, 0] = -np.inf
    special_rows[3, 1:] = -np.inf
    special_rows[4, -1] = 60.0  # the largest confidence

    invalid_rows = np.zeros((3, n_classes))
    invalid_rows[0, 0] = np.nan
    invalid_rows[1, 0] = np.inf
    invalid_rows[2] = -np.inf

    table = np.concatenate([*ordinary_rows, special_rows, invalid_rows])
    is_usable = np.arange(len(table)) < len(table) - len(invalid_rows)
    if source.input == "probabilities":
        valid_rows = table[is_usable]
        powers = np.exp(valid_rows - valid_rows.max(axis=1, keepdims=True))
        table[is_usable] = powers / powers.sum(axis=1, keepdims=True)
        table[-1] = 0.9
    return table.astype(dtype), is_usable


def _generate_probe_scores(source: ScoreSource, dtype: str) -> tuple[Array, Flags]:
    """Generate scores near the thresholds, along the curve and far away, and invalid ones."""
    uncertainties = []
    for _, *neighbouring_scores in source.neighbours:
        uncertainties += [score for score in neighbouring_scores if score is not None]
    if source.curve is not None:
        uncertainties += source.curve.knots.tolist()
    scores = [source.uncertainty_sign * uncertainty for uncertainty in uncertainties]
    scores += [0.0, 1.0, -1.0, 3e4, -3e4, np.nan, np.inf, -np.inf]
    return np.array(scores).astype(dtype), np.ones(len(scores), dtype=bool)
