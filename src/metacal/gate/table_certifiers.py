"""Three ways to certify a promise on a table of logits.

Rows are sorted by a score (`SortingCertifier`), rows of two classes are sorted by their log-odds
(`LogOddsSortingCertifier`), or rows are counted in intervals of the score because they are too many
to sort (`CountingCertifier`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from metacal import kernels
from metacal.certificates.certificate import Certificate
from metacal.certificates.design import record_design
from metacal.certificates.fingerprint import Fingerprint, fingerprint_rows
from metacal.certification.certify import certify
from metacal.certification.ranking import Ranking, require_some_correct
from metacal.certification.row_selection import SelectedRows
from metacal.certification.rows import CalibrationRows
from metacal.formulas import Codes, Flags, Float
from metacal.gate.background_map import BackgroundMap
from metacal.gate.calibration_table import (
    CalibrationTable,
    CertifiedTable,
    RowColumns,
    check_two_classes,
)
from metacal.gate.certify_selected_rows import (
    certify_selected_rows,
    get_index_of_selected_or_all_rows,
)
from metacal.gate.long_rows import TableRowCounter, decide_counted_rows
from metacal.gate.shifted_rows import shift_second_logit
from metacal.gate.thresholds import get_certified_thresholds, get_decision_offsets
from metacal.kernels.grid import RELATIVE_GRID
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import compute_bin_edge_ranks
from metacal.rows import Rows
from metacal.rows.arrays import to_numpy
from metacal.rows.executors import start_in_thread_or_defer
from metacal.scores import (
    Score,
    compute_score_and_correctness,
    get_rounding_grid,
    get_score_name,
    score_rows,
)


class TableCertifier(Protocol):
    """Method for certifying a promise on a table of logits."""

    def certify(self, promise: Promise) -> CertifiedTable:
        """Certify a promise, and compute the score and the threshold of each row."""


@dataclass(frozen=True, eq=False)
class ScoredTable:
    """Validated table with the score of each row.

    Attributes
    ----------
    rows : Rows
        Validated rows.

    scores : array of float of shape (n_rows,)
        Score of each row.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct. False without labels.

    scores_on_device, correct_on_device : tensor of shape (n_rows,) or None
        The same columns on the device, if the scores were computed there.
    """

    rows: Rows
    scores: Float
    correct: Flags
    scores_on_device: Any = None
    correct_on_device: Any = None


@dataclass(frozen=True, eq=False)
class CountedTable:
    """Certificate of rows that were counted by score, with results of the passes.

    Attributes
    ----------
    certificate : Certificate
        Certificate with the threshold before it is made robust to rounding.

    ranking : Ranking
        Ranking as far as the counts determine it, with the bin edges of the monitors' profile.

    rows : Rows
        Validated rows.

    fingerprint : Fingerprint
        Fingerprint of the scores and the correctness of all rows.
    """

    certificate: Certificate
    ranking: Ranking
    rows: Rows
    fingerprint: Fingerprint


class SortingCertifier:
    """Certifier that sorts the rows of a table by one score.

    Parameters
    ----------
    table : CalibrationTable
        Calibration rows.

    score : str or callable
        Ranking score.

    background_map : BackgroundMap, optional
        Calibration map to fit while another thread sorts or hashes the rows.
    """

    def __init__(
        self,
        table: CalibrationTable,
        score: str | Score,
        background_map: BackgroundMap | None = None,
    ) -> None:
        self.table = table
        self.score = score
        self.background_map = background_map

    def certify(self, promise: Promise) -> CertifiedTable:
        """Score, select and sort the rows, then certify the promise."""
        table = self.table
        scored_table = score_table(table.rows, self.score, table.labels)
        scores = scored_table.scores
        correct = scored_table.correct
        selected_rows = table.draw_selected_rows(
            scores, correct, table.host_labels, table.subgroup_codes
        )
        losses = promise.compute_losses(scored_table.rows, table.labels)
        has_labels = table.labels is not None
        if has_labels:
            require_some_correct(correct)
            require_some_correct(correct[get_index_of_selected_or_all_rows(selected_rows)])
        all_rows = CalibrationRows(
            scores=scores,
            correct=correct if has_labels else None,
            losses=losses,
            subgroups=table.subgroups,
        )
        pilot_policy = promise.procedure().build_pilot_policy()
        draws_tested_ranks = pilot_policy is not None and table.subgroups is None
        wait_for_fingerprint = self._start_fingerprint_beside_background_map(scored_table)
        ranking = self._rank_rows_and_fit_background_map(
            scored_table, selected_rows, stores_digest_of_ranking=draws_tested_ranks
        )
        result = certify_selected_rows(
            promise,
            all_rows,
            ranking,
            grid=get_rounding_grid(self.score),
            score_name=get_score_name(self.score),
            selected_rows=selected_rows,
            pilot_policy=pilot_policy,
            are_logits=True,
        )
        thresholds = get_certified_thresholds(result.certificate, table.class_names)
        return CertifiedTable(
            certificate=result.certificate,
            score=self.score,
            rows=scored_table.rows,
            columns=RowColumns(
                scores=scores,
                correct=correct,
                is_available_for_map=result.is_available_for_map,
                thresholds=thresholds.get_row_thresholds(table.subgroup_codes),
                ranking=ranking,
            ),
            selected_rows=selected_rows,
            background_map=self.background_map,
            wait_for_fingerprint=wait_for_fingerprint,
        )

    def _start_fingerprint_beside_background_map(
        self, scored_table: ScoredTable
    ) -> Callable[[], Fingerprint] | None:
        """Start to compute the fingerprint while this thread fits the background map.

        Later code of this thread would wait for the interpreter lock more often than the fit does.
        Return None if there is no background map.
        """
        if self.background_map is None:
            return None
        rows = scored_table.rows
        return start_in_thread_or_defer(
            rows.executor,
            fingerprint_rows,
            scored_table.scores,
            scored_table.correct,
            may_use_helper_thread=rows.is_on_device,
        )

    def _rank_rows_and_fit_background_map(
        self,
        scored_table: ScoredTable,
        selected_rows: SelectedRows | None,
        *,
        stores_digest_of_ranking: bool,
    ) -> Ranking:
        """Rank the selected rows in another thread while this thread fits the map.

        Parameters
        ----------
        scored_table : ScoredTable
            All rows with their scores.

        selected_rows : SelectedRows or None
            Rows that count. None if all rows count.

        stores_digest_of_ranking : bool
            Whether the other thread also computes the digest of the ranking, because ranks are
            drawn. It takes as long as the sort.

        Returns
        -------
        Ranking
        """

        def rank_rows_and_store_digest() -> Ranking:
            ranking = _rank_selected_rows(scored_table, selected_rows, self.score)
            if stores_digest_of_ranking:
                # Reading the attribute makes the ranking compute and store its digest.
                _digest_stored_by_ranking = ranking.digest
            return ranking

        if self.background_map is None:
            return _rank_selected_rows(scored_table, selected_rows, self.score)
        rows = scored_table.rows
        wait_for_ranking = start_in_thread_or_defer(
            rows.executor, rank_rows_and_store_digest, may_use_helper_thread=rows.is_on_device
        )
        self.background_map.fit_and_keep_result(rows)
        return wait_for_ranking()


class LogOddsSortingCertifier:
    """Certifier that sorts rows of two classes by their log-odds.

    Parameters
    ----------
    table : CalibrationTable
        Calibration rows of two classes.
    """

    score = "margin"

    def __init__(self, table: CalibrationTable) -> None:
        self.table = table

    def certify(self, promise: Promise) -> CertifiedTable:
        """Certify the thresholds of both classes, then decide all rows."""
        from metacal.maps.monotone import log_odds

        table = self.table
        check_two_classes(table.rows.n_classes, type(promise).__name__)
        validated_rows = table.rows.as_validated()
        labels = table.host_labels
        assert labels is not None
        row_log_odds = validated_rows.to_host().compute_column(log_odds)
        selected_rows = table.draw_selected_rows(row_log_odds, labels, table.subgroup_codes)
        # The tests concern predictions of the second class, so its rows count as correct.
        is_of_second_class = labels == 1
        tested_rows = CalibrationRows(
            scores=row_log_odds,
            correct=is_of_second_class,
            subgroups=table.subgroups,
            class_codes=labels,
            class_names=tuple(table.class_names.tolist()),
        )
        if selected_rows is not None:
            tested_rows = replace(
                tested_rows.take(selected_rows.indices), clusters=selected_rows.clusters
            )
        pilot_policy = promise.procedure().build_pilot_policy()
        if pilot_policy is not None:
            tested_rows = pilot_policy.withhold_pilot_rows(tested_rows)
        certificate = certify(promise, tested_rows)

        certified_table = self._decide_rows(certificate, validated_rows, labels, selected_rows)
        if pilot_policy is not None and tested_rows.pilot_rows is not None:
            columns = certified_table.columns
            selected_index = get_index_of_selected_or_all_rows(selected_rows)
            certificate = certificate.with_counts_of_all_rows(
                columns.is_accepted[selected_index], columns.correct[selected_index]
            )
            certificate = record_design(
                certificate, pilot_policy.build_design(tested_rows.pilot_rows, certificate)
            )
        if selected_rows is not None:
            certificate = selected_rows.annotate_certificate(certificate)
        return replace(certified_table, certificate=certificate)

    def _decide_rows(
        self,
        certificate: Certificate,
        rows: Rows,
        labels: Codes,
        selected_rows: SelectedRows | None,
    ) -> CertifiedTable:
        """Decide all rows by the thresholds of a certificate.

        Parameters
        ----------
        certificate : Certificate
            Certificate with the thresholds of both classes.

        rows : Rows
            Validated rows.

        labels : array of int of shape (n_rows,)
            Column of the true class of each row.

        selected_rows : SelectedRows or None
            Rows that count. None if all rows count.

        Returns
        -------
        CertifiedTable
        """
        subgroup_codes = self.table.subgroup_codes
        thresholds = get_certified_thresholds(certificate, self.table.class_names)
        decision_offset: float | Float = certificate.decision_at
        if subgroup_codes is not None:
            decision_offset = get_decision_offsets(thresholds, subgroup_codes)
        # Rows are shifted so that the gate predicts the class with the largest logit.
        shifted_rows = shift_second_logit(rows, decision_offset)
        _, scores, correct = compute_score_and_correctness(shifted_rows, self.score, labels)
        scores = np.asarray(to_numpy(scores))
        correct = np.asarray(to_numpy(correct))
        predicted_codes = shifted_rows.compute_column(kernels.predict_classes)
        if subgroup_codes is None:
            row_thresholds = thresholds.get_row_thresholds(subgroup_codes=predicted_codes)
        else:
            row_thresholds = thresholds.get_row_thresholds(subgroup_codes, predicted_codes)
        selected_index = get_index_of_selected_or_all_rows(selected_rows)
        selected_ranking = Ranking.from_scores(
            RELATIVE_GRID.round(scores[selected_index]), correct[selected_index]
        )
        return CertifiedTable(
            certificate=certificate,
            score=self.score,
            rows=rows,
            columns=RowColumns(
                scores=scores,
                correct=correct,
                is_available_for_map=np.ones(len(scores), dtype=bool),
                thresholds=row_thresholds,
                ranking=selected_ranking,
            ),
            decision_offset=decision_offset,
            selected_rows=selected_rows,
        )


class CountingCertifier:
    """Certifier that counts the rows of a table in intervals of one score.

    No pilot rows are withheld, because a count contains no rows that could be drawn. So rare correct
    rows are tested at the same ranks as others.

    Parameters
    ----------
    table : CalibrationTable
        Calibration rows.

    score : str or callable
        Ranking score.
    """

    def __init__(self, table: CalibrationTable, score: str | Score) -> None:
        self.table = table
        self.score = score

    def certify(self, promise: Promise) -> CertifiedTable:
        """Certify a promise from counts of rows by their score, then decide all rows."""
        labels = self.table.labels
        assert labels is not None
        counted_table = self._count_and_certify(promise, labels)
        threshold = get_rounding_grid(self.score).make_robust_to_rounding(
            counted_table.certificate.threshold
        )
        certificate = replace(
            counted_table.certificate, score=get_score_name(self.score), threshold=threshold
        )
        is_accepted, correct = decide_counted_rows(
            counted_table.rows, labels, self.score, threshold
        )
        # Scores were not stored. Infinite scores give the same decisions, and float16 saves memory.
        scores_with_same_decisions = np.where(is_accepted, np.float16(-np.inf), np.float16(np.inf))
        return CertifiedTable(
            certificate=certificate,
            score=self.score,
            rows=counted_table.rows,
            columns=RowColumns(
                scores=scores_with_same_decisions,
                correct=correct,
                is_available_for_map=np.ones(len(correct), dtype=bool),
                thresholds=threshold,
                ranking=counted_table.ranking,
            ),
            has_row_scores=False,
            wait_for_fingerprint=lambda: counted_table.fingerprint,
        )

    def _count_and_certify(self, promise: Promise, labels: Codes) -> CountedTable:
        """Count rows by score, in passes, until the counts determine the certificate."""
        from metacal.certification.passes import Passes

        row_counter = TableRowCounter(self.table.rows, labels, self.score)
        counting_passes = Passes(
            count=row_counter, ranks=compute_bin_edge_ranks(len(self.table.rows))
        )
        certificate = promise.certify(counting_passes)
        # `certify` has run the first counting pass, which validates and hashes the rows.
        assert row_counter.fingerprint is not None
        return CountedTable(
            certificate=certificate,
            ranking=counting_passes.ranking,
            rows=row_counter.rows,
            fingerprint=row_counter.fingerprint,
        )


def score_table(rows: Rows, score: str | Score, labels: Codes | None) -> ScoredTable:
    """Validate rows, compute scores, and compare predictions with labels in one pass."""
    if labels is None:
        validated_rows = rows.as_validated()
        unused_correctness = np.zeros(len(validated_rows), dtype=bool)
        return ScoredTable(
            rows=validated_rows,
            scores=score_rows(validated_rows, score),
            correct=unused_correctness,
        )
    validated_rows, scores, correct = compute_score_and_correctness(rows, score, labels)
    is_scored_on_device = kernels.is_device_tensor(scores)
    return ScoredTable(
        rows=validated_rows,
        scores=to_numpy(scores),
        correct=to_numpy(correct),
        scores_on_device=scores if is_scored_on_device else None,
        correct_on_device=correct if is_scored_on_device else None,
    )


def _rank_selected_rows(
    scored_table: ScoredTable, selected_rows: SelectedRows | None, score: str | Score
) -> Ranking:
    """Rank the selected rows, on a device if it scored exactly these rows."""
    if selected_rows is None and scored_table.scores_on_device is not None:
        return _rank_rows(scored_table.scores_on_device, scored_table.correct_on_device, score)
    selected_index = get_index_of_selected_or_all_rows(selected_rows)
    return _rank_rows(
        scored_table.scores[selected_index], scored_table.correct[selected_index], score
    )


def _rank_rows(scores: Any, correct: Any, score: str | Score) -> Ranking:
    """Rank rows by scores that are rounded to the grid of all certificates.

    Parameters
    ----------
    scores : array or tensor of shape (n_rows,)
        Score of each row, rounded to the grid of `score`.

    correct : array or tensor of bool of shape (n_rows,)
        Whether each prediction is correct.

    score : str or callable
        Ranking score.

    Returns
    -------
    Ranking
    """
    if get_rounding_grid(score) != RELATIVE_GRID:
        scores = kernels.round_to_grid(scores, RELATIVE_GRID)
    return Ranking.from_scores(scores, correct)
