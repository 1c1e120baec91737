"""MetaCal: calibrated probabilities and an accept/reject gate with a certificate, the estimator people import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from metacal.decision import Decision, Recipe
from metacal.estimators.auto import AutoCalibrator, chosen
from metacal.estimators.base import Calibrator, LogitsEstimator
from metacal.estimators.temperature import TemperatureScaling
from metacal.gate import Gate, Rejected, check_gate, fit_gate
from metacal.maps.map import Map
from metacal.promises.certificate import Certificate
from metacal.promises.promise import Constraint
from metacal.rows import Rows, validate, workers
from metacal.rows.labels import check_reject_label
from metacal.scores import Score


@dataclass(frozen=True, eq=False)
class EstimatorMap(Map):
    """Any fitted estimator with `predict_proba` on logits, as a map. Its classes are column numbers."""

    estimator: Any

    preserves_accuracy = False

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write probabilities with a column per class; a class the estimator never saw gets zero."""
        known = np.asarray(self.estimator.predict_proba(block))
        if known.shape[1] == block.shape[1]:
            out[...] = known
            return
        out[...] = 0.0
        out[:, np.asarray(self.estimator.classes_, dtype=np.intp)] = known


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
    constraint : MaxMiscoverage, MinCoverageAccuracy, Both, AfterLooking, PerClass or PerGroup
        The promise; `metacal.promises.paper` has the paper's own rules.
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
    >>> cal = mc.MetaCal(mc.MinCoverageAccuracy(0.97)).fit(fit_x, fit_y)
    >>> cal.certificate_.statement
    'What is accepted is right at least 97% of the time, with 90% confidence.'
    >>> accept = cal.accepts(new_x)
    >>> bool((cal.predict(new_x)[accept] == new_y[accept]).mean() >= 0.97)
    True
    """

    gate_: Gate
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
        check_gate(self.constraint, self.score, self.input)
        table = self._read_table(X, reset=True)
        codes = self._read_labels(y, table)
        return self._fit_codes(table, codes, validate.row_weights(sample_weight, len(table)))

    def fit_codes(self, X: ArrayLike, codes: NDArray[np.intp], weights: NDArray[np.float64] | None = None) -> Self:
        """The same where labels are column numbers, and -1 stands for a label that no column has: always wrong."""
        check_gate(self.constraint, self.score, self.input)
        table = self._read_table(X, reset=True)
        if (codes >= 0).all():
            return self._fit_codes(table, self._read_labels(codes, table), weights)
        self.classes_ = validate.class_list(self.classes, table.shape[1])
        return self._fit_codes(table, codes, weights)

    def _fit_codes(self, table: Any, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> Self:
        check_reject_label(self.reject_label, self.classes_)
        with workers(self.n_jobs) as executor:
            gate = fit_gate(
                Rows(table, executor=executor),
                codes,
                self.constraint,
                self.score,
                self._fit_base,
                weights=weights,
                classes=self.classes_,
                reject_label=self.reject_label,
                input=self.input,
                classes_given=self.classes is not None,
            )
        self.gate_ = replace(gate, recipe=_recipe(self.calibrator, self.calibrator_))
        return self

    @property
    def certificate_(self) -> Certificate:
        """What is promised, how surely, from how many rows."""
        check_is_fitted(self)
        assert self.gate_.certificate is not None
        return self.gate_.certificate

    @property
    def map_(self) -> Gate:
        """The gate as the paper's map: calibrated probabilities of accepted rows, 1/K for rejected ones."""
        check_is_fitted(self)
        return self.gate_

    @property
    def data_hash_(self) -> str | None:
        """A fingerprint of the calibration rows: their scores and correctness."""
        check_is_fitted(self)
        return self.gate_.data_hash

    @property
    def threshold_(self) -> float:
        """Accept iff score <= threshold_: the certificate's, settled where an older file has it elsewhere.

        -inf where each class or group has its own: `gate_.thresholds` has them.
        """
        check_is_fitted(self)
        return self.gate_.threshold

    def ranking_scores(self, X: ArrayLike) -> NDArray[np.float64]:
        """h(x) of each row: higher is less sure."""
        table = self._read_table(X, reset=False)
        with workers(self.n_jobs) as executor:
            return self.gate_.scores(Rows(table, executor=executor))

    def accepts(self, X: ArrayLike, *, groups: ArrayLike | None = None) -> NDArray[np.bool_]:
        """Whether each row is accepted; `groups` has the group of each row, for a promise per group."""
        table = self._read_table(X, reset=False)
        with workers(self.n_jobs) as executor:
            return self.gate_.accepts(Rows(table, executor=executor), groups)

    def predict_proba(
        self, X: ArrayLike, *, out: NDArray[Any] | None = None, groups: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Calibrated probabilities of accepted rows, 1/K for rejected ones; dtype and device are kept.

        `out`, of the result's shape and dtype, is written to and returned.
        """
        table = self._read_table(X, reset=False)
        if out is not None:
            out = validate.room_for_probabilities(table, out)
        with workers(self.n_jobs) as executor:
            return self.gate_(table, rows=Rows(table, executor=executor), out=out, groups=groups)

    def predict(self, X: ArrayLike, *, groups: ArrayLike | None = None) -> NDArray[Any]:
        """The class with the largest logit for accepted rows, `reject_label` for rejected ones."""
        table = self._read_table(X, reset=False)
        with workers(self.n_jobs) as executor:
            return self.gate_.decide(Rows(table, executor=executor), probabilities=False, groups=groups).label

    def decide(self, X: ArrayLike, *, rejected: Rejected = "calibrated", groups: ArrayLike | None = None) -> Decision:
        """Label, answer, confidence, decision, score and probabilities of each row, computed once."""
        table = self._read_table(X, reset=False)
        with workers(self.n_jobs) as executor:
            return self.gate_.decide(Rows(table, executor=executor), rejected=rejected, groups=groups)

    def _repr_html_(self) -> str:
        """The parameters and, once fitted, the certificate: small, escaped, without scripts."""
        fitted = getattr(self, "certificate_", None)
        promise = "<p>Not fitted: nothing is promised yet.</p>" if fitted is None else fitted._repr_html_()
        return f"<div><code>{escape(repr(self))}</code>{promise}</div>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """What notebooks ask for first."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _fit_base(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> Map:
        """Fit `calibrator_`; return its map."""
        base = TemperatureScaling() if self.calibrator is None else clone(self.calibrator)
        if rows.on_device and not (isinstance(base, Calibrator) and base._stays_on_device):
            rows, codes = rows.on_host(), validate.on_host(codes)
        if isinstance(base, Calibrator):
            settled: Calibrator = chosen(base.fit_rows(rows, codes, weights))
            self.calibrator_ = settled
            return settled.map_
        keywords = {} if weights is None else {"sample_weight": weights}
        kept = slice(None) if rows.keep is None else rows.keep
        self.calibrator_ = base.fit(rows.table[kept], codes, **keywords)
        return EstimatorMap(self.calibrator_)


def _recipe(asked: Any, fitted: Any) -> Recipe | None:
    """How the base map was fitted: as asked for or, where that was to choose, as chosen; None: by default."""
    base = fitted if isinstance(asked, AutoCalibrator) else asked
    return None if base is None else Recipe(type(base).__name__, base.get_params(deep=False))
