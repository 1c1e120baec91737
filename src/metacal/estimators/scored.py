"""ScoreGate: a promise on any score with right and wrong, the estimator people import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from metacal.errors import InputError
from metacal.estimators.base import GateEstimator
from metacal.formulas import Flags, Float
from metacal.gate import Decision, fit_scored
from metacal.gate.marks import HigherIs
from metacal.promises.parts.per import PerGroup
from metacal.promises.parts.units import Importance, Units
from metacal.promises.promise import Promise
from metacal.promises.rules.whole_units import OfUnits
from metacal.rows.score_columns import entries, is_table


class ScoreGate(GateEstimator, kw_only=False):
    """Accept or reject by a score that is not made of logits, under a written promise.

    An LLM judge's mark, the log-probability of an answer, the similarity of a passage, the
    confidence of an OCR engine: any number per row will do, and for fitting whether the row is
    right, or how bad it is. There are no classes and no probabilities to calibrate; `confidence` is
    the probability of being right, read off the calibration rows.

    Parameters
    ----------
    promise : Promise
        Any but PerClass and MaxLoss: given scores have no classes, and there is one model.
    higher_is : "surer" or "doubtful"
        What a higher score says of a row: "doubtful" for losses, perplexities, distances.
    score_name : str
        What the certificate calls the score.
    marks : sequence of numbers, optional
        The values that a score can have, where it is a scale: a judge's marks from 1 to 5.

    Attributes
    ----------
    certificate_ : Certificate
        What is promised, how surely, from how many rows.
    threshold_ : float
        Of the doubt: accept iff -score <= threshold_, or score <= threshold_ where higher is
        doubtful.
    gate_ : Gate
        What was fitted, a frozen value.

    Examples
    --------
    >>> import metacal as mc
    >>> rng = np.random.default_rng(0)
    >>> mark = rng.random(3000)                                 # what a judge thinks of an answer
    >>> ok = rng.random(3000) > (1 - mark) ** 2                 # whether the answer is right
    >>> gate = mc.ScoreGate(mc.MinAccuracy(0.9), score_name="mark").fit(mark[:2000], ok[:2000])
    >>> gate.certificate_.statement
    'What is accepted is right at least 90% of the time, with 90% confidence.'
    >>> accept = gate.accepts(mark[2000:])
    >>> bool(ok[2000:][accept].mean() >= 0.9)
    True
    >>> gate.confidence([0.5, None]).round(1)
    array([0.8, nan])
    """

    promise: Promise
    higher_is: HigherIs = "surer"
    score_name: str = "score"
    marks: Sequence[float] | None = None

    def fit(
        self,
        score: ArrayLike,
        correct: ArrayLike | None = None,
        *,
        loss: ArrayLike | None = None,
        units: Units | ArrayLike | None = None,
        importance: Importance | ArrayLike | None = None,
        groups: ArrayLike | None = None,
        random_state: int | None = None,
    ) -> Self:
        """Choose the threshold from a score per row and whether the row is right.

        Parameters
        ----------
        score : array of shape (n,), or (n, K)
            With K columns each row has several labels, or fields of a form: an entry is accepted or
            not, by the score of its label. `correct` or `loss` has as many, `groups` may name the
            labels. `PerGroup(MinAccuracy(0.9))` promises the precision of each label,
            `PerGroup(MaxMiscoverage(0.1))` its recall. A promise for all labels together is about
            rows, each by the mean of its labels: `MinAccuracy(0.9)` the mean precision of rows that
            are given labels, `MaxMiscoverage(0.1)` the mean recall of those that have some. A score
            that is None, NaN or infinite is none: the row is left out here, and never accepted
            later.
        correct : array of shape (n,)
            True or false, 1 or 0, "yes" or "no".
        loss : array of shape (n,), in place of `correct`
            How bad each row is, from 0 to 1, for `MaxRisk`: `mc.losses` has the losses in use. What
            verifies and evaluates the gate then takes losses too, in the place of right and wrong.
        units : array of shape (n,) or Units, optional
            Which rows belong together, as answers to one question: one row of each unit counts, or
            with `Units(names, per="row")` every row.
        importance : array of shape (n,) or Importance, optional
            How much each row counts where new rows come from somewhere else; certified with a
            declared `largest`.
        groups : array of shape (n,), optional
            The group of each row, for a promise per group.
        random_state : int, optional
            Seed of the draw of the rows that count, with `units` or `importance`, and of the pilot
            rows of an accuracy. By default it is derived from the rows. A seed that you give is
            recorded in the certificate. Pilot rows choose the value at which the tests begin, and
            certify nothing. There are about √n of n rows, or ten if no two of these ten have the
            same score.
        """
        if is_table(score):
            truth: Any = correct if loss is None else loss
            if units is not None or importance is not None or np.shape(truth) != np.shape(score):
                raise InputError(
                    f"scores of {np.shape(score)} rows and labels take a truth of that shape, got"
                    f" {np.shape(truth)}; and no units or importance."
                )
            n, k = np.shape(score)
            flat = np.asarray(truth).reshape(-1)
            correct, loss = (flat, None) if loss is None else (None, flat)
            score, groups = entries(score, groups)
            if not isinstance(self.promise, PerGroup):
                by_mean = isinstance(self.promise, OfUnits) and self.promise.delta is not None
                units = Units(np.repeat(np.arange(n), k), *(("mean", k) if by_mean else ()))
                groups = None
        self.gate_ = fit_scored(
            score,
            correct,
            self.promise,
            loss=loss,
            score_name=self.score_name,
            higher_is=self.higher_is,
            units=units,
            importance=importance,
            groups=groups,
            random_state=random_state,
            marks=self.marks,
        )
        return self

    def accepts(self, score: ArrayLike, groups: ArrayLike | None = None) -> Flags:
        """Whether each row, or each entry of a table, is accepted; one without a score is not."""
        check_is_fitted(self, "gate_")
        if is_table(score):
            flat, names = entries(score, groups)
            return self.gate_.accepts(flat, names if self.gate_.by_group else None).reshape(
                np.shape(score)
            )
        return self.gate_.accepts(score, groups)

    def confidence(self, score: ArrayLike) -> Float:
        """The calibrated probability that each row is right, which the promise does not cover; NaN
        without a score.
        """
        check_is_fitted(self, "gate_")
        confidence: Float | None = self.gate_.source.confidence(score)
        assert confidence is not None
        return confidence

    def decide(self, score: ArrayLike, groups: ArrayLike | None = None) -> Decision:
        """Decision, score and confidence of each row; `groups` has the group of each, for a promise
        per group.
        """
        check_is_fitted(self, "gate_")
        return self.gate_.decide(score, groups=groups)
