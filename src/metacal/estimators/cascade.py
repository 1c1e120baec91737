"""Cascade: a small model answers what it is sure of, a large one the rest, under one promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, field
from typing import Any, Self

import numpy as np
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from metacal.errors import InputError
from metacal.estimators.base import Calibrator, GateEstimator, base_calibrator
from metacal.estimators.responses import METHODS, logits_of
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate import Decision
from metacal.gate.cascade import fit_cascade, fit_scored_cascade, labels_needed
from metacal.gate.judged import opened
from metacal.gate.marks import HigherIs
from metacal.gate.table import check_score
from metacal.maps.map import Map
from metacal.promises.promise import Promise
from metacal.promises.rules.accuracy import MinAccuracy
from metacal.promises.rules.cascade import MaxLoss, as_promise
from metacal.promises.rules.cascade_walks import Plan
from metacal.promises.rules.staged import labels_that_pay
from metacal.rows import Rows, validate, workers
from metacal.rows.draws import RowDraws
from metacal.scores import Score, score_rows

#: At most 1% more wrong answers than the large model alone.
BY_DEFAULT = MaxLoss(0.01)
#: What the fits of other gates take besides, and why that of a cascade does not.
_NOT_HERE = {
    "groups": (
        "a cascade has the same thresholds for all rows; fit a Cascade on the rows of each group."
    ),
    "units": (
        "a cascade counts every row by itself; give fit one row of each unit, drawn at random."
    ),
    "importance": (
        "a cascade promises for the source of its calibration rows; give fit labelled rows of the"
        " new one."
    ),
}


class Cascade(GateEstimator, kw_only=False):
    """The small model answers what its gate accepts, the large one the rest, people what is left.

    With `MaxLoss(0.01)`, the default, at most 1% more of all answers are wrong than if the large
    model answered alone; labels are needed only where the two disagree. With `MinAccuracy(0.95)`
    what the cascade answers is right at least 95% of the time, and what neither model is sure of is
    left to people.

    Parameters
    ----------
    small, large : fitted classifiers or callables, optional
        What gives logits for rows of X: a classifier with `predict_proba` or `decision_function`,
        or a function. The large one is asked only for the rows that the small one does not answer.
        None for both: X is then the small model's table itself, and `large=` of each method the
        large one's.
    promise : MaxLoss or MinAccuracy
    calibrator : calibrator, optional
        MapAttribute for each of the two, by name or as an estimator; that of `MetaCal` when None.
    score, large_score : str or callable
        The ranking scores; the large model's is the small one's when None.
    people : bool, optional
        Whether what neither accepts is left to people; by default with MinAccuracy, never with
        MaxLoss.
    review_cost : float
        What a row costs that a person answers, in calls of the large model.
    reject_label : label
        What `predict` returns for a row that is left to people.
    input : "logits" or "probabilities"
        What the tables hold, where `small` and `large` are None or callables.
    classes : sequence, optional
        The labels in column order; those of the classifiers, or 0 … K-1, when None.
    random_state : int, optional
        Seed of the draw of the rows that are set aside to choose thresholds. By default it is
        derived from the scores; a seed that you give is recorded in the certificate.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    gate_ : Gate
        What was fitted, a frozen value of two stages.
    certificate_ : Certificate
        What is promised, how surely, from which counts.

    Examples
    --------
    >>> import metacal as mc
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(5, size=3000)
    >>> small, large = (rng.normal(size=(3000, 5)) + gap * np.eye(5)[y] for gap in (3.0, 4.0))
    >>> cascade = mc.Cascade(promise=mc.MaxLoss(0.02)).fit(small[:2000], y[:2000], large=large[:2000])
    >>> cascade.certificate_.statement
    'Of all answers at most 2% more are wrong than if the large model answered alone, with 90% confidence.'
    >>> rest = cascade.needs_large(small[2000:])
    >>> found = cascade.decide(small[2000:], large=large[2000:][rest])  # the large model ran for these rows only
    >>> bool((found.label == y[2000:]).mean() > (large[2000:].argmax(axis=1) == y[2000:]).mean() - 0.02)
    True
    """

    small: Any = None
    large: Any = None
    promise: Promise = field(default_factory=lambda: BY_DEFAULT)
    _: KW_ONLY
    calibrator: Any = None
    score: str | Score = "entropy"
    large_score: str | Score | None = None
    people: bool | None = None
    review_cost: float = 10.0
    reject_label: Any = -1
    input: str = "logits"
    classes: Sequence[Any] | None = None
    random_state: int | None = None
    n_jobs: int | None = None

    classes_: Array = field(init=False)

    def __post_init__(self) -> None:
        if isinstance(self.small, Promise):  # Cascade(MaxLoss(0.01)), without models
            self.small, self.promise = None, self.small

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
        """Certify the thresholds on rows that neither model was trained on, and calibrate each
        model.

        `y` may lack labels (None, NaN, "" or -1) where the promise is MaxLoss and the two models
        agree; `labels_needed` names the rows that need one. `thresholds_from`, further rows like X
        without labels, choose the thresholds; otherwise a part of X does, and is not tested on.

        Any number of models goes by scores alone: `scores`, or X as a list, has a column for each,
        or X is the small model's. For MaxLoss, `agrees` says of each model but the last whether it
        gives the last model's answer; None where nobody knows. For MinAccuracy, or with
        `people=True`, `correct` says of each model whether it is correct. The two are not the same,
        and each promise takes its own. `costs` is what it costs to ask each. With `pool` the
        promise is about these rows, of which those with an entry were drawn at random. `joint_risk`
        learns the risk of an answer from all scores up to its model's, where what one model leaves
        is harder for the next than its own score says: `metacal.promises.rules.staged`.

        `groups`, `units` and `importance`, which other fits take, are refused with what to do
        instead.
        """
        promise = as_promise(self.promise)
        for name, column in (("groups", groups), ("units", units), ("importance", importance)):
            if column is not None:
                raise InputError(_NOT_HERE[name])
        several = isinstance(X, list | tuple) and self.small is None and large is None
        if scores is not None or several or (X is not None and np.ndim(X) == 1):
            columns = scores if scores is not None else [X] if np.ndim(X[0]) == 0 else X
            if y is not None:
                raise InputError(
                    "y is for labels of tables. Over scores, pass agrees=..., whether each model"
                    " gives the last model's answer, or correct=..., whether it is correct."
                )
            self.gate_ = fit_scored_cascade(
                columns,
                promise,
                agrees=agrees,
                correct=correct,
                costs=costs,
                higher_is=higher_is,
                people=self._with_people,
                pool=pool,
                random_state=self.random_state,
                joint=joint_risk,
            )
            return self
        if agrees is not None or correct is not None:
            raise InputError(
                "agrees and correct are for scores; tables of logits take labels: fit(small, y,"
                " large=large)."
            )
        for score in (self.score, self.large_score or self.score):
            check_score(score, self.input)
        one, other = self.tables(X, large)
        classes = getattr(self.small, "classes_", None) if self.classes is None else self.classes
        with workers(self.n_jobs) as executor:
            self.gate_ = fit_cascade(
                Rows(one, executor=executor),
                Rows(other, executor=executor),
                y,
                promise,
                self.score,
                self._fit_base,
                plan=self._plan(thresholds_from),
                large_score=self.large_score,
                classes=classes,
                reject_label=self.reject_label,
                input=self.input if self.small is None else "logits",
                classes_given=classes is not None,
            )
        self.classes_ = self.gate_.classes
        return self

    def labels_needed(self, X: Any, large: Any = None) -> Codes:
        """The rows of a table to fit on that need a label under MaxLoss: tested, and the two models
        disagree.

        In the order of the small model's score. Not all need one: the walk goes as far as labels
        do.

        Of a pool of scores (n,): rows drawn at random, as many as pay when each is answered by the
        large model anyway. Fewer labels make a stricter threshold, more of them are calls of the
        large model themselves.

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
        if large is None and self.small is None and np.ndim(X) == 1:
            if not isinstance(self.promise, MaxLoss):
                raise InputError(
                    "an accuracy needs the label of every row that is tested; MaxLoss needs fewer."
                )
            n = labels_that_pay(self.promise, len(X))
            return np.sort(RowDraws(X, random_state=self.random_state).order("rows to label")[:n])
        one, other = self.tables(X, large)
        return labels_needed(Rows(one), Rows(other), self.score, self._plan(None), self.large_score)

    def needs_large(self, X: Any) -> Flags:
        """The rows that the large model has to be asked about."""
        check_is_fitted(self, "gate_")
        if not self.gate_.n_classes:
            return ~self.gate_.accepts(opened(self.gate_, X)[1][0])
        return ~self.gate_.accepts(Rows(self._table(self.small, X)))

    def decide(self, X: Any, large: Any = None) -> Decision:
        """Who answers each row, and what; the large model is asked only where it is needed.

        `large`, where no models were given, is its table of all rows or of those that `needs_large`
        names. Of a cascade of scores X has a column for each model, of all rows or of those that
        the models before leave.
        """
        check_is_fitted(self, "gate_")
        if not self.gate_.n_classes:
            return self.gate_.decide(*opened(self.gate_, X)[1])
        small = Rows(self._table(self.small, X))
        if self.large is not None:
            rest = ~self.gate_.accepts(small)
            large = _safe_indexing(X, np.flatnonzero(rest)) if rest.any() else None
        table = None if large is None else Rows(self._table(self.large, large))
        return self.gate_.decide(small, table)

    def predict(self, X: Any, large: Any = None) -> Array:
        """The answer of each row, `reject_label` where it is left to people."""
        return self.decide(X, large).label  # type: ignore[return-value]

    def predict_proba(self, X: Any, large: Any = None) -> Array:
        """Calibrated probabilities of the model that answers; the large one's where people do."""
        found = self.decide(X, large).probabilities
        assert found is not None
        return found

    @property
    def _with_people(self) -> bool:
        return isinstance(self.promise, MinAccuracy) if self.people is None else bool(self.people)

    def _plan(self, thresholds_from: Any) -> Plan:
        scores = None
        if thresholds_from is not None:
            scores = score_rows(Rows(self._table(self.small, thresholds_from)), self.score)
        if not self.review_cost > 0.0:
            raise InputError(f"review_cost must be positive, got {self.review_cost!r}.")
        return Plan(self._with_people, float(self.review_cost), self.random_state, scores)

    def tables(self, X: Any, large: Any = None) -> tuple[Array, Array]:
        """What both models say about every row, as checked logits."""
        if (self.small is None) != (self.large is None):
            raise InputError(
                "a cascade needs both models, or none and their tables: Cascade(small, large)."
            )
        if self.small is None and large is None:
            raise InputError(
                "give the large model's table too: fit(small_logits, y, large=large_logits)."
            )
        if self.small is not None and large is not None:
            raise InputError("the large model was given to Cascade; its table is not needed here.")
        one, other = (
            self._table(self.small, X),
            self._table(self.large, X if large is None else large),
        )
        own = [getattr(model, "classes_", None) for model in (self.small, self.large)]
        if own[0] is not None and own[1] is not None and not np.array_equal(own[0], own[1]):
            raise InputError(
                "the two models have other classes, or in another order; fit both on the same ones."
            )
        return one, other

    def _table(self, model: Any, X: Any) -> Array:
        """What a model says about rows, as checked logits."""
        if model is None:
            return validate.logits_from(validate.on_host(X, self.input), self.input)
        if any(hasattr(model, name) for name in METHODS):
            return logits_of(model, X)
        if callable(model):
            return validate.logits_from(model(X), self.input)
        raise InputError(
            f"a model of a cascade is a fitted classifier or a function; got {model!r}."
        )

    def _fit_base(self, rows: Rows, codes: Codes, weights: Float | None) -> Map:
        base = base_calibrator(self.calibrator, None, rows.n_classes)
        if not isinstance(base, Calibrator):
            raise InputError(f"calibrator must be one of metacal's own; got {type(base).__name__}.")
        return base.fit_rows(rows, codes, weights).map_
