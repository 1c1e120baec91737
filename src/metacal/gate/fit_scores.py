"""fit_scored: a gate on a score that is given for each row, under a promise; no logits, no classes,
no probabilities.

Every promise is about two columns, a ranking score and whether the row is right. A judge's mark,
the log-probability of an answer, the similarity of a passage are such scores: they need nothing
that a classifier has.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from metacal.certificates.certificate import accepts
from metacal.certificates.fingerprint import fingerprint_rows
from metacal.certificates.notes import Note, remarks_on_scores, rows_without_score, upside_down
from metacal.certification.ranking import Ranking, require_some_correct
from metacal.certification.row_losses import Losses
from metacal.certification.row_selection import Importance, Units, select_rows
from metacal.certification.rows import CalibrationRows, Subgroups
from metacal.errors import InputError
from metacal.formulas import Flags, Float
from metacal.gate.gate import Gate
from metacal.gate.score_source import (
    HigherIs,
    ScoreSource,
    check_score_gate_options,
    clean_score_name,
)
from metacal.gate.selected_rows import certify_selected, subgroups_by_group
from metacal.gate.thresholds import get_certified_thresholds
from metacal.kernels.grid import RELATIVE
from metacal.maps.confidence import fit_confidence
from metacal.promises.max_risk import CostPromise
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import profile_of
from metacal.rows.arrays import as_plain_array
from metacal.rows.score_columns import check_losses, check_scores, check_scores_and_correctness

#: A ranking that is worse than chance by so many standard errors is probably upside down.
_UPSIDE_DOWN = 4.0


def fit_scored(
    score: Any,
    correct: Any,
    promise: Promise,
    *,
    loss: Any = None,
    score_name: str = "score",
    higher_is: HigherIs = "surer",
    units: Any = None,
    importance: Any = None,
    groups: Any = None,
    random_state: int | None = None,
    marks: Any = None,
) -> Gate:
    """Certify a threshold on a given score, and fit the curve from score to confidence.

    The promise is about rows that have a score: given that they have one, they are independent
    draws from one source as much as all rows are. Rows without are left out, counted in a note, and
    never accepted later.

    Of rows that belong together (`units`: answers to one question, pages of one book) one is
    counted, drawn by `random_state`; under known shift (`importance`) as many as the weights ask
    for: `metacal.certification.row_selection`. `groups` has the group of each row, for a promise per
    group. `loss` has the loss of each row, from 0 to 1, in place of `correct`, for a promise about
    losses: a row without any is right.

    Given scores tie: values are tested, from one upward that is chosen by the scores of pilot rows,
    which `random_state` sets aside (`metacal.certification.pilot`). `marks` declares the values that a
    score can have.

    Examples
    --------
    >>> from metacal.promises.accuracy import MinAccuracy
    >>> rng = np.random.default_rng(0)
    >>> mark = rng.random(2000)
    >>> gate = fit_scored(mark, rng.random(2000) > (1 - mark) ** 2, MinAccuracy(0.9), score_name="mark")
    >>> print(gate.condition)
    mark >= 0.4...
    >>> gate.decide([0.95, 0.2, None]).accept
    array([ True, False, False])
    """
    check_score_gate_options(promise, higher_is)
    given, right, lost = _columns(score, correct, loss, promise)
    there = ~np.isnan(given)
    if not there.any():
        raise InputError(
            f"no row has a score (n_samples={len(given)}): {clean_score_name(score_name)!r} is a number"
            " in none of them."
        )
    source = ScoreSource(
        clean_score_name(score_name), higher_is, truth="correct" if lost is None else "losses"
    )
    doubt, right = source.uncertainty_scores(given[there]), right[there]
    lost = None if lost is None else lost[there]
    if lost is None and not right.any():
        raise InputError(
            f"no row is right (n_samples={len(right)}): nothing can be promised. Check what the"
            " column of right and wrong says: 1, true or yes is right."
        )
    subgroups = _subgroups(promise, groups, there)
    losses = promise.losses_of(right) if isinstance(promise, CostPromise) else None
    if lost is not None:
        losses = Losses.graded(lost)
    together = None if units is None else Units.of(units).at(np.flatnonzero(there), len(given))
    subgroup_codes = None if subgroups is None else subgroups.codes
    selection = select_rows(len(right), together, _weights_there(importance, there), random_state)
    counted = None if selection is None else selection.draw(doubt, right, lost, subgroup_codes)
    seen = slice(None) if counted is None else counted.rows
    if lost is None:
        require_some_correct(right[seen])
    ranking = Ranking.of(doubt[seen], right[seen])
    good = right if lost is None else lost <= lost.mean()
    found = _remarks(ranking, doubt[seen], good[seen], source, there, ties=marks is None)
    notes = [
        note.warned() for note in found
    ]  # first: where nothing can be certified they may say why
    fingerprint = fingerprint_rows(doubt, right)
    declared_values = _scale(marks, source, given[there])
    selected = certify_selected(
        promise,
        CalibrationRows(scores=doubt, correct=right, losses=losses, subgroups=subgroups),
        ranking,
        grid=RELATIVE,
        score_name=source.score_name,
        counted=counted,
        pilot_policy=promise.procedure().pilot_policy(random_state, declared_values),
    )
    certificate, for_curve = selected.certificate.with_notes(*notes), selected.is_available
    policy = get_certified_thresholds(certificate, source.classes)
    curve, own = fit_confidence(doubt[for_curve], right[for_curve]), doubt[seen]
    kept = accepts(
        own, policy.get_row_thresholds(None if subgroup_codes is None else subgroup_codes[seen])
    )
    profile = profile_of(ranking, None if curve is None else curve(own[kept]), right[seen][kept])
    source = replace(source, curve=curve).with_certificate(certificate)
    known_rows = {
        "data_hash": fingerprint.data_hash,
        "sketch": fingerprint.sketch,
        "profile": profile,
    }
    return Gate.of(source, policy, certificate, promise, **known_rows)


def _scale(marks: Any, source: ScoreSource, given: Float) -> Float | None:
    """The doubts of the marks that were declared, once every score is one of them."""
    if marks is None:
        return None
    scale = source.read(marks)
    if len(scale) < 2 or np.isnan(scale).any():
        raise InputError(
            f"marks must be the values that a score can have, two or more numbers; got {marks!r}."
        )
    other = given[~np.isin(source.uncertainty_scores(given), source.uncertainty_scores(scale))]
    if len(other):
        listed = ", ".join(f"{mark:g}" for mark in scale[:10])
        raise InputError(
            f"{len(other):,} scores are none of the marks {listed}: {float(other[0]):g}, for one;"
            " add it to marks, or leave marks out."
        )
    return np.unique(source.uncertainty_scores(scale))


def _columns(
    score: Any, correct: Any, loss: Any, promise: Promise
) -> tuple[Any, Flags, Float | None]:
    """Score, right or wrong, and the loss of each row, where that is what is known."""
    if (loss is None) == (correct is None):
        raise InputError(
            "give correct, whether each row is right, or loss=..., a number from 0 to 1; not both."
        )
    if loss is None:
        return *check_scores_and_correctness(score, correct), None
    if not promise.takes_losses:
        raise InputError(
            f"{type(promise).__name__} is about right and wrong answers: give correct, or promise"
            " MaxRisk(0.1)."
        )
    scores, losses = check_scores(score), check_losses(loss)
    if scores.shape != losses.shape:
        raise InputError(
            f"there are {len(scores)} scores but {len(losses)} entries of loss; give one each per"
            " row."
        )
    return scores, losses == 0.0, losses


def _weights_there(importance: Any, there: Flags) -> Any:
    """The weights of the rows that have a score."""
    if importance is None:
        return None
    given = importance if isinstance(importance, Importance) else Importance(importance)
    weights = as_plain_array(given.weights, "importance")
    if weights.shape != there.shape:
        raise InputError(
            f"importance must have shape ({len(there)},), a weight for each row; got"
            f" {weights.shape}."
        )
    return replace(given, weights=weights[there])


def _subgroups(promise: Promise, groups: Any, there: Flags) -> Subgroups | None:
    """Return the group of each row with a score, for a promise per group.

    Raises
    ------
    InputError
        If the promise is per class, because given scores have no classes.
    """
    if promise.scope is not None and promise.scope.by == "class":
        raise InputError(
            f"{type(promise).__name__} has a threshold for each predicted class, and given scores"
            " have no classes; give the promise itself, or PerGroup with groups=..."
        )
    subgroups = subgroups_by_group(promise, len(there), groups)
    if subgroups is None:
        return None
    return subgroups.take(there)


def _remarks(
    ranking: Ranking, doubt: Float, good: Flags, source: ScoreSource, there: Flags, *, ties: bool
) -> list[Note]:
    """What is odd about scores: hardly an error, ties, rows without one, or that the surest are the
    worst.
    """
    found = remarks_on_scores(ranking, "given scores", ties=ties)
    if not there.all():
        found.append(rows_without_score(missing=int((~there).sum()), rows=len(there)))
    if _standard_errors_below_chance(doubt, good) > _UPSIDE_DOWN:
        other: HigherIs = "doubtful" if source.higher_is == "surer" else "surer"
        found.append(upside_down(higher_is=other, losses=source.truth == "losses"))
    return found


def _standard_errors_below_chance(doubt: Float, right: Flags) -> float:
    """How far the chance that a wrong row has the higher doubt lies below one half, in standard
    errors.
    """
    n_right, n_wrong = int(right.sum()), int((~right).sum())
    if not n_wrong:
        return 0.0
    distinct, place, count = np.unique(doubt, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - 0.5 * (count - 1)
    u = float(rank[place.ravel()][~right].sum()) - 0.5 * n_wrong * (n_wrong + 1)
    share, error = (
        u / (n_right * n_wrong),
        math.sqrt((n_right + n_wrong + 1) / (12.0 * n_right * n_wrong)),
    )
    return (0.5 - share) / error if len(distinct) > 1 else 0.0
