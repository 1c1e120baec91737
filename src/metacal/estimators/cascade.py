"""Cascade of a small model and a large model, certified under one promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, field
from typing import Any, Self

import numpy as np
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from metacal.errors import CascadeError, InputError, MissingLabelsError
from metacal.estimators.base import Calibrator
from metacal.estimators.calibrator_factory import make_base_calibrator
from metacal.estimators.gate_estimator import GateEstimator
from metacal.estimators.responses import RESPONSE_METHODS, get_classifier_logits
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate import Decision, LogitsCascadeData, ScoreCascadeData
from metacal.gate.calibrate import calibrate
from metacal.gate.judged import find_gate_and_stage_inputs
from metacal.gate.logits_cascade_data import find_rows_to_label
from metacal.gate.ranking_score import check_score
from metacal.gate.score_source import HigherIs
from metacal.maps.map import Map
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.bad_answer_limit import suggest_label_count
from metacal.promises.cascade import MaxLoss
from metacal.promises.cascade_candidates import CascadePlan
from metacal.promises.cascade_tests import check_cascade_promise
from metacal.promises.promise import Promise
from metacal.rows import Rows, open_executor, validate
from metacal.rows.draws import RowDraws
from metacal.scores import Score, score_rows

#: Default promise: at most 1% more incorrect answers than the large model alone would give.
DEFAULT_PROMISE = MaxLoss(0.01)
#: Error message for each parameter that other gates accept and a cascade does not.
_MESSAGE_BY_UNSUPPORTED_PARAMETER = {
    "groups": (
        "A cascade has the same thresholds for all rows, so it does not support groups. Fit one"
        " Cascade on the rows of each group."
    ),
    "units": (
        "A cascade counts every row separately, so it does not support units. Pass one random"
        " row of each cluster."
    ),
    "importance": (
        "A cascade does not support importance, because its promise covers the source of the"
        " calibration rows. Pass labelled rows of the new source."
    ),
}


class Cascade(GateEstimator, kw_only=False):
    """Cascade of a small and a large model under one promise.

    The small model answers the rows that its gate accepts, and the large model answers the rest.
    With `MaxLoss(0.01)`, the default, at most 1% more of all answers are incorrect than if the
    large model answered alone. Labels are needed only for rows on which the two models disagree.
    With `MinAccuracy(0.95)`, the answers of the cascade are correct at least 95% of the time, and
    people review the rows that neither model accepts.

    Parameters
    ----------
    small, large : fitted classifier, callable or None, default=None
        Models that return logits for the rows of X: classifiers with `predict_proba` or
        `decision_function`, or functions. The large model is called only for rows that the small
        one does not answer. If both are None, X is the table of the small model, and the parameter
        `large` of each method is the table of the large one.
    promise : MaxLoss or MinAccuracy, default=MaxLoss(0.01)
        Promise to certify.
    calibrator : str, calibrator or None, default=None
        Calibrator of each model, by name or as an estimator. The default is that of `MetaCal`.
    score : str or callable, default="entropy"
        Ranking score of the small model.
    large_score : str, callable or None, default=None
        Ranking score of the large model. The default is `score`.
    people : bool or None, default=None
        Whether people review the rows that neither model accepts. The default is True for
        MinAccuracy. It is never so for MaxLoss.
    review_cost : float, default=10.0
        Cost of a review, in calls of the large model.
    reject_label : label or None, default=None
        Prediction for a row that goes to review. The default is -1 (0 if the classes are -1 and 1),
        or "rejected" if the classes are strings.
    input : {"logits", "probabilities"}, default="logits"
        Content of the tables, if `small` and `large` are None or functions.
    classes : sequence or None, default=None
        Labels in column order. The default is the classes of the classifiers, or 0 ... K-1.
    random_state : int or None, default=None
        Seed of the draw of the pilot rows, which choose the thresholds. By default it is derived
        from the scores. A seed that you pass is recorded in the certificate.
    n_jobs : int or None, default=None
        Number of threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    gate_ : Gate
        Fitted gate, a frozen value with two stages.
    certificate_ : Certificate
        Certificate of the promise, with its confidence level and counts.
    classes_ : array of shape (n_classes,)
        Labels in column order.

    See Also
    --------
    MetaCal : Gate and calibrator on the logits of a classifier.
    MaxLoss : Limit the accuracy that a cascade loses.
    MinAccuracy : Limit the errors among accepted predictions.

    Examples
    --------
    >>> import metacal as mc
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(5, size=3000)
    >>> small, large = (rng.normal(size=(3000, 5)) + gap * np.eye(5)[y] for gap in (3.0, 4.0))
    >>> cascade = mc.Cascade(promise=mc.MaxLoss(0.02))
    >>> cascade = cascade.fit(small[:2000], y[:2000], large=large[:2000])
    >>> cascade.certificate_.statement
    'Of all answers at most 2% more are incorrect than if the large model answered alone, with 90% confidence.'
    >>> needs_large = cascade.needs_large(small[2000:])  # run the large model on these rows only
    >>> decision = cascade.decide(small[2000:], large=large[2000:][needs_large])
    >>> large_accuracy = (large[2000:].argmax(axis=1) == y[2000:]).mean()
    >>> bool((decision.label == y[2000:]).mean() > large_accuracy - 0.02)
    True
    """

    small: Any = None
    large: Any = None
    promise: Promise = field(default_factory=lambda: DEFAULT_PROMISE)
    _: KW_ONLY
    calibrator: Any = None
    score: str | Score = "entropy"
    large_score: str | Score | None = None
    people: bool | None = None
    review_cost: float = 10.0
    reject_label: Any = None
    input: str = "logits"
    classes: Sequence[Any] | None = None
    random_state: int | None = None
    n_jobs: int | None = None

    classes_: Array = field(init=False)

    def __post_init__(self) -> None:
        # A promise may be the first argument in place of a model, as in Cascade(MaxLoss(0.01)).
        if isinstance(self.small, Promise):
            self.promise = self.small
            self.small = None

    def fit(
        self,
        X: Any = None,
        y: Any = None,
        large: Any = None,
        *,
        scores: Sequence[Any] | None = None,
        agrees: Any = None,
        correct: Any = None,
        costs: Sequence[float] | None = None,
        pool: bool = False,
        joint_risk: bool = False,
        higher_is: HigherIs = "surer",
        thresholds_from: Any = None,
        groups: Any = None,
        units: Any = None,
        importance: Any = None,
    ) -> Self:
        """Certify the thresholds and calibrate both models on held-out rows.

        There are two kinds of cascades. Over tables, two models have logits, and y has labels. Over
        scores, any number of models has one score per row, and `agrees` or `correct` has flags.

        Parameters
        ----------
        X : table, list of score columns, or None, default=None
            Rows, or the table of the small model. A list or a single column is used as `scores`.
        y : array-like of shape (n_rows,) or None, default=None
            Labels. With MaxLoss, the labels of rows on which the models agree may be missing (None,
            NaN, "" or -1). `labels_needed` returns the rows that need one.
        large : table or None, default=None
            Table of the large model, if the cascade has no models.
        scores : sequence of columns or None, default=None
            Score of each model.
        agrees : array-like or None, default=None
            For MaxLoss over scores: whether each model but the last gives the answer of the last
            model; None if unknown. It is not valid to pass `correct` instead, because two incorrect
            answers may differ.
        correct : array-like or None, default=None
            For MinAccuracy over scores, or with `people=True`: whether each model is correct.
        costs : sequence of float or None, default=None
            Cost of a call of each model, over scores.
        pool : bool, default=False
            Whether the promise is about these rows, of which those with a flag were drawn at
            random.
        joint_risk : bool, default=False
            Whether to estimate the risk of an answer from the scores of all models so far. It helps
            if the rows that one model leaves are harder for the next one than its own score
            suggests, see `metacal.promises.staged_cascade`.
        higher_is : {"surer", "doubtful"}, default="surer"
            Meaning of a higher score.
        thresholds_from : table or None, default=None
            Further unlabelled rows like X, as pilot rows to choose the thresholds. By default a
            part of X is used, which is then not tested.
        groups, units, importance
            Not supported. Passing one raises an error that explains what to do instead.

        Returns
        -------
        self
        """
        promise = check_cascade_promise(self.promise)
        unsupported_columns = {"groups": groups, "units": units, "importance": importance}
        for parameter_name, column in unsupported_columns.items():
            if column is not None:
                raise CascadeError(_MESSAGE_BY_UNSUPPORTED_PARAMETER[parameter_name])
        score_columns = self._collect_score_columns(X, large, scores)
        if score_columns is None:
            if agrees is not None or correct is not None:
                raise CascadeError(
                    "The models have tables of logits, but agrees and correct require scores."
                    " Pass labels: fit(small, y, large=large)."
                )
            return self._fit_tables(X, y, large, promise, thresholds_from)
        if y is not None:
            raise CascadeError(
                "y requires tables of logits, but the models have scores. Pass agrees=..."
                " (whether each model agrees with the last one) or correct=... (whether each"
                " model is correct)."
            )
        data = ScoreCascadeData(
            scores=score_columns,
            agrees=agrees,
            correct=correct,
            costs=costs,
            higher_is=higher_is,
            people=self._has_human_review,
            pool=pool,
            random_state=self.random_state,
            joint_risk=joint_risk,
        )
        self.gate_ = calibrate(data, promise)
        return self

    def _collect_score_columns(self, X: Any, large: Any, scores: Sequence[Any] | None) -> Any:
        """Return one column of scores per model, or None if X is no list or column of scores."""
        if scores is not None:
            return scores
        models_have_logits = self.small is not None or large is not None
        is_list_of_columns = isinstance(X, list | tuple) and not models_have_logits
        is_one_dimensional = X is not None and np.ndim(X) == 1
        if not is_list_of_columns and not is_one_dimensional:
            return None
        first_entry_is_number = np.ndim(X[0]) == 0
        return [X] if first_entry_is_number else X

    def _fit_tables(
        self, X: Any, y: Any, large: Any, promise: Promise, thresholds_from: Any
    ) -> Self:
        """Fit a cascade of two models with logits.

        The parameters are those of `fit`.
        """
        check_score(self.score, self.input)
        check_score(self.large_score or self.score, self.input)
        small_table, large_table = self.tables(X, large)
        classes = self.classes
        if classes is None:
            classes = getattr(self.small, "classes_", None)
        # Models always return logits. Without models, the gate reads tables like X.
        input_kind = self.input if self.small is None else "logits"
        with open_executor(self.n_jobs) as executor:
            data = LogitsCascadeData(
                small_rows=Rows(small_table, executor=executor),
                large_rows=Rows(large_table, executor=executor),
                labels=y,
                score=self.score,
                fit_map=self._fit_base_map,
                plan=self._build_plan(pilot_X=thresholds_from),
                large_score=self.large_score,
                class_names=classes,
                has_class_names=classes is not None,
                input=input_kind,
                reject_label=self.reject_label,
            )
            self.gate_ = calibrate(data, promise)
        self.classes_ = self.gate_.classes
        return self

    def labels_needed(self, X: Any, large: Any = None) -> Codes:
        """Return the rows to label before `fit`, if the promise is MaxLoss.

        Parameters
        ----------
        X : table, or array-like of shape (n_rows,)
            Rows, or the table of the small model, or a pool of scores.
        large : table or None, default=None
            Table of the large model, if the cascade has no models.

        Returns
        -------
        array of int
            For tables: the tested rows on which the two models disagree, in the order of the small
            model's score. The test stops at the first missing label, so not all of them need one.
            For a pool of scores: rows drawn at random, as many as pay off if each label is a call
            of the large model. With fewer labels the threshold is stricter, and more labels cost
            more calls than they save.

        Examples
        --------
        >>> import metacal as mc
        >>> rng = np.random.default_rng(0)
        >>> small, large = rng.normal(size=(2, 1000, 3)) + 4.0 * np.eye(3)[np.arange(1000) % 3]
        >>> len(Cascade().labels_needed(small, large))
        7
        >>> len(Cascade(mc.MaxLoss(0.02)).labels_needed(rng.random(20_000)))
        462
        """
        X_has_scores = large is None and self.small is None and np.ndim(X) == 1
        if not X_has_scores:
            small_table, large_table = self.tables(X, large)
            return find_rows_to_label(
                Rows(small_table),
                Rows(large_table),
                self.score,
                plan=self._build_plan(pilot_X=None),
                large_score=self.large_score,
            )
        if not isinstance(self.promise, MaxLoss):
            raise MissingLabelsError(
                "A promise about accuracy requires the label of every tested row. Label all"
                " rows, or promise MaxLoss, which requires fewer labels."
            )
        n_labels = suggest_label_count(self.promise, len(X))
        row_draws = RowDraws((X,), random_state=self.random_state)
        random_order = row_draws.draw_row_order(purpose="rows to label")
        return np.sort(random_order[:n_labels])

    def needs_large(self, X: Any) -> Flags:
        """Return whether each row has to be answered by the large model."""
        check_is_fitted(self, "gate_")
        if self._is_fitted_on_scores:
            small_scores = self._split_score_columns(X)[0]
            return ~self.gate_.accepts(small_scores)
        small_rows = Rows(self._compute_model_logits(self.small, X))
        return ~self.gate_.accepts(small_rows)

    def decide(self, X: Any, large: Any = None) -> Decision:
        """Return the answer of each row, and which model gives it.

        Parameters
        ----------
        X : table, or list of score columns
            Rows, or the table of the small model. Over scores, one column per model, with all rows
            or with those that the models before leave.
        large : table or None, default=None
            Table of the large model, if the cascade has no models: of all rows, or of those that
            `needs_large` returns.

        Returns
        -------
        Decision
        """
        check_is_fitted(self, "gate_")
        if self._is_fitted_on_scores:
            return self.gate_.decide(*self._split_score_columns(X))
        small_rows = Rows(self._compute_model_logits(self.small, X))
        large_input = large
        if self.large is not None:
            is_left_to_large_model = ~self.gate_.accepts(small_rows)
            large_input = None
            if is_left_to_large_model.any():
                large_input = _safe_indexing(X, np.flatnonzero(is_left_to_large_model))
        large_rows = None
        if large_input is not None:
            large_rows = Rows(self._compute_model_logits(self.large, large_input))
        return self.gate_.decide(small_rows, large_rows)

    @property
    def _is_fitted_on_scores(self) -> bool:
        """Whether the cascade was fitted on one column of scores per model, without classes."""
        return not self.gate_.has_classes

    def _split_score_columns(self, X: Any) -> tuple[Any, ...]:
        """Return the column of scores of each model."""
        _, score_columns = find_gate_and_stage_inputs(self.gate_, X)
        return score_columns

    def predict(self, X: Any, large: Any = None) -> Array:
        """Return the predicted class of each row, or `reject_label` if it goes to review."""
        return self.decide(X, large).label  # type: ignore[return-value]

    def predict_proba(self, X: Any, large: Any = None) -> Array:
        """Return the calibrated probabilities of the model that answers each row.

        Rows that go to review have the probabilities of the large model.
        """
        probabilities = self.decide(X, large).probabilities
        assert probabilities is not None
        return probabilities

    @property
    def _has_human_review(self) -> bool:
        """Whether people review the rows that neither model accepts."""
        if self.people is None:
            return isinstance(self.promise, MinAccuracy)
        return bool(self.people)

    def _build_plan(self, pilot_X: Any) -> CascadePlan:
        """Build the options of the certification, with scores of the unlabelled rows `pilot_X`."""
        pilot_scores = None
        if pilot_X is not None:
            pilot_table = self._compute_model_logits(self.small, pilot_X)
            pilot_scores = score_rows(Rows(pilot_table), self.score)
        if not self.review_cost > 0.0:
            raise InputError(
                f"review_cost must be a positive number, but got {self.review_cost!r}."
            )
        return CascadePlan(
            has_human_review=self._has_human_review,
            review_cost=float(self.review_cost),
            random_state=self.random_state,
            separate_pilot_scores=pilot_scores,
        )

    def tables(self, X: Any, large: Any = None) -> tuple[Array, Array]:
        """Return the validated logits of both models for every row.

        Parameters
        ----------
        X : table
            Rows, or the table of the small model.
        large : table or None, default=None
            Table of the large model, if the cascade has no models.

        Returns
        -------
        small_table, large_table : arrays of shape (n_rows, n_classes)
        """
        has_small_model = self.small is not None
        has_large_model = self.large is not None
        if has_small_model != has_large_model:
            raise CascadeError(
                "Cascade has only one of its two models. Pass both models, Cascade(small,"
                " large), or pass no model and both tables to fit."
            )
        if not has_small_model and large is None:
            raise CascadeError(
                "The table of the large model is missing. Pass both tables: fit(small_logits, y,"
                " large=large_logits)."
            )
        if has_small_model and large is not None:
            raise CascadeError(
                "large has no effect, because this Cascade already contains the large model."
                " Leave out large."
            )
        large_input = X if large is None else large
        small_table = self._compute_model_logits(self.small, X)
        large_table = self._compute_model_logits(self.large, large_input)
        small_classes = getattr(self.small, "classes_", None)
        large_classes = getattr(self.large, "classes_", None)
        if small_classes is None or large_classes is None:
            return small_table, large_table
        if not np.array_equal(small_classes, large_classes):
            raise CascadeError(
                "The two models have different classes, or the same classes in a different"
                " order. Fit both models on the same classes."
            )
        return small_table, large_table

    def _compute_model_logits(self, model: Any, X: Any) -> Array:
        """Compute the logits of one model for X, or read them from X if there is no model."""
        if model is None:
            return validate.read_logits(validate.to_numpy(X, self.input), self.input)
        if any(hasattr(model, name) for name in RESPONSE_METHODS):
            return get_classifier_logits(model, X)
        if callable(model):
            return validate.read_logits(model(X), self.input)
        raise CascadeError(
            f"A model of a cascade must be a fitted classifier or a function, but got {model!r}."
        )

    def _fit_base_map(self, rows: Rows, codes: Codes, weights: Float | None) -> Map:
        """Fit the base calibrator of one model, and return its map."""
        calibrator = make_base_calibrator(self.calibrator, promise=None, n_classes=rows.n_classes)
        if not isinstance(calibrator, Calibrator):
            class_name = type(calibrator).__name__
            raise InputError(
                f"calibrator must be one of metacal's calibrators, but got {class_name}."
            )
        return calibrator.fit_rows(rows, codes, weights).map_
