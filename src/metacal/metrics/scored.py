"""One look at a gate on given scores: its shares, the quality of the ranking, and the calibration of its confidence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from metacal.metrics import registry
from metacal.metrics.evaluation import Evaluation, Wanted, gate_wanted
from metacal.metrics.intervals import Resampling
from metacal.metrics.metric import TOP_LABEL
from metacal.metrics.threads import one_blas_thread
from metacal.metrics.toplabel import TopLabel

Float = NDArray[np.float64]
Flags = NDArray[np.bool_]


@one_blas_thread()
def evaluate_scores(
    doubt: Float,
    correct: Flags,
    *,
    accept: Flags | None = None,
    confidence: Float | None = None,
    n_bins: int = 15,
    level: float = 0.95,
    n_resamples: int = 1000,
    random_state: int = 0,
) -> Evaluation:
    """Evaluate a score by what is right: no table of probabilities, so that there are no classes (`n_classes` is 0).

    Parameters
    ----------
    doubt : array
        The score, higher = less sure, of rows that all have one.
    correct : boolean array
    accept : boolean array, optional
        The gate's decisions.
    confidence : array, optional
        The calibrated probability of being right; without it there are no calibration errors.
    n_bins, level, n_resamples, random_state
        As in `evaluate`; 0 resamples give estimates and the exact intervals of shares alone.

    Examples
    --------
    >>> doubt, correct = np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, True, False, True])
    >>> found = evaluate_scores(doubt, correct, accept=doubt < 0.25, n_resamples=100)
    >>> found.gate["coverage_accuracy"].estimate, found.gate["coverage"].estimate, list(found.all_rows)
    (1.0, 0.5, ['accuracy'])
    """
    plan = Resampling(level, n_resamples, random_state)
    top = TopLabel(np.zeros(len(doubt)) if confidence is None else confidence, correct.astype(np.float64))
    gate = gate_wanted(top, accept, correct, doubt)
    whole = plan.measure([*_wanted(top, confidence is not None, n_bins), *gate], len(top))
    found = {metric.name: whole.pop(metric.name) for metric, _ in gate}
    kept = None
    if accept is not None and accept.any():
        some = TopLabel(top.confidence[accept], top.correct[accept])
        kept = plan.measure(_wanted(some, confidence is not None, n_bins), len(some))
    n_accepted = None if accept is None else int(accept.sum())
    return Evaluation(whole, kept, found, len(top), n_accepted, 0, plan.level, n_bins)


def _wanted(top: TopLabel, calibrated: bool, n_bins: int) -> Wanted:
    """The accuracy and, where there is a confidence, how far it is off."""
    return [
        (metric, metric.measured(top, **({"n_bins": n_bins} if metric.binned else {})))
        for metric in registry.evaluated(TOP_LABEL)
        if calibrated or not metric.calibration_error
    ]
