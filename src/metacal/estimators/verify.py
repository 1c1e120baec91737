"""verify: does the promise of a gate still stand on labelled rows?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from metacal import kernels
from metacal.errors import InputError
from metacal.estimators.opened import opened
from metacal.gate import CascadeGate, Gate, ScoredGate
from metacal.gate.cascade import paired
from metacal.promises.rules.cascade_verification import CascadeVerification, verify_cascade
from metacal.promises.verification import Verification, verify_decisions
from metacal.rows import Rows
from metacal.rows.labels import codes_where_known
from metacal.rows.score_columns import score_and_correct
from metacal.rows.validate import label_codes

if TYPE_CHECKING:
    from metacal.estimators.cascade import Cascade
    from metacal.estimators.classifier import CalibratedClassifier
    from metacal.estimators.metacal import MetaCal
    from metacal.estimators.scored import ScoreGate


def verify(
    gate: Gate | ScoredGate | MetaCal | CalibratedClassifier | ScoreGate | CascadeGate | Cascade,
    X: Any,
    y: Any = None,
    *,
    large: Any = None,
    confidence: float = 0.95,
    groups: Any = None,
) -> Verification | CascadeVerification:
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
    own, table, other = rows = opened(gate, X, large)
    kinds: dict[type, Callable[[], Verification | CascadeVerification]] = {
        Gate: lambda: _verified(own, table, y, confidence, groups),
        ScoredGate: lambda: verify_scores(own, table, y, confidence),
        CascadeGate: lambda: _verified_cascade(own, table, y, other, confidence),
    }
    return rows.by_kind("verify", kinds)


def _verified(gate: Gate, X: Any, y: Any, confidence: float, groups: Any) -> Verification:
    if gate.certificate is None:
        raise InputError("verify needs a gate with a certificate; this one promises nothing.")
    rows = Rows(gate.read(X))
    if y is None:
        return verify_decisions(gate.certificate, gate.accepts(rows), None, confidence)
    codes = label_codes(y, len(rows), gate.classes)
    accept, correct = gate.accepts(rows, groups), rows.collect(kernels.correct, codes)
    top = rows.collect(kernels.predicted)
    names = None if gate.thresholds is None else gate.part_names(top, groups)
    return verify_decisions(gate.certificate, accept, correct, confidence, gate.losses(codes, top), names)


def _verified_cascade(gate: CascadeGate, small: Any, y: Any, large: Any, confidence: float) -> CascadeVerification:
    codes = codes_where_known(y, len(small), gate.classes)
    rows = paired(Rows(small), Rows(large), codes, (gate.small.score, gate.large.score))
    return verify_cascade(gate.certificate, rows, confidence)


def verify_scores(gate: ScoredGate, score: Any, correct: Any, confidence: float = 0.95) -> Verification:
    """The same for a gate on given scores; rows without a score, of which nothing is promised, are left out."""
    given, right = score_and_correct(score, correct)
    there = ~np.isnan(given)
    if not there.any():
        raise InputError("no row has a score: there is nothing to verify.")
    accept, right = gate.accepts(given[there]), right[there]
    return verify_decisions(gate.certificate, accept, right, confidence, gate.losses(right))
