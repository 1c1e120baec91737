"""Accept/reject gate on a confidence score of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from metacal.certificates.notes import Note
from metacal.certification.certify import can_count_clusters
from metacal.certification.importance import Importance
from metacal.certification.units import Units
from metacal.errors import InputError, ShapeError
from metacal.estimators.gate_estimator import GateEstimator
from metacal.formulas import Flags, Float
from metacal.gate import Decision, ScoreData
from metacal.gate.calibrate import calibrate
from metacal.gate.score_source import HigherIs
from metacal.gate.scored_rows import warn_about_unlabelled_table_rows
from metacal.promises.per_subgroup import PerGroup
from metacal.promises.promise import Promise
from metacal.rows.score_tables import (
    LabelledEntries,
    flatten_labelled_table,
    flatten_score_table,
    has_several_columns,
)


@dataclass(frozen=True, eq=False)
class _FlatScores:
    """Table of scores, flattened to one entry per row and label.

    Attributes
    ----------
    entries : LabelledEntries
        Entries with their labels.
    clusters : Units or None
        The row of the table of each entry, if the promise is about rows.
    groups : array of shape (n_entries,) or None
        The label of each entry, if each label has its own threshold.
    cases : array of shape (n_entries,) or None
        The row of the table of each entry, if the promise is about cases.
    notes : tuple of Note
        Note about entries or rows that were left out because they lack a label.
    """

    entries: LabelledEntries
    clusters: Units | None
    groups: Any
    cases: Any
    notes: tuple[Note, ...]


class ScoreGate(GateEstimator, kw_only=False):
    """Gate that accepts or rejects rows by a confidence score, under a promise.

    The score is any number per row: the mark of an LLM judge, the log-probability of an answer, the
    similarity of a passage, the confidence of an OCR engine. To fit, you also pass whether each row
    is correct, or its loss. There are no classes and no probabilities to calibrate. `confidence` is
    the probability of being correct, estimated on the calibration rows.

    Parameters
    ----------
    promise : Promise
        Any promise except PerClass and MaxLoss, because scores have no classes, and there is one
        model.
    higher_is : {"surer", "doubtful"}, default="surer"
        Meaning of a higher score. Use "doubtful" for losses, perplexities and distances.
    score_name : str, default="score"
        Name of the score in the certificate.
    marks : sequence of float or None, default=None
        Possible values of the score, if it is a scale, such as the marks of a judge from 1 to 5.

    Attributes
    ----------
    certificate_ : Certificate
        Certificate of the promise, with its confidence level and number of rows.
    threshold_ : float
        Threshold of the uncertainty. The gate accepts a row iff -score <= threshold_, or
        score <= threshold_ if a higher score is doubtful.
    gate_ : Gate
        Fitted gate, a frozen value.

    See Also
    --------
    MetaCal : Gate and calibrator on the logits of a classifier.
    CalibratedClassifier : Gate around a scikit-learn classifier.
    Cascade : Gate of a small and a large model.

    Examples
    --------
    >>> import metacal as mc
    >>> rng = np.random.default_rng(0)
    >>> mark = rng.random(3000)  # mark of a judge for an answer
    >>> ok = rng.random(3000) > (1 - mark) ** 2  # whether the answer is correct
    >>> gate = mc.ScoreGate(mc.MinAccuracy(0.9), score_name="mark").fit(mark[:2000], ok[:2000])
    >>> gate.certificate_.statement
    'Accepted predictions are correct at least 90% of the time, with 90% confidence.'
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
        cases: ArrayLike | None = None,
        random_state: int | None = None,
    ) -> Self:
        """Certify the threshold of the score on labelled rows.

        Parameters
        ----------
        score : array-like of shape (n_rows,) or (n_rows, n_labels)
            Score of each row. A score that is None, NaN or infinite is missing: the row is left out
            here and never accepted later. A table has a column for each label of a multi-label
            problem, or for each field of a form, and the gate decides on each entry. Then
            `correct` or `loss` has the same shape, and `groups` may name the labels.
            `PerGroup(MinAccuracy(0.9))` promises the precision of each label, and
            `PerGroup(MaxMiscoverage(0.1))` its recall. A promise for all labels together is about
            rows, each by the mean of its labels: `MinAccuracy(0.9)` promises the mean precision of
            rows with accepted labels, `MaxMiscoverage(0.1)` the mean recall of rows with labels.
            An entry of `correct` may be None or NaN if it is not known: a promise per label leaves
            out the entry, a promise for all labels its row.
        correct : array-like of shape (n_rows,) or None, default=None
            Whether each row is correct: true or false, 1 or 0, "yes" or "no". With `groups` or
            `units`, an entry may be None or NaN if it is not known. The row is then left out, and a
            note in the certificate has the number of these rows.
        loss : array-like of shape (n_rows,) or None, default=None
            Loss of each row from 0 to 1, for `MaxRisk`, in place of `correct`. `mc.losses` has
            common losses. `verify` and `evaluate` then need losses too.
        units : array-like of shape (n_rows,), Units or None, default=None
            Cluster of each row, such as answers to one question. One row of each cluster counts, or
            every row with `Units(names, per="row")`.
        importance : array-like of shape (n_rows,), Importance or None, default=None
            Importance weight of each row, if new rows have another distribution. The promise is
            certified if you declare the largest possible weight (`largest`).
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row, for a promise per group, or type of each item, for a promise about
            cases. Each group or type has its own threshold.
        cases : array-like of shape (n_rows,) or None, default=None
            Case of each item, such as the document of a field, for `MaxCaseErrors`, `MinCaseRecall`
            and `MaxErrorsPerCase`. `correct` may be None or NaN for some items. Cases in which such
            an item could decide the outcome are left out, and a note says how many. If the scores
            are a table, each of its rows is a case and each column a type.
        random_state : int or None, default=None
            Seed of the draw of the rows that count, with `units` or `importance`, of the pilot cases
            of a promise about cases, and of the pilot rows of an accuracy promise. By default it is derived from the rows. A seed that you
            pass is recorded in the certificate. Pilot rows choose the score at which the tests
            begin, and certify nothing. Of n rows, about √n are pilot rows, or ten if these ten have
            distinct scores.

        Returns
        -------
        self
        """
        notes: tuple[Note, ...] = ()
        if has_several_columns(score):
            if units is not None or importance is not None or cases is not None:
                raise _build_table_shape_error(score, correct if loss is None else loss)
            flat_scores = self._flatten_table(score, correct, loss, groups)
            score = flat_scores.entries.scores
            if loss is None:
                correct = flat_scores.entries.truth
            else:
                loss = flat_scores.entries.truth
            units = flat_scores.clusters
            groups = flat_scores.groups
            cases = flat_scores.cases
            notes = flat_scores.notes
        data = ScoreData(
            scores=score,
            correct=correct,
            losses=loss,
            score_name=self.score_name,
            higher_is=self.higher_is,
            clusters=units,
            importance=importance,
            groups=groups,
            cases=cases,
            random_state=random_state,
            marks=self.marks,
        )
        gate = calibrate(data, self.promise)
        assert gate.certificate is not None
        self.gate_ = replace(gate, certificate=gate.certificate.with_notes(*notes))
        return self

    def _flatten_table(self, score: Any, correct: Any, loss: Any, groups: Any) -> _FlatScores:
        """Flatten a table of scores to one entry per row and label.

        Parameters
        ----------
        score : array-like of shape (n_rows, n_labels)
            Scores.
        correct, loss : array-like of the same shape or None
            Whether each entry is correct, or its loss.
        groups : array-like of shape (n_labels,) or None
            Names of the labels.

        Returns
        -------
        _FlatScores
        """
        truth = correct if loss is None else loss
        if np.shape(truth) != np.shape(score):
            raise _build_table_shape_error(score, truth)
        is_about_cases = self.promise.counts_cases
        has_threshold_per_label = isinstance(self.promise, PerGroup) or is_about_cases
        entries = flatten_labelled_table(score, truth, groups)
        if has_threshold_per_label:
            return _FlatScores(
                entries=entries,
                clusters=None,
                groups=entries.column_names,
                cases=entries.row_of_entry if is_about_cases else None,
                notes=warn_about_unlabelled_table_rows(entries),
            )
        entries = entries.without_unlabelled_rows()
        n_labels = np.shape(score)[1]
        return _FlatScores(
            entries=entries,
            clusters=self._make_row_clusters(entries, n_labels),
            groups=None,
            cases=None,
            notes=warn_about_unlabelled_table_rows(entries),
        )

    def _make_row_clusters(self, entries: LabelledEntries, n_labels: int) -> Units:
        """Make a cluster of the entries of each row of a table."""
        if can_count_clusters(self.promise):
            # Each row of the table counts once, with the mean over its labels.
            return Units(entries.row_of_entry, per="mean", largest=n_labels)
        return Units(entries.row_of_entry)

    def accepts(self, score: ArrayLike, groups: ArrayLike | None = None) -> Flags:
        """Return whether each row, or each entry of a table, is accepted.

        Parameters
        ----------
        score : array-like of shape (n_rows,) or (n_rows, n_labels)
            Scores. A row without a score is not accepted.
        groups : array-like or None, default=None
            Group of each row, for a promise per group, or type of each item, for a promise about
            cases. For a table, the names of its columns.

        Returns
        -------
        array of bool of the shape of `score`
        """
        check_is_fitted(self, "gate_")
        if not has_several_columns(score):
            return self.gate_.accepts(score, groups)
        flat_scores, label_of_entry = flatten_score_table(score, groups)
        entry_groups = label_of_entry if self.gate_.has_group_thresholds else None
        is_accepted = self.gate_.accepts(flat_scores, entry_groups)
        return is_accepted.reshape(np.shape(score))

    def confidence(self, score: ArrayLike) -> Float:
        """Return the calibrated probability that each row is correct.

        It is NaN for a row without a score.

        The promise does not cover these probabilities.
        """
        check_is_fitted(self, "gate_")
        probability_of_correct: Float | None = self.gate_.score_source.confidence(score)
        assert probability_of_correct is not None
        return probability_of_correct

    def decide(self, score: ArrayLike, groups: ArrayLike | None = None) -> Decision:
        """Return the decision, the score and the confidence of each row.

        Parameters
        ----------
        score : array-like of shape (n_rows,)
            Scores.
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row, for a promise per group.

        Returns
        -------
        Decision
        """
        check_is_fitted(self, "gate_")
        return self.gate_.decide(score, groups=groups)


def _build_table_shape_error(score: Any, truth: Any) -> InputError:
    """Build the error about scores whose shape does not match the other arguments."""
    return ShapeError(
        f"Scores and labels of a table must have the same shape, but got {np.shape(score)} and"
        f" {np.shape(truth)}. A table does not support units, importance or cases, because each"
        " row is a case."
    )
