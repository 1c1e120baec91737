"""Two classes decided elsewhere than at even scores: the two sides of a promise, or a decision
learned from rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.formulas import Flags
from metacal.gate.long_rows import Certified, Columns
from metacal.gate.ranked import RowParts
from metacal.gate.table import moved_rows
from metacal.kernels.grid import RELATIVE
from metacal.maps.map import Map
from metacal.maps.monotone import log_odds
from metacal.promises.certificate import accepts
from metacal.promises.circumstances import Circumstances, under
from metacal.promises.notes import Note, about_largest_logit, decision_disagrees, decision_learned
from metacal.promises.parts.per import Per
from metacal.promises.parts.thresholds import moved_by, policy_of
from metacal.promises.parts.units import Counted, RowSelection
from metacal.promises.rules.two_sided import Sided
from metacal.promises.sample import Ranking, Sample, even_odds
from metacal.promises.scouts import Scouting
from metacal.rows import Rows
from metacal.rows.arrays import on_host
from metacal.rows.draws import RowDraws
from metacal.scores import ranked

#: Rows that a decision is learned from: a tenth, at least so many, at most half.
_SHARE, _FEWEST = 10, 40


def check_two(n_classes: int, what: str) -> None:
    """Raise unless there are two classes."""
    if n_classes != 2:
        raise InputError(f"{what} is for two classes; the table has {n_classes} columns.")


def certified_sides(
    rows: Rows,
    codes: Any,
    promise: Sided | Per,
    selection: RowSelection | Counted | None,
    classes: NDArray[Any],
    groups: RowParts,
) -> Certified:
    """The certificate of a promise about either side."""
    check_two(rows.n_classes, type(promise).__name__)
    rows, truth = rows.looked_over(), np.asarray(on_host(codes, "labels"))
    part, names = (None, ()) if groups is None else groups
    s = rows.on_host().collect(log_odds)
    sample = Sample(s, truth == 1, part=part, names=names, truth=truth, classes=classes.tolist())
    counted = None if selection is None else selection.draw(s, truth, part)
    sample = sample if counted is None else replace(sample.take(counted.rows), units=counted.whole)
    scouting = Scouting(labels=promise.asks_labels)
    if promise.scouted:
        sample = scouting.of(sample)
    certificate = promise.certify(sample)
    policy = policy_of(certificate, classes)
    at = certificate.decision_at if part is None else moved_by(policy, part)
    there = moved_rows(rows, at)
    _, values, correct = ranked(there, "margin", truth)
    values, correct = np.asarray(on_host(values)), np.asarray(on_host(correct))
    seen = slice(None) if counted is None else counted.rows
    ranking = Ranking.of(RELATIVE.rounded(values[seen]), correct[seen])
    columns = Columns(values, correct, np.ones(len(values), dtype=bool), ranking)
    called = there.collect(kernels.predicted)
    placed = (called,) if part is None else (part, called)
    if (scouts := sample.scouts) is not None:
        accept = accepts(values[seen], policy.of(*(column[seen] for column in placed)))
        certificate = certificate.with_traffic(accept, correct[seen])
        certificate = under(certificate, scouting.circumstances(scouts))
    if counted is not None:
        certificate = counted.told(certificate)
    return Certified(rows, "margin", certificate, columns, placed, at, counted)


def learned_decision(
    rows: Rows, codes: Any, selection: RowSelection | None
) -> tuple[Rows, float, Counted]:
    """Rows decided at even calibrated odds, where these lie, and who counts: a tenth of the rows
    choose and do not.

    Which rows these are is drawn, not chosen: the others are as good a sample as before, and the
    decision is fixed before the first of them is looked at. (A decision, or a curve, from the rows
    that certify breaks .16 to .19 of promises at delta .1.)
    """
    check_two(rows.n_classes, "decision='calibrated'")
    truth = np.asarray(on_host(codes, "labels"))
    odds = rows.on_host().collect(log_odds)
    counted = None if selection is None else selection.draw(odds, truth)
    all_rows = np.arange(len(rows)) if counted is None else counted.rows
    aside = min(max(_FEWEST, len(all_rows) // _SHARE), len(all_rows) // 2)
    drawn = np.zeros(len(all_rows), dtype=bool)
    drawn[RowDraws(odds[all_rows], truth[all_rows]).order("learned decision")[:aside]] = True
    at = even_odds(odds[all_rows[drawn]], truth[all_rows[drawn]] == 1)
    kept = all_rows[~drawn]
    speaker = np.full(len(rows), -1, dtype=np.intp)
    speaker[kept] = np.arange(len(kept))
    around, notes = (
        (Circumstances(), ()) if counted is None else (counted.circumstances, counted.notes)
    )
    return (
        moved_rows(rows, at),
        at,
        Counted(kept, speaker, around, (*notes, decision_learned(aside=aside, at=at))),
    )


def about_answers(rows: Rows, base: Map, accept: Flags) -> Note:
    """What is said where the map may change the largest class, or makes accepted answers the less
    probable of two.
    """
    if rows.n_classes == 2 and not rows.on_device and accept.any():
        kept = rows.where(accept)
        answers = kept.collect(kernels.predicted)
        differ = int((answers != Rows(base(kept.gathered())).collect(kernels.predicted)).sum())
        if differ:
            return decision_disagrees(rows=len(answers), differ=differ).warned()
    return about_largest_logit()
