"""Rows of every kind go through a map in float32 and in float64 before anybody relies on it:
probabilities come out.

A file can hold numbers that are each in order and together no map: an inverse temperature that
float32 cannot hold, a curve whose values cross, weights that overflow. What such a map gives is
found out by asking it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError
from metacal.io.artifact.messages import brief
from metacal.rows.arrays import first_row

#: How far from one a row may sum, by dtype: far above rounding, far below what anybody would call
#: probabilities.
_TOLERANCE: dict[type[np.floating[Any]], float] = {np.float32: 1e-4, np.float64: 1e-7}


def probe_rows(n_classes: int, dtype: type[np.floating[Any]]) -> dict[str, NDArray[Any]]:
    """A row of logits of every kind, by its name.

    Examples
    --------
    >>> sorted(probe_rows(3, np.float32))
    ['confident', 'flat', 'huge', 'large', 'masked', 'plain', 'shifted', 'single', 'tiny', 'turned']
    """
    plain = np.linspace(-1.0, 1.0, n_classes)
    first = np.arange(n_classes) == 0
    rows = {
        "flat": np.zeros(n_classes),
        "plain": plain,
        "turned": 3.0 * plain[::-1],
        "confident": np.where(first, 20.0, 0.0),
        "large": 1e4 * plain,
        "huge": 1e30 * plain,
        "tiny": 1e-37 * plain,
        "shifted": 1e4 + plain,
        "masked": np.where(np.arange(n_classes) % 2 == 1, -np.inf, plain),
        "single": np.where(first, 3.0, -np.inf),
    }
    return {name: row.astype(dtype) for name, row in rows.items()}


def check_map(fitted: Any, n_classes: int) -> None:
    """Raise ArtifactError unless a map, or a gate, gives probabilities of so many columns, whatever
    the row and dtype.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> check_map(TemperatureMap(0.5), 3)
    >>> check_map(TemperatureMap(1e50), 3)
    Traceback (most recent call last):
    metacal.errors.ArtifactError: the map gives no probabilities for flat rows in float32: some are not finite.
    """
    for dtype in _TOLERANCE:
        rows = probe_rows(n_classes, dtype)
        _check_answers(_answers(fitted, np.stack(list(rows.values()))), list(rows))


def _answers(fitted: Any, table: NDArray[Any]) -> NDArray[Any]:
    try:
        by_group = getattr(fitted, "by_group", False)
        groups = (
            {"groups": np.resize(np.array(fitted.thresholds.names), len(table))} if by_group else {}
        )
        with np.errstate(all="ignore"):
            found = np.asarray(fitted(table, **groups))
    except Exception as error:
        raise ArtifactError(
            f"the map does not work on {table.shape[1]} columns ({brief(error)})."
        ) from error
    if found.shape != table.shape:
        raise ArtifactError(f"the map does not give probabilities of {table.shape[1]} columns.")
    return found


def _check_answers(found: NDArray[Any], names: list[str]) -> None:
    tolerance = _TOLERANCE[found.dtype.type]
    with np.errstate(all="ignore"):
        sums = found.sum(axis=1, dtype=np.float64)
    wrong = {
        "some are not finite": ~np.isfinite(found).all(axis=1),
        "some are not between 0 and 1": ~((found >= 0.0) & (found <= 1.0 + tolerance)).all(axis=1),
        "they sum to {:.6g}": np.abs(sums - 1.0) > tolerance,
    }
    for why, rows in wrong.items():
        if (at := first_row(rows)) is not None:
            raise ArtifactError(
                f"the map gives no probabilities for {names[at]} rows in {found.dtype}:"
                f" {why.format(sums[at])}."
            )
