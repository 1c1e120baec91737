"""estimate_accuracy: how many of the accepted rows are right, without labels. An estimate, and nothing more."""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.gate.judged import opened
from metacal.promises.estimate import AccuracyEstimate, estimate_from_sums, sums_of


def estimate_accuracy(
    gate: Any,
    X: Any,
    *,
    level: float = 0.95,
    groups: Any = None,
) -> AccuracyEstimate:
    """Estimate from calibrated confidence alone how many of the accepted rows are right.

    It is no promise and no test: it holds for rows from the source of the calibration rows, and shift breaks it without
    a word. The error bar counts the chance in these rows, the calibrator's own uncertainty about its level, and how
    far it was off on its calibration rows: `metacal.promises.estimate`.

    Parameters
    ----------
    gate : Gate, MetaCal, CalibratedClassifier or ScoreGate
        What was fitted under a promise, on labelled rows.
    X : table
        What `gate` reads; no labels.
    level : float
        How often the error bar should hold the truth.
    groups : sequence, optional
        The group of each row, for a promise per group.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> found = mc.estimate_accuracy(cal, data.logits[5000:])
    >>> right = data.logits[5000:].argmax(axis=1) == data.labels[5000:]
    >>> bool(found.low <= right[cal.accepts(data.logits[5000:])].mean() <= found.high)
    True
    """
    own, given = opened(gate, X)
    if own is None or not own.is_calibrated:
        raise InputError("this gate has no calibrated confidence to estimate from.")
    decision = own.decide(*given, groups=groups)
    sums = sums_of(np.nan_to_num(np.asarray(decision.confidence)), decision.accept)
    return estimate_from_sums(own.certificate, own.profile, level=level, **sums)
