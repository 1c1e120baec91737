"""CalibratedClassifier: a calibrated gate around any fitted classifier, for people who never touch logits."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples, check_is_fitted, column_or_1d

from metacal import validate
from metacal.calibrators import TemperatureScaling
from metacal.certificate import Certificate
from metacal.constraints import Constraint
from metacal.errors import InputError
from metacal.meta import MetaCal, check_reject_label
from metacal.scores import Score

_RESPONSES = ("predict_proba", "decision_function")


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Calibrated probabilities, and with a constraint an accept/reject gate, around a classifier.

    A *fitted* classifier (or one inside scikit-learn's FrozenEstimator, which also survives `clone` and searches) is
    left as it is, and `fit` calibrates it on rows it has not seen. An unfitted one is fitted first, on a share of the
    rows that are then not used for calibration.

    Parameters
    ----------
    estimator : classifier
        With `predict_proba` or `decision_function`.
    constraint : MaxMiscoverage or MinCoverageAccuracy, optional
        The promise of the gate; None calibrates the probabilities and rejects nothing.
    calibrator : estimator, optional
        The base calibrator on logits; TemperatureScaling() when None.
    ranking : str or callable
        The ranking score, as `score` of `MetaCal` (a classifier's `score` is its accuracy).
    reject_label : label
        What `predict` returns for a rejected row; of the classes' type, and none of them.
    response_method : "auto", "predict_proba" or "decision_function"
        Where the logits come from: the logarithm of the probabilities, or the decision values (two classes: [0, s]).
        "auto" takes `predict_proba` where there is one.
    holdout : float
        Share of the rows kept for calibration when `estimator` has to be fitted first.
    random_state : int
        Seed of that split.
    n_jobs : int, optional
        Threads for the calibration.

    Attributes
    ----------
    estimator_ : classifier
        The fitted classifier.
    calibrator_ : MetaCal or calibrator
        The fitted gate, or the plain calibrator when there is no constraint.
    certificate_ : Certificate
        What is promised; only with a constraint.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.utils import shuffle
    >>> import metacal as mc
    >>> X, y = shuffle(*load_digits(return_X_y=True), random_state=0)  # the file has one writer after the other
    >>> classifier = LogisticRegression(max_iter=5000).fit(X[:700], y[:700])
    >>> gate = mc.CalibratedClassifier(classifier, mc.MinCoverageAccuracy(0.95)).fit(X[700:1300], y[700:1300])
    >>> accept = gate.accepts(X[1300:])
    >>> bool((gate.predict(X[1300:])[accept] == y[1300:][accept]).mean() >= 0.95)
    True
    """

    classes_: NDArray[Any]
    estimator_: Any
    calibrator_: Any

    def __init__(
        self,
        estimator: Any,
        constraint: Constraint | None = None,
        *,
        calibrator: Any = None,
        ranking: str | Score = "entropy",
        reject_label: Any = -1,
        response_method: str = "auto",
        holdout: float = 0.3,
        random_state: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.constraint = constraint
        self.calibrator = calibrator
        self.ranking = ranking
        self.reject_label = reject_label
        self.response_method = response_method
        self.holdout = holdout
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any) -> Self:
        """Calibrate the classifier on X and y, fitting it first on a share of them if it is not fitted."""
        if y is None:
            raise InputError("CalibratedClassifier requires y to be passed, but the target y is None.")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if len(y) != _num_samples(X):
            raise InputError(f"there are {_num_samples(X)} rows but {len(y)} labels; each row needs one label.")
        if hasattr(X, "tocsr"):
            X = X.tocsr()
        elif not hasattr(X, "__getitem__"):
            X = np.asarray(X)
        self.estimator_, kept = self._fitted_classifier(X, y)
        if kept is not None:
            X, y = _safe_indexing(X, kept), y[kept]
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        logits = self._logits(X)
        self.classes_ = np.asarray(getattr(self.estimator_, "classes_", np.arange(logits.shape[1])))
        codes, unknown = validate.columns_of(y, self.classes_)
        if unknown is not None:
            raise InputError(
                f"label {y[unknown]!r} (row {unknown} of the calibration rows) is not one of the {len(self.classes_)} "
                "classes the classifier was fitted on; leave such rows out."
            )
        if self.constraint is None:
            self.calibrator_ = TemperatureScaling() if self.calibrator is None else clone(self.calibrator)
        else:
            check_reject_label(self.reject_label, self.classes_)
            self.calibrator_ = MetaCal(self.constraint, self.calibrator, score=self.ranking, n_jobs=self.n_jobs)
        self.calibrator_.fit(logits, codes)
        return self

    @property
    def certificate_(self) -> Certificate:
        """The promise of the gate."""
        check_is_fitted(self)
        if self.constraint is None:
            raise AttributeError("without a constraint nothing is rejected and there is no certificate_.")
        certificate: Certificate = self.calibrator_.certificate_
        return certificate

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Calibrated probabilities; rejected rows are uniform."""
        check_is_fitted(self)
        return np.asarray(self.calibrator_.predict_proba(self._logits(X)))

    def accepts(self, X: Any) -> NDArray[np.bool_]:
        """Whether each row is accepted; all are without a constraint."""
        check_is_fitted(self)
        logits = self._logits(X)
        if self.constraint is None:
            return np.ones(len(logits), dtype=bool)
        return np.asarray(self.calibrator_.accepts(logits))

    def predict(self, X: Any) -> NDArray[Any]:
        """The classifier's own class for accepted rows, `reject_label` for rejected ones."""
        check_is_fitted(self)
        columns = self.calibrator_.predict(self._logits(X))
        if self.constraint is None:
            return np.asarray(self.classes_[columns])
        labels = self.classes_[np.maximum(columns, 0)]
        return np.where(columns >= 0, labels, np.asarray(self.reject_label))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator).input_tags
        tags.input_tags.sparse = inner.sparse
        tags.input_tags.allow_nan = inner.allow_nan
        return tags

    def _fitted_classifier(self, X: Any, y: NDArray[Any]) -> tuple[Any, NDArray[np.intp] | None]:
        """The classifier, and the rows left for calibration (None: all of them)."""
        if _is_fitted(self.estimator):
            return self.estimator, None
        train, kept = _split(y, validate.fraction("holdout", self.holdout), self.random_state)
        return clone(self.estimator).fit(_safe_indexing(X, train), y[train]), kept

    def _logits(self, X: Any) -> NDArray[Any]:
        if self.response_method not in ("auto", *_RESPONSES):
            raise InputError(
                f"response_method must be 'auto', 'predict_proba' or 'decision_function', got {self.response_method!r}."
            )
        names = _RESPONSES if self.response_method == "auto" else (self.response_method,)
        for name in names:
            if hasattr(self.estimator_, name):
                response = np.asarray(getattr(self.estimator_, name)(X))
                break
        else:
            raise InputError(f"{type(self.estimator_).__name__} has neither of {' and '.join(names)}.")
        if name == "predict_proba":
            return validate.logits_from(response, "probabilities")
        return response if response.ndim == 2 else np.column_stack([np.zeros_like(response), response])


def _is_fitted(estimator: Any) -> bool:
    """Whether it can predict already; an object that scikit-learn could not clone and fit is taken at its word."""
    if not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        return True
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


def _split(y: NDArray[Any], holdout: float, random_state: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows to fit and rows to calibrate on, class by class; a class seen once goes to the fit."""
    rng = np.random.default_rng(random_state)
    kept = np.zeros(len(y), dtype=bool)
    _, codes = np.unique(y, return_inverse=True)
    for code in range(codes.max() + 1):
        rows = rng.permutation(np.flatnonzero(codes == code))
        kept[rows[: min(len(rows) - 1, round(holdout * len(rows)))]] = True
    if not kept.any():
        raise InputError(
            f"an unfitted classifier needs rows to fit and rows to calibrate on; got {len(y)} samples "
            f"(n_samples={len(y)}) with {codes.max() + 1} class(es). Bring more rows, or a fitted classifier."
        )
    return np.flatnonzero(~kept), np.flatnonzero(kept)
