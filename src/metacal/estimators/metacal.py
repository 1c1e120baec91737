"""MetaCal: calibrated probabilities and an accept/reject gate with a certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import ClassifierTags
from sklearn.utils.validation import check_is_fitted

from metacal.certificates.notes import Note
from metacal.certification.importance import Importance
from metacal.certification.row_selection import RowSelection, build_row_selection
from metacal.certification.units import Units
from metacal.errors import CombinationError, MissingLabelsError
from metacal.estimators.base import Calibrator, LogitsEstimator, match_array_library
from metacal.estimators.calibrator_factory import make_base_calibrator, make_calibrator
from metacal.estimators.gate_estimator import GateEstimator
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate import (
    Decision,
    DecisionRule,
    Gate,
    LogitsData,
    Recipe,
    Rejected,
    check_logits_gate_options,
)
from metacal.gate.calibrate import calibrate
from metacal.maps.map import Map
from metacal.maps.methods import get_calibration_method
from metacal.promises.positive_class import apply_positive_class
from metacal.promises.promise import Promise
from metacal.rows import Rows, validate
from metacal.rows.executors import ExecutorLike, is_remote
from metacal.scores import Score


@dataclass(frozen=True, eq=False)
class EstimatorMap(Map):
    """Calibration map that calls `predict_proba` of a fitted estimator.

    The estimator reads logits, and its classes are column indices.
    """

    estimator: Any

    preserves_accuracy = False

    def write_probabilities(self, block: Array, out: Array) -> None:
        """Write the probabilities, which are 0 for classes unknown to the estimator."""
        probabilities = np.asarray(self.estimator.predict_proba(block))
        knows_every_class = probabilities.shape[1] == block.shape[1]
        if knows_every_class:
            out[...] = probabilities
            return
        columns_of_known_classes = np.asarray(self.estimator.classes_, dtype=np.intp)
        out[...] = 0.0
        out[:, columns_of_known_classes] = probabilities


class MetaCal(LogitsEstimator, GateEstimator, kw_only=False):
    """Calibrator with a gate that accepts or rejects each row under a promise.

    The gate accepts a row iff its ranking score is at most the threshold that `promise` certifies
    on the calibration rows. `predict_proba` returns the probabilities of the base calibrator for
    accepted and rejected rows. The promise is about the prediction of the uncalibrated classifier,
    the largest logit, which `predict` returns too.

    The score does not depend on labels, so the threshold and the base calibrator both use all rows,
    and the split into tenths of the paper is not needed. The base calibrator is fitted on all rows
    and not only on accepted ones, because a calibrator learns from errors, and accepted rows have
    few.

    Parameters
    ----------
    promise : Promise
        MinAccuracy, MaxMiscoverage, MaxReview, MaxCost, MaxRisk, Cheapest, Both, AfterLooking,
        PerClass or PerGroup, and for two classes MinPrecision, MinRecall, MaxFalsePositiveRate or
        TwoSided. `metacal.paper` has the rules of the paper.
    calibrator : str, estimator or None, default=None
        Base calibrator, by its name on the command line ("spline", "auto", ...), or any estimator
        with `fit` and `predict_proba` on logits. The default is ComposedCalibration(), a monotone
        spline on temperature scaling with a uniform part. It is MonotoneCalibration() for two
        classes, and TemperatureScaling() for the rules of the paper.
    score : str or callable, default="entropy"
        Ranking score; a higher score means a more uncertain row. It is "entropy",
        "max_probability", "margin", "maxlogit_pnorm", "energy", or a function of a block of logits
        that returns one number per row. With "auto", entropy, margin and maxlogit_pnorm share
        delta, and the one that accepts most rows is used.
    reject_label : label or None, default=None
        Prediction for a rejected row. It has the type of the classes and is none of them. The
        default is -1 (0 if the classes are -1 and 1), or "rejected" if the classes are strings.
    input : {"logits", "probabilities"}, default="logits"
        Content of X. It is never guessed from the values.
    classes : sequence or None, default=None
        Labels in column order. If None, they are the column names of a data frame if the labels are
        strings, the two values of the labels if there are two classes, and 0 ... K-1 otherwise. If
        the classes are strings, labels may also be column indices.
    positive : label or None, default=None
        The positive one of two classes, for a promise such as MinPrecision that names none. If X
        has one score per row, a higher score favours this class: X is the result of
        `decision_function`, of shape (n_rows,) or (n_rows, 1), or with input="probabilities" the
        probability of this class. The default is the larger label. Names have no such order, so for
        them it is required.
    decision : {"largest", "calibrated"}, default="largest"
        For two classes, the decision that the promise is about and that `predict` returns:
        the larger logit, or the decision at even calibrated odds. Use "calibrated" if class weights
        or resampling have shifted the logits. It is learned from a tenth of the rows, which then
        certify nothing. `MinPrecision` and `MinRecall` have their own decisions.
    n_jobs : int or None, default=None
        Number of threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    certificate_ : Certificate
        Certificate of the promise, with its confidence level and number of rows.
    threshold_ : float
        Threshold of the gate, which accepts a row iff score <= threshold_.
    gate_ : Gate
        Fitted gate, a frozen value: map, score, threshold, certificate, classes.
    calibrator_ : estimator
        Fitted base calibrator. Its labels are column indices.
    data_hash_ : str
        Fingerprint of the calibration rows: their scores and correctness.

    See Also
    --------
    CalibratedClassifier : Gate around a scikit-learn classifier.
    ScoreGate : Gate on one score per row.
    Cascade : Gate of a small and a large model.
    MinAccuracy : Limit the errors among accepted predictions.

    References
    ----------
    Ma & Blaschko, "Meta-Cal: Well-controlled Post-hoc Calibration by Ranking", ICML 2021.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> (fit_x, fit_y), (new_x, new_y) = data.split(5000, random_state=0)
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y)
    >>> cal.certificate_.statement
    'Accepted predictions are correct at least 97% of the time, with 90% confidence.'
    >>> accept = cal.accepts(new_x)
    >>> bool((cal.predict(new_x)[accept] == new_y[accept]).mean() >= 0.97)
    True
    """

    promise: Promise = None  # type: ignore[assignment]  # fit reports a missing promise
    calibrator: Any = None
    score: str | Score = "entropy"
    reject_label: Any = None
    decision: DecisionRule = "largest"

    calibrator_: Any = field(init=False)

    _supports_device_tables = True

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        units: Units | ArrayLike | None = None,
        importance: Importance | ArrayLike | None = None,
        random_state: int | None = None,
        executor: ExecutorLike | None = None,
    ) -> Self:
        """Certify the threshold and fit the base calibrator.

        Parameters
        ----------
        X : table of shape (n_rows, n_classes)
            Logits or probabilities.
        y : array-like of shape (n_rows,) or None, default=None
            Labels. MaxReview does not need them. Without labels no calibrator is fitted, and the
            probabilities are the softmax of the logits.
        sample_weight : array-like of shape (n_rows,) or None, default=None
            Weights for the base calibrator. The certificate counts each row once.
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row (a hospital, a language), for a promise per group.
        units : array-like of shape (n_rows,), Units or None, default=None
            Cluster of each row: copies, frames of one video, visits of one patient. One row of each
            cluster, drawn at random, counts for the certificate, and the promise is about such a
            row. `Units(names, per="row")` counts every row and promises about rows. The calibrator
            uses all rows.
        importance : array-like of shape (n_rows,), Importance or None, default=None
            Importance weight of each row, for a known label or covariate shift: how much more
            frequent such a row is in the target distribution than here, up to a factor. Rows are
            sampled in proportion, and the promise is about the target distribution. It is certified
            if you declare the largest possible weight, `Importance(weights, largest=...)`, and
            approximate otherwise.
        random_state : int or None, default=None
            Seed of these two draws. By default it is derived from the rows, so that the same rows
            always give the same certificate. A seed that you pass is recorded in the certificate.
            It is not valid to try several seeds and keep the best certificate: the promise is then
            violated more often than delta allows.
        executor : concurrent.futures.Executor or distributed.Client or None, default=None
            Executor of the work on blocks of the table, in place of `n_jobs` threads: a process
            pool, or a Dask client. For a table that stays in its files (`read_predictions`), only
            descriptions are sent, never rows. It never changes the result.

        Returns
        -------
        self
        """
        check_logits_gate_options(self.promise, self.score, self.input, self.decision)
        if is_remote(executor):
            self._check_calibrator_fits_on_cluster()
        with self._open_rows(X, reset=True, defer_validation=True, executor=executor) as rows:
            selection = build_row_selection(len(rows), units, importance, random_state)
            if y is None and not self.promise.needs_labels:
                return self._fit_unlabelled(rows, selection)
            codes = self._read_labels(y, rows.table)
            weights = validate.check_row_weights(sample_weight, len(rows))
            return self._fit_validated_rows(
                rows, codes, weights=weights, selection=selection, groups=groups
            )

    def fit_codes(
        self,
        X: ArrayLike,
        codes: Codes,
        *,
        class_names: Array | None = None,
        weights: Float | None = None,
        selection: RowSelection | None = None,
        groups: ArrayLike | None = None,
        notes: Sequence[Note] = (),
        skipped_checks: tuple[str, ...] = (),
    ) -> Self:
        """Certify the threshold and fit the calibrator on labels that are column indices.

        Parameters
        ----------
        X : table of shape (n_rows, n_classes)
            Logits or probabilities.
        codes : array of int of shape (n_rows,)
            Column of each label. -1 is a label without a column, so that the prediction is always
            incorrect.
        class_names : array of shape (n_classes,) or None, default=None
            Labels in column order, which replace the parameter `classes`.
        weights : array of shape (n_rows,) or None, default=None
            Weights for the base calibrator.
        selection : RowSelection or None, default=None
            Rows that count for the certificate.
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row.
        notes : sequence of Note, default=()
            Notes on the rows for the certificate.
        skipped_checks : tuple of str, default=()
            Kinds of the notes on the rows that the caller has checked itself.

        Returns
        -------
        self
        """
        with self._open_rows(X, reset=True, defer_validation=True) as rows:
            if class_names is None:
                self.classes_ = validate.check_classes(self.classes, rows.n_classes)
            else:
                self.classes = class_names.tolist()
                self.classes_ = class_names
            return self._fit_validated_rows(
                rows,
                codes,
                weights=weights,
                selection=selection,
                groups=groups,
                notes=notes,
                skipped_checks=skipped_checks,
            )

    def _fit_unlabelled(self, rows: Rows, selection: RowSelection | None) -> Self:
        """Fit a gate without labels, which uses the softmax of the logits as probabilities."""
        if self.calibrator is not None:
            raise MissingLabelsError(
                "A calibrator requires labels, but y is missing. Pass y, or leave out the"
                " calibrator."
            )
        self.classes_ = validate.check_classes(self.classes, rows.n_classes)
        # Without labels, `_fit_validated_rows` sets the map of this calibrator to the softmax.
        self.calibrator_ = make_calibrator("temperature")
        self.calibrator_.classes_ = np.arange(rows.n_classes)
        self.calibrator_.n_features_in_ = rows.n_classes
        return self._fit_validated_rows(rows, None, selection=selection)

    def _fit_validated_rows(
        self,
        rows: Rows,
        codes: Codes | None,
        *,
        weights: Float | None = None,
        selection: RowSelection | None = None,
        groups: ArrayLike | None = None,
        notes: Sequence[Note] = (),
        skipped_checks: tuple[str, ...] = (),
    ) -> Self:
        """Fit the gate on validated rows.

        The parameters are those of `fit_codes`.
        """
        promise = apply_positive_class(
            self.promise, self.positive, positive_is_class_of_high_scores=self._has_one_score
        )
        data = LogitsData(
            rows=rows,
            labels=codes,
            score=self.score,
            fit_map=self._fit_base_map,
            fit_map_without_side_effects=self._refit_base_map,
            allow_softmax_fallback=self.calibrator is None,
            class_names=self.classes_,
            has_class_names=self._has_class_names,
            input=self.input,
            decision=self.decision,
            reject_label=self.reject_label,
            weights=weights,
            selection=selection,
            groups=groups,
            notes=notes,
            skipped_checks=skipped_checks,
        )
        gate = calibrate(data, promise)
        recipe = None
        if self.calibrator is not None:
            recipe = _describe_calibrator(self.calibrator_)
        elif isinstance(self.calibrator_, Calibrator):
            # If the default map does not help, `calibrate` replaces it by the softmax.
            self.calibrator_.map_ = gate.logits_source.map
        self.gate_ = gate.with_source(recipe=recipe)
        return self

    def __sklearn_tags__(self) -> Any:
        """Return the tags of a classifier.

        `ClassifierMixin` cannot provide them, because it has a method `score`, and here `score` is
        a parameter.
        """
        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier"
        tags.classifier_tags = ClassifierTags()
        return tags

    @property
    def map_(self) -> Gate:
        """Gate as a map to calibrated probabilities."""
        check_is_fitted(self)
        return self.gate_

    @property
    def data_hash_(self) -> str | None:
        """Fingerprint of the scores and the correctness of the calibration rows."""
        check_is_fitted(self)
        return self.gate_.data_hash

    @match_array_library
    def ranking_scores(self, X: ArrayLike) -> Float:
        """Return the ranking score of each row. A higher score means more uncertainty."""
        with self._open_rows(X, reset=False, defer_validation=True) as rows:
            return self.gate_.uncertainty_scores(rows)

    @match_array_library
    def accepts(self, X: ArrayLike, *, groups: ArrayLike | None = None) -> Flags:
        """Return whether each row is accepted.

        Parameters
        ----------
        X : table of shape (n_rows, n_classes)
            Logits or probabilities.
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row, for a promise per group.

        Returns
        -------
        array of bool of shape (n_rows,)
        """
        with self._open_rows(X, reset=False, defer_validation=True) as rows:
            return self.gate_.accepts(rows, groups)

    @match_array_library
    def predict_proba(
        self,
        X: ArrayLike,
        *,
        out: Array | None = None,
        groups: ArrayLike | None = None,
        rejected: Rejected | None = None,
    ) -> Array:
        """Return calibrated probabilities of accepted and rejected rows.

        Parameters
        ----------
        X : table of shape (n_rows, n_classes)
            Logits or probabilities.
        out : array or None, default=None
            Array of the shape and dtype of the result, which is written to and returned.
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row, for a promise per group. Only `rejected="uniform"` needs it.
        rejected : {"calibrated", "uniform"} or None, default=None
            Probabilities of rejected rows: calibrated too, or 1/K in every class as in the paper.
            None is "calibrated", and "uniform" for the rules of `metacal.paper`.

        Returns
        -------
        array of shape (n_rows, n_classes)
            It has the dtype of X and is on its device.
        """
        defer_validation = self._can_validate_while_mapping(X)
        with self._open_rows(X, reset=False, defer_validation=defer_validation) as rows:
            if out is not None:
                out = validate.get_probability_buffer(rows.table, out)
            return self.gate_(rows.table, rows=rows, out=out, groups=groups, rejected=rejected)

    @match_array_library
    def predict(self, X: ArrayLike, *, groups: ArrayLike | None = None) -> Array:
        """Return the class of the largest logit, and `reject_label` for rejected rows."""
        with self._open_rows(X, reset=False) as rows:
            decision = self.gate_.decide(rows, probabilities=False, groups=groups)
            return decision.label  # type: ignore[return-value]

    def decide(
        self, X: ArrayLike, *, rejected: Rejected | None = None, groups: ArrayLike | None = None
    ) -> Decision:
        """Return the predictions, decisions, scores and probabilities of all rows.

        Parameters
        ----------
        X : table of shape (n_rows, n_classes)
            Logits or probabilities.
        rejected : {"calibrated", "uniform"} or None, default=None
            Probabilities of rejected rows, as in `predict_proba`.
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row, for a promise per group.

        Returns
        -------
        Decision
        """
        with self._open_rows(X, reset=False) as rows:
            return self.gate_.decide(rows, rejected=rejected, groups=groups)

    def _refit_base_map(self, rows: Rows, codes: Codes, weights: Float | None) -> Map:
        """Fit a new base calibrator, and return its map without storing the calibrator."""
        calibrator = make_base_calibrator(self.calibrator, self.promise, rows.n_classes)
        return calibrator.fit_rows(rows, codes, weights).map_

    def _check_calibrator_fits_on_cluster(self) -> None:
        """Raise InputError if the base calibrator cannot be fitted on a cluster."""
        calibrator = make_base_calibrator(self.calibrator, self.promise)
        if not isinstance(calibrator, Calibrator):
            raise CombinationError(
                f"{type(calibrator).__name__} requires all rows in one process, so it does not"
                " support an executor. Leave out the executor, or use one of metacal's"
                " calibrators."
            )
        get_calibration_method(type(calibrator)).check_fits_on_cluster()

    def _fit_base_map(self, rows: Rows, codes: Codes, weights: Float | None) -> Map:
        """Fit and store the base calibrator, and return its map."""
        calibrator = make_base_calibrator(self.calibrator, self.promise, rows.n_classes)
        fits_on_device = isinstance(calibrator, Calibrator) and calibrator._supports_device_tables
        if rows.is_on_device and not fits_on_device:
            rows = rows.to_host()
            codes = validate.to_numpy(codes)
        if isinstance(calibrator, Calibrator):
            self.calibrator_ = calibrator.fit_rows(rows, codes, weights)
            return calibrator.map_
        # Another package needs an array, and indexing reads a stored table into memory.
        logits = rows.table[:] if rows.row_mask is None else rows.table[rows.row_mask]
        fit_params = {}
        if weights is not None:
            fit_params["sample_weight"] = weights
        self.calibrator_ = calibrator.fit(logits, codes, **fit_params)
        return EstimatorMap(self.calibrator_)


def _describe_calibrator(calibrator: Any) -> Recipe:
    """Return the class name and the parameters of any calibrator, to save them with the gate."""
    if isinstance(calibrator, Calibrator):
        return calibrator.recipe()
    return Recipe(type(calibrator).__name__, calibrator.get_params(deep=False))
