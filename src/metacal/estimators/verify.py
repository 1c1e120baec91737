"""verify: does the promise of a gate still stand on labelled rows?"""

from __future__ import annotations

from typing import Any

from metacal.errors import InputError
from metacal.gate.judged import judged, opened
from metacal.promises.parts.units import Units
from metacal.promises.verification import Verification, verify_decisions


def verify(
    gate: Any,
    X: Any,
    y: Any = None,
    *,
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
        What `gate` reads: logits or probabilities, the features of its classifier, or a score for each row.
    y : labels
        Or, where X are scores, whether each row is right. They may be left out where nothing is promised that needs
        them: MaxReview.
    large : table, optional
        Of a cascade that reads tables: the large model's table of the same rows. X is then the small one's.
    confidence : float
        A promise that is kept is called refuted with probability at most 1 - confidence.
    groups : sequence, optional
        The group of each row, for a promise per group.
    units : sequence, optional
        Which rows belong together. What is tested follows from the promise: one row of each unit, or, where it is about
        rows, whole units by bets.

    Returns
    -------
    Verification
        Prints itself; `refuted`, `p_value`, `tests` with counts and intervals, `advice`, `to_dict()`.

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
    seen = judged(own, given, y, groups)
    together = None if units is None else Units.of(units).at(seen.rows)
    return verify_decisions(
        own.certificate,
        seen.accept,
        seen.correct,
        confidence,
        seen.losses,
        seen.names,
        together,
    )
