"""verify: does the promise of a gate still stand on labelled rows? Without labels: how many would
be right?
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.gate.gate import Gate
from metacal.gate.judged import judged, opened
from metacal.promises.estimate import AccuracyEstimate, estimate_from_sums, sums_of
from metacal.promises.parts.units import Units
from metacal.promises.verification import Verification, verify_decisions
from metacal.rows.score_columns import entries, is_table


def verify(
    gate: Any,
    X: Any,
    y: Any = None,
    *,
    agrees: Any = None,
    large: Any = None,
    confidence: float = 0.95,
    groups: Any = None,
    units: Any = None,
) -> Verification:
    """Test on labelled rows that the fit has not seen whether they refute what the gate promises.

    Parameters
    ----------
    gate : Gate, MetaCal, CalibratedClassifier, ScoreGate or Cascade
        What was fitted under a promise.
    X : table
        What `gate` reads: logits or probabilities, the features of its classifier, or a score for
        each row; of a gate that was fitted on a table of scores, a column for each label, such a
        table, with y of its shape.
    y : labels
        Or, where X are scores, whether each row is right. They may be left out where nothing is
        promised that needs them: MaxReview.
    agrees : array of shape (n, m), optional
        In place of y, for a cascade over scores that promises MaxLoss: whether each model but the
        last gives the last model's answer.
    large : table, optional
        Of a cascade that reads tables: the large model's table of the same rows. X is then the
        small one's.
    confidence : float
        A promise that is kept is called refuted with probability at most 1 - confidence.
    groups : sequence, optional
        The group of each row, for a promise per group.
    units : sequence, optional
        Which rows belong together. What is tested follows from the promise: one row of each unit,
        or, where it is about rows, whole units by bets.

    Returns
    -------
    Verification
        Prints itself; `refuted`, `p_value`, `tests` with counts and intervals, `advice`,
        `to_dict()`. If rows of the fit are among these rows, in any order, the verdict is "not
        judged", and there are no tests.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> verify(cal, data.logits[5000:], data.labels[5000:]).refuted
    False
    """
    own, given = opened(gate, X, large)
    if own is None or own.certificate is None:
        raise InputError("verify needs a gate with a certificate; this one promises nothing.")
    y = _truth_for(own, y, agrees)
    if (
        own.kind == "scores"
        and is_table(X)
        and (own.by_group or own.certificate.circumstances.units is not None)
    ):
        if np.shape(y) != np.shape(X):
            raise InputError(
                f"scores of {np.shape(X)} rows and labels take a truth of that shape, got"
                f" {np.shape(y)}."
            )
        column, names = entries(X, groups)
        given, y, row = (
            (column,),
            np.asarray(y).reshape(-1),
            np.repeat(np.arange(len(X)), np.shape(X)[1]),
        )
        groups, units = (names, units) if own.by_group else (None, row)
    seen = judged(own, given, y, groups)
    together = None if units is None else Units.of(units).at(seen.rows, len(given[0]))
    return verify_decisions(
        own.certificate,
        seen.accept,
        seen.correct,
        confidence,
        losses=seen.losses,
        names=seen.names,
        units=together,
        fit_rows=seen.fit_rows,
    )


def _truth_for(gate: Gate, y: Any, agrees: Any) -> Any:
    """Return what the promise of a gate is tested with. Raise InputError if the other kind was
    given.
    """
    if gate.reads_agreement:
        if y is not None or agrees is None:
            raise InputError(
                "This cascade promises how many answers differ from the large model's. Pass"
                " agrees=..., whether each model but the last gives the last model's answer, and"
                " no y."
            )
        return agrees
    if agrees is not None:
        raise InputError(
            "agrees is for a cascade over scores that promises MaxLoss; pass y to this gate."
        )
    return y


def estimate_accuracy(
    gate: Any, X: Any, *, level: float = 0.95, groups: Any = None
) -> AccuracyEstimate:
    """Estimate from calibrated confidence alone how many of the accepted rows are right.

    It is no promise and no test: it holds for rows from the source of the calibration rows, and
    shift breaks it without a word. The error bar counts the chance in these rows, the calibrator's
    own uncertainty about its level, and how far it was off on its calibration rows:
    `metacal.promises.estimate`.

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
