"""verify: does the promise of a gate still stand on labelled rows?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metacal import kernels
from metacal.errors import InputError
from metacal.gate import CascadeGate, Gate, ScoredGate
from metacal.gate.cascade import paired
from metacal.promises.cascade_verification import CascadeVerification, verify_cascade
from metacal.promises.verification import Verification, verify_decisions
from metacal.rows import Rows
from metacal.rows.given import correct_column, score_column
from metacal.rows.missing import codes_where_known
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
    if isinstance(getattr(gate, "gate_", gate), CascadeGate):
        return _verified_cascade(gate, X, y, large, confidence)
    if large is not None:
        raise InputError("large is the table of a cascade's second model; this gate has one model.")
    if isinstance(gate, Gate):
        return _verified(gate, X, y, gate.classes, confidence, groups)
    scored = gate if isinstance(gate, ScoredGate) else getattr(gate, "gate_", None)
    if isinstance(scored, ScoredGate):
        return verify_scores(scored, X, y, confidence)
    estimator: Any = gate
    if hasattr(estimator, "logits"):  # around a classifier: X are its features
        X, estimator = estimator.logits(X), estimator.gate_
    if not isinstance(held := getattr(estimator, "gate_", None), Gate):
        raise InputError(f"verify needs a fitted gate; {type(estimator).__name__} promises nothing.")
    return _verified(held, X, y, estimator.classes_, confidence, groups)


def _verified(gate: Gate, X: Any, y: Any, classes: Any, confidence: float, groups: Any) -> Verification:
    if gate.certificate is None:
        raise InputError("verify needs a gate with a certificate; this one promises nothing.")
    rows = Rows(gate.read(X))
    if y is None:
        return verify_decisions(gate.certificate, gate.accepts(rows), None, confidence)
    codes = label_codes(y, len(rows), classes)
    accept, correct = gate.accepts(rows, groups), rows.collect(kernels.correct, codes)
    top = rows.collect(kernels.predicted)
    names = None if gate.thresholds is None else gate.part_names(top, groups)
    return verify_decisions(gate.certificate, accept, correct, confidence, gate.losses(codes, top), names)


def _verified_cascade(cascade: Any, X: Any, y: Any, large: Any, confidence: float) -> CascadeVerification:
    gate: CascadeGate = getattr(cascade, "gate_", cascade)
    if cascade is gate and large is None:
        raise InputError("give the large model's table too: verify(gate, small_logits, y, large=large_logits).")
    small, other = (gate.small.read(X), gate.large.read(large)) if cascade is gate else cascade.tables(X, large)
    codes = codes_where_known(y, len(small), gate.classes)
    rows = paired(Rows(small), Rows(other), codes, (gate.small.score, gate.large.score))
    return verify_cascade(gate.certificate, rows, confidence)


def verify_scores(gate: ScoredGate, score: Any, correct: Any, confidence: float = 0.95) -> Verification:
    """The same for a gate on given scores; rows without a score, of which nothing is promised, are left out."""
    given, right = score_column(score), correct_column(correct)
    if given.shape != right.shape:
        raise InputError(f"there are {len(given)} scores but {len(right)} entries of correct; give one each per row.")
    there = ~np.isnan(given)
    if not there.any():
        raise InputError("no row has a score: there is nothing to verify.")
    accept, right = gate.accepts(given[there]), right[there]
    return verify_decisions(gate.certificate, accept, right, confidence, gate.losses(right))
