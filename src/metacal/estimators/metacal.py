"""MetaCal: calibrated probabilities and an accept/reject gate with a certificate, the estimator
people import.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import ClassifierTags
from sklearn.utils.validation import check_is_fitted

from metacal.errors import InputError
from metacal.estimators.base import (
    Calibrator,
    GateEstimator,
    LogitsEstimator,
    base_calibrator,
    make_calibrator,
    match_array_library,
)
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate import Decided, Decision, Gate, Recipe, Rejected, check_gate, fit_gate
from metacal.maps.map import Map
from metacal.maps.methods import method_of
from metacal.promises.parts.units import Importance, RowSelection, Units, select_rows
from metacal.promises.promise import Promise
from metacal.rows import Rows, validate
from metacal.rows.executors import ExecutorLike, is_remote
from metacal.scores import Score


@dataclass(frozen=True, eq=False)
class EstimatorMap(Map):
    """Any fitted estimator with `predict_proba` on logits, as a map. Its classes are column
    numbers.
    """

    estimator: Any

    preserves_accuracy = False

    def write(self, block: Array, out: Array) -> None:
        """Write probabilities with a column per class; a class the estimator never saw gets
        zero.
        """
        known = np.asarray(self.estimator.predict_proba(block))
        if known.shape[1] == block.shape[1]:
            out[...] = known
            return
        out[...] = 0.0
        out[:, np.asarray(self.estimator.classes_, dtype=np.intp)] = known


class MetaCal(LogitsEstimator, GateEstimator, kw_only=False):
    """Calibrate, and accept or reject each row under a written promise.

    A row is accepted iff its ranking score is at most the threshold that `promise` certifies on the
    calibration rows. Accepted rows get the base calibrator's probabilities, rejected ones 1/K in
    every class. The promise is about the *uncalibrated* classifier's prediction, the largest logit,
    which is also what `predict` returns.

    The score looks at no label, so the threshold and the base calibrator both use all rows: the
    paper's split into tenths is not needed. The base calibrator is fitted on all of them, not on
    the accepted ones alone: a calibrator learns from errors, and accepted rows have few.

    Parameters
    ----------
    promise : a promise
        MaxMiscoverage, MinAccuracy, Both, AfterLooking, PerClass, PerGroup, MaxReview, MaxCost or
        Cheapest. `metacal.promises.rules.paper` has the paper's own rules.
    calibrator : str or estimator, optional
        The base calibrator, by its name on the command line ("spline", "auto", …) or any estimator
        with `fit` and `predict_proba` on logits. When None a monotone spline on temperature scaling
        with a uniform part, ComposedCalibration(), of two classes MonotoneCalibration(); with the
        paper's own rules TemperatureScaling(), as in the paper.
    score : str or callable
        The ranking score, higher = less sure: "entropy", "max_probability", "margin",
        "maxlogit_pnorm", "energy", or a function of a block of logits that returns one number per
        row. "auto": entropy, margin and maxlogit_pnorm share delta, and the one that accepts most
        is taken.
    reject_label : label, optional
        What `predict` returns for a rejected row; of the same type as the classes, and none of
        them. -1 when None (0 where the classes are -1 and 1), or "rejected" where the classes are
        names.
    input : "logits" or "probabilities"
        What the columns of X are. Nothing is guessed from the values.
    classes : sequence, optional
        The labels in column order. When None the names of a frame's columns, if the labels are
        strings; 0 … K-1 otherwise, or the two values that the labels of two classes have. Where the
        classes are names, labels may also be column numbers.
    positive : label, optional
        Of two classes the one that a single score per row speaks for: X may then be what
        `decision_function` gives, shape (n,) or (n, 1), or with input="probabilities" the
        probability of this class. The larger label when None; names have no order, so that it must
        be said.
    decision : "largest" or "calibrated"
        Of two classes, whose decision the promise is about and `predict` returns: the larger
        logit's or, where class weights or resampling have moved that, the one at even calibrated
        odds, learned from a tenth of the rows, which then certify nothing. Promises about what rows
        are called (`MinPrecision`, `MinRecall`) have their own.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    certificate_ : Certificate
        What is promised, how surely, from how many rows.
    threshold_ : float
        Accept iff score <= threshold_.
    gate_ : Gate
        What was fitted, a frozen value: map, score, threshold, certificate, classes.
    calibrator_ : estimator
        The fitted base calibrator; its labels are column numbers.
    data_hash_ : str
        A fingerprint of the calibration rows: their scores and correctness.

    References
    ----------
    Ma & Blaschko, "Meta-Cal: Well-controlled Post-hoc Calibration by Ranking", ICML 2021.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y)
    >>> cal.certificate_.statement
    'What is accepted is right at least 97% of the time, with 90% confidence.'
    >>> accept = cal.accepts(new_x)
    >>> bool((cal.predict(new_x)[accept] == new_y[accept]).mean() >= 0.97)
    True
    """

    promise: Promise = None  # type: ignore[assignment]  # fit says what it needs
    calibrator: Any = None
    score: str | Score = "entropy"
    reject_label: Any = None
    decision: Decided = "largest"

    calibrator_: Any = field(init=False)

    _stays_on_device = True

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
        """Choose the threshold, fit the base calibrator.

        Parameters
        ----------
        X, y : table of shape (n, K) and labels of shape (n,)
            Without labels, which MaxReview can do without, no calibrator is fitted: probabilities
            are then the softmax of the logits.
        sample_weight : array of shape (n,), optional
            For the base calibrator; the certificate counts rows, each as one.
        groups : array of shape (n,), optional
            The group of each row (a hospital, a language), for a promise per group.
        units : array of shape (n,) or Units, optional
            Which rows belong together: copies, frames of one video, visits of one patient. One row
            of each unit, drawn at random, counts for the certificate, and the promise is about such
            a row; `Units(names, per="row")` counts every row, and promises about rows. The
            calibrator learns from all.
        importance : array of shape (n,) or Importance, optional
            How much more often such a row comes in the target than here, up to a factor: known
            label or covariate shift. Rows are kept in proportion, and the promise is about the
            target. It is certified where the largest weight that a row can have is declared,
            `Importance(weights, largest=...)`, and approximate otherwise.
        random_state : int, optional
            Seed of these two draws. By default it is derived from the rows, so that the same rows
            always give the same certificate. A seed that you give is recorded in the certificate:
            whoever tries several seeds and keeps the best certificate breaks the promise more often
            than delta allows.
        executor : concurrent.futures.Executor or distributed.Client, optional
            Where blocks of the table are worked on, in place of `n_jobs` threads: a pool of
            processes, or a Dask client. Of a table that stays in its files (`read_predictions`)
            descriptions travel, never rows. It never changes the result.
        """
        check_gate(self.promise, self.score, self.input, self.decision)
        if is_remote(executor):
            self._check_remote()
        with self._rows(X, reset=True, later=True, executor=executor) as rows:
            selection = select_rows(len(rows), units, importance, random_state)
            if y is None and not self.promise.needs_labels:
                return self._fit_unlabelled(rows, selection)
            codes = self._read_labels(y, rows.table)
            weights = validate.row_weights(sample_weight, len(rows))
            return self._fit_codes(rows, codes, weights=weights, selection=selection, groups=groups)

    def fit_codes(
        self,
        X: ArrayLike,
        codes: Codes,
        weights: Float | None,
        selection: RowSelection | None,
        groups: ArrayLike | None,
    ) -> Self:
        """The same where labels are column numbers, and -1 stands for a label that no column has:
        always wrong.
        """
        with self._rows(X, reset=True, later=True) as rows:
            self.classes_ = validate.class_list(self.classes, rows.n_classes)
            return self._fit_codes(rows, codes, weights=weights, selection=selection, groups=groups)

    def _fit_unlabelled(self, rows: Rows, selection: RowSelection | None) -> Self:
        if self.calibrator is not None:
            raise InputError(
                "a calibrator learns from labels; give y, or leave the calibrator out."
            )
        self.classes_ = validate.class_list(self.classes, rows.n_classes)
        self.calibrator_ = make_calibrator("temperature")
        self.calibrator_.classes_, self.calibrator_.n_features_in_ = (
            np.arange(rows.n_classes),
            rows.n_classes,
        )
        return self._fit_codes(rows, None, selection=selection)

    def _fit_codes(self, rows: Rows, codes: Codes | None, **given: Any) -> Self:
        """Fit the gate; `given` are further options of `fit_gate`: which rows count, weights,
        groups.
        """
        gate = fit_gate(
            rows,
            codes,
            self.promise,
            self.score,
            self._fit_base,
            refit=self._refit_base,
            gives_way=self.calibrator is None,
            decision=self.decision,
            input=self.input,
            classes=self.classes_,
            classes_given=self._classes_given,
            reject_label=self.reject_label,
            **given,
        )
        if self.calibrator is None and isinstance(self.calibrator_, Calibrator):
            self.calibrator_.map_ = gate.source.map  # or what it has given way to
        self.gate_ = gate.with_source(
            recipe=None if self.calibrator is None else _recipe(self.calibrator_)
        )
        return self

    def __sklearn_tags__(self) -> Any:
        """A classifier, though not by `ClassifierMixin`: its `score` is a method, and here what
        ranks the rows.
        """
        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        return tags

    @property
    def map_(self) -> Gate:
        """The gate as the paper's map: calibrated probabilities of accepted rows, 1/K for rejected
        ones.
        """
        check_is_fitted(self)
        return self.gate_

    @property
    def data_hash_(self) -> str | None:
        """A fingerprint of the calibration rows: their scores and correctness."""
        check_is_fitted(self)
        return self.gate_.data_hash

    @match_array_library
    def ranking_scores(self, X: ArrayLike) -> Float:
        """h(x) of each row: higher is less sure."""
        with self._rows(X, reset=False, later=True) as rows:
            return self.gate_.doubts(rows)

    @match_array_library
    def accepts(self, X: ArrayLike, *, groups: ArrayLike | None = None) -> Flags:
        """Whether each row is accepted; `groups` has the group of each row, for a promise per
        group.
        """
        with self._rows(X, reset=False, later=True) as rows:
            return self.gate_.accepts(rows, groups)

    @match_array_library
    def predict_proba(
        self, X: ArrayLike, *, out: Array | None = None, groups: ArrayLike | None = None
    ) -> Array:
        """Calibrated probabilities of accepted rows, 1/K for rejected ones; dtype and device are
        kept.

        `out`, of the result's shape and dtype, is written to and returned.
        """
        with self._rows(X, reset=False) as rows:
            if out is not None:
                out = validate.room_for_probabilities(rows.table, out)
            return self.gate_(rows.table, rows=rows, out=out, groups=groups)

    @match_array_library
    def predict(self, X: ArrayLike, *, groups: ArrayLike | None = None) -> Array:
        """The class with the largest logit for accepted rows, `reject_label` for rejected ones."""
        with self._rows(X, reset=False) as rows:
            return self.gate_.decide(rows, probabilities=False, groups=groups).label  # type: ignore[return-value]

    def decide(
        self, X: ArrayLike, *, rejected: Rejected = "calibrated", groups: ArrayLike | None = None
    ) -> Decision:
        """Label, answer, confidence, decision, score and probabilities of each row, computed
        once.
        """
        with self._rows(X, reset=False) as rows:
            return self.gate_.decide(rows, rejected=rejected, groups=groups)

    def _refit_base(self, rows: Rows, codes: Codes, weights: Float | None) -> Map:
        """The map of one of metacal's own calibrators, fitted anew and kept nowhere."""
        base = base_calibrator(self.calibrator, self.promise, rows.n_classes)
        return base.fit_rows(rows, codes, weights).map_

    def _check_remote(self) -> None:
        """Raise, before anything is read, where the base calibrator cannot be fitted on other
        machines.
        """
        base = base_calibrator(self.calibrator, self.promise)
        if not isinstance(base, Calibrator):
            raise InputError(
                f"{type(base).__name__} needs all rows in one place, so it cannot be fitted on a"
                " cluster; leave out the executor, or take one of metacal's own calibrators."
            )
        method_of(type(base)).check_remote()

    def _fit_base(self, rows: Rows, codes: Codes, weights: Float | None) -> Map:
        """Fit `calibrator_`; return its map."""
        base = base_calibrator(self.calibrator, self.promise, rows.n_classes)
        if rows.on_device and not (isinstance(base, Calibrator) and base._stays_on_device):
            rows, codes = rows.on_host(), validate.on_host(codes)
        if isinstance(base, Calibrator):
            self.calibrator_ = base.fit_rows(rows, codes, weights)
            return base.map_
        keywords = {} if weights is None else {"sample_weight": weights}
        kept = slice(None) if rows.keep is None else rows.keep
        self.calibrator_ = base.fit(rows.table[kept], codes, **keywords)
        return EstimatorMap(self.calibrator_)


def _recipe(base: Any) -> Recipe:
    """How the base map was fitted: as asked for or, where that was to choose, as chosen."""
    return (
        base.recipe()
        if isinstance(base, Calibrator)
        else Recipe(type(base).__name__, base.get_params(deep=False))
    )
