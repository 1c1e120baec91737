"""Test of a loaded map on logits of many kinds, in float32 and float64.

The numbers in a file can be valid one by one and still not form a valid map, for example an inverse
temperature that overflows in float32 or a spline that is not monotone. The map is therefore applied
to a few rows, and the result must be probabilities.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError
from metacal.gate import Gate
from metacal.io.artifact.messages import summarize_error
from metacal.maps.map import Map
from metacal.rows.arrays import find_first_true

# Largest deviation of a row sum from one: far above rounding errors, but small for a probability.
_TOLERANCE_OF_DTYPE: dict[type[np.floating[Any]], float] = {np.float32: 1e-4, np.float64: 1e-7}


def build_probe_rows(n_classes: int, dtype: type[np.floating[Any]]) -> dict[str, NDArray[Any]]:
    """Return one row of logits of each kind, keyed by the name of the kind.

    Examples
    --------
    >>> sorted(build_probe_rows(3, np.float32))
    ['confident', 'flat', 'huge', 'large', 'masked', 'plain', 'shifted', 'single', 'tiny', 'turned']
    """
    increasing = np.linspace(-1.0, 1.0, n_classes)
    class_index = np.arange(n_classes)
    row_by_kind = {
        "flat": np.zeros(n_classes),
        "plain": increasing,
        "turned": 3.0 * increasing[::-1],
        "confident": np.where(class_index == 0, 20.0, 0.0),
        "large": 1e4 * increasing,
        "huge": 1e30 * increasing,
        "tiny": 1e-37 * increasing,
        "shifted": 1e4 + increasing,
        "masked": np.where(class_index % 2 == 1, -np.inf, increasing),
        "single": np.where(class_index == 0, 3.0, -np.inf),
    }
    return {kind: row.astype(dtype) for kind, row in row_by_kind.items()}


def check_map(fitted: Gate | Map, n_classes: int) -> None:
    """Check that a map or gate returns probabilities for all kinds of rows.

    Parameters
    ----------
    fitted : Map or Gate
        Callable from logits to probabilities.

    n_classes : int
        Number of columns.

    Raises
    ------
    ArtifactError
        If an output has another shape, is not between 0 and 1, or does not sum to 1.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> check_map(TemperatureMap(0.5), 3)
    >>> check_map(TemperatureMap(1e50), 3)
    Traceback (most recent call last):
    metacal.errors.ArtifactError: the calibration map does not return probabilities for flat ...
    """
    for dtype in _TOLERANCE_OF_DTYPE:
        row_by_kind = build_probe_rows(n_classes, dtype)
        logits = np.stack(list(row_by_kind.values()))
        probabilities = _apply_to_logits(fitted, logits)
        _check_probabilities(probabilities, row_kinds=list(row_by_kind))


def _apply_to_logits(fitted: Gate | Map, logits: NDArray[Any]) -> NDArray[Any]:
    """Apply a map or gate. Raise ArtifactError if it fails or returns another shape."""
    n_rows, n_classes = logits.shape
    try:
        with np.errstate(all="ignore"):
            if isinstance(fitted, Gate):
                probabilities = np.asarray(
                    fitted(logits, groups=_choose_probe_groups(fitted, n_rows))
                )
            else:
                probabilities = np.asarray(fitted(logits))
    except Exception as error:
        raise ArtifactError(
            f"the calibration map does not support {n_classes} columns ({summarize_error(error)})."
        ) from error
    if probabilities.shape != logits.shape:
        raise ArtifactError(
            f"the calibration map does not return probabilities in {n_classes} columns."
        )
    return probabilities


def _choose_probe_groups(gate: Gate, n_rows: int) -> NDArray[Any] | None:
    """Return a known group for each row if the gate has thresholds by group."""
    thresholds = gate.subgroup_thresholds
    if thresholds is None or thresholds.subgroup_kind != "group":
        return None
    return np.resize(np.array(thresholds.subgroup_names), n_rows)


def _check_probabilities(probabilities: NDArray[Any], row_kinds: list[str]) -> None:
    """Raise ArtifactError for the first row that does not contain probabilities."""
    tolerance = _TOLERANCE_OF_DTYPE[probabilities.dtype.type]
    with np.errstate(all="ignore"):
        row_sums = probabilities.sum(axis=1, dtype=np.float64)
    is_finite = np.isfinite(probabilities).all(axis=1)
    in_range = ((probabilities >= 0.0) & (probabilities <= 1.0 + tolerance)).all(axis=1)
    sums_to_one = np.abs(row_sums - 1.0) <= tolerance
    is_valid_by_problem = {
        "some are not finite": is_finite,
        "some are not between 0 and 1": in_range,
        "they sum to {row_sum:.6g}": sums_to_one,
    }
    for problem, is_valid in is_valid_by_problem.items():
        first_invalid_row = find_first_true(~is_valid)
        if first_invalid_row is not None:
            raise ArtifactError(
                "the calibration map does not return probabilities for"
                f" {row_kinds[first_invalid_row]} rows in"
                f" {probabilities.dtype}: {problem.format(row_sum=row_sums[first_invalid_row])}."
            )
