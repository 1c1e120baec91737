"""Gate of a `Certifier`: its threshold is certified by the labels known so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metacal.certificates.notes import note_not_calibrated
from metacal.errors import UnsupportedPromiseError
from metacal.formulas import Codes
from metacal.gate.base_map import FittedMap
from metacal.gate.calibrate import assemble_gate
from metacal.gate.calibration_data import FittedSources
from metacal.gate.gate import Gate
from metacal.gate.logits_source import LogitsSource
from metacal.gate.score_source import ScoreSource, check_score_gate_options
from metacal.gate.source import Recipe
from metacal.gate.unlabelled_pool import PoolPredictions
from metacal.maps.confidence import fit_confidence
from metacal.maps.methods import METHODS
from metacal.maps.temperature import TemperatureMap, fit_temperature
from metacal.promises.max_risk import CostPromise
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import build_profile
from metacal.rows.labels import check_reject_label
from metacal.spelling import choose_spelling

if TYPE_CHECKING:
    from metacal.gate.certifier import Certifier

#: Minimum number of known labels for fitting a temperature.
_MIN_LABELS_FOR_TEMPERATURE = 30


def build_gate_from_labels(certifier: Certifier) -> Gate:
    """Build the gate that the labels known so far certify.

    Raises
    ------
    InfeasibleTargetError
        If nothing is certified yet.
    """
    certificate = certifier.certificate
    pool = certifier.unlabelled_pool
    profile = build_profile(pool.rank_without_labels())
    if pool.predictions is None:
        score_source = _fit_score_source(certifier).with_threshold_neighbours_of(certificate)
        fitted_sources = FittedSources(sources=(score_source,), profile=profile)
    else:
        fitted_map = _fit_temperature(pool.predictions, certifier.answers.true_codes)
        logits_source = LogitsSource(
            map=fitted_map.map,
            classes=pool.predictions.classes,
            score=certifier.score,
            input=certifier.input,
            recipe=Recipe(METHODS["temperature"].public_name),
            classes_given=certifier.classes is not None,
        )
        fitted_sources = FittedSources(
            sources=(logits_source,),
            notes=fitted_map.notes,
            profile=profile,
            reject_label=check_reject_label(None, pool.predictions.classes),
        )
    # Rows without an answer do not count as fit rows, because they may later test the gate.
    hashes_of_labelled_rows = pool.sample_row_hashes(certifier.answers.has_answer)
    return assemble_gate(
        certificate,
        fitted_sources,
        certifier.promise,
        data_hash=pool.data_hash,
        row_hash_sample=hashes_of_labelled_rows,
    )


def _fit_score_source(certifier: Certifier) -> ScoreSource:
    """Fit the confidence curve of a pool of scores on the rows with an answer."""
    has_answer = certifier.answers.has_answer
    scores = certifier.unlabelled_pool.uncertainty_scores[has_answer]
    is_correct = certifier.answers.is_correct[has_answer]
    confidence_curve = fit_confidence(scores, is_correct)
    return ScoreSource(certifier.score_name, certifier.higher_is, confidence_curve)


def _fit_temperature(predictions: PoolPredictions, true_codes: Codes) -> FittedMap:
    """Fit a temperature on the rows whose true class is known.

    If there are too few of them, or all their predictions are correct, the temperature is 1, and a
    note states that the probabilities are not calibrated.

    Parameters
    ----------
    predictions : PoolPredictions
        Logits and predictions of the pool.
    true_codes : ndarray of int, shape (n_pool,)
        Column of the true class of each row, negative if it is not known.
    """
    has_true_class = true_codes >= 0
    known_codes = true_codes[has_true_class]
    predicted_codes = predictions.predicted_codes[has_true_class]
    has_too_few_labels = len(known_codes) < _MIN_LABELS_FOR_TEMPERATURE
    every_prediction_is_correct = (known_codes == predicted_codes).all()
    if has_too_few_labels or every_prediction_is_correct:
        softmax_map = TemperatureMap(1.0)
        return FittedMap(softmax_map, notes=(note_not_calibrated(),))
    labelled_rows = predictions.rows.select(has_true_class)
    return FittedMap(fit_temperature(labelled_rows, known_codes))


def check_promise_for_labelling(promise: Any, higher_is: Any, may_extend: bool) -> None:
    """Raise InputError if a `Certifier` does not support a promise.

    Parameters
    ----------
    promise : Promise
        Promise to check.
    higher_is : "surer" or "doubtful"
        Meaning of a higher score, which is checked too.
    may_extend : bool
        Whether an extension of the draw is declared, which needs a fraction of delta.
    """
    check_score_gate_options(promise, higher_is)
    promise_name = type(promise).__name__
    if not isinstance(promise, Promise) or promise.guarantee == "none":
        raise UnsupportedPromiseError(
            f"{promise!r} has no guarantee, so it cannot be certified. Choose a promise with a"
            " guarantee."
        )
    if promise.scope is not None:
        raise UnsupportedPromiseError(
            f"Labelling does not support {promise_name}, because this promise has one threshold"
            " for each predicted class or group. Label the rows, and fit the promise on them."
        )
    if promise.counts_cases:
        raise UnsupportedPromiseError(
            f"Labelling does not support {promise_name}, because rows are drawn one by one, and this"
            " promise counts whole cases. Label every item of some cases, and fit the promise on"
            f" them: {choose_spelling('ScoreGate(promise).fit(score, correct, cases=case_ids)', 'metacal fit --case-key case')}."
        )
    if not promise.needs_labels:
        raise UnsupportedPromiseError(
            f"{promise_name} does not require labels. Fit this promise on the unlabelled pool."
        )
    if isinstance(promise, CostPromise) and not promise.costs.has_equal_error_costs:
        raise UnsupportedPromiseError(
            f"With a cost matrix, {promise_name} requires the true class of every row. Label the"
            " rows, and fit the promise on them."
        )
    if may_extend and promise.delta is None:
        raise UnsupportedPromiseError(
            "may_extend requires a promise with a delta. Pass a delta, or leave out may_extend."
        )
