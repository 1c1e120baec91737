"""verify: does the promise of a gate still stand on labelled rows?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metacal import kernels
from metacal.errors import InputError
from metacal.gate import Gate
from metacal.promises.verification import Verification, verify_decisions
from metacal.rows import Rows
from metacal.rows.validate import label_codes

if TYPE_CHECKING:
    from metacal.estimators.classifier import CalibratedClassifier
    from metacal.estimators.metacal import MetaCal


def verify(
    gate: Gate | MetaCal | CalibratedClassifier, X: Any, y: Any, *, confidence: float = 0.95, groups: Any = None
) -> Verification:
    """Test on labelled rows that the fit has not seen whether they refute what the gate promises.

    Parameters
    ----------
    gate : Gate, MetaCal or CalibratedClassifier
        What was fitted under a promise.
    X : table
        What `gate` reads: logits or probabilities, or the features of its classifier.
    y : labels
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
    >>> cal = mc.MetaCal(mc.MinCoverageAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> verify(cal, data.logits[5000:], data.labels[5000:]).refuted
    False
    """
    if isinstance(gate, Gate):
        return _verified(gate, X, y, gate.classes, confidence, groups)
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
    codes = label_codes(y, len(rows), classes)
    accept, correct = gate.accepts(rows, groups), rows.collect(kernels.correct, codes)
    names = None if gate.thresholds is None else gate.part_names(rows.collect(kernels.predicted), groups)
    return verify_decisions(gate.certificate, accept, correct, confidence, names)
