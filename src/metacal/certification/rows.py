"""Columns of the calibration rows that are tested.

Every procedure must use or refuse each optional column. If a procedure ignored the cluster codes, for
example, clustered rows would be certified as if they were independent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from metacal.certificates.subgroups import Name
from metacal.certification.even_odds import find_even_odds_score
from metacal.certification.ranking import Ranking, require_some_correct
from metacal.errors import NumberError, ShapeError
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import RELATIVE_GRID
from metacal.rows.draws import RowDraws

if TYPE_CHECKING:
    from metacal.certification.case_items import Cases
    from metacal.certification.plans import PilotRows
    from metacal.certification.row_losses import Losses

# Code of the second of two classes.
_SECOND_CLASS = 1


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters of dependent rows, for a promise that counts all rows of a cluster.

    Attributes
    ----------
    codes : array of int of shape (n_rows,)
        Cluster of each row. The codes are 0, ..., n_clusters - 1 in a random order of the clusters.

    max_size : int
        Largest number of rows that a cluster can have, including future clusters.

    uses_cluster_means : bool
        Whether a cluster counts once, by the mean of its counted rows. Otherwise each row counts
        once.
    """

    codes: Codes
    max_size: int
    uses_cluster_means: bool = False

    @classmethod
    def from_codes(
        cls, codes: Codes, max_size: int, *, uses_cluster_means: bool = False
    ) -> Clusters:
        """Number the clusters from 0, in the order of the given codes."""
        _, dense_codes = np.unique(codes, return_inverse=True)
        return cls(
            codes=dense_codes.reshape(-1), max_size=max_size, uses_cluster_means=uses_cluster_means
        )

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return int(self.codes.max(initial=-1)) + 1

    def take(self, index: Flags | Codes) -> Clusters:
        """Return the clusters of the selected rows, renumbered from 0."""
        return Clusters.from_codes(
            self.codes[index], self.max_size, uses_cluster_means=self.uses_cluster_means
        )


@dataclass(frozen=True, eq=False)
class Subgroups:
    """Subgroup of each row, and the names of all subgroups.

    Attributes
    ----------
    codes : array of int of shape (n_rows,)
        Index of the subgroup of each row in `names`.

    names : tuple of str or int
        Names of the classes or groups.
    """

    codes: Codes
    names: tuple[Name, ...]

    def take(self, index: Flags | Codes) -> Subgroups:
        """Return the subgroups of the selected rows."""
        return replace(self, codes=self.codes[index])


@dataclass(frozen=True, eq=False)
class CalibrationRows:
    """Calibration rows that are tested, with their columns.

    A `Sample` has the same rows as flat columns, and is what callers of `Promise.certify` pass.

    Attributes
    ----------
    scores : array of float of shape (n_rows,)
        Ranking score of each row, rounded to the grid. A higher score means less certain. For a
        promise about two classes, the log-odds of the second class.

    correct : array of bool of shape (n_rows,), optional
        Whether each prediction is correct. None if there are no labels.

    losses : Losses, optional
        Loss of each row, for a promise about losses.

    subgroups : Subgroups, optional
        Subgroup of each row, for a promise about each class or group.

    clusters : Clusters, optional
        Cluster of each row, if the rows are dependent and every row counts.

    cases : Cases, optional
        Case of each row, for a promise about cases. Subgroups are then types of items.

    class_codes : array of int of shape (n_rows,), optional
        For a promise about two classes, the true class of each row, or -1 if it is neither of them.
        By default, correct rows are of the second class.

    class_names : tuple of str or int
        Names of the two classes.

    pilot_rows : PilotRows, optional
        Rows that determine where the tests begin.

    precomputed_ranking : Ranking, optional
        Ranking of these rows, if the caller has sorted them already.
    """

    scores: Float
    correct: Flags | None = None
    losses: Losses | None = None
    subgroups: Subgroups | None = None
    clusters: Clusters | None = None
    cases: Cases | None = None
    class_codes: Codes | None = None
    class_names: tuple[Name, ...] = (0, 1)
    pilot_rows: PilotRows | None = None
    precomputed_ranking: Ranking | None = None

    @classmethod
    def from_columns(cls, scores: Any, correct: Any = None) -> CalibrationRows:
        """Build calibration rows from columns that a user passed.

        Parameters
        ----------
        scores : array-like of shape (n_rows,)
            Ranking score of each row.

        correct : array-like of bool of shape (n_rows,), optional
            Whether each prediction is correct.

        Returns
        -------
        CalibrationRows
            Rows with scores that are rounded to the grid.

        Raises
        ------
        InputError
            If the columns do not fit together, a score is NaN, or no row is correct.
        """
        score_column = check_scores(scores, correct)
        if correct is not None:
            correct = np.asarray(correct)
            require_some_correct(correct)
        return cls(scores=score_column, correct=correct)

    def __len__(self) -> int:
        return len(self.scores)

    @cached_property
    def ranking(self) -> Ranking:
        """Rows in increasing order of score, where unlabelled rows count as errors."""
        if self.precomputed_ranking is not None:
            return self.precomputed_ranking
        return Ranking.from_scores(self.scores, self.is_correct)

    @property
    def is_correct(self) -> Flags:
        """Whether each prediction is correct. All entries are False without labels."""
        if self.correct is None:
            return np.zeros(len(self), dtype=bool)
        return self.correct

    @property
    def true_class_codes(self) -> Codes:
        """True class of each row, for a promise about two classes."""
        if self.class_codes is not None:
            return self.class_codes
        return self.is_correct.astype(np.intp)

    def rank_for_class(self, class_code: int) -> Ranking:
        """Rank the rows by their probability of a class, the most probable first.

        A row counts as correct if it is of that class.
        """
        # The scores are the log-odds of the second class. The sign is reversed, so that the most
        # probable rows of this class come first.
        scores = -self.scores if class_code == _SECOND_CLASS else self.scores
        is_of_class = self.true_class_codes == class_code
        return Ranking.from_scores(RELATIVE_GRID.round(scores), is_of_class)

    @cached_property
    def even_odds_score(self) -> float:
        """Log-odds at which both classes are equally likely."""
        return find_even_odds_score(self.scores, self.true_class_codes == _SECOND_CLASS)

    def even_odds_score_for_class(self, class_code: int) -> float:
        """Return the score of even odds, with the sign that `rank_for_class` uses."""
        if class_code == _SECOND_CLASS:
            return -self.even_odds_score
        return self.even_odds_score

    def build_row_draws(self, random_state: int | None = None) -> RowDraws:
        """Build a source of random draws whose seed is derived from the columns of the rows.

        Losses that follow from correctness are omitted. Promises with the same meaning then draw
        the same rows.
        """
        graded_losses = None
        if self.losses is not None and not self.losses.is_all_or_nothing:
            graded_losses = self.losses.if_accepted
        subgroup_codes = None
        if self.subgroups is not None:
            subgroup_codes = self.subgroups.codes
        cluster_codes = None
        if self.clusters is not None:
            cluster_codes = self.clusters.codes
        seed_columns = (
            self.scores,
            self.correct,
            graded_losses,
            subgroup_codes,
            self.class_codes,
        )
        return RowDraws(seed_columns, cluster_codes=cluster_codes, random_state=random_state)

    def take(self, index: Flags | Codes) -> CalibrationRows:
        """Return the rows that a mask or an index selects."""
        losses = self.losses
        if losses is not None:
            losses = losses.select_rows(index)
        subgroups = self.subgroups
        if subgroups is not None:
            subgroups = subgroups.take(index)
        clusters = self.clusters
        if clusters is not None:
            clusters = clusters.take(index)
        cases = self.cases
        if cases is not None:
            cases = cases.take(index)
        return replace(
            self,
            scores=self.scores[index],
            correct=_select_if_given(self.correct, index),
            losses=losses,
            subgroups=subgroups,
            clusters=clusters,
            cases=cases,
            class_codes=_select_if_given(self.class_codes, index),
            precomputed_ranking=None,
        )


def check_scores(scores: Any, correct: Any = None) -> Float:
    """Validate the scores and the correctness of rows, and round the scores.

    Raises
    ------
    InputError
        If the columns do not fit together or a score is NaN.
    """
    score_column = np.asarray(scores, dtype=np.float64)
    if correct is None:
        is_nonempty_column = score_column.ndim == 1 and len(score_column) > 0
        if not is_nonempty_column or np.isnan(score_column).any():
            raise ShapeError(
                "certify requires a 1-D array of scores with at least one row, but got an array"
                f" of shape {score_column.shape}."
            )
        return RELATIVE_GRID.round(score_column)
    correct_column = np.asarray(correct)
    has_one_score_per_row = score_column.ndim == 1 and score_column.shape == correct_column.shape
    if not has_one_score_per_row or correct_column.dtype != bool:
        raise ShapeError(
            "certify requires one score and one boolean for each row, but got arrays of shape"
            f" {score_column.shape} and {correct_column.shape} ({correct_column.dtype})."
        )
    if np.isnan(score_column).any():
        raise NumberError(
            "Some scores are NaN, but certify requires a score for every row. Leave out the rows"
            " without a score."
        )
    return RELATIVE_GRID.round(score_column)


@overload
def _select_if_given(column: None, index: Flags | Codes) -> None: ...
@overload
def _select_if_given(column: np.ndarray, index: Flags | Codes) -> np.ndarray: ...
def _select_if_given(column: np.ndarray | None, index: Flags | Codes) -> np.ndarray | None:
    """Return the selected entries of a column, or None if the column is None."""
    if column is None:
        return None
    return column[index]
