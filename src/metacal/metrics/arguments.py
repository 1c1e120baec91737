"""Arguments in the wrong order or of the wrong kind: told apart by shape and type, and named in the error.

A metric cannot guess, but (labels, proba) is a flat array of classes before a table, and (correct, confidence) is yes
and no before fractions: nothing else looks like that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError


def refuse_labels_first(proba: ArrayLike, labels: ArrayLike) -> None:
    """Raise when a flat array of classes comes before a table.

    Examples
    --------
    >>> refuse_labels_first([0, 1], [[0.9, 0.1], [0.2, 0.8]])
    Traceback (most recent call last):
    metacal.errors.InputError: proba and labels are the other way round: the first argument has shape (2,) and the ...
    """
    first, second = shape_of(proba), shape_of(labels)
    if len(second) == 2 and len(first) == 1:
        raise InputError(
            f"proba and labels are the other way round: the first argument has shape {first} and the second {second}. "
            "Metrics take (proba, labels): the table of probabilities first, then the true classes."
        )


def shape_of(values: ArrayLike) -> tuple[int, ...]:
    """The shape of what may be no array at all: who reads it next says what is wrong with it."""
    try:
        return np.shape(values)
    except Exception:
        return ()


def refuse_correct_first(values: NDArray[Any], correct: NDArray[Any], name: str) -> None:
    """Raise when whole 0/1 numbers or booleans come first and fractions where they should be.

    Examples
    --------
    >>> refuse_correct_first(np.array([1, 0]), np.array([0.9, 0.3]), "confidence")
    Traceback (most recent call last):
    metacal.errors.InputError: confidence and correct are the other way round: the first argument holds only 0 and 1 ...
    """
    yes_or_no = values.dtype.kind in "biu" and bool(np.isin(values, (0, 1)).all())
    if yes_or_no and correct.dtype.kind == "f" and not np.isin(correct, (0.0, 1.0)).all():
        row = int((~np.isin(correct, (0.0, 1.0))).argmax())
        raise InputError(
            f"{name} and correct are the other way round: the first argument holds only 0 and 1 (whole numbers), the "
            f"second fractions (row {row}: {correct[row]}). The order is ({name}, correct)."
        )
