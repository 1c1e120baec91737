"""gate_of: the gate that labels which were asked for certify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metacal.certificates.notes import Note, many_ties, not_calibrated, remarks_on_rows
from metacal.certification.arriving import CORRECT, UNKNOWN
from metacal.certification.ranking import Ranking
from metacal.errors import InputError
from metacal.formulas import Float
from metacal.gate.gate import Gate
from metacal.gate.logits_source import LogitsSource, Recipe
from metacal.gate.score_source import ScoreSource, check_score_gate_options
from metacal.gate.stages import Source
from metacal.maps.confidence import fit_confidence
from metacal.maps.map import Map
from metacal.maps.methods import METHODS
from metacal.maps.temperature import TemperatureMap, fit_temperature
from metacal.promises.max_risk import CostPromise
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import profile_of
from metacal.rows import Rows
from metacal.rows.labels import check_reject_label

if TYPE_CHECKING:
    from metacal.gate.certifier import Certifier

#: A calibrator learns from true labels where there are at least so many of them, with a wrong
#: prediction among them.
_FEWEST_LABELS = 30


def gate_of(certifier: Certifier) -> Gate:
    """The gate of what is certified by now; InfeasibleTargetError where nothing is."""
    certificate, label = certifier.certificate, -1
    if certifier.rows is None:
        asked = np.flatnonzero(certifier.right != UNKNOWN)
        curve = fit_confidence(certifier.doubts[asked], certifier.right[asked] == CORRECT)
        source: Source = ScoreSource(
            certifier.score_name, certifier.higher_is, curve
        ).with_certificate(certificate)
    else:
        base, notes = _base(certifier)
        certificate, given = certificate.with_notes(*notes), certifier.classes is not None
        recipe = Recipe(METHODS["temperature"].public_name)
        source = LogitsSource(
            base, certifier.classes_, certifier.score, certifier.input, recipe, classes_given=given
        )
        label = check_reject_label(None, certifier.classes_)
    profile = profile_of(_ranking(certifier.doubts))
    known = {
        "reject_label": label,
        "data_hash": certifier.data_hash,
        "sketch": certifier.sketch,
        "profile": profile,
    }
    return Gate.of(source, certificate.threshold, certificate, certifier.promise, **known)


def remarks_on_pool(rows: Rows | None, doubts: Float) -> tuple[Note, ...]:
    """What is odd about rows that have no labels yet, said in a warning: copies, or of a score
    alone that it ties.
    """
    found = (
        many_ties(_ranking(doubts), "given scores")
        if rows is None
        else remarks_on_rows(rows, doubts)
    )
    return tuple(note.warned() for note in found)


def _ranking(doubts: Float) -> Ranking:
    """What the scores of the pool look like, for whoever watches new rows."""
    there = doubts[~np.isnan(doubts)]
    return Ranking.of(there, np.zeros(len(there), dtype=bool))


def _base(certifier: Certifier) -> tuple[Map, tuple[Note, ...]]:
    """A temperature from the true labels."""
    assert certifier.rows is not None
    labelled = certifier.codes >= 0
    codes = certifier.codes[labelled]
    if len(codes) < _FEWEST_LABELS or (codes == certifier.predicted[labelled]).all():
        return TemperatureMap(1.0), (not_calibrated(),)
    return fit_temperature(certifier.rows.where(labelled), codes), ()


def check_asked(promise: Any, higher_is: Any) -> None:
    """Raise, with the reason, unless labels of rows that were drawn can certify it."""
    check_score_gate_options(promise, higher_is)
    name = type(promise).__name__
    if not isinstance(promise, Promise) or promise.guarantee == "none":
        raise InputError(
            f"labels are asked for a promise that is kept; {promise!r} guarantees nothing."
        )
    if promise.scope is not None:
        raise InputError(
            f"{name} has a threshold for each predicted class or group, and rows are drawn from one"
            " pool for all; label the rows, and fit it on them."
        )
    if not promise.needs_labels:
        raise InputError(f"{name} needs no labels: fit it on the pool as it is.")
    if isinstance(promise, CostPromise) and not promise.costs.is_uniform:
        raise InputError(
            f"{name} with a table of costs needs every true class; label the rows, and fit it on"
            " them."
        )
