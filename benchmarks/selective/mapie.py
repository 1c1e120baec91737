"""MAPIE's controllers as rules of `selective_rules`: what they accept of rows that they rank as
everyone else does.

Confidence is 1 - score / highest. The binary controller sees it as the probability that the
prediction is right; the multi-class one, which thresholds the largest probability, as two classes
of which the second is always the larger: (1 + confidence) / 2, with its grid of 100 thresholds from
1/2 on. Its precision of the second class is then the accuracy of what is accepted.
"""

from __future__ import annotations

import math
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from benchmarks.selective.rules import Sample

#: Share of the rows that learn the order of a split fixed sequence.
_LEARNING = 0.3
#: Starts of MAPIE's multi-start fixed sequence.
_STARTS = 5


def default(sample: Sample, beta: float, delta: float) -> float | None:
    """BinaryClassificationController for precision, with its default grid and Bonferroni-Holm."""
    return _binary(sample, beta, delta, "bonferroni_holm")


def sequence(sample: Sample, beta: float, delta: float) -> float | None:
    """The same with fixed-sequence testing."""
    return _binary(sample, beta, delta, "fixed_sequence")


def multi_start(sample: Sample, beta: float, delta: float) -> float | None:
    """The same with five equally spaced starts, which share delta."""
    return _binary(sample, beta, delta, five_starts())


def five_starts() -> Any:
    """Its procedure that begins at five thresholds."""
    return import_module("mapie.risk_control.fwer_control").FWERFixedSequenceTesting(
        n_starts=_STARTS
    )


def split_sequence(sample: Sample, beta: float, delta: float) -> float | None:
    """The same with an order learned on 30% of the rows, and tested on the others."""
    return _binary(sample, beta, delta, "split_fixed_sequence")


def multi_class(sample: Sample, beta: float, delta: float) -> float | None:
    """MultiClassificationLTTController for the precision of one class, Bonferroni-Holm; the loosest
    valid threshold.

    Its own choice is the valid threshold of the highest precision, which accepts least.
    """
    mapie, risks = import_module("mapie.risk_control"), import_module("mapie.risk_control.risks")

    def probabilities(scores: NDArray[np.float64]) -> NDArray[np.float64]:
        largest = 0.5 + 0.5 * _confidence(sample, scores)
        return np.column_stack([1.0 - largest, largest])

    controller = mapie.MultiClassificationLTTController(
        probabilities,
        risks.build_precision_ovr([1]),
        [beta],
        1.0 - delta,
        list_predict_params=np.linspace(0.5, 0.995, 100),
        classes=[0, 1],
    )
    _calibrated(controller, sample.scores, sample.correct)
    valid = np.ravel(controller.valid_predict_params)
    return _threshold(sample, 2.0 * float(valid.min()) - 1.0 if len(valid) else None)


def _confidence(sample: Sample, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(1.0 - scores / sample.highest, 0.0, 1.0)


def _binary(sample: Sample, beta: float, delta: float, correction: Any) -> float | None:
    confidence = _confidence(sample, sample.scores)
    return _threshold(sample, of_confidence(confidence, sample.correct, beta, delta, correction))


def of_confidence(
    confidence: NDArray[np.float64],
    correct: NDArray[np.bool_],
    beta: float,
    delta: float,
    correction: Any,
    grid: NDArray[np.float64] | None = None,
) -> float | None:
    """The confidence from which on the precision is found to be beta: of a grid of its own, or of a
    given one.
    """
    controller = import_module("mapie.risk_control").BinaryClassificationController(
        lambda own: np.column_stack([1.0 - own, own]),
        "precision",
        beta,
        1.0 - delta,
        fwer_method=correction,
        **({} if grid is None else {"list_predict_params": grid}),
    )
    if correction == "split_fixed_sequence":
        learning = round(_LEARNING * len(confidence))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            controller.learn_fixed_sequence_order(
                confidence[:learning], correct[:learning].astype(int), binary=True
            )
        confidence, correct = confidence[learning:], correct[learning:]
    return _calibrated(controller, confidence, correct)


def _calibrated(
    controller: Any, scores: NDArray[np.float64], correct: NDArray[np.bool_]
) -> float | None:
    """The confidence from which on rows are accepted; None where no threshold is valid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no threshold was found is an answer here
        controller.calibrate(scores, correct.astype(int))
    found = controller.best_predict_param
    return None if found is None else float(np.ravel(found)[0])


def _threshold(sample: Sample, confidence: float | None) -> float | None:
    if confidence is None:
        return None
    return sample.highest * (1.0 - confidence) if confidence > 0.0 else math.inf
