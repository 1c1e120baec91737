"""Rows scored, ranked and certified: which threshold a promise allows, by the score named or the
best of several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InfeasibleTargetError, InputError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.long_rows import Certified, Columns, certified_by_counts, counts_instead
from metacal.kernels.grid import RELATIVE, Grid
from metacal.maps.map import FitMap, Map
from metacal.promises.certificate import Certificate, accepts
from metacal.promises.circumstances import Circumstances, under
from metacal.promises.notes import score_chosen
from metacal.promises.parts.part import Name
from metacal.promises.parts.per import Per, PerGroup
from metacal.promises.parts.thresholds import policy_of, rows_of_groups
from metacal.promises.parts.units import Counted, RowSelection
from metacal.promises.promise import Promise
from metacal.promises.rules.costs import Costed, Losses
from metacal.promises.sample import Ranking, Sample, require_some_correct
from metacal.promises.scouts import Scouting
from metacal.rows import Rows
from metacal.rows.arrays import on_host
from metacal.rows.executors import started
from metacal.scores import Score, grid_of, name_of, ranked, score_rows
from metacal.scores.registry import AUTO, candidates

#: The number of each row's class or group, and what these are called; nothing where one threshold
#: is for all.
RowParts = tuple[Codes, Sequence[Name]] | None
#: Fewer rows are ranked, or hashed, sooner than a thread is woken.
WORTH_A_THREAD = 1 << 15


def parts_of_rows(promise: Promise, rows: Rows, classes: NDArray[Any], groups: Any) -> RowParts:
    """Which part each row belongs to, where the promise is for each."""
    if isinstance(promise, Per) and promise.by == "class" and groups is None:
        return rows.collect(kernels.predicted), classes.tolist()
    return parts_by_group(promise, len(rows), groups)


def parts_by_group(promise: Promise, n_rows: int, groups: Any) -> RowParts:
    """The group of each row, where the promise is for each; None where it is not, and no groups are
    given.
    """
    if isinstance(promise, PerGroup):
        return rows_of_groups(groups, n_rows)
    if groups is not None:
        raise InputError(
            "groups are for a promise per group, mc.PerGroup(...); rows that belong together are"
            " named with units=..."
        )
    return None


def ranked_and_certified(
    rows: Rows,
    codes: Codes | None,
    promise: Promise,
    score: str | Score,
    selection: RowSelection | Counted | None,
    parts: RowParts = None,
    early: Early | None = None,
) -> Certified:
    """Certify with the score, or with the best of several that share delta.

    With shares of delta that add up to one, all certificates hold together with probability 1 -
    delta (Bonferroni), so any of them may be taken after looking: the one that accepts most or,
    where accepting is safe and each accepts about as many, the one that accepts the fewest wrong
    rows.
    """
    if score != AUTO:
        if (
            codes is not None
            and selection is None
            and parts is None
            and counts_instead(rows, promise)
        ):
            return certified_by_counts(rows, codes, promise, score)
        rows, values, correct, ranking = _scored(rows, score, codes)
        labels = None if codes is None else np.asarray(on_host(codes, "labels"))
        counted = (
            None
            if selection is None
            else selection.draw(values, correct, labels, *(parts or ())[:1])
        )
        losses = _losses(promise, rows, codes)
        for some in (
            ()
            if codes is None
            else (correct, correct if counted is None else correct[counted.rows])
        ):
            require_some_correct(some)
        if counted is not None or ranking is None:
            rank = started(
                None if early is None else rows.executor,
                _ranking_of,
                values,
                correct,
                score,
                counted,
            )
            if early is not None:
                early.fit(rows)
            ranking = rank()
        by = grid_of(score), name_of(score)
        sample = Sample(values, None if codes is None else correct, losses, *(parts or ()))
        certificate, available = certified(promise, sample, ranking, by, counted)
        seen, placed = (
            Columns(values, correct, available, ranking),
            () if parts is None else parts[:1],
        )
        return Certified(rows, score, certificate, seen, placed, counted=counted)
    shares = candidates(rows.n_classes)
    found: list[Certified] = []
    failed: list[InfeasibleTargetError] = []
    rows = rows.looked_over()
    for name, share in shares.items():
        try:
            found.append(
                ranked_and_certified(rows, codes, promise.at(share), name, selection, parts)
            )
        except InfeasibleTargetError as error:
            failed.append(error)
    if not found:
        raise max(failed, key=lambda error: error.best or 0.0)
    best = max(found, key=lambda one: _merit(one.certificate))
    certificate = replace(best.certificate, delta=promise.delta)
    if len(shares) > 1:
        certificate = under(
            certificate, Circumstances(scores=len(shares), share=shares[str(best.score)])
        )
        certificate = certificate.with_notes(
            score_chosen(score=str(best.score), shares=tuple(shares.items()))
        )
    return best._replace(certificate=certificate)


def _merit(certificate: Certificate) -> tuple[float, int]:
    """What a score is chosen for, the first limit being what matters most: a lower cost, then what
    is accepted.
    """
    cost = -certificate.target if certificate.quantity.mean else 0.0
    if certificate.quantity.accepting_is_safe:
        return cost, certificate.n_correct_accepted - certificate.n_accepted
    return cost, certificate.n_accepted


def _scored(
    rows: Rows, score: str | Score, codes: Codes | None
) -> tuple[Rows, Float, Flags, Ranking | None]:
    """The rows, looked over, the score of each and whether its largest logit is the true class: one
    walk for all.

    Scores that lie on a device are ranked there before they come here. Without labels no row is
    right.
    """
    if codes is None:
        rows = rows.looked_over()
        return rows, score_rows(rows, score), np.zeros(len(rows), dtype=bool), None
    rows, values, correct = ranked(rows, score, codes)
    ranking = _ranking_of(values, correct, score) if kernels.on_device(values) else None
    return rows, on_host(values), on_host(correct), ranking


def _ranking_of(
    values: Any, correct: Any, score: str | Score, counted: Counted | None = None
) -> Ranking:
    """The ranking of the rows that count, on the grid that all certificates share."""
    if counted is not None:
        values, correct = values[counted.rows], correct[counted.rows]
    return Ranking.of(
        values if grid_of(score) == RELATIVE else kernels.rounded(values, RELATIVE), correct
    )


def _losses(promise: Promise, rows: Rows, codes: Codes | None) -> Losses | None:
    """What each answer costs, where the promise is about that."""
    if not isinstance(promise, Costed):
        return None
    promise.check_classes(rows.n_classes)
    return promise.losses(np.asarray(on_host(codes, "labels")), rows.collect(kernels.predicted))


def certified(
    promise: Promise,
    sample: Sample,
    ranking: Ranking,
    by: tuple[Grid, str],
    counted: Counted | None = None,
    scouting: Scouting | None = None,
) -> tuple[Certificate, Flags]:
    """The certificate, and the rows that are left for the base map; the ranking is that of the rows
    that count.

    The scores of the sample lie on a grid, and have a name: `by`.
    """
    (grid, name), values = by, sample.score
    sample = sample if grid == RELATIVE else replace(sample, score=RELATIVE.rounded(values))
    if counted is not None:
        values, sample = (
            values[counted.rows],
            replace(sample.take(counted.rows), units=counted.whole),
        )
    own = sample.part
    right = np.zeros(len(sample), dtype=bool) if sample.correct is None else sample.right
    for_threshold, for_base = promise.split(right, sample.score)
    split_seed = None if for_threshold.all() else promise.split_seed
    sample = sample.take(for_threshold) if not for_threshold.all() else sample.with_ranking(ranking)
    if scouting is not None and promise.scouted and sample.units is None:
        sample = scouting.of(sample)
    certificate = promise.certify(sample)
    if certificate.n_rows < len(values):
        accept = accepts(values, policy_of(certificate, np.empty(0)).of(own))
        certificate = certificate.with_traffic(accept, right)
    if (scouts := sample.scouts) is not None:
        assert scouting is not None
        certificate = under(certificate, scouting.circumstances(scouts))
        certificate = replace(certificate, marks=scouting.marks(sample))
    certificate = under(certificate, Circumstances(random_state=split_seed))
    if counted is not None:
        for_base = counted.spread(for_base)
        certificate = counted.told(certificate)
    # A promise does not know the score; on a coarser grid the middle is a wider one, between the
    # same neighbours.
    settled = certificate.parts and certificate.parts.settled(grid.settled)
    threshold = grid.settled(certificate.threshold)
    return replace(certificate, score=name, threshold=threshold, parts=settled), for_base


# ── the base map, fitted while another thread ranks the rows: where it has all rows anyway, neither


class Early(NamedTuple):
    """What fits the base map while rows are ranked, and what that gives or raises, once it is
    done.
    """

    fit_map: Callable[[Rows], Map]
    fitted: Future[Map]

    def fit(self, rows: Rows) -> None:
        """Fit on all rows; what is wrong with the promise comes first, so errors wait."""
        try:
            self.fitted.set_result(self.fit_map(rows))
        except Exception as error:
            self.fitted.set_exception(error)


def meanwhile(
    rows: Rows, promise: Promise, fit_map: FitMap, codes: Codes | None, weights: Any
) -> Early | None:
    """What fits the base map while rows are ranked; None where it may not get all of them, or there
    is one thread.
    """
    threads = isinstance(rows.executor, ThreadPoolExecutor) and len(rows) >= WORTH_A_THREAD
    if not threads or codes is None or not (codes >= 0).all():
        return None
    usual = type(promise).split is Promise.split and type(promise).for_base is Promise.for_base
    return Early(lambda here: fit_map(here, codes, weights), Future()) if usual else None
