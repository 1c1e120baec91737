"""What an export starts from: the frozen map, the score and the threshold, taken out of a fitted estimator.

The threshold lies in the middle between two numbers that a score can be (`kernels.grid`): another runtime compares its
own unrounded score with it, and decides as Python does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sklearn.utils.validation import check_is_fitted

from metacal.errors import InputError
from metacal.estimators.auto import chosen
from metacal.estimators.base import Calibrator
from metacal.estimators.metacal import EstimatorMap, MetaCal
from metacal.promises.certificate import Certificate
from metacal.scores import NAMED, name_of, needs_logits


@dataclass(frozen=True)
class Fitted:
    """A frozen map with its number of classes and, for a gate, score, threshold and certificate."""

    map: Any
    n_classes: int
    #: What the exported graph is given: "logits" or "probabilities".
    input: str
    score: str | None = None
    threshold: float = float("nan")
    certificate: Certificate | None = None


def fitted_parts(cal: Any, *, input: str | None = None) -> Fitted:
    """Take a fitted MetaCal, calibrator or CalibratedClassifier apart, or say why it cannot be exported.

    `input` says what the graph will be given; by default what `cal` was fitted on. A gate fitted on logits can stand
    behind a model that gives probabilities: their logarithms differ from the logits by a constant in each row, which
    only the energy notices.

    Examples
    --------
    >>> import metacal as mc
    >>> cal = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1])
    >>> fitted_parts(cal).map == cal.map_, fitted_parts(cal).score
    (True, None)
    """
    cal = chosen(inner(cal))
    if isinstance(cal, type) or not isinstance(cal, MetaCal | Calibrator):
        raise InputError(
            f"what can be exported is a fitted MetaCal, calibrator or CalibratedClassifier; got {_kind(cal)}."
        )
    try:
        check_is_fitted(cal)
    except ValueError:
        raise InputError(f"this {_kind(cal)} is not fitted; call fit(logits, labels) first, then export.") from None
    kind = cal.input if input is None else input
    if kind not in ("logits", "probabilities"):
        raise InputError(f"input must be 'logits' or 'probabilities', got {kind!r}.")
    if kind == "logits" and cal.input == "probabilities":
        raise InputError(
            "this was fitted on probabilities and cannot take logits; fit it on logits, or attach it to a model that "
            "gives probabilities."
        )
    if not isinstance(cal, MetaCal):
        return Fitted(cal.map_, int(cal.n_features_in_), kind)
    _check_gate(cal, kind)
    return Fitted(cal.map_.map, int(cal.n_features_in_), kind, str(cal.score), cal.threshold_, cal.certificate_)


def inner(cal: Any) -> Any:
    """The gate inside a CalibratedClassifier; anything else as it is."""
    inside = getattr(cal, "calibrator_", None)
    return inside if not isinstance(cal, MetaCal) and isinstance(inside, MetaCal | Calibrator) else cal


def _check_gate(cal: MetaCal, kind: str) -> None:
    if not isinstance(cal.score, str):
        raise InputError(
            f"the score is a Python function ({name_of(cal.score)}), which no other runtime can call; "
            f"fit with a named score: {', '.join(NAMED)}."
        )
    if isinstance(cal.map_.map, EstimatorMap):
        raise InputError(
            f"the base calibrator is a {_kind(cal.map_.map.estimator)}, which is not metacal's own; "
            "fit with one of metacal's calibrators to export it."
        )
    if needs_logits(cal.score) and kind == "probabilities":
        raise InputError(f"the score {cal.score!r} needs logits: it is the same for every row of probabilities.")


def _kind(thing: Any) -> str:
    return thing.__name__ if isinstance(thing, type) else type(thing).__name__
