"""Classifier with calibrated probabilities and an accept/reject gate."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, MetaEstimatorMixin
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping
from sklearn.utils.validation import check_is_fitted

from metacal.certificates.certificate import Certificate
from metacal.certificates.notes import Note
from metacal.certification.row_selection import build_row_selection
from metacal.certification.units import Units
from metacal.errors import MissingGateError, WeightsError
from metacal.estimators.base import Calibrator
from metacal.estimators.calibrator_factory import make_base_calibrator
from metacal.estimators.classifier_checks import (
    check_classifier_parameters,
    check_features_and_labels,
    choose_skipped_checks,
    make_group_keywords,
)
from metacal.estimators.crossfit import ClassifierFitResult, ClassifierFitter, record_classifier_fit
from metacal.estimators.fit_params import (
    RoutedParams,
    check_frozen_classifier_options,
    route_fit_params,
)
from metacal.estimators.frozen import check_frozen_classifier, is_frozen, score_frozen_classifier
from metacal.estimators.gate_estimator import DataclassEstimator
from metacal.estimators.metacal import MetaCal
from metacal.estimators.responses import UNKNOWN_LABEL_CODE, encode_labels, get_classifier_logits
from metacal.estimators.row_division import draw_calibration_rows, make_folds, select_rows
from metacal.estimators.scorers import SelectiveUtility
from metacal.estimators.scorers import coverage as coverage
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate import Decision, DecisionRule, Rejected
from metacal.gate.find_gate import find_gate
from metacal.promises.promise import Promise
from metacal.rows import validate
from metacal.rows.arrays import check_fraction
from metacal.rows.labels import check_reject_label
from metacal.rows.plausibility import skip_plausibility_checks
from metacal.scores import Score


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, DataclassEstimator, kw_only=False):
    """Classifier with calibrated probabilities and an optional accept/reject gate.

    Without a promise, there is no gate, and nothing is rejected.

    As in scikit-learn, `fit` clones the classifier and fits the clone, also if the classifier was
    fitted before. The clone is fitted on a part of the rows that is then not used for calibration,
    and the certificate is exact. With `cv`, every row serves both purposes, and the certificate is
    marked as approximate. To calibrate a classifier that is already fitted, wrap it in
    scikit-learn's FrozenEstimator, and pass rows that it has not seen.

    Labels are of any type: strings, booleans, pandas categories or numbers. Promises name the
    classes by them, `predict` returns them, and saved gates contain them.

    Parameters
    ----------
    estimator : classifier
        Classifier with `predict_proba` or `decision_function`. `FrozenEstimator(classifier)`, and
        an object that scikit-learn cannot clone and fit, is used as it is.
    promise : Promise or None, default=None
        Promise of the gate. With None, the probabilities are calibrated and nothing is rejected.

        - About accepted rows: MinAccuracy, MaxCost, MaxRisk, Cheapest.
        - About rejected rows: MaxMiscoverage, MaxReview.
        - Several at once, or after looking at the rows: Both, AfterLooking.
        - For each predicted class or group: PerClass, PerGroup.
        - About one of two classes: MinPrecision, MinRecall, MaxFalsePositiveRate, TwoSided.

        `metacal.paper` has the rules of the paper. `MaxLoss` is for a `Cascade`.
    calibrator : str, estimator or None, default=None
        Base calibrator on logits, by its name on the command line or as an estimator. The default
        is that of `MetaCal`.
    ranking : str or callable, default="entropy"
        Ranking score, the parameter `score` of `MetaCal`. It has another name because `score` is a
        method of a classifier.
    reject_label : label or None, default=None
        Prediction for a rejected row. It has the type of the classes and is none of them. The
        default is -1 (0 if the classes are -1 and 1), or "rejected" if the classes are strings.
    positive : label or None, default=None
        The positive one of two classes, for a promise such as MinPrecision that names none. The
        default is the larger label. Names have no such order, so for them it is required, here or
        in the promise.
    decision : {"largest", "calibrated"}, default="largest"
        For two classes, the decision that the promise is about and that `predict` returns, as in
        `MetaCal`: the larger logit, or the decision at even calibrated odds.
    response_method : {"auto", "predict_proba", "decision_function"}, default="auto"
        Method of the classifier that gives the logits: the logarithms of the probabilities, or the
        decision values (for two classes, [0, s]). "auto" uses `predict_proba` if it exists.
    holdout : float, default=0.3
        Fraction of the rows for calibration. A frozen classifier uses all rows.
    cv : int, splitter or None, default=None
        Cross-fitting instead of `holdout`. Each row is scored by a classifier fitted without its
        fold, the threshold and the calibrator come from these scores, and the classifier in use is
        fitted on all rows.
    random_state : int or None, default=None
        Seed of the split, of the folds if `cv` is a number, and of the draw of one row per cluster.
        By default it is derived from X and y. A seed that you pass is recorded in the certificate.
    n_jobs : int or None, default=None
        Number of threads for folds and calibration.

    Attributes
    ----------
    estimator_ : classifier
        Fitted classifier.
    classes_ : array of shape (n_classes,)
        Classes.
    calibrator_ : MetaCal or calibrator
        Fitted gate, or the calibrator if there is no promise.
    gate_ : MetaCal or calibrator
        The same object, if `mc.save` can save it.
    certificate_ : Certificate
        Certificate of the promise, if there is one.

    See Also
    --------
    MetaCal : Gate and calibrator on the logits of a classifier.
    ScoreGate : Gate on one score per row.
    compare : Compare calibrators by cross-validation.

    Notes
    -----
    The promise and `predict` are about the largest logit. For a few classifiers, such as an SVC
    with more than two classes, the method `predict` of the classifier sometimes differs from it.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.utils import shuffle
    >>> import metacal as mc
    >>> X, y = shuffle(*load_digits(return_X_y=True), random_state=0)  # sorted by writer
    >>> classifier = LogisticRegression(max_iter=5000)
    >>> gate = mc.CalibratedClassifier(classifier, mc.MinAccuracy(0.95), random_state=0)
    >>> gate = gate.fit(X[:1300], y[:1300])
    >>> accept = gate.accepts(X[1300:])
    >>> bool((gate.predict(X[1300:])[accept] == y[1300:][accept]).mean() >= 0.95)
    True

    Two classes with names, and a classifier that is already fitted:

    >>> from sklearn.frozen import FrozenEstimator
    >>> size = np.where(y < 5, "small", "large")
    >>> fitted = LogisticRegression(max_iter=5000).fit(X[:700], size[:700])
    >>> promise = mc.MinPrecision(0.9, positive="small")
    >>> gate = mc.CalibratedClassifier(FrozenEstimator(fitted), promise)
    >>> gate.fit(X[700:1300], size[700:1300]).certificate_.statement
    'At least 90% of the rows predicted small are small, with 90% confidence.'
    """

    estimator: Any
    promise: Promise | None = None
    _: KW_ONLY
    calibrator: Any = None
    ranking: str | Score = "entropy"
    reject_label: Any = None
    positive: Any = None
    decision: DecisionRule = "largest"
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
        """Fit a clone of the classifier unless it is frozen, and calibrate it.

        Parameters
        ----------
        X : array-like
            Features.
        y : array-like of shape (n_rows,)
            Labels.
        sample_weight : array-like of shape (n_rows,) or None, default=None
            Weights for the calibrator and for the `fit` of the classifier, if that accepts them
            (with scikit-learn's metadata routing, if it requests them). The certificate counts each
            row once, because its binomial test is about independent rows, and a weight does not
            turn one row into several.
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row, for a promise per group.
        units : array-like of shape (n_rows,), Units or None, default=None
            Cluster of each row: copies, or visits of one patient. A cluster is never divided
            between fitting and calibration, nor between folds. One row of each counts for the
            certificate, or every row with `Units(names, per="row")`.
        **fit_params
            Parameters of the `fit` of the classifier.

        Returns
        -------
        self
        """
        X, y = check_features_and_labels(X, y)
        check_classifier_parameters(self, y, groups)
        weights = validate.check_row_weights(sample_weight, len(y))
        clusters = None if units is None else Units.from_units_argument(units)
        cluster_codes = None if clusters is None else clusters.encode_names(len(y))
        routed_params = route_fit_params(self, weights, fit_params)
        fit_result = self._fit_classifier(X, y, routed_params, cluster_codes)
        calibration_rows = fit_result.calibration_rows
        if calibration_rows is not None:
            y = y[calibration_rows]
            weights = select_rows(weights, calibration_rows)
            cluster_codes = select_rows(cluster_codes, calibration_rows)
            groups = select_rows(groups, calibration_rows)
        if weights is not None and not (weights > 0.0).any():
            raise WeightsError(
                "sample_weight is zero for every calibration row. Use more rows, or pass another"
                " random_state."
            )
        self._set_classifier(fit_result)
        codes = encode_labels(y, self.classes_)
        notes = []
        if is_frozen(self.estimator):
            notes = check_frozen_classifier(fit_result.calibration_logits, codes)
        if clusters is not None and cluster_codes is not None:
            clusters = replace(clusters, names=cluster_codes)
        with skip_plausibility_checks():
            if self.promise is None:
                self._fit_calibrator(fit_result.calibration_logits, codes, weights)
            else:
                checks = choose_skipped_checks(X, calibration_rows)
                self._fit_gate(fit_result, codes, weights, clusters, groups, notes, checks)
        return self

    def _set_classifier(self, fit_result: ClassifierFitResult) -> None:
        """Store the fitted classifier, its classes and its features."""
        self.estimator_ = fit_result.classifier
        self.classes_ = fit_result.classes
        for attribute_name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, attribute_name):
                setattr(self, attribute_name, getattr(self.estimator_, attribute_name))

    def _fit_calibrator(self, logits: Array, codes: Codes, weights: Float | None) -> None:
        """Fit the calibrator alone, because there is no promise for a gate."""
        n_classes = logits.shape[1]
        self.calibrator_ = make_base_calibrator(self.calibrator, promise=None, n_classes=n_classes)
        # A calibrator cannot learn from labels that the classifier does not know.
        has_known_label = codes != UNKNOWN_LABEL_CODE
        fit_params = {}
        if weights is not None:
            fit_params["sample_weight"] = weights[has_known_label]
        self.calibrator_.fit(logits[has_known_label], codes[has_known_label], **fit_params)
        # A calibrator of another package keeps column indices as its classes.
        if isinstance(self.calibrator_, Calibrator):
            self.calibrator_.classes = self.classes_.tolist()
            self.calibrator_.classes_ = self.classes_

    def _fit_gate(
        self,
        fit_result: ClassifierFitResult,
        codes: Codes,
        weights: Float | None,
        clusters: Units | None,
        groups: Any,
        notes: Sequence[Note],
        skipped_checks: tuple[str, ...],
    ) -> None:
        """Certify and fit the gate on the logits of the calibration rows.

        Parameters
        ----------
        fit_result : ClassifierFitResult
            Logits of the calibration rows.
        codes : array of int of shape (n_rows,)
            Column of each label, or -1.
        weights : array of shape (n_rows,) or None
            Weight of each row.
        clusters : Units or None
            Cluster of each row.
        groups : array of shape (n_rows,) or None
            Group of each row.
        notes : sequence of Note
            Notes on the rows for the certificate.
        skipped_checks : tuple of str
            Kinds of the notes that need no further check.
        """
        assert self.promise is not None
        self.calibrator_ = MetaCal(
            self.promise,
            self.calibrator,
            score=self.ranking,
            reject_label=check_reject_label(self.reject_label, self.classes_),
            positive=self.positive,
            decision=self.decision,
            n_jobs=self.n_jobs,
        )
        self.calibrator_.fit_codes(
            fit_result.calibration_logits,
            codes,
            class_names=self.classes_,
            weights=weights,
            selection=build_row_selection(len(codes), clusters, random_state=self.random_state),
            groups=groups,
            notes=notes,
            skipped_checks=skipped_checks,
        )
        certificate = record_classifier_fit(
            self.calibrator_.certificate_, fit_result, self.random_state
        )
        self.calibrator_.gate_ = replace(self.calibrator_.gate_, certificate=certificate)

    @property
    def certificate_(self) -> Certificate:
        """Certificate of the promise."""
        check_is_fitted(self)
        if self.promise is None:
            raise AttributeError(
                "This CalibratedClassifier has no certificate_, because it was fitted without a"
                " promise. Pass a promise."
            )
        certificate: Certificate = self.calibrator_.certificate_
        return certificate

    @property
    def gate_(self) -> Any:
        """Fitted MetaCal or calibrator for the logits of the classifier.

        It has the labels of the classifier, but not the classifier itself, so `mc.save` can save
        it. `gate_.predict(clf.logits(X))` equals `clf.predict(X)`.
        """
        check_is_fitted(self)
        if not isinstance(self.calibrator_, MetaCal | Calibrator):
            class_name = type(self.calibrator_).__name__
            raise MissingGateError(
                "This CalibratedClassifier has no gate, because it was fitted without a promise"
                f" and its calibrator {class_name} is not one of metacal's. Pass a promise, or"
                " use one of metacal's calibrators."
            )
        return self.calibrator_

    def logits(self, X: Any) -> Array:
        """Return the logits of the classifier, in the order of `classes_`."""
        check_is_fitted(self)
        return get_classifier_logits(self.estimator_, X, self.response_method)

    def predict_proba(
        self, X: Any, *, groups: Any = None, rejected: Rejected | None = None
    ) -> Array:
        """Return calibrated probabilities of accepted and rejected rows.

        Parameters
        ----------
        X : array-like
            Features.
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row, for a promise per group. Only `rejected="uniform"` needs it.
        rejected : {"calibrated", "uniform"} or None, default=None
            Probabilities of rejected rows: calibrated too, or 1/K in every class as in the paper.
            None is "calibrated", and "uniform" for the rules of `metacal.paper`. Without a promise,
            no row is rejected.

        Returns
        -------
        array of shape (n_rows, n_classes)
        """
        logits = self.logits(X)
        predict_keywords = make_group_keywords(groups)
        if self.promise is not None:
            predict_keywords["rejected"] = rejected
        return np.asarray(self.calibrator_.predict_proba(logits, **predict_keywords))

    def decide(self, X: Any, *, rejected: Rejected | None = None, groups: Any = None) -> Decision:
        """Return the predictions, decisions, scores and probabilities of all rows.

        Without a promise, every row is accepted.

        Parameters
        ----------
        X : array-like
            Features.
        rejected : {"calibrated", "uniform"} or None, default=None
            Probabilities of rejected rows, as in `predict_proba`.
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row, for a promise per group.

        Returns
        -------
        Decision
        """
        logits = self.logits(X)
        return find_gate(self).decide(logits, rejected=rejected, groups=groups)

    def accepts(self, X: Any, *, groups: Any = None) -> Flags:
        """Return whether each row is accepted. Without a promise, every row is accepted.

        For a pipeline, use `mc.accepts(pipeline, X)`.
        """
        logits = self.logits(X)
        if self.promise is None:
            return np.ones(len(logits), dtype=bool)
        return np.asarray(self.calibrator_.accepts(logits, groups=groups))

    def predict(self, X: Any, *, groups: Any = None) -> Array:
        """Return the class of each accepted row, and `reject_label` for rejected rows."""
        logits = self.logits(X)
        predictions = self.calibrator_.predict(logits, **make_group_keywords(groups))
        if not isinstance(self.calibrator_, MetaCal | Calibrator):
            # A calibrator of another package predicts column indices instead of classes.
            predictions = self.classes_[predictions]
        return np.asarray(predictions)

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the gate as JSON, without the classifier.

        `metacal.load(path).predict(clf.logits(X))` then equals `clf.predict(X)`.
        """
        self.gate_.save(path, **options)

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return P(accepted and correct) - P(accepted and incorrect).

        Without a promise, this is the accuracy. A rejected row counts 0, an incorrect prediction as
        much as a correct one. A search over promises maximises this score by default. Use
        `SelectiveUtility(wrong_cost)` to weight errors, and `coverage` to compare gates with the
        same promise.
        """
        if self.promise is None:
            return float(super().score(X, y, sample_weight))
        return SelectiveUtility()(self, X, y, sample_weight)

    def get_metadata_routing(self) -> Any:
        """Return the metadata router."""
        fit_mapping = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=self).add_self_request(self)
        router.add(estimator=self.estimator, method_mapping=fit_mapping)
        if hasattr(self.cv, "split"):
            split_mapping = MethodMapping().add(caller="fit", callee="split")
            router.add(splitter=self.cv, method_mapping=split_mapping)
        return router

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        estimator_tags = get_tags(self.estimator).input_tags
        tags.input_tags.sparse = estimator_tags.sparse
        tags.input_tags.allow_nan = estimator_tags.allow_nan
        return tags

    def _fit_classifier(
        self, X: Any, y: Array, routed_params: RoutedParams, cluster_codes: Codes | None
    ) -> ClassifierFitResult:
        """Fit the classifier unless frozen, and compute logits of calibration rows.

        Parameters
        ----------
        X : array-like
            Features.
        y : array of shape (n_rows,)
            Labels.
        routed_params : RoutedParams
            Parameters of the `fit` of the classifier and of the splitter.
        cluster_codes : array of int or None
            Cluster of each row.

        Returns
        -------
        ClassifierFitResult
        """
        if is_frozen(self.estimator):
            check_frozen_classifier_options(self.cv, routed_params)
            return score_frozen_classifier(self.estimator, X, self.response_method)
        fitter = ClassifierFitter(self.estimator, routed_params.fit, self.response_method)
        if self.cv is not None:
            folds = make_folds(
                self.cv, X, y, self.random_state, cluster_codes, **routed_params.split
            )
            fit_result = fitter.cross_fit(X, y, folds, self.n_jobs)
            folds_are_drawn = isinstance(self.cv, int | np.integer)
            return replace(fit_result, uses_random_state=folds_are_drawn)
        holdout = check_fraction("holdout", self.holdout)
        fit_rows, calibration_rows = draw_calibration_rows(
            X, y, holdout, self.random_state, cluster_codes
        )
        fit_result = fitter.fit_held_out(X, y, fit_rows, calibration_rows)
        return replace(fit_result, uses_random_state=True)
