"""Calibration data of a cascade of models of rising cost: one score per row and model.

A *gated* model answers the rows up to its threshold and passes the others on. Without people, the
last model answers every row that reaches it, so that it is not gated and its score is not used.
With people behind the last model, every model is gated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import CascadeError, NumberError
from metacal.formulas import Flags, Float
from metacal.gate.calibration_data import FittedSources
from metacal.gate.certified_cascade import CertifiedCascade, name_stage_scores
from metacal.gate.score_source import (
    HigherIs,
    ScoreSource,
    check_score_gate_options,
    clean_score_name,
)
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.promise import Promise
from metacal.promises.staged_cascade import CascadeScores
from metacal.rows.model_flags import read_model_flags
from metacal.rows.score_columns import check_scores

# Default ratio between the cost of a model and the cost of the previous model.
_DEFAULT_COST_RATIO = 10.0


@dataclass(frozen=True, eq=False)
class CertifiedScoreCascade(CertifiedCascade):
    """Certification result of a cascade of models with scores.

    Attributes
    ----------
    sources : tuple of ScoreSource
        Source of each stage.
    """

    sources: tuple[ScoreSource, ...]


@dataclass(frozen=True, eq=False)
class ScoreCascadeData:
    """Scores of several models for the same rows, with the options of their cascade.

    Attributes
    ----------
    scores : sequence of array-like of shape (n_rows,)
        Score of each model. The score of the last model is not used, and may be left out unless
        there are `people`.

    agrees : array-like of shape (n_rows, n_gated_models) or None
        For MaxLoss without people: whether each model but the last gives the answer of the last
        model. An entry may be missing; only the scores of such a row are used.

    correct : array-like of shape (n_rows, n_models) or None
        For MinAccuracy, or with people: whether each model is correct.

    costs : sequence of float or None
        Cost of asking each model, and people. By default each model costs ten times as much as the
        one before.

    score_names : sequence of str or None
        Names of the scores.

    higher_is : {"surer", "doubtful"}
        Meaning of a higher score.

    people : bool
        Whether people answer the rows that no model answers.

    pool : bool
        Whether the promise is about these rows, of which those with an entry were drawn at random.

    random_state : int or None
        Seed for drawing the tested rows and the pilot rows. None derives it from the rows.

    joint_risk : bool
        Whether the risk of an answer is estimated from all scores up to that of its model.

    Examples
    --------
    >>> from metacal.gate.calibrate import calibrate
    >>> from metacal.promises.cascade import MaxLoss
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random((3, 2000))
    >>> agrees = rng.random((2, 2000)) > (1 - scores[:2]) ** 3 / [[4], [9]]
    >>> data = ScoreCascadeData(scores, agrees=agrees, costs=[1, 10, 100])
    >>> calibrate(data, MaxLoss(0.02)).decide(*scores).by[:8]
    array([0, 2, 1, 2, 0, 0, 0, 0])
    """

    scores: Sequence[ArrayLike]
    agrees: ArrayLike | None = None
    correct: ArrayLike | None = None
    costs: Sequence[float] | None = None
    score_names: Sequence[str] | None = None
    higher_is: HigherIs = "surer"
    people: bool = False
    pool: bool = False
    random_state: int | None = None
    joint_risk: bool = False

    def certify(self, promise: Promise) -> CertifiedScoreCascade:
        """Certify a threshold for each model that has a gate.

        Raises
        ------
        InputError
            If the flags are not those that the promise is about, or if shapes do not fit.
        """
        check_score_gate_options(promise, self.higher_is)
        score_columns = self._read_score_columns()
        flag_name = self._get_flag_name(promise)
        n_rows = len(score_columns[0])
        flags, has_flags = read_model_flags(
            self._require_flags(promise, flag_name), n_rows, flag_name
        )
        promises_accuracy = isinstance(promise, MinAccuracy)
        if promises_accuracy and self.pool:
            raise CascadeError(
                "pool=True supports only MaxLoss. Leave out pool, or promise MaxLoss(0.01)."
            )
        n_gated_models = flags.shape[1]
        if promises_accuracy and not self.people:
            # The last model has no gate, because it answers every row that it receives.
            n_gated_models -= 1
        self._check_n_columns(
            n_score_columns=len(score_columns),
            n_flag_columns=flags.shape[1],
            n_gated_models=n_gated_models,
            flag_name=flag_name,
        )
        sources = self._build_sources(n_gated_models)
        uncertainties = _compute_uncertainties(sources, score_columns[:n_gated_models])
        labelled_uncertainties = uncertainties[has_flags]
        labelled_flags = flags[has_flags]
        cascade_scores = CascadeScores(
            uncertainty=labelled_uncertainties,
            is_bad=~labelled_flags,
            costs=self._read_costs(n_gated_models),
            unlabelled_uncertainty=uncertainties[~has_flags],
            is_finite_pool=self.pool,
            has_human_review=self.people,
            random_state=self.random_state,
            uses_joint_risk=self.joint_risk,
        )
        certificate = promise.certify(cascade_scores)
        score_names = [source.score_name for source in sources]
        return CertifiedScoreCascade(
            certificate=name_stage_scores(certificate, score_names),
            first_model_scores=labelled_uncertainties[:, 0],
            is_first_model_correct_or_agrees=labelled_flags[:, 0],
            sources=sources,
        )

    def fit_sources(self, certified_data: CertifiedScoreCascade, promise: Promise) -> FittedSources:
        """Return the sources. A cascade of scores has no confidence curves to fit."""
        return FittedSources(sources=certified_data.sources)

    def _read_score_columns(self) -> list[NDArray[np.floating[Any]]]:
        """Validate the score of each model. Raise InputError if their lengths differ."""
        score_columns = [check_scores(column) for column in self.scores]
        column_lengths = [len(column) for column in score_columns]
        if len(set(column_lengths)) > 1:
            raise CascadeError(
                "Each model must have a score for every row, but got columns of lengths"
                f" {', '.join(str(length) for length in column_lengths)}."
            )
        return score_columns

    def _get_flag_name(self, promise: Promise) -> Literal["agrees", "correct"]:
        """Return the name of the flags that the promise needs, "agrees" or "correct"."""
        if isinstance(promise, MinAccuracy) or self.people:
            return "correct"
        return "agrees"

    def _require_flags(
        self, promise: Promise, flag_name: Literal["agrees", "correct"]
    ) -> ArrayLike:
        """Return the flags that the promise needs. Raise InputError if others were given."""
        if flag_name == "correct":
            if self.correct is not None and self.agrees is None:
                return self.correct
            raise CascadeError(
                f"{promise!r} requires correct=... (whether each model is correct). agrees=..."
                " supports only MaxLoss without people."
            )
        if self.agrees is not None and self.correct is None:
            return self.agrees
        raise CascadeError(
            f"For scores, {type(promise).__name__} requires agrees=... (whether each model except"
            " the last agrees with the last one). correct=... does not replace it, because two"
            " incorrect predictions may differ. If you know only which predictions are correct,"
            " promise MinAccuracy, or fit on tables of logits with labels."
        )

    def _check_n_columns(
        self, n_score_columns: int, n_flag_columns: int, n_gated_models: int, flag_name: str
    ) -> None:
        """Raise InputError if the numbers of score and flag columns do not fit together.

        Parameters
        ----------
        n_score_columns : int
            Number of models that have a score.

        n_flag_columns : int
            Number of models that have flags.

        n_gated_models : int
            Number of gated models.

        flag_name : {"agrees", "correct"}
            Name of the flags.
        """
        allowed_n_score_columns = [n_gated_models]
        if not self.people:
            # The last model has no gate, so its score is optional.
            allowed_n_score_columns.append(n_gated_models + 1)
        if n_gated_models >= 1 and n_score_columns in allowed_n_score_columns:
            return
        last_model_hint = ""
        if flag_name == "correct":
            last_model_hint = " and the correctness of the last one"
        people_hint = ""
        if self.people:
            people_hint = " (with people, for at least two models, and a score for each)"
        raise CascadeError(
            f"Expected one column of scores and one of {flag_name} for each model except the"
            f" last{last_model_hint}{people_hint}, but got {n_score_columns} and"
            f" {n_flag_columns}."
        )

    def _build_sources(self, n_gated_models: int) -> tuple[ScoreSource, ...]:
        """Build the source of each model, with a default name for a model that has none."""
        default_names = [f"score {number}" for number in range(1, n_gated_models + 2)]
        score_names = [clean_score_name(name) for name in self.score_names or default_names]
        # The score of the last model is never used, so the caller need not name it.
        unused_name = default_names[-1]
        score_names.append(unused_name)
        n_models = n_gated_models if self.people else n_gated_models + 1
        return tuple(ScoreSource(name, self.higher_is) for name in score_names[:n_models])

    def _read_costs(self, n_gated_models: int) -> Float:
        """Return the validated costs of models and human reviewers, or default costs."""
        n_costs = n_gated_models + 1
        if self.costs is None:
            return np.array([_DEFAULT_COST_RATIO**model_index for model_index in range(n_costs)])
        costs = np.asarray(self.costs, dtype=np.float64)
        has_one_cost_per_model = costs.shape == (n_costs,)
        costs_are_valid = has_one_cost_per_model and (costs >= 0.0).all() and costs[-1] > 0.0
        if not costs_are_valid:
            people_hint = " and one for people" if self.people else ""
            raise CascadeError(f"costs must be {n_costs} numbers, one for each model{people_hint}.")
        return costs


def _compute_uncertainties(
    sources: Sequence[ScoreSource], score_columns: Sequence[NDArray[np.floating[Any]]]
) -> Float:
    """Return the uncertainty of each row (first axis) and gated model (second axis).

    Raise InputError if a score is missing.
    """
    uncertainty_columns = [
        source.uncertainty_scores(score_column)
        for source, score_column in zip(sources, score_columns)
    ]
    uncertainties = np.stack(uncertainty_columns, axis=1)
    lacks_score: Flags = np.asarray(np.isnan(uncertainties).any(axis=1))
    if lacks_score.any():
        first_row_without_score = np.flatnonzero(lacks_score)[0]
        raise NumberError(
            f"Row {first_row_without_score} has no score. Leave out the rows without a score."
        )
    return uncertainties
