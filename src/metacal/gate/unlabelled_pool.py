"""Pool of unlabelled rows, from which a `Certifier` draws rows to label, and the answers for it.

A pool consists of scores or of logits. Rows are referred to by their index in the pool, so a pool
with the same rows in another order is a different pool. An *answer* states whether the prediction
of a row is correct, and perhaps its true class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal import kernels
from metacal.certificates.fingerprint import (
    Fingerprint,
    RowSketch,
    fingerprint_rows,
    hash_in_order,
)
from metacal.certificates.notes import Note
from metacal.certificates.row_checks import check_repeated_rows, check_ties
from metacal.certification.arriving import CORRECT, INCORRECT, UNKNOWN
from metacal.certification.ranking import Ranking
from metacal.errors import LabellingError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.ranking_score import check_score
from metacal.gate.score_source import ScoreSource
from metacal.rows import Rows, validate
from metacal.rows.draws import RowDraws
from metacal.rows.score_columns import check_correctness, check_scores
from metacal.scores import Score, score_rows

#: Code of a true class that is not known.
NO_CLASS = -1
# The fingerprint of a pool ends in a hash of its codes with this many hexadecimal digits.
_CODE_HASH_LENGTH = 16


@dataclass(frozen=True, eq=False)
class PoolPredictions:
    """Logits of a pool, and the predictions they imply.

    Attributes
    ----------
    rows : Rows
        Validated logits.
    classes : ndarray of shape (n_classes,)
        Class names in column order.
    predicted_codes : ndarray of int, shape (n_rows,)
        Column of the largest logit of each row.
    """

    rows: Rows
    classes: NDArray[Any]
    predicted_codes: Codes

    def are_correct(self, row_indices: Codes, true_codes: Codes) -> Flags:
        """Compare predictions with true classes. Indices outside of the pool are clipped."""
        last_index = len(self.predicted_codes) - 1
        clipped_indices = np.clip(row_indices, 0, last_index)
        return true_codes == self.predicted_codes[clipped_indices]


class EncodedAnswers(NamedTuple):
    """Answers for rows of a pool, as columns of numbers.

    Attributes
    ----------
    row_indices : ndarray of int, shape (n_answers,)
        Row of the pool that each answer is about.
    is_correct : ndarray of bool, shape (n_answers,)
        Whether the prediction of the row is correct.
    true_codes : ndarray of int, shape (n_answers,)
        Column of the true class of the row, -1 if it is not known.
    """

    row_indices: Codes
    is_correct: Flags
    true_codes: Codes


@dataclass(frozen=True, eq=False)
class UnlabelledPool:
    """Uncertainty scores of unlabelled rows, with predictions if they have logits.

    Attributes
    ----------
    uncertainty_scores : ndarray of shape (n_rows,)
        Score of each row, where higher is less certain. NaN if a row has no score.
    predictions : PoolPredictions or None
        Logits and predictions. None if the pool consists of scores.
    """

    uncertainty_scores: Float
    predictions: PoolPredictions | None = None

    @classmethod
    def from_scores(cls, scores: ArrayLike, source: ScoreSource) -> UnlabelledPool:
        """Read a pool with one score per row."""
        return cls(source.uncertainty_scores(check_scores(scores)))

    @classmethod
    def from_logits(
        cls, table: ArrayLike, score: str | Score, input: str, classes: Sequence[Any] | None
    ) -> UnlabelledPool:
        """Read a pool of logits or probabilities, and score its rows.

        Parameters
        ----------
        table : array-like of shape (n_rows, n_classes)
            Logits or probabilities.
        score : str or callable
            Ranking score.
        input : "logits" or "probabilities"
            Content of the table.
        classes : sequence or None
            Class names in column order. None for the column indices.
        """
        check_score(score, input=input)
        rows = Rows(validate.read_logits(table, input)).as_validated()
        predictions = PoolPredictions(
            rows=rows,
            classes=validate.check_classes(classes, rows.n_classes),
            predicted_codes=rows.compute_column(kernels.predict_classes),
        )
        return cls(uncertainty_scores=score_rows(rows, score), predictions=predictions)

    def __len__(self) -> int:
        return len(self.uncertainty_scores)

    @cached_property
    def has_score(self) -> Flags:
        """Whether each row has a score."""
        return ~np.isnan(self.uncertainty_scores)

    def draw_all_rows(self, random_state: int | None) -> Codes:
        """Return the indices of the rows that have a score, in random order.

        The order is the same in every version of NumPy.
        """
        scored_row_indices = np.flatnonzero(self.has_score)
        predicted_codes = None
        if self.predictions is not None:
            predicted_codes = self.predictions.predicted_codes[scored_row_indices]
        row_draws = RowDraws(
            seed_columns=(self.uncertainty_scores[scored_row_indices], predicted_codes),
            random_state=random_state,
        )
        random_order = row_draws.draw_row_order(purpose="rows to label")
        return scored_row_indices[random_order]

    def encode_answers(
        self, rows: ArrayLike, *, right: ArrayLike | None, labels: ArrayLike | None
    ) -> EncodedAnswers:
        """Check the answers that a user passes, and convert them to columns of codes.

        Parameters
        ----------
        rows : array-like of int, shape (n_answers,)
            Row of the pool that each answer is about.
        right : array-like of bool, shape (n_answers,), or None
            Whether each prediction is correct.
        labels : array-like of shape (n_answers,), or None
            True label of each row. Either `right` or `labels` must be given.

        Returns
        -------
        EncodedAnswers

        Raises
        ------
        InputError
            If an answer is invalid.
        """
        row_indices = np.atleast_1d(np.asarray(rows))
        is_integer = row_indices.dtype.kind in "iu"
        if not is_integer and row_indices.size > 0:
            raise LabellingError(
                "rows must be the integers that propose returns, but got an array of"
                f" {row_indices.dtype}."
            )
        row_indices = row_indices.astype(np.intp).reshape(-1)
        has_both_or_neither = (right is None) == (labels is None)
        if has_both_or_neither:
            raise LabellingError(
                "right (whether each prediction is correct) and labels (the true classes) cannot"
                " be combined. Pass one of them."
            )
        if labels is None:
            is_correct = check_correctness(np.atleast_1d(np.asarray(right)))
            true_codes = np.full(len(is_correct), NO_CLASS, dtype=np.intp)
        else:
            predictions = self.predictions
            if predictions is None:
                raise LabellingError(
                    "A pool of scores has no predictions, so labels cannot be compared with"
                    " them. Pass right=... instead of labels=..."
                )
            true_codes = validate.encode_labels(labels, len(row_indices), predictions.classes)
            is_correct = predictions.are_correct(row_indices, true_codes)
        if is_correct.shape != row_indices.shape:
            raise LabellingError(
                f"Expected one answer for each row, but got {len(row_indices)} rows and"
                f" {len(is_correct)} answers."
            )
        return EncodedAnswers(row_indices, is_correct=is_correct, true_codes=true_codes)

    def rank_without_labels(self) -> Ranking:
        """Rank the rows that have a score, all of them counted as incorrect."""
        scores = self.uncertainty_scores[self.has_score]
        no_row_is_correct = np.zeros(len(scores), dtype=bool)
        return Ranking.from_scores(scores, no_row_is_correct)

    def warn_about_rows(self) -> tuple[Note, ...]:
        """Warn about duplicate rows, or equal scores, and return the warnings as notes."""
        if self.predictions is None:
            row_notes = check_ties(self.rank_without_labels(), "given scores")
        else:
            row_notes = check_repeated_rows(self.predictions.rows, self.uncertainty_scores)
        return tuple(note.issue_warning() for note in row_notes)

    @property
    def fingerprint(self) -> str:
        """Hash of scores and predictions in the order of the rows."""
        if self.predictions is None:
            lacks_score = ~self.has_score
            row_codes = lacks_score.astype(np.int64)
        else:
            row_codes = np.where(self.has_score, self.predictions.predicted_codes, NO_CLASS)
        # The byte order is fixed, so that the hash is the same on every machine.
        little_endian_codes = row_codes.astype("<i8")
        code_hash = hashlib.sha256(little_endian_codes.data).hexdigest()
        short_code_hash = code_hash[:_CODE_HASH_LENGTH]
        score_hash = hash_in_order(self.uncertainty_scores[self.has_score])
        return f"{score_hash}:{short_code_hash}"

    @property
    def data_hash(self) -> str:
        """Digest of the scores, independent of the order of the rows."""
        return _fingerprint_as_incorrect(self.uncertainty_scores[self.has_score]).data_hash

    def sample_row_hashes(self, is_selected: Flags) -> RowSketch:
        """Sample hashes of some rows, by which they are recognised in other data."""
        return _fingerprint_as_incorrect(self.uncertainty_scores[is_selected]).sketch


def _fingerprint_as_incorrect(scores: Float) -> Fingerprint:
    """Compute the fingerprint of rows without labels, all counted as incorrect."""
    no_row_is_correct = np.zeros(len(scores), dtype=bool)
    return fingerprint_rows(scores, no_row_is_correct)


class PoolAnswers:
    """Answers received so far for the rows of a pool.

    Parameters
    ----------
    n_rows : int
        Number of rows of the pool.

    Attributes
    ----------
    label_states : ndarray of int8, shape (n_rows,)
        CORRECT, INCORRECT or UNKNOWN.
    true_codes : ndarray of int, shape (n_rows,)
        Column of the true class of each row, -1 if it is not known.
    """

    def __init__(self, n_rows: int) -> None:
        self.label_states = np.full(n_rows, UNKNOWN, dtype=np.int8)
        self.true_codes = np.full(n_rows, NO_CLASS, dtype=np.intp)

    @property
    def has_answer(self) -> Flags:
        """Whether each row has an answer."""
        return self.label_states != UNKNOWN

    @property
    def is_correct(self) -> Flags:
        """Whether each row has the answer that its prediction is correct."""
        return self.label_states == CORRECT

    def find_new(self, row_indices: Codes) -> Codes:
        """Return the positions in `row_indices` of rows without an answer, each row once."""
        distinct_rows, first_positions = np.unique(row_indices, return_index=True)
        has_no_answer = self.label_states[distinct_rows] == UNKNOWN
        return np.sort(first_positions[has_no_answer])

    def store(self, row_indices: Codes, is_correct: Flags, true_codes: Codes) -> None:
        """Store answers for rows of the pool."""
        self.label_states[row_indices] = np.where(is_correct, CORRECT, INCORRECT)
        self.true_codes[row_indices] = true_codes

    def check_consistent(self, row_indices: Codes, is_correct: Flags) -> None:
        """Raise InputError if an answer contradicts a stored one, or one for the same row."""
        stored_states = self.label_states[row_indices]
        new_states = np.where(is_correct, CORRECT, INCORRECT)
        contradicts_stored_answer = (stored_states != UNKNOWN) & (stored_states != new_states)
        # Several new answers may be about the same row. Each is compared with the first of them.
        _, first_answer_positions, answered_row_codes = np.unique(
            row_indices, return_index=True, return_inverse=True
        )
        first_new_states = new_states[first_answer_positions][answered_row_codes]
        contradicts_first_new_answer = new_states != first_new_states
        is_contradiction = contradicts_stored_answer | contradicts_first_new_answer
        if is_contradiction.any():
            contradicted_row = int(row_indices[is_contradiction][0])
            raise LabellingError(
                f"Row {contradicted_row} already has a different answer, and metacal keeps the"
                " first one. Remove the new answer. If the first answer was a mistake, start"
                " again."
            )
