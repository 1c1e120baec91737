"""MetaCal: calibrated probabilities and an accept/reject gate with a certificate, the estimator people import."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from metacal import kernels, validate
from metacal import scores as ranking_scores
from metacal.calibrators import Calibrator, LogitsEstimator, TemperatureScaling, chosen
from metacal.certificate import Certificate, accepts
from metacal.constraints import Constraint, require_some_correct
from metacal.errors import InputError, MetacalWarning
from metacal.maps.meta import MetaMap
from metacal.rows import Rows, workers
from metacal.scores import Score

#: With no error among the accepted rows a temperature would run away; below this many, fitting on all rows gave a lower
#: ECE of accepted rows (embedded sets, 500 to 2,000 rows).
_FEWEST_ERRORS = 50


@dataclass(frozen=True)
class EstimatorMap:
    """Any fitted estimator with `predict_proba` on logits, as a map. Its classes are column numbers."""

    estimator: Any
    preserves_accuracy: bool = False

    def __call__(self, logits: NDArray[Any]) -> NDArray[Any]:
        """Probabilities with a column per class; a class the estimator never saw gets zero."""
        known = np.asarray(self.estimator.predict_proba(logits))
        classes = np.asarray(getattr(self.estimator, "classes_", np.arange(known.shape[1])), dtype=np.intp)
        if known.shape[1] == logits.shape[1]:
            return known.copy()
        full = np.zeros(logits.shape, dtype=known.dtype)
        full[:, classes] = known
        return full


class MetaCal(LogitsEstimator):
    """Calibrate, and accept or reject each row under a written promise.

    A row is accepted iff its ranking score is at most the threshold that `constraint` certifies on the calibration
    rows. Accepted rows get the base calibrator's probabilities, rejected ones 1/K in every class. The promise is about
    the *uncalibrated* classifier's prediction, the largest logit, which is also what `predict` returns.

    The score looks at no label, so the threshold and the base calibrator both use all rows: the paper's split into
    tenths is not needed. The base calibrator is fitted on the accepted rows, the ones it will be used on (on all rows
    when fewer than 50 of the accepted ones are wrong: a calibrator learns from errors).

    Parameters
    ----------
    constraint : MaxMiscoverage or MinCoverageAccuracy
        The promise; `metacal.paper` has the paper's own rules.
    calibrator : estimator, optional
        The base calibrator: any estimator with `fit` and `predict_proba` on logits; TemperatureScaling() when None.
    score : str or callable
        The ranking score, higher = less sure: "entropy", "max_probability", "margin", "energy", or a function of a
        block of logits that returns one number per row.
    reject_label : label
        What `predict` returns for a rejected row; of the same type as the classes, and none of them.
    input : "logits" or "probabilities"
        What the columns of X are. Nothing is guessed from the values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    certificate_ : Certificate
        What is promised, how surely, from how many rows.
    threshold_ : float
        Accept iff score <= threshold_.
    map_ : MetaMap
        The fitted map, a frozen value.
    calibrator_ : estimator
        The fitted base calibrator; its labels are column numbers.

    References
    ----------
    Ma & Blaschko, "Meta-Cal: Well-controlled Post-hoc Calibration by Ranking", ICML 2021.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = mc.MetaCal(mc.MinCoverageAccuracy(0.97)).fit(fit_x, fit_y)
    >>> cal.certificate_.statement
    'What is accepted is right at least 97% of the time, with 90% confidence.'
    >>> accept = cal.accepts(new_x)
    >>> bool((cal.predict(new_x)[accept] == new_y[accept]).mean() >= 0.97)
    True
    """

    certificate_: Certificate
    map_: MetaMap
    calibrator_: Any

    _stays_on_device = True

    def __init__(
        self,
        constraint: Constraint,
        calibrator: Any = None,
        score: str | Score = "entropy",
        reject_label: Any = -1,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.constraint = constraint
        self.calibrator = calibrator
        self.score = score
        self.reject_label = reject_label
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Choose the threshold, fit the base calibrator on the accepted rows.

        `sample_weight` goes to the base calibrator; the certificate counts rows, each as one.
        """
        score = self._checked_score()
        table = self._read_table(X, reset=True)
        codes = self._read_labels(y, table)
        weights = validate.row_weights(sample_weight, len(table))
        check_reject_label(self.reject_label, self.classes_)
        with workers(self.n_jobs) as executor:
            rows = Rows(table, executor=executor)
            correct = rows.collect(kernels.correct, codes)
            values = rows.collect(score)
            self.certificate_, for_base = self._certify(values, correct)
            if weights is not None:
                self.certificate_ = _with_note(self.certificate_, "sample weights are not used by the certificate.")
            for_base = _worth_fitting(for_base, accepts(values, self.certificate_.threshold), correct)
            self.calibrator_ = self._fit_base(rows, codes, weights, for_base)
        base = self.calibrator_.map_ if isinstance(self.calibrator_, Calibrator) else EstimatorMap(self.calibrator_)
        self.map_ = MetaMap(base=base, score=self.score, threshold=self.certificate_.threshold)
        if not base.preserves_accuracy and self.certificate_.quantity == "coverage accuracy":
            self.certificate_ = _with_note(
                self.certificate_,
                "the base calibrator may change the largest class; the promise is about the largest "
                "logit, which predict returns.",
            )
        return self

    @property
    def threshold_(self) -> float:
        """Accept iff score <= threshold_."""
        check_is_fitted(self)
        return self.certificate_.threshold

    def ranking_scores(self, X: ArrayLike) -> NDArray[np.float64]:
        """h(x) of each row: higher is less sure."""
        table = self._read_table(X, reset=False)
        with workers(self.n_jobs) as executor:
            return self.map_.scores(Rows(table, executor=executor))

    def accepts(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Whether each row is accepted."""
        return accepts(self.ranking_scores(X), self.threshold_)

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Calibrated probabilities of accepted rows, 1/K for rejected ones; dtype and device are kept."""
        table = self._read_table(X, reset=False)
        with workers(self.n_jobs) as executor:
            accept = self.map_.accepts(Rows(table, executor=executor))
        return self.map_(table, accept=accept)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the largest logit for accepted rows, `reject_label` for rejected ones."""
        table = self._read_table(X, reset=False)
        with workers(self.n_jobs) as executor:
            rows = Rows(table, executor=executor)
            accept = self.map_.accepts(rows)
            labels = self.classes_[rows.collect(kernels.predicted)]
        return np.where(accept, labels, np.asarray(self.reject_label))

    def _checked_score(self) -> Score:
        score = ranking_scores.resolve(self.score)
        if isinstance(self.constraint, type) or not isinstance(self.constraint, Constraint):
            raise InputError(
                "constraint must be a promise such as MaxMiscoverage(0.05) or MinCoverageAccuracy(0.97); "
                f"got {self.constraint!r}."
            )
        if self.score == "energy" and self.input == "probabilities":
            raise InputError(
                "the score 'energy' is the same for every row of probabilities; use 'entropy', or pass logits."
            )
        return score

    def _certify(
        self, values: NDArray[np.float64], correct: NDArray[np.bool_]
    ) -> tuple[Certificate, NDArray[np.bool_]]:
        require_some_correct(correct)
        notes = _warnings_about(values, correct)
        for_threshold, for_base = self.constraint.split(correct)
        certificate = self.constraint.certify(values[for_threshold], correct[for_threshold])
        for note in notes:
            warnings.warn(note, MetacalWarning, stacklevel=3)
            certificate = _with_note(certificate, note)
        return replace(certificate, score=ranking_scores.name_of(self.score)), for_base

    def _fit_base(
        self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None, used: NDArray[np.bool_]
    ) -> Any:
        if not used.any():
            raise InputError("no row is left to fit the base calibrator on; bring more rows or loosen the promise.")
        base = TemperatureScaling() if self.calibrator is None else clone(self.calibrator)
        weight = None if weights is None else weights[used]
        if rows.on_device and not (isinstance(base, Calibrator) and base._stays_on_device):
            rows, codes = rows.on_host(), validate.on_host(codes)
        if isinstance(base, Calibrator):
            kept = rows if used.all() else rows.where(used)
            return chosen(base.fit_rows(kept, codes[used], weight))
        keywords = {} if weight is None else {"sample_weight": weight}
        return base.fit(rows.table[used], codes[used], **keywords)


def _worth_fitting(
    available: NDArray[np.bool_], accept: NDArray[np.bool_], correct: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """The rows to fit the base calibrator on: the accepted ones, if there are enough errors to learn from."""
    accepted = available & accept
    return accepted if int((accepted & ~correct).sum()) >= _FEWEST_ERRORS else available


def _with_note(certificate: Certificate, note: str) -> Certificate:
    return replace(certificate, notes=(*certificate.notes, note))


def _warnings_about(values: NDArray[np.float64], correct: NDArray[np.bool_]) -> list[str]:
    """What is odd about these calibration rows, if anything."""
    found = []
    n, errors = len(correct), int((~correct).sum())
    if n >= 50 and errors <= 0.001 * n:
        found.append(
            f"{errors} errors in {n:,} rows: is this the training data? Promises hold only for rows from the same "
            "source as the calibration rows."
        )
    _, counts = np.unique(values, return_counts=True)
    tied = int(counts[counts > 1].sum())
    if tied > 0.01 * n:
        found.append(
            f"{tied:,} of {n:,} rows share their score with another row: ties are accepted or rejected together, which "
            "costs coverage. Logits in higher precision break them."
        )
    return found


def check_reject_label(reject_label: Any, classes: NDArray[Any]) -> None:
    """Raise unless the label is of the classes' type and none of them."""
    label = np.asarray(reject_label)
    strings = classes.dtype.kind in "UO"
    if label.ndim or label.dtype.kind not in ("U" if strings else "iub"):
        kind = "a string, such as reject_label='rejected'," if strings else "an integer"
        raise InputError(f"reject_label must be {kind} like the classes; got {reject_label!r}.")
    if label in classes:
        raise InputError(f"reject_label {reject_label!r} is one of the classes; choose a label that is not.")
