"""Labels of watched rows as codes.

The *code* of a label is the index of its class. For a gate on scores it is 1 for a correct
prediction and 0 for an incorrect one. If the gate reads losses, it is 1 - loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import LabelError, ShapeError
from metacal.gate.gate import Gate
from metacal.gate.traffic import Id, LateLabel
from metacal.gate.waiting_rows import EncodedLabel

#: Code of a label that is not known.
UNKNOWN_LABEL = -1


def encode_labels(gate: Gate, y: Any, n_rows: int) -> NDArray[Any]:
    """Return the code of each label, -1 if the label is not known.

    Parameters
    ----------
    gate : Gate
        Gate that decided on the rows.
    y : array-like or None
        Labels, None or NaN if a label is not known.
    n_rows : int
        Number of rows.

    Returns
    -------
    array of float or int
        Codes are floats if the gate reads losses.

    Raises
    ------
    InputError
        If there is not one label for each row, or the gate does not know a label.
    """
    code_dtype = np.float64 if gate.reads_losses else np.intp
    label_codes = np.full(n_rows, UNKNOWN_LABEL, dtype=code_dtype)
    has_labels = y is not None
    if not has_labels:
        return label_codes
    is_array = hasattr(y, "tolist")
    labels = y.tolist() if is_array else list(y)
    if len(labels) != n_rows:
        raise ShapeError(
            f"Expected one label for each row, but got {n_rows} rows and {len(labels)} labels."
            " Pass None for an unknown label."
        )
    for row_index, label in enumerate(labels):
        is_nan = label != label
        is_missing = label is None or is_nan
        if not is_missing:
            label_codes[row_index] = _encode_label(gate, label)
    return label_codes


def _encode_label(gate: Gate, label: Any) -> float:
    """Return the code of a label, or raise InputError for an unknown label."""
    label_code: float | None = gate.source.encode_one_truth(label)
    if label_code is None:
        problem_text = (
            "not a loss between 0 and 1" if gate.reads_losses else "not one of the gate's classes"
        )
        raise LabelError(f"The label {label!r} is {problem_text}. Pass None for an unknown label.")
    return label_code


def encode_late_labels(gate: Gate, late_labels: Sequence[LateLabel]) -> list[EncodedLabel]:
    """Encode the labels of earlier rows, and leave out missing labels.

    A missing label is None or NaN.
    """
    labels = [late_label.label for late_label in late_labels]
    label_codes = encode_labels(gate, labels, len(labels)).tolist()
    encoded_labels: list[EncodedLabel] = []
    for late_label, label_code in zip(late_labels, label_codes, strict=True):
        is_known = label_code != UNKNOWN_LABEL
        if is_known:
            encoded_label = EncodedLabel(
                n_batch_rows_before_label=late_label.n_batch_rows_before_label,
                row_id=late_label.id,
                code=label_code,
                probability=late_label.probability,
            )
            encoded_labels.append(encoded_label)
    return encoded_labels


def encode_labels_of_ids(
    gate: Gate, ids: Sequence[Id], y: Any, probability: Any
) -> list[EncodedLabel]:
    """Encode the labels of earlier rows, found by their ids.

    Labels that are None or NaN are left out.
    """
    probabilities: list[float | None] = [None] * len(ids)
    if probability is not None:
        probabilities = np.asarray(probability, dtype=np.float64).tolist()
    label_codes = encode_labels(gate, y, len(ids)).tolist()
    encoded_labels: list[EncodedLabel] = []
    for row_id, label_code, row_probability in zip(
        list(ids), label_codes, probabilities, strict=True
    ):
        is_known = label_code != UNKNOWN_LABEL
        if is_known:
            encoded_label = EncodedLabel(
                n_batch_rows_before_label=0,
                row_id=row_id,
                code=label_code,
                probability=row_probability,
            )
            encoded_labels.append(encoded_label)
    return encoded_labels
