"""CalibratedClassifier: a calibrated gate around any classifier, for people who never touch
logits.
"""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, field, replace
from inspect import signature
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.base import ClassifierMixin, MetaEstimatorMixin
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import check_is_fitted

from metacal.errors import InputError, warn_caller
from metacal.estimators.base import Calibrator, DataclassEstimator, base_calibrator
from metacal.estimators.crossfit import (
    CalibrationRows,
    Fitting,
    approximate,
    checked_folds,
    is_fitted,
    split_rows,
    table_and_labels,
)
from metacal.estimators.metacal import MetaCal
from metacal.estimators.responses import METHODS, classes_of, codes_of, logits_of
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate import check_gate
from metacal.promises.certificate import Certificate
from metacal.promises.circumstances import Circumstances, under
from metacal.promises.parts.units import Units, select_rows
from metacal.promises.promise import Promise
from metacal.rows import validate
from metacal.rows.arrays import fraction, one_of
from metacal.rows.labels import reject_label_of
from metacal.rows.plausibility import unquestioned
from metacal.scores import Score


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, DataclassEstimator, kw_only=False):
    """Calibrated probabilities, and with a promise an accept/reject gate, around a classifier.

    A *fitted* classifier (or one inside scikit-learn's FrozenEstimator, which also survives `clone`
    and searches) is left as it is, and `fit` calibrates it on rows it has not seen. An unfitted one
    is fitted first, on a share of the rows that are then not used for calibration: the certificate
    is exact. With `cv` every row serves both purposes, and the certificate says that it is
    approximate.

    Parameters
    ----------
    estimator : classifier
        With `predict_proba` or `decision_function`.
    promise : MaxMiscoverage or MinAccuracy, optional
        The promise of the gate; None calibrates the probabilities and rejects nothing.
    calibrator : str or estimator, optional
        The base calibrator on logits, by its name on the command line or as an estimator; that of
        `MetaCal` when None.
    ranking : str or callable
        The ranking score, `score` of `MetaCal`: a classifier's `score` is a method.
    reject_label : label, optional
        What `predict` returns for a rejected row; of the classes' type, and none of them. -1 when
        None, or "rejected" where the classes are names.
    response_method : "auto", "predict_proba" or "decision_function"
        Where the logits come from: the logarithm of the probabilities, or the decision values (two
        classes: [0, s]). "auto" takes `predict_proba` where there is one.
    holdout : float
        Share of the rows kept for calibration when `estimator` has to be fitted first.
    cv : int or splitter, optional
        Cross-fitting instead of `holdout`: each row is scored by a classifier fitted without its
        fold, the threshold and the calibrator come from these scores, and the classifier in use is
        fitted on all rows.
    random_state : int, optional
        Seed of the split, of the folds when `cv` is a number, and of the draw of a row of each
        unit. By default it is derived from X and y. A seed that you give is recorded in the
        certificate.
    n_jobs : int, optional
        Threads for the folds and the calibration.

    Attributes
    ----------
    estimator_ : classifier
        The fitted classifier.
    calibrator_ : MetaCal or calibrator
        The fitted gate, or the plain calibrator when there is no promise; its labels are column
        numbers.
    gate_ : MetaCal or calibrator
        The same with the classifier's own labels: what `mc.save` can save.
    certificate_ : Certificate
        What is promised; only with a promise.

    Notes
    -----
    The promise and `predict` are about the largest logit. A few classifiers (an SVC with more than
    two classes) have a `predict` of their own that now and then differs from it.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.utils import shuffle
    >>> import metacal as mc
    >>> X, y = shuffle(*load_digits(return_X_y=True), random_state=0)  # the file has one writer after the other
    >>> classifier = LogisticRegression(max_iter=5000).fit(X[:700], y[:700])
    >>> gate = mc.CalibratedClassifier(classifier, mc.MinAccuracy(0.95)).fit(X[700:1300], y[700:1300])
    >>> accept = gate.accepts(X[1300:])
    >>> bool((gate.predict(X[1300:])[accept] == y[1300:][accept]).mean() >= 0.95)
    True
    """

    estimator: Any
    promise: Promise | None = None
    _: KW_ONLY
    calibrator: Any = None
    ranking: str | Score = "entropy"
    reject_label: Any = None
    response_method: str = "auto"
    holdout: float = 0.3
    cv: Any = None
    random_state: int | None = None
    n_jobs: int | None = None

    classes_: Array = field(init=False)
    estimator_: Any = field(init=False)
    calibrator_: Any = field(init=False)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        groups: Any = None,
        units: Any = None,
        **fit_params: Any,
    ) -> Self:
        """Calibrate the classifier on X and y, fitting it first if it is not fitted.

        `sample_weight` goes to the classifier's `fit` (where it takes one; with scikit-learn's
        metadata routing, where it asks for one) and to the calibrator. The certificate counts each
        row once, whatever its weight: its binomial test is about independent rows, and a weight
        does not make one row into several. `groups` has the group of each row, for a promise per
        group. `units` says which rows belong together (copies, visits of one patient): a unit is
        never parted between fitting and calibration, nor between folds, and one row of each counts
        for the certificate, or every row with `Units(names, per="row")`. `fit_params` go to the
        classifier's `fit`.
        """
        X, y = table_and_labels(X, y)
        self._check(y, groups)
        weights = validate.row_weights(sample_weight, len(y))
        together = None if units is None else Units.of(units)
        belongs = None if together is None else together.codes(len(y))
        part = self._calibration_rows(X, y, *self._routed(weights, fit_params), belongs)
        if part.rows is not None:
            y, weights = y[part.rows], None if weights is None else weights[part.rows]
            belongs = None if belongs is None else belongs[part.rows]
            groups = None if groups is None else np.asarray(groups)[part.rows]
        if weights is not None and not (weights > 0.0).any():
            raise InputError(
                "sample_weight is zero on every row that is left to calibrate on: no class has a"
                " row that counts; use more rows, or another random_state."
            )
        self.estimator_, self.classes_ = part.classifier, part.classes
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        codes = codes_of(y, self.classes_)
        with unquestioned():
            counted = (
                None if together is None or belongs is None else replace(together, names=belongs)
            )
            self._calibrate(part, codes, weights, counted, groups)
        return self

    def _check(self, y: Array, groups: Any) -> None:
        """Refuse what cannot be meant before anything is trained, which may take hours."""
        base_calibrator(self.calibrator, self.promise)
        one_of("response_method", self.response_method, "auto", *METHODS)
        if self.promise is not None:
            check_gate(self.promise, self.ranking, "logits")
            reject_label_of(
                self.reject_label, np.asarray(getattr(self.estimator, "classes_", np.unique(y)))
            )
        if groups is not None and len(groups) != len(y):
            raise InputError(
                f"groups must have one entry per row; got {len(groups):,} for {len(y):,} rows."
            )

    def _calibrate(
        self,
        part: CalibrationRows,
        codes: Codes,
        weights: Float | None,
        units: Units | None,
        groups: Any,
    ) -> None:
        """Fit `calibrator_` on the classifier's logits."""
        if self.promise is None:
            self.calibrator_ = base_calibrator(self.calibrator, None, part.logits.shape[1])
            known = codes >= 0  # a calibrator learns nothing from a label that has no column
            weighted = {} if weights is None else {"sample_weight": weights[known]}
            self.calibrator_.fit(part.logits[known], codes[known], **weighted)
            if not isinstance(self.calibrator_, Calibrator):
                return  # somebody else's: it knows columns, not names
        else:
            self.calibrator_ = MetaCal(
                self.promise, self.calibrator, score=self.ranking, n_jobs=self.n_jobs
            )
            selection = select_rows(len(codes), units, random_state=self.random_state)
            self.calibrator_.fit_codes(part.logits, codes, weights, selection, groups)
            gate, label = self.calibrator_.gate_, reject_label_of(self.reject_label, self.classes_)
            if part.n_folds:
                gate = replace(gate, certificate=approximate(gate.certificate, part.n_folds))
            if part.is_drawn and self.random_state is not None:
                chosen = Circumstances(random_state=self.random_state)
                gate = replace(gate, certificate=under(gate.certificate, chosen))
            self.calibrator_.gate_, self.calibrator_.reject_label = (
                gate.with_classes(self.classes_, label),
                label,
            )
        self.calibrator_.classes, self.calibrator_.classes_ = self.classes_.tolist(), self.classes_

    @property
    def certificate_(self) -> Certificate:
        """The promise of the gate."""
        check_is_fitted(self)
        if self.promise is None:
            raise AttributeError(
                "without a promise nothing is rejected and there is no certificate_."
            )
        certificate: Certificate = self.calibrator_.certificate_
        return certificate

    @property
    def gate_(self) -> Any:
        """The fitted MetaCal (or calibrator) over the classifier's logits, with the classifier's
        own labels.

        It holds no classifier, so `mc.save` saves it: `gate_.predict(clf.logits(X))` is
        `clf.predict(X)`.
        """
        check_is_fitted(self)
        if not isinstance(self.calibrator_, MetaCal | Calibrator):
            kind = type(self.calibrator_).__name__
            raise AttributeError(
                f"a {kind} is somebody else's calibrator: store it as it asks for."
            )
        return self.calibrator_

    def logits(self, X: Any) -> Array:
        """What the classifier says about each row, as logits in the order of `classes_`: what the
        gate reads.
        """
        check_is_fitted(self)
        return logits_of(self.estimator_, X, self.response_method)

    def predict_proba(self, X: Any, *, groups: Any = None) -> Array:
        """Calibrated probabilities; rejected rows are uniform. `groups` as in `fit`, for a promise
        per group.
        """
        logits = self.logits(X)
        return np.asarray(self.calibrator_.predict_proba(logits, **self._grouped(groups)))

    def accepts(self, X: Any, *, groups: Any = None) -> Flags:
        """Whether each row is accepted; all are without a promise. In a pipeline:
        `mc.accepts(pipeline, X)`.
        """
        logits = self.logits(X)
        if self.promise is None:
            return np.ones(len(logits), dtype=bool)
        return np.asarray(self.calibrator_.accepts(logits, groups=groups))

    def predict(self, X: Any, *, groups: Any = None) -> Array:
        """The classifier's own class for accepted rows, `reject_label` for rejected ones."""
        logits = self.logits(X)
        said = self.calibrator_.predict(logits, **self._grouped(groups))
        return np.asarray(
            said if isinstance(self.calibrator_, MetaCal | Calibrator) else self.classes_[said]
        )

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the gate, which reads this classifier's logits, as JSON; the classifier is saved by
        its own means.

        `metacal.load(path).predict(clf.logits(X))` is then `clf.predict(X)`.
        """
        self.gate_.save(path, **options)

    def _grouped(self, groups: Any) -> dict[str, Any]:
        """What a gate is told of the rows; a plain calibrator knows no groups."""
        return {} if groups is None else {"groups": groups}

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """How useful the answers are: P(accepted and right) - P(accepted and wrong); without a
        promise the accuracy.

        A rejected row counts nothing, a wrong answer as much as a right one: what a search over the
        promise maximises unless told otherwise. `SelectiveUtility(wrong_cost)` weighs errors,
        `coverage` compares gates that carry the same promise.
        """
        if self.promise is None:
            return float(super().score(X, y, sample_weight))
        return SelectiveUtility()(self, X, y, sample_weight)

    def get_metadata_routing(self) -> Any:
        """Where metadata go: `sample_weight` to this calibrator, everything to the classifier and
        the splitter.
        """
        fit = MethodMapping().add(caller="fit", callee="fit")
        router = (
            MetadataRouter(owner=self)
            .add_self_request(self)
            .add(estimator=self.estimator, method_mapping=fit)
        )
        if hasattr(self.cv, "split"):
            router.add(
                splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split")
            )
        return router

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator).input_tags
        tags.input_tags.sparse = inner.sparse
        tags.input_tags.allow_nan = inner.allow_nan
        return tags

    def _routed(
        self, weights: Float | None, fit_params: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What goes to the classifier's `fit`, and to the splitter."""
        if get_config().get("enable_metadata_routing"):
            given = fit_params if weights is None else {**fit_params, "sample_weight": weights}
            routed = process_routing(self, "fit", **given)
            return dict(routed.estimator.fit), (
                dict(routed.splitter.split) if "splitter" in routed else {}
            )
        params = dict(fit_params)
        if weights is not None and not is_fitted(self.estimator):
            if "sample_weight" in signature(self.estimator.fit).parameters:
                params["sample_weight"] = weights
            else:
                name = type(self.estimator).__name__
                warn_caller(
                    f"{name}.fit takes no sample_weight: only the calibrator is weighted. In a"
                    " pipeline switch on scikit-learn's metadata routing, and"
                    " set_fit_request(sample_weight=True) on the step."
                )
        return params, {}

    def _calibration_rows(
        self, X: Any, y: Array, fit: dict[str, Any], split: dict[str, Any], units: Codes | None
    ) -> CalibrationRows:
        """The classifier in use, and logits of rows that it (or its fold) was not fitted on."""
        if is_fitted(self.estimator):
            if self.cv is not None:
                raise InputError(
                    "cv fits the classifier, and this one is fitted: pass an unfitted one, or"
                    " no cv."
                )
            if set(fit) - {"sample_weight"}:
                raise InputError(
                    f"the classifier is fitted already, so nobody takes {', '.join(fit)}."
                )
            logits = logits_of(self.estimator, X, self.response_method)
            return CalibrationRows(
                self.estimator, classes_of(self.estimator, logits.shape[1]), logits
            )
        fitting = Fitting(self.estimator, fit, self.response_method)
        if self.cv is not None:
            folds = checked_folds(self.cv, X, y, self.random_state, units, **split)
            drawn = isinstance(self.cv, int | np.integer)
            return fitting.cross_fit(X, y, folds, self.n_jobs)._replace(is_drawn=drawn)
        holdout = fraction("holdout", self.holdout)
        split_at = split_rows(X, y, holdout, self.random_state, units)
        return fitting.held_out(X, y, *split_at)._replace(is_drawn=True)


@dataclass(frozen=True)
class SelectiveUtility:
    """A scorer: P(accepted and right) - wrong_cost · P(accepted and wrong); a rejected row counts
    nothing.

    An answer is worth giving while its chance to be right is above wrong_cost / (1 + wrong_cost)
    (Chow 1970).

    Examples
    --------
    >>> SelectiveUtility(wrong_cost=9.0)  # an answer must be 90% sure to be worth giving
    SelectiveUtility(wrong_cost=9.0)
    """

    wrong_cost: float = 1.0

    def __call__(
        self,
        classifier: CalibratedClassifier,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """The utility on labelled rows, per row."""
        accept = classifier.accepts(X)
        right = classifier.predict(X) == np.asarray(y)
        gains = np.where(accept, np.where(right, 1.0, -float(self.wrong_cost)), 0.0)
        return float(np.average(gains, weights=validate.row_weights(sample_weight, len(gains))))


def coverage(classifier: CalibratedClassifier, X: Any, y: Any = None) -> float:
    """A scorer: the share of rows that is accepted. It compares classifiers and calibrators under
    one promise.

    Across promises it says nothing: the loosest one always wins.
    """
    return float(classifier.accepts(X).mean())
