"""estimate_accuracy: how many of the accepted rows are right, without labels. An estimate, and nothing more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metacal.errors import InputError
from metacal.gate import Gate, ScoredGate
from metacal.promises.estimate import AccuracyEstimate, estimate_from_sums, sums_of
from metacal.rows import Rows
from metacal.rows.score_columns import score_column

if TYPE_CHECKING:
    from metacal.estimators.classifier import CalibratedClassifier
    from metacal.estimators.metacal import MetaCal
    from metacal.estimators.scored import ScoreGate


def estimate_accuracy(
    gate: Gate | ScoredGate | MetaCal | CalibratedClassifier | ScoreGate,
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
    estimator: Any = gate
    if hasattr(estimator, "logits") and not isinstance(gate, Gate):  # around a classifier: X are its features
        X, estimator = estimator.logits(X), estimator.gate_
    held = getattr(estimator, "gate_", estimator)
    if isinstance(held, ScoredGate):
        found = held.decide(score_column(X))
        if found.confidence is None:
            raise InputError("this gate on scores has no calibrated confidence to estimate from.")
        sums = sums_of(np.nan_to_num(found.confidence), found.accept)
    elif isinstance(held, Gate):
        decision = held.decide(Rows(held.read(X)), groups=groups)
        assert decision.confidence is not None
        sums = sums_of(np.asarray(decision.confidence), decision.accept)
    else:
        raise InputError(f"estimate_accuracy needs a fitted gate with one model, not {type(held).__name__}.")
    return estimate_from_sums(held.certificate, held.profile, level=level, **sums)
