"""Fit a gate: the threshold that a constraint certifies, and the base map on the rows that it lets through.

This is all of Meta-Cal's fit that is mathematics. `metacal.MetaCal` is its scikit-learn face; the command line calls it
as it is, so that `metacal fit` need not wait for scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.maps.meta import MetaMap
from metacal.promises.certificate import Certificate, accepts, data_hash, older_data_hash
from metacal.promises.constraints import Constraint, require_some_correct
from metacal.rows import Rows
from metacal.scores import Score
from metacal.scores import named as scores

#: With no error among the accepted rows a temperature would run away; below this many, fitting on all rows gave a lower
#: ECE of accepted rows (embedded sets, 500 to 2,000 rows).
_FEWEST_ERRORS = 50

Flags = NDArray[np.bool_]
#: Fits the base map on the rows with a flag.
FitBase = Callable[[Flags], Any]


@dataclass(frozen=True)
class Gate:
    """A fitted gate: the promise, the map that keeps it, and a fingerprint of the rows it was fitted on."""

    certificate: Certificate
    map: MetaMap
    data_hash: str


def fit_gate(
    rows: Rows,
    codes: NDArray[np.intp],
    constraint: Constraint,
    score: str | Score,
    fit_base: FitBase,
    *,
    weighted: bool = False,
) -> Gate:
    """Certify a threshold on the rows' scores, then fit the base map on the accepted rows.

    `fit_base(used)` gets one flag per row. The base map is fitted on all rows (of those that the constraint leaves for
    it) when fewer than 50 of the accepted ones are wrong: a calibrator learns from errors.

    Examples
    --------
    >>> from metacal.promises.constraints import MaxMiscoverage
    >>> from metacal.maps.temperature import fit_temperature
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=400)
    >>> rows = Rows(rng.normal(size=(400, 3)) + 3.0 * np.eye(3)[labels])
    >>> fit_one = lambda used: fit_temperature(rows.where(used), labels[used])
    >>> gate = fit_gate(rows, labels, MaxMiscoverage(0.1), "entropy", fit_one)
    >>> gate.map.threshold == gate.certificate.threshold, gate.certificate.n_rows
    (True, 400)
    """
    values, correct = _scored(rows, score, codes)
    certificate, available = _certified(constraint, values, correct, score)
    if weighted:
        certificate = _with_note(certificate, "sample weights are not used by the certificate.")
    used = _worth_fitting(available, accepts(values, certificate.threshold), correct)
    if not used.any():
        raise InputError("no row is left to fit the base calibrator on; bring more rows or loosen the promise.")
    base = fit_base(used)
    if not base.preserves_accuracy and certificate.quantity == "coverage accuracy":
        certificate = _with_note(
            certificate,
            "the base calibrator may change the largest class; the promise is about the largest "
            "logit, which predict returns.",
        )
    fitted = MetaMap(base=base, score=score, threshold=certificate.threshold)
    return Gate(certificate, fitted, data_hash(values, correct))


def fitted_on(
    recorded: str | None,
    certificate: Certificate,
    rows: Rows,
    score: str | Score,
    values: NDArray[np.float64],
    correct: Flags,
) -> bool:
    """Whether these are the very rows that a gate was fitted on, by the fingerprint it has recorded.

    `values` are the scores of the rows, `correct` says whether the largest logit is right. A fingerprint from before
    scores were rounded is recognised too; that takes the unrounded scores, and is tried only where the number of rows
    is the certificate's.
    """
    if recorded is None or len(correct) < certificate.n_rows:
        return False
    if recorded == data_hash(values, correct):
        return True
    return len(correct) == certificate.n_rows and recorded == older_data_hash(scores.unrounded(rows, score), correct)


def check_gate(constraint: Any, score: str | Score, input: str) -> None:
    """Raise unless these can make a gate."""
    scores.resolve(score)
    if isinstance(constraint, type) or not isinstance(constraint, Constraint):
        raise InputError(
            "constraint must be a promise such as MaxMiscoverage(0.05) or MinCoverageAccuracy(0.97); "
            f"got {constraint!r}."
        )
    if score == "energy" and input == "probabilities":
        raise InputError(
            "the score 'energy' is the same for every row of probabilities; use 'entropy', or pass logits."
        )


def check_reject_label(reject_label: Any, classes: NDArray[Any]) -> None:
    """Raise unless the label is of the classes' type and none of them."""
    label = np.asarray(reject_label)
    strings = classes.dtype.kind in "UO"
    if label.ndim or label.dtype.kind not in ("U" if strings else "iub"):
        kind = "a string, such as reject_label='rejected'," if strings else "an integer of at most 64 bits"
        raise InputError(f"reject_label must be {kind} like the classes; got {reject_label!r}.")
    if not strings and not -(2**63) <= int(label) < 2**63:
        raise InputError(f"reject_label must fit a signed integer of 64 bits; got {reject_label!r}.")
    if label in classes:
        raise InputError(f"reject_label {reject_label!r} is one of the classes; choose a label that is not.")
    if not strings and np.result_type(classes.dtype, label.dtype).kind == "f":  # int64 beside uint64: labels round
        raise InputError(
            f"no integer type holds both the classes ({classes.dtype}) and reject_label {reject_label!r}; "
            "choose a label that the classes' type can hold."
        )


def _scored(rows: Rows, score: str | Score, codes: NDArray[np.intp]) -> tuple[NDArray[np.float64], Flags]:
    """The score of each row and whether its largest logit is the true class, from one pass over the table."""
    if rows.on_device:
        return scores.score_rows(rows, score), rows.collect(kernels.correct, codes)
    resolved = scores.resolve(score)
    both = rows.collect(partial(_score_and_correct, resolved.unrounded), codes)
    return resolved.grid.rounded(both[:, 0]), both[:, 1] > 0.0


def _score_and_correct(unrounded: Score, block: NDArray[Any], codes: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.stack([unrounded(block), kernels.correct(block, codes)], axis=1)


def _certified(
    constraint: Constraint, values: NDArray[np.float64], correct: Flags, score: str | Score
) -> tuple[Certificate, Flags]:
    """The certificate, and the rows that are left for the base map."""
    require_some_correct(correct)
    notes = _warnings_about(values, correct)
    for_threshold, for_base = constraint.split(correct)
    certificate = constraint.certify(values[for_threshold], correct[for_threshold])
    for note in notes:
        warnings.warn(note, MetacalWarning, stacklevel=4)
        certificate = _with_note(certificate, note)
    # A constraint does not know the score; on a coarser grid the middle is a wider one, between the same neighbours.
    threshold = scores.grid_of(score).settled(certificate.threshold)
    return replace(certificate, score=scores.name_of(score), threshold=threshold), for_base


def _worth_fitting(available: Flags, accept: Flags, correct: Flags) -> Flags:
    """The rows to fit the base calibrator on: the accepted ones, if there are enough errors to learn from."""
    accepted = available & accept
    return accepted if int((accepted & ~correct).sum()) >= _FEWEST_ERRORS else available


def _with_note(certificate: Certificate, note: str) -> Certificate:
    return replace(certificate, notes=(*certificate.notes, note))


def _warnings_about(values: NDArray[np.float64], correct: Flags) -> list[str]:
    """What is odd about these calibration rows, if anything."""
    found = []
    n, errors = len(correct), int((~correct).sum())
    if n >= 50 and errors <= 0.001 * n:
        found.append(
            f"{errors} errors in {n:,} rows: is this the training data? Promises hold only for rows from the same "
            "source as the calibration rows."
        )
    _, counts = np.unique(values, return_counts=True)
    tied = int(counts[counts > 2].sum())  # among millions of rows some pairs share a grid point by chance
    if tied > 0.01 * n:
        found.append(
            f"{tied:,} of {n:,} rows share their score with other rows: ties are accepted or rejected together, which "
            "costs coverage. Logits in higher precision break them."
        )
    return found
