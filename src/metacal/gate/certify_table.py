"""certify_table: the one way from a table of logits to a certificate.

There are three ways to read a table: sort the scores of its rows (`SortedScores`), sort the log-odds
of two classes from either end (`SortedLogOdds`), or count rows in cells because there are too many to
sort (`CountedScores`). `read_table` chooses one of them. Each of them certifies a promise and
describes the rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.certificates.certificate import Certificate
from metacal.certificates.circumstances import Circumstances, add_circumstances
from metacal.certificates.notes import score_chosen
from metacal.certification.certify import certify
from metacal.certification.one_threshold import OneThresholdProcedure
from metacal.certification.passes import Passes
from metacal.certification.ranking import Ranking, require_some_correct
from metacal.certification.row_losses import Losses
from metacal.certification.row_selection import SelectedRows
from metacal.certification.rows import CalibrationRows, Subgroups
from metacal.certification.two_sides import TwoClassProcedure
from metacal.errors import InfeasibleTargetError, InputError
from metacal.formulas import Codes, Flags, Float
from metacal.gate import long_rows
from metacal.gate.background_map import BackgroundMap
from metacal.gate.calibration_table import CalibrationTable, CertifiedTable, RowColumns
from metacal.gate.logits_source import shift_rows
from metacal.gate.long_rows import Counting, decided_flags
from metacal.gate.selected_rows import certify_selected, subgroups_by_group
from metacal.gate.thresholds import get_certified_thresholds, get_decision_offsets
from metacal.kernels.grid import RELATIVE
from metacal.kernels.keys import MAX_CELLS
from metacal.maps.monotone import log_odds
from metacal.promises.max_risk import CostPromise
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import compute_edge_ranks
from metacal.rows import Rows
from metacal.rows.arrays import on_host
from metacal.rows.executors import start_task
from metacal.scores import (
    Score,
    compute_score_and_correctness,
    get_rounding_grid,
    get_score_name,
    score_rows,
)
from metacal.scores.registry import AUTO_SCORE, get_auto_candidates


class TableReader(Protocol):
    """One way to read a table."""

    def certify(self, promise: Promise) -> CertifiedTable:
        """Certify a promise and describe the rows."""


class SortedScores:
    """Table whose rows are sorted by one score.

    Parameters
    ----------
    data : CalibrationTable
        Rows of the table.

    score : str or callable
        Ranking score.

    background_map : BackgroundMap, optional
        Base map to fit while another thread sorts the rows.
    """

    def __init__(
        self,
        data: CalibrationTable,
        score: str | Score,
        background_map: BackgroundMap | None = None,
    ) -> None:
        self.data = data
        self.score = score
        self.background_map = background_map

    def certify(self, promise: Promise) -> CertifiedTable:
        """Score, select and sort the rows, then certify the promise."""
        data = self.data
        rows, scores, correct, device_ranking = score_table(data.rows, self.score, data.labels)
        counted = data.draw_counted_rows(scores, correct, data.host_labels, data.subgroup_codes)
        losses = _losses_of_table(promise, rows, data.labels)
        if data.labels is not None:
            require_some_correct(correct)
            if counted is not None:
                require_some_correct(correct[counted.indices])

        ranking = device_ranking
        if ranking is None or counted is not None:
            ranking = self._sort(rows, scores, correct, counted)
        calibration_rows = CalibrationRows(
            scores=scores,
            correct=None if data.labels is None else correct,
            losses=losses,
            subgroups=data.subgroups,
        )
        selected = certify_selected(
            promise,
            calibration_rows,
            ranking,
            grid=get_rounding_grid(self.score),
            score_name=get_score_name(self.score),
            counted=counted,
        )
        policy = get_certified_thresholds(selected.certificate, data.class_names)
        columns = RowColumns(
            scores=scores,
            correct=correct,
            is_available=selected.is_available,
            thresholds=policy.get_row_thresholds(data.subgroup_codes),
            ranking=ranking,
        )
        return CertifiedTable(
            certificate=selected.certificate,
            score=self.score,
            rows=rows,
            columns=columns,
            counted=counted,
            background_map=self.background_map,
        )

    def _sort(
        self, rows: Rows, scores: Float, correct: Flags, counted: SelectedRows | None
    ) -> Ranking:
        """Sort the rows that count, and fit the base map meanwhile."""
        executor = None if self.background_map is None else rows.executor
        finish_sorting = start_task(executor, _rank, scores, correct, self.score, counted)
        if self.background_map is not None:
            self.background_map.fit(rows)
        return finish_sorting()


class SortedLogOdds:
    """Table of two classes whose rows are sorted by log-odds from either end.

    Parameters
    ----------
    data : CalibrationTable
        Rows of the table.

    procedure : TwoClassProcedure
        Procedure of the promise.
    """

    score = "margin"

    def __init__(self, data: CalibrationTable, procedure: TwoClassProcedure) -> None:
        self.data = data
        self.procedure = procedure

    def certify(self, promise: Promise) -> CertifiedTable:
        """Certify both sides, then decide all rows."""
        data = self.data
        check_two_classes(data.rows.n_classes, type(promise).__name__)
        rows = data.rows.validated()
        true_codes = data.host_labels
        assert true_codes is not None
        scores = rows.on_host().collect(log_odds)
        counted = data.draw_counted_rows(scores, true_codes, data.subgroup_codes)
        tested_rows = CalibrationRows(
            scores=scores,
            correct=true_codes == 1,
            subgroups=data.subgroups,
            class_codes=true_codes,
            class_names=tuple(data.class_names.tolist()),
        )
        if counted is not None:
            tested_rows = replace(tested_rows.take(counted.indices), clusters=counted.clusters)
        pilot_policy = self.procedure.pilot_policy()
        if pilot_policy is not None:
            tested_rows = pilot_policy.withhold_pilot_rows(tested_rows)
        certificate = certify(promise, tested_rows)

        result = self._describe(certificate, rows, true_codes, counted)
        if pilot_policy is not None and tested_rows.pilot is not None:
            index = slice(None) if counted is None else counted.indices
            certificate = certificate.with_traffic(
                result.columns.is_accepted[index], result.columns.correct[index]
            )
            certificate = add_circumstances(
                certificate, pilot_policy.build_circumstances(tested_rows.pilot)
            )
        if counted is not None:
            certificate = counted.annotate_certificate(certificate)
        return replace(result, certificate=certificate)

    def _describe(
        self, certificate: Certificate, rows: Rows, true_codes: Codes, counted: SelectedRows | None
    ) -> CertifiedTable:
        """Decide all rows by the thresholds of a certificate."""
        data = self.data
        policy = get_certified_thresholds(certificate, data.class_names)
        decision_offset: float | Float = certificate.decision_at
        if data.subgroup_codes is not None:
            decision_offset = get_decision_offsets(policy, data.subgroup_codes)
        decided_rows = shift_rows(rows, decision_offset)
        _, scores, correct = compute_score_and_correctness(decided_rows, self.score, true_codes)
        scores = np.asarray(on_host(scores))
        correct = np.asarray(on_host(correct))
        predicted = decided_rows.collect(kernels.predicted)
        thresholds = policy.get_row_thresholds(predicted)
        if data.subgroup_codes is not None:
            thresholds = policy.get_row_thresholds(data.subgroup_codes, predicted)
        index = slice(None) if counted is None else counted.indices
        columns = RowColumns(
            scores=scores,
            correct=correct,
            is_available=np.ones(len(scores), dtype=bool),
            thresholds=thresholds,
            ranking=Ranking.from_scores(RELATIVE.rounded(scores[index]), correct[index]),
        )
        return CertifiedTable(
            certificate=certificate,
            score=self.score,
            rows=rows,
            columns=columns,
            decision_offset=decision_offset,
            counted=counted,
        )


class CountedScores:
    """Table whose rows are counted in cells of one score, in several passes.

    Parameters
    ----------
    data : CalibrationTable
        Rows of the table.

    score : str or callable
        Ranking score.
    """

    def __init__(self, data: CalibrationTable, score: str | Score) -> None:
        self.data = data
        self.score = score

    def certify(self, promise: Promise) -> CertifiedTable:
        """Count the rows until the certificate is determined, then decide all rows."""
        labels = self.data.labels
        assert labels is not None
        counting = Counting(self.data.rows, labels, self.score)
        passes = Passes(counting, MAX_CELLS, compute_edge_ranks(len(self.data.rows)))
        certificate = promise.certify(passes)
        threshold = get_rounding_grid(self.score).settled(certificate.threshold)
        certificate = replace(certificate, score=get_score_name(self.score), threshold=threshold)

        rows = counting.rows
        is_accepted, correct = decided_flags(rows, labels, self.score, threshold)
        columns = RowColumns(
            # Two bytes per row stand in for its score: accepted rows lie below every threshold.
            scores=np.where(is_accepted, np.float16(-np.inf), np.float16(np.inf)),
            correct=correct,
            is_available=np.ones(len(correct), dtype=bool),
            thresholds=threshold,
            ranking=passes.ranking,
        )
        fingerprint = counting.fingerprint
        assert fingerprint is not None
        return CertifiedTable(
            certificate=certificate,
            score=self.score,
            rows=rows,
            columns=columns,
            has_row_scores=False,
            wait_for_fingerprint=lambda: fingerprint,
        )


def certify_table(
    data: CalibrationTable,
    promise: Promise,
    score: str | Score,
    background_map: BackgroundMap | None = None,
) -> CertifiedTable:
    """Certify a promise on a table of logits.

    Parameters
    ----------
    data : CalibrationTable
        Rows of the table.

    promise : Promise
        Promise to certify.

    score : str or callable
        Ranking score, or "auto" for the best of several that share delta. A promise about two
        classes ranks rows by their log-odds instead.

    background_map : BackgroundMap, optional
        Base map to fit while another thread sorts the rows.

    Returns
    -------
    CertifiedTable
    """
    if score == AUTO_SCORE and not isinstance(promise.procedure(), TwoClassProcedure):
        return _certify_best_score(data, promise)
    return read_table(data, promise, score, background_map).certify(promise)


def read_table(
    data: CalibrationTable,
    promise: Promise,
    score: str | Score,
    background_map: BackgroundMap | None = None,
) -> TableReader:
    """Choose how a table is read."""
    procedure = promise.procedure()
    if isinstance(procedure, TwoClassProcedure):
        return SortedLogOdds(data, procedure)
    if _is_counted(data, promise):
        return CountedScores(data, score)
    return SortedScores(data, score, background_map)


def _is_counted(data: CalibrationTable, promise: Promise) -> bool:
    """Check whether the rows are too many to sort and the promise can be certified from counts."""
    if len(data.rows) <= long_rows.MOST_SORTED:
        return False
    if data.labels is None or data.selection is not None or data.subgroups is not None:
        return False
    if data.rows.keep is not None or data.rows.on_device:
        return False
    return isinstance(promise.procedure(), OneThresholdProcedure) and promise.scope is None


def _certify_best_score(data: CalibrationTable, promise: Promise) -> CertifiedTable:
    """Certify with the best of several scores.

    The scores receive shares of delta that add up to one. By the union bound all certificates hold
    together with probability 1 - delta, so the best one may be chosen after looking at them.
    """
    shares = get_auto_candidates(data.rows.n_classes)
    data = replace(data, rows=data.rows.validated())
    results: list[CertifiedTable] = []
    errors: list[InfeasibleTargetError] = []
    for name, share in shares.items():
        try:
            results.append(certify_table(data, promise.with_delta_fraction(share), name))
        except InfeasibleTargetError as error:
            errors.append(error)
    if not results:
        raise max(errors, key=lambda error: error.best or 0.0)

    best = max(results, key=lambda result: _merit(result.certificate))
    certificate = replace(best.certificate, delta=promise.delta)
    if len(shares) > 1:
        name = str(best.score)
        certificate = add_circumstances(
            certificate, Circumstances(scores=len(shares), share=shares[name])
        )
        certificate = certificate.with_notes(score_chosen(score=name, shares=tuple(shares.items())))
    return replace(best, certificate=certificate)


def _merit(certificate: Certificate) -> tuple[float, int]:
    """Return the criterion by which a score is chosen: the cost, then the accepted rows.

    If accepting is safe, every score accepts about as many rows, and the one that accepts the fewest
    incorrect rows is chosen.
    """
    cost = 0.0
    if certificate.quantity.is_mean_cost:
        cost = -certificate.target
    if certificate.quantity.accepting_is_safe:
        return cost, certificate.n_correct_accepted - certificate.n_accepted
    return cost, certificate.n_accepted


def subgroups_of_table(
    promise: Promise, rows: Rows, class_names: NDArray[Any], groups: Any
) -> Subgroups | None:
    """Return the class or group of each row for a promise about each of them, else None."""
    is_per_class = promise.scope is not None and promise.scope.by == "class"
    if is_per_class and groups is None:
        return Subgroups(rows.collect(kernels.predicted), tuple(class_names.tolist()))
    return subgroups_by_group(promise, len(rows), groups)


def check_two_classes(n_classes: int, what: str) -> None:
    """Raise unless there are two classes."""
    if n_classes != 2:
        raise InputError(f"{what} is for two classes; the table has {n_classes} columns.")


def score_table(
    rows: Rows, score: str | Score, codes: Codes | None
) -> tuple[Rows, Float, Flags, Ranking | None]:
    """Validate and score the rows, and compare their predictions with the labels, in one pass.

    Returns
    -------
    rows : Rows
        Validated rows.

    scores : array of float of shape (n_rows,)
        Score of each row.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct. False without labels.

    ranking : Ranking or None
        Ranking of all rows, if their scores lie on a device.
    """
    if codes is None:
        rows = rows.validated()
        return rows, score_rows(rows, score), np.zeros(len(rows), dtype=bool), None
    rows, scores, correct = compute_score_and_correctness(rows, score, codes)
    ranking = None
    if kernels.on_device(scores):
        ranking = _rank(scores, correct, score)
    return rows, on_host(scores), on_host(correct), ranking


def _rank(
    scores: Any, correct: Any, score: str | Score, counted: SelectedRows | None = None
) -> Ranking:
    """Rank the rows that count, on the grid that all certificates share."""
    if counted is not None:
        scores = scores[counted.indices]
        correct = correct[counted.indices]
    if get_rounding_grid(score) != RELATIVE:
        scores = kernels.rounded(scores, RELATIVE)
    return Ranking.from_scores(scores, correct)


def _losses_of_table(promise: Promise, rows: Rows, codes: Codes | None) -> Losses | None:
    """Compute the cost of each prediction for a promise about costs, else return None."""
    if not isinstance(promise, CostPromise):
        return None
    promise.check_cost_table_size(rows.n_classes)
    predicted = rows.collect(kernels.predicted)
    return promise.losses(np.asarray(on_host(codes, "labels")), predicted)
