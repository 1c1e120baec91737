"""Calibration data with one score per row, without logits, classes or probabilities.

A promise needs two facts about each calibration row: how uncertain its prediction is, and whether it
is correct. The rating of a judge, the log-probability of an answer or the similarity of a passage
measures the uncertainty, so no classifier is needed.

Terms
-----
uncertainty
    The score on the scale of certificates, where a higher value is less certain. It is the negated
    score if a higher score is surer.
rows that count
    The rows that a certificate is computed from. They are all rows with a score, unless clusters or
    importance weights select some of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.certificate import Certificate, accept_up_to_threshold
from metacal.certificates.fingerprint import Fingerprint, fingerprint_rows
from metacal.certificates.notes import (
    Note,
    note_items_without_score,
    note_reversed_score,
    note_rows_without_score,
)
from metacal.certificates.row_checks import find_notes_on_errors_and_ties
from metacal.certification.case_items import Cases
from metacal.certification.case_statements import (
    build_unsupported_case_columns_error,
    build_unused_cases_error,
)
from metacal.certification.importance import Importance
from metacal.certification.ranking import Ranking, require_some_correct
from metacal.certification.row_selection import RowSelection, SelectedRows, build_row_selection
from metacal.certification.units import Units
from metacal.errors import WeightsError
from metacal.formulas import Flags, Float
from metacal.gate.calibration_data import FittedSources
from metacal.gate.case_rows import check_and_select_groups, read_usable_items
from metacal.gate.certify_selected_rows import (
    certify_selected_rows,
    get_index_of_selected_or_all_rows,
)
from metacal.gate.score_source import (
    HigherIs,
    ScoreSource,
    check_score_gate_options,
    clean_score_name,
)
from metacal.gate.scored_rows import (
    ScoredRows,
    build_scored_rows,
    check_any_score,
    read_columns,
    read_marks,
    warn_about_unlabelled_entries,
)
from metacal.gate.thresholds import get_certified_thresholds
from metacal.kernels.grid import RELATIVE_GRID
from metacal.maps.confidence import ConfidenceCurve, fit_confidence
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import Profile, build_profile
from metacal.rows.arrays import as_plain_array

# Number of standard errors below chance beyond which a ranking counts as reversed.
_MAX_STANDARD_ERRORS_BELOW_CHANCE = 4.0


@dataclass(frozen=True, eq=False)
class CertifiedScores:
    """Certification result of rows with one score each.

    Attributes
    ----------
    certificate : Certificate
        Certificate of the rows that count, with notes on the scores.

    source : ScoreSource
        Source that turns scores into uncertainties.

    rows : ScoredRows
        Rows that have a score.

    selected_rows : SelectedRows or None
        Rows that count. None if all rows with a score do.

    ranking : Ranking
        Ranking of the rows that count.

    is_available_for_map : array of bool of shape (n_scored,)
        Whether the confidence curve may be fitted on each row.
    """

    certificate: Certificate
    source: ScoreSource
    rows: ScoredRows
    selected_rows: SelectedRows | None
    ranking: Ranking
    is_available_for_map: Flags

    def get_fingerprint(self) -> Fingerprint:
        """Compute the fingerprint of the rows that have a score."""
        return fingerprint_rows(self.rows.uncertainties, self.rows.correct)


@dataclass(frozen=True, eq=False)
class ScoreData:
    """Score and correctness of calibration rows, with the options of their gate.

    The promise is about rows that have a score. If all rows are independent draws from one source,
    so are the rows with a score. Rows without a score are left out of the fit and counted in a note, and
    the gate rejects such rows.

    Scores of a caller are often equal. Therefore the values of the score are tested in rising order
    of uncertainty, and the scores of pilot rows choose the first value
    (`metacal.certification.pilot`).

    Attributes
    ----------
    scores : array-like of shape (n_rows,)
        Score of each row. None or NaN if the row has none.

    correct : array-like of bool of shape (n_rows,) or None
        Whether each row is correct. None if `losses` is given.

    losses : array-like of float of shape (n_rows,) or None
        Loss of each row, from 0 to 1, in place of `correct`, for a promise about losses. A row is
        correct if its loss is 0.

    score_name : str
        Name of the score in the certificate.

    higher_is : {"surer", "doubtful"}
        Meaning of a higher score.

    clusters : array-like of shape (n_rows,), Units or None
        Cluster of each row, such as the question that several answers belong to. One row of each
        cluster counts, unless `Units` specifies another way to count.

    importance : array-like of shape (n_rows,), Importance or None
        Weight of each row under a known shift. It determines how many rows count
        (`metacal.certification.row_selection`).

    groups : array-like of shape (n_rows,) or None
        Group of each row, for a promise per group, or type of each item, for a promise about cases.

    cases : array-like of shape (n_rows,) or None
        Case of each row, for a promise about cases. `correct` may then have missing entries.

    random_state : int or None
        Seed for drawing the rows that count, the pilot rows and the pilot cases. None derives it from
        the rows.

    marks : array-like of float or None
        All values that the score can have, if the caller declares them.

    Examples
    --------
    >>> from metacal.gate.calibrate import calibrate
    >>> from metacal.promises.accuracy import MinAccuracy
    >>> rng = np.random.default_rng(0)
    >>> rating = rng.random(2000)
    >>> is_correct = rng.random(2000) > (1 - rating) ** 2
    >>> gate = calibrate(ScoreData(rating, is_correct), MinAccuracy(0.9))
    >>> gate.decide([0.95, 0.2, None]).accept
    array([ True, False, False])
    """

    scores: ArrayLike
    correct: ArrayLike | None = None
    losses: ArrayLike | None = None
    score_name: str = "score"
    higher_is: HigherIs = "surer"
    clusters: Units | ArrayLike | None = None
    importance: Importance | ArrayLike | None = None
    groups: ArrayLike | None = None
    cases: ArrayLike | None = None
    random_state: int | None = None
    marks: ArrayLike | None = None

    def certify(self, promise: Promise) -> CertifiedScores:
        """Certify a promise on the rows that have a score."""
        check_score_gate_options(promise, self.higher_is)
        if promise.counts_cases or self.cases is not None:
            return self._certify_cases(promise)
        return self._certify_rows(promise)

    def _certify_cases(self, promise: Promise) -> CertifiedScores:
        """Certify a promise about cases, using only cases whose outcome is known."""
        self._check_case_columns(promise)
        # A promise about cases limits a single quantity.
        [(case_quantity, _limit)] = promise.limits
        usable_items = read_usable_items(
            self.scores, self.correct, self.cases, case_quantity, random_state=self.random_state
        )
        groups_of_usable_items = None
        if self.groups is not None:
            n_items = len(np.asarray(self.scores))
            groups_of_usable_items = check_and_select_groups(
                self.groups, n_items, usable_items.row_indices
            )
        data_of_usable_items = replace(
            self,
            scores=usable_items.scores,
            correct=usable_items.correct,
            groups=groups_of_usable_items,
            cases=None,
        )
        # `_certify_rows` leaves out items without a score, so their cases are left out as well.
        cases_of_scored_items = usable_items.cases.take(usable_items.has_score)
        certified_items = data_of_usable_items._certify_rows(promise, cases=cases_of_scored_items)
        for note in usable_items.notes:
            note.issue_warning()
        certificate = certified_items.certificate.with_notes(*usable_items.notes)
        return replace(certified_items, certificate=certificate)

    def _check_case_columns(self, promise: Promise) -> None:
        """Raise InputError if the promise or a column does not suit cases."""
        if not promise.counts_cases:
            raise build_unused_cases_error(promise)
        if any(column is not None for column in (self.clusters, self.importance, self.losses)):
            raise build_unsupported_case_columns_error(promise)

    def _certify_rows(self, promise: Promise, cases: Cases | None = None) -> CertifiedScores:
        """Certify a promise on the rows that have a score, or on the items of cases.

        The `cases` are those of the items that have a score.
        """
        # Rows with groups or clusters may be entries of a table in which some labels are missing.
        input_columns = read_columns(
            self.scores,
            self.correct,
            self.losses,
            promise,
            allows_missing_labels=self.groups is not None or self.clusters is not None,
        )
        has_score = input_columns.has_score
        check_any_score(has_score, self.score_name)
        notes_on_labels = warn_about_unlabelled_entries(has_score, input_columns.has_label)
        is_usable = input_columns.is_usable
        source = ScoreSource(
            score=clean_score_name(self.score_name),
            higher_is=self.higher_is,
            truth="correct" if input_columns.losses is None else "losses",
        )
        usable_columns = input_columns.take(is_usable)
        rows = build_scored_rows(
            usable_columns, source, promise, groups=self.groups, is_usable=is_usable
        )
        rows = replace(rows, cases=cases)
        selected_rows = rows.draw_selected_rows(self._build_selection_of_usable_rows(is_usable))

        ranking = _rank_selected_rows(rows, selected_rows)
        # Warnings about scores come first, because they may explain why certification fails.
        expects_ties = self.marks is not None
        score_notes = _warn_about_scores(
            rows, selected_rows, ranking, source, has_score, checks_ties=not expects_ties
        )
        possible_uncertainties = read_marks(self.marks, source, usable_columns.scores)
        procedure = promise.procedure()
        certified_rows = certify_selected_rows(
            promise,
            rows.to_calibration_rows(),
            ranking,
            grid=RELATIVE_GRID,
            score_name=source.score_name,
            selected_rows=selected_rows,
            pilot_policy=procedure.build_pilot_policy(self.random_state, possible_uncertainties),
        )
        return CertifiedScores(
            certificate=certified_rows.certificate.with_notes(*score_notes, *notes_on_labels),
            source=source,
            rows=rows,
            selected_rows=selected_rows,
            ranking=ranking,
            is_available_for_map=certified_rows.is_available_for_map,
        )

    def fit_sources(self, result: CertifiedScores, promise: Promise) -> FittedSources:
        """Fit the curve that converts a score to a confidence."""
        may_fit_curve = result.is_available_for_map
        confidence_curve = fit_confidence(
            result.rows.uncertainties[may_fit_curve], result.rows.correct[may_fit_curve]
        )
        source = replace(result.source, curve=confidence_curve).with_threshold_neighbours_of(
            result.certificate
        )
        return FittedSources(
            sources=(source,), profile=_build_score_profile(result, confidence_curve)
        )

    def _build_selection_of_usable_rows(self, is_usable: Flags) -> RowSelection | None:
        """Build the selection of usable rows. Return None if all of them are used."""
        usable_index = np.flatnonzero(is_usable)
        clusters_of_usable_rows = None
        if self.clusters is not None:
            clusters_of_all_rows = Units.from_units_argument(self.clusters)
            clusters_of_usable_rows = clusters_of_all_rows.take(usable_index, len(is_usable))
        return build_row_selection(
            n_rows=len(usable_index),
            units=clusters_of_usable_rows,
            importance=_select_importance_of_usable_rows(self.importance, is_usable),
            random_state=self.random_state,
        )


def _select_importance_of_usable_rows(
    importance: Importance | ArrayLike | None, is_usable: Flags
) -> Importance | None:
    """Return the importance weights of the usable rows."""
    if importance is None:
        return None
    if not isinstance(importance, Importance):
        importance = Importance(importance)
    weights = as_plain_array(importance.weights, "importance")
    if weights.shape != is_usable.shape:
        raise WeightsError(
            f"importance must have one weight for each of the {len(is_usable)} rows, but got an"
            f" array of shape {weights.shape}."
        )
    return replace(importance, weights=weights[is_usable])


def _rank_selected_rows(rows: ScoredRows, selected_rows: SelectedRows | None) -> Ranking:
    """Rank the selected rows in order of increasing uncertainty.

    Without losses, raise InputError if none of these rows is correct.
    """
    selected_index = get_index_of_selected_or_all_rows(selected_rows)
    is_correct = rows.correct[selected_index]
    if rows.graded_losses is None:
        require_some_correct(is_correct)
    return Ranking.from_scores(rows.uncertainties[selected_index], is_correct)


def _warn_about_scores(
    rows: ScoredRows,
    selected_rows: SelectedRows | None,
    ranking: Ranking,
    source: ScoreSource,
    has_score: Flags,
    *,
    checks_ties: bool,
) -> list[Note]:
    """Warn about few errors, equal scores, missing scores and a reversed ranking.

    Parameters
    ----------
    rows : ScoredRows
        Usable rows.

    selected_rows : SelectedRows or None
        Rows that count. None if all of them do.

    ranking : Ranking
        Ranking of the rows that count.

    source : ScoreSource
        Source of the scores.

    has_score : array of bool of shape (n_rows,)
        Whether each row has a score.

    checks_ties : bool
        Whether equal scores are worth a note. They are expected if the caller declared the values.

    Returns
    -------
    list of Note
        Notes for the certificate, one for each warning.
    """
    selected_index = get_index_of_selected_or_all_rows(selected_rows)
    notes = find_notes_on_errors_and_ties(ranking, "given scores", checks_ties=checks_ties)
    if not has_score.all():
        n_rows = len(has_score)
        n_missing = n_rows - int(has_score.sum())
        if rows.cases is None:
            notes.append(note_rows_without_score(missing=n_missing, rows=n_rows))
        else:
            notes.append(note_items_without_score(missing=n_missing, rows=n_rows))
    n_standard_errors = _count_standard_errors_below_chance(
        rows.uncertainties[selected_index], rows.is_correct_or_has_small_loss[selected_index]
    )
    ranking_is_reversed = n_standard_errors > _MAX_STANDARD_ERRORS_BELOW_CHANCE
    if ranking_is_reversed:
        opposite_meaning: HigherIs = "doubtful" if source.higher_is == "surer" else "surer"
        rows_have_losses = source.truth == "losses"
        notes.append(note_reversed_score(higher_is=opposite_meaning, losses=rows_have_losses))
    return [note.issue_warning() for note in notes]


def _count_standard_errors_below_chance(uncertainties: Float, is_correct: Flags) -> float:
    """Compute by how many standard errors a ranking is worse than chance.

    The ranking is measured by the probability that an incorrect row is more uncertain than a correct
    one. It is U / (n_correct * n_incorrect), where U is the Mann-Whitney statistic, and it is 1/2 by
    chance.
    """
    n_correct = int(is_correct.sum())
    n_incorrect = int((~is_correct).sum())
    distinct_values, value_index, value_counts = np.unique(
        uncertainties, return_inverse=True, return_counts=True
    )
    every_row_is_correct = n_incorrect == 0
    all_rows_are_tied = len(distinct_values) <= 1
    if every_row_is_correct or all_rows_are_tied:
        return 0.0
    # Rows with equal uncertainties receive the mean of their ranks.
    mean_rank_of_value = np.cumsum(value_counts) - 0.5 * (value_counts - 1)
    row_ranks = mean_rank_of_value[value_index.ravel()]
    incorrect_rank_sum = float(row_ranks[~is_correct].sum())
    min_incorrect_rank_sum = 0.5 * n_incorrect * (n_incorrect + 1)
    mann_whitney_u = incorrect_rank_sum - min_incorrect_rank_sum
    n_pairs = n_correct * n_incorrect
    probability_incorrect_is_higher = mann_whitney_u / n_pairs
    standard_error = math.sqrt((n_correct + n_incorrect + 1) / (12.0 * n_correct * n_incorrect))
    chance_probability = 0.5
    return (chance_probability - probability_incorrect_is_higher) / standard_error


def _build_score_profile(result: CertifiedScores, curve: ConfidenceCurve | None) -> Profile:
    """Summarize calibration rows, so that monitors can compare new rows with them."""
    rows = result.rows
    selected_index = get_index_of_selected_or_all_rows(result.selected_rows)
    uncertainties = rows.uncertainties[selected_index]
    is_correct = rows.correct[selected_index]
    subgroup_codes = rows.subgroup_codes
    if subgroup_codes is not None:
        subgroup_codes = subgroup_codes[selected_index]
    no_class_names = ScoreSource.classes
    thresholds = get_certified_thresholds(result.certificate, class_names=no_class_names)
    row_thresholds = thresholds.get_row_thresholds(subgroup_codes)
    is_accepted = accept_up_to_threshold(uncertainties, row_thresholds)
    confidence = None
    if curve is not None:
        confidence = curve(uncertainties[is_accepted])
    return build_profile(result.ranking, confidence=confidence, correct=is_correct[is_accepted])
