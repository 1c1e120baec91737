"""Comparison of confidence scores, and a fused score of all of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from metacal import display
from metacal.errors import (
    InfeasibleTargetError,
    InputError,
    MetacalWarning,
    OneOutcomeError,
    ShapeError,
)
from metacal.formulas import Flags, Float
from metacal.gate import ScoreData
from metacal.gate.calibrate import calibrate
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.promise import Promise
from metacal.rows.draws import make_generator
from metacal.rows.score_columns import check_correctness, check_scores

#: Name of the fused score.
FUSED_SCORE_NAME = "fused"
#: Fraction of the rows on which the fused score is fitted.
_FUSION_FRACTION = 1 / 3
#: Width of the column of names in a printed comparison.
_NAME_WIDTH = 24
#: Names that mark a score whose higher values mean less confidence.
DOUBTFUL_SCORE_NAMES = ("perplexity", "loss", "entropy")


@dataclass(frozen=True)
class ScoreRow:
    """AUROC and certifiable coverage of one score.

    Attributes
    ----------
    name : str
        Name of the score.
    auroc : float
        Area under the ROC curve for correct against incorrect rows.
    coverage : float
        Fraction of rows that a gate under the promise accepts; 0 if it cannot be certified.
    n_rows : int
        Number of rows with this score.
    """

    name: str
    auroc: float
    coverage: float
    n_rows: int


@dataclass(frozen=True)
class ScoreComparison:
    """Comparison of scores on the same rows, largest coverage first.

    Attributes
    ----------
    rows : tuple of ScoreRow
        Result of each score.
    promise : Promise
        Promise under which the coverage was computed.
    fusion_model : estimator
        Logistic regression on all scores, which predicts the fused score.
    """

    rows: tuple[ScoreRow, ...]
    promise: Promise
    fusion_model: Pipeline

    def fused(self, columns: Mapping[str, Any]) -> Float:
        """Return the fused score of new rows, an estimated probability of being correct.

        A row in which any score is missing gets NaN.
        """
        return _compute_fused_score(self.fusion_model, columns)

    def __str__(self) -> str:
        header = f"{_format_name_cell('score')} AUROC  would accept"
        lines = [header]
        for row in self.rows:
            name_cell = _format_name_cell(row.name)
            lines.append(f"{name_cell} {row.auroc:.3f}  {row.coverage:.3f} of the rows")
        lines.append(f"under {self.promise!r}; certify the one you choose on other rows.")
        return "\n".join(lines)

    __repr__ = __str__

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with one row per score."""
        return display.make_frame([asdict(row) for row in self.rows])


def _format_name_cell(name: str) -> str:
    """Truncate or pad the name of a score to the width of its column."""
    return name[:_NAME_WIDTH].ljust(_NAME_WIDTH)


def compare_scores(
    columns: Mapping[str, Any],
    correct: Any,
    promise: Promise | None = None,
    *,
    doubtful: tuple[str, ...] = DOUBTFUL_SCORE_NAMES,
    random_state: int = 0,
) -> ScoreComparison:
    """Compare confidence scores, and fuse them into one.

    A third of the rows, drawn at random, is used to fit the fused score, a logistic regression on
    all scores. The other rows measure every score. If you choose the best of several scores, you
    have used these rows for the choice: it is not valid to certify the gate on them, so fit it on
    other rows.

    Parameters
    ----------
    columns : mapping of str to array-like of shape (n_rows,)
        Scores by name.
    correct : array-like of shape (n_rows,)
        Whether each row is correct.
    promise : Promise or None, default=None
        Promise of the gate. The default is MinAccuracy(0.9).
    doubtful : tuple of str, default=("perplexity", "loss", "entropy")
        Names of scores whose higher values mean less confidence.
    random_state : int, default=0
        Seed of the draw of the rows for the fused score.

    Returns
    -------
    ScoreComparison

    Raises
    ------
    InputError
        If a score does not have one number per row, or all rows are correct or incorrect.

    See Also
    --------
    compare : Compare calibrators by cross-validation.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> skill = rng.normal(size=3000)
    >>> columns = {name: skill + rng.normal(size=3000) for name in ("mean_logprob", "agreement")}
    >>> correct = rng.random(3000) < 1 / (1 + np.exp(-2 * skill))
    >>> comparison = compare_scores(columns, correct, MinAccuracy(0.8))
    >>> comparison.rows[0].name, comparison.rows[0].auroc > 0.75
    ('fused', True)
    """
    if promise is None:
        promise = MinAccuracy(0.9)
    is_correct = check_correctness(correct)
    n_rows = len(is_correct)
    score_by_name = {
        name: check_scores(column).astype(np.float64) for name, column in columns.items()
    }
    if not score_by_name or any(len(score) != n_rows for score in score_by_name.values()):
        raise ShapeError(
            f"Each entry of scores must be an array with one number for each of the {n_rows} rows."
        )
    has_both_outcomes = is_correct.any() and not is_correct.all()
    if not has_both_outcomes:
        raise OneOutcomeError(
            "A comparison of scores requires both correct and incorrect rows, but all rows are"
            " of one kind. Pass more rows."
        )

    n_fusion_rows = math.ceil(_FUSION_FRACTION * n_rows)
    random_order = make_generator(random_state).permutation(n_rows)
    is_fusion_row = np.zeros(n_rows, dtype=bool)
    is_fusion_row[random_order[:n_fusion_rows]] = True
    fusion_model = _fit_fusion_model(score_by_name, is_correct, is_fusion_row)

    confidence_by_name = {}
    for name, score in score_by_name.items():
        confidence_by_name[name] = -score if name in doubtful else score
    confidence_by_name[FUSED_SCORE_NAME] = _compute_fused_score(fusion_model, score_by_name)
    is_test_row = ~is_fusion_row
    score_rows = []
    for name, confidence in confidence_by_name.items():
        score_rows.append(
            _evaluate_score(name, confidence[is_test_row], is_correct[is_test_row], promise)
        )
    score_rows.sort(key=_make_sort_key)
    return ScoreComparison(tuple(score_rows), promise, fusion_model)


def _make_sort_key(score_row: ScoreRow) -> tuple[float, float]:
    """Make the key that sorts scores by falling coverage, then by falling AUROC."""
    return -score_row.coverage, -score_row.auroc


def _fit_fusion_model(
    scores: Mapping[str, Float], is_correct: Flags, is_fusion_row: Flags
) -> Pipeline:
    """Fit a logistic regression of correctness on all scores of the fusion rows."""
    features = np.stack(list(scores.values()), axis=1)
    has_all_scores = ~np.isnan(features).any(axis=1)
    is_fit_row = is_fusion_row & has_all_scores
    fusion_model = make_pipeline(StandardScaler(), LogisticRegression())
    fusion_model.fit(features[is_fit_row], is_correct[is_fit_row])
    fusion_model.feature_names = tuple(scores)
    return fusion_model


def _compute_fused_score(fusion_model: Pipeline, columns: Mapping[str, Any]) -> Float:
    """Predict the probability of being correct, NaN for a row without all scores."""
    score_columns = [check_scores(columns[name]) for name in fusion_model.feature_names]
    features = np.stack(score_columns, axis=1)
    has_all_scores = ~np.isnan(features).any(axis=1)
    fused_score = np.full(len(features), np.nan)
    if has_all_scores.any():
        probabilities = fusion_model.predict_proba(features[has_all_scores])
        probability_of_correct = probabilities[:, 1]
        fused_score[has_all_scores] = probability_of_correct
    return fused_score


def _evaluate_score(name: str, confidence: Float, is_correct: Flags, promise: Promise) -> ScoreRow:
    """Compute the AUROC and the certifiable coverage of one score.

    Parameters
    ----------
    name : str
        Name of the score.
    confidence : array of shape (n_rows,)
        The score, or its negative if higher values mean less confidence. NaN if missing.
    is_correct : array of bool of shape (n_rows,)
        Whether each row is correct.
    promise : Promise
        Promise of the gate.

    Returns
    -------
    ScoreRow
    """
    has_score = ~np.isnan(confidence)
    has_both_outcomes = len(np.unique(is_correct[has_score])) == 2
    auroc = math.nan
    if has_both_outcomes:
        auroc = float(roc_auc_score(is_correct[has_score], confidence[has_score]))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MetacalWarning)
            certificate = calibrate(ScoreData(confidence, is_correct), promise).certificate
        assert certificate is not None
        coverage = certificate.coverage * float(has_score.mean())
    except (InfeasibleTargetError, InputError):
        coverage = 0.0
    return ScoreRow(name, auroc, coverage, int(has_score.sum()))
