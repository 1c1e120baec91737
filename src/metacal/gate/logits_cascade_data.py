"""Calibration data of a cascade of two models: their logits for the same rows.

The *small* model answers the rows that its gate accepts, and the *large* model answers the others.
If people review rows, the large model has a gate too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal import kernels
from metacal.certificates.notes import Note, note_cascade_not_calibrated
from metacal.errors import CascadeError
from metacal.formulas import Codes, Flags
from metacal.gate.calibration_data import FittedSources
from metacal.gate.certified_cascade import CertifiedCascade, name_stage_scores
from metacal.gate.logits_source import LogitsSource
from metacal.maps.map import FitMap, Map
from metacal.maps.temperature import TemperatureMap
from metacal.promises.cascade_candidates import (
    DEFAULT_PLAN,
    CascadePlan,
    PairedPredictions,
    draw_pilot_rows,
)
from metacal.promises.cascade_tests import check_cascade_promise
from metacal.promises.promise import Promise
from metacal.promises.two_model_cascade import TwoModelEvidence
from metacal.rows import Rows
from metacal.rows.labels import check_classes, check_reject_label, encode_known_labels
from metacal.scores import Score, get_rounding_grid, get_score_name, score_rows


@dataclass(frozen=True, eq=False)
class CertifiedLogitsCascade(CertifiedCascade):
    """Certification result of a cascade of two models with logits.

    Attributes
    ----------
    classes : array of shape (n_classes,)
        Names of the columns.

    label_codes : array of int of shape (n_rows,)
        Column of the true class of each row, negative if the label is unknown.
    """

    classes: NDArray[Any]
    label_codes: Codes

    @property
    def has_all_labels(self) -> bool:
        """Whether the label of every row is known."""
        return bool((self.label_codes >= 0).all())


@dataclass(frozen=True, eq=False)
class LogitsCascadeData:
    """Logits of two models for the same rows, with the options of their cascade.

    Attributes
    ----------
    small_rows, large_rows : Rows
        Logits of the small and of the large model.

    labels : array-like of shape (n_rows,)
        Label of each row. None, NaN, "" or -1 is an unknown label. `MaxLoss` allows unknown labels
        where the two models agree.

    score : str or callable
        Ranking score of the small model.

    fit_map : callable
        Function that fits the calibration map of a model on rows, labels and weights.

    plan : CascadePlan
        Rows that choose the thresholds, and whether people review rows.

    large_score : str, callable or None
        Ranking score of the large model. None stands for `score`.

    class_names : sequence or None
        Names of the columns. None numbers them from 0.

    has_class_names : bool
        Whether the caller named the classes.

    input : {"logits", "probabilities"}
        Content of the tables that callers pass to the cascade.

    reject_label : int, str or None
        Label of rows that go to review. None chooses one that is not a class.

    Examples
    --------
    >>> from metacal.gate.calibrate import calibrate
    >>> from metacal.maps.temperature import fit_temperature
    >>> from metacal.promises.cascade import MaxLoss
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=1000)
    >>> small_rows = Rows(rng.normal(size=(1000, 3)) + 2.0 * np.eye(3)[labels])
    >>> large_rows = Rows(rng.normal(size=(1000, 3)) + 5.0 * np.eye(3)[labels])
    >>> data = LogitsCascadeData(small_rows, large_rows, labels, "entropy", fit_temperature)
    >>> gate = calibrate(data, MaxLoss(0.01))
    >>> needs_large = ~gate.accepts(small_rows)  # run the large model on these rows only
    >>> decision = gate.decide(small_rows, Rows(large_rows.table[needs_large]))
    >>> bool(((decision.answered_by == "large") == needs_large).all())
    True
    """

    small_rows: Rows
    large_rows: Rows
    labels: ArrayLike
    score: str | Score
    fit_map: FitMap
    plan: CascadePlan = DEFAULT_PLAN
    large_score: str | Score | None = None
    class_names: Sequence[Any] | NDArray[Any] | None = None
    has_class_names: bool = False
    input: str = "logits"
    reject_label: Any = None

    def certify(self, promise: Promise) -> CertifiedLogitsCascade:
        """Certify the thresholds of a small and a large model from labelled rows."""
        cascade_promise = check_cascade_promise(promise)
        classes = check_classes(self.class_names, self.small_rows.n_classes)
        check_reject_label(self.reject_label, classes)
        label_codes = encode_known_labels(self.labels, len(self.small_rows), classes)
        paired_predictions = self._pair_predictions(label_codes)
        small_ranking_score, large_ranking_score = self._get_ranking_scores()
        evidence = TwoModelEvidence(
            rows=paired_predictions,
            plan=self.plan,
            score_grids=(
                get_rounding_grid(small_ranking_score),
                get_rounding_grid(large_ranking_score),
            ),
        )
        certificate = cascade_promise.certify(evidence)
        score_names = [get_score_name(small_ranking_score), get_score_name(large_ranking_score)]
        return CertifiedLogitsCascade(
            certificate=name_stage_scores(certificate, score_names),
            first_model_scores=paired_predictions.small_score,
            is_first_model_correct_or_agrees=paired_predictions.models_agree,
            classes=classes,
            label_codes=label_codes,
        )

    def fit_sources(
        self, certified_data: CertifiedLogitsCascade, promise: Promise
    ) -> FittedSources:
        """Fit the calibration map of each model if the label of every row is known.

        If labels are known only where the models disagree, maps that are fitted on them would be
        biased. The probabilities are then the softmax of the logits.
        """
        notes: tuple[Note, ...] = ()
        if certified_data.has_all_labels:
            label_codes = certified_data.label_codes
            weights = None
            small_map = self.fit_map(self.small_rows, label_codes, weights)
            large_map = self.fit_map(self.large_rows, label_codes, weights)
        else:
            notes = (note_cascade_not_calibrated().issue_warning(),)
            softmax_map = TemperatureMap(1.0)
            small_map = softmax_map
            large_map = softmax_map
        small_ranking_score, large_ranking_score = self._get_ranking_scores()
        return FittedSources(
            sources=(
                self._build_source(small_map, certified_data.classes, small_ranking_score),
                self._build_source(large_map, certified_data.classes, large_ranking_score),
            ),
            notes=notes,
            reject_label=check_reject_label(self.reject_label, certified_data.classes),
        )

    def _get_ranking_scores(self) -> tuple[str | Score, str | Score]:
        """Return the ranking scores of the small and of the large model."""
        small_ranking_score = self.score
        large_ranking_score = self.score if self.large_score is None else self.large_score
        return small_ranking_score, large_ranking_score

    def _pair_predictions(self, label_codes: Codes) -> PairedPredictions:
        """Compare the predictions of both models with the labels and with each other."""
        small_rows = self.small_rows
        large_rows = self.large_rows
        same_number_of_rows = len(small_rows) == len(large_rows)
        same_number_of_classes = small_rows.n_classes == large_rows.n_classes
        if not (same_number_of_rows and same_number_of_classes):
            raise CascadeError(
                "Both models must have tables of the same rows and classes, but got tables of"
                f" shape {len(small_rows):,} x {small_rows.n_classes} and {len(large_rows):,} x"
                f" {large_rows.n_classes}."
            )
        small_predicted_codes = small_rows.compute_column(kernels.predict_classes)
        large_predicted_codes = large_rows.compute_column(kernels.predict_classes)
        has_label = np.asarray(label_codes >= 0)
        small_ranking_score, large_ranking_score = self._get_ranking_scores()
        return PairedPredictions(
            small_score=score_rows(small_rows, small_ranking_score),
            large_score=score_rows(large_rows, large_ranking_score),
            small_correct=(small_predicted_codes == label_codes) & has_label,
            large_correct=(large_predicted_codes == label_codes) & has_label,
            models_agree=np.asarray(small_predicted_codes == large_predicted_codes),
            has_label=has_label,
        )

    def _build_source(
        self, calibration_map: Map, classes: NDArray[Any], score: str | Score
    ) -> LogitsSource:
        """Build the source of one model from its map and its ranking score."""
        return LogitsSource(
            map=calibration_map,
            classes=classes,
            score=score,
            input=self.input,
            classes_given=self.has_class_names,
        )


def find_rows_to_label(
    small_rows: Rows,
    large_rows: Rows,
    score: str | Score,
    plan: CascadePlan = DEFAULT_PLAN,
    large_score: str | Score | None = None,
) -> Codes:
    """Return the rows that need a label before `MaxLoss` can be certified.

    They are the tested rows on which the two models disagree. Pilot rows, which choose thresholds,
    need no label.

    Parameters
    ----------
    small_rows, large_rows : Rows
        Logits of the small and of the large model.

    score : str or callable
        Ranking score of the small model.

    plan : CascadePlan
        Plan with which the cascade will be fitted.

    large_score : str, callable or None
        Ranking score of the large model. None stands for `score`.

    Returns
    -------
    array of int
        Row numbers by rising score of the small model. Labels of the first rows suffice to certify
        that the small model answers a few rows, and more labels that it answers more.

    Examples
    --------
    >>> small_logits = np.eye(2)[np.arange(100) % 2]
    >>> large_logits = small_logits.copy()
    >>> large_logits[:10] = large_logits[:10, ::-1]
    >>> find_rows_to_label(Rows(small_logits), Rows(large_logits), "entropy").tolist()
    [0, 1, 2, 3, 4, 5, 7, 8, 9]
    """
    small_predicted_codes = small_rows.compute_column(kernels.predict_classes)
    large_predicted_codes = large_rows.compute_column(kernels.predict_classes)
    models_agree: Flags = np.asarray(small_predicted_codes == large_predicted_codes)
    small_scores = score_rows(small_rows, score)
    large_scores = score_rows(large_rows, score if large_score is None else large_score)
    pilot_index = draw_pilot_rows(small_scores, large_scores, models_agree, plan)
    is_tested = np.ones(len(models_agree), dtype=bool)
    is_tested[pilot_index] = False
    rows_to_label = np.flatnonzero(is_tested & ~models_agree)
    order_by_uncertainty = np.argsort(small_scores[rows_to_label], kind="stable")
    return rows_to_label[order_by_uncertainty]
