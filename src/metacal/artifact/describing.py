"""The parts of a gate as plain values, and a gate by temperature scaling as a whole, without scikit-learn.

`metacal fit` saves the most common gate through here: importing scikit-learn would take longer than the fit. `document`
describes any estimator, and writes the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.artifact.classes import described
from metacal.artifact.encoding import encode, encode_map
from metacal.artifact.metamap import MetaMap
from metacal.artifact.promises import CONSTRAINTS
from metacal.errors import ArtifactError
from metacal.gate import Gate
from metacal.maps.temperature import TemperatureMap
from metacal.promises.certificate import Certificate
from metacal.promises.promise import Constraint
from metacal.scores import named as scores

Document = dict[str, Any]

#: The maps of a gate by temperature scaling.
TEMPERATURE_MAPS: dict[str, type] = {"MetaMap": MetaMap, "TemperatureMap": TemperatureMap}


def describe_constraint(constraint: Any) -> dict[str, Any]:
    """The promise as {"type", and its parameters}.

    Examples
    --------
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> describe_constraint(MaxMiscoverage(0.05))
    {'type': 'MaxMiscoverage', 'alpha': 0.05, 'delta': 0.1}
    """
    kind = next((kind for kind, promise in CONSTRAINTS.items() if type(constraint) is promise), None)
    if kind is None:
        known = ", ".join(CONSTRAINTS)
        raise ArtifactError(f"the constraint is {article(type(constraint).__name__)}; what can be saved is {known}.")
    params = constraint.get_params()
    state = params.get("random_state")
    if state is not None and not isinstance(state, int | np.integer):
        raise ArtifactError(
            f"random_state is {article(type(state).__name__)}, which cannot be saved; "
            "give a whole number and fit again."
        )
    return {"type": kind, **{name: encode(value, name, {}) for name, value in params.items()}}


def describe_certificate(certificate: Certificate) -> dict[str, Any]:
    """The certificate, field by field."""
    return {name: encode(value, f"certificate.{name}", {}) for name, value in certificate.to_dict().items()}


def describe_classes(classes: NDArray[Any], *, given: bool) -> dict[str, Any]:
    """The labels of the columns, and whether the user named them."""
    return {**described(classes), "given": given}


#: The parameters of MetaCal and of its default calibrator as files hold them; a test keeps them in step.
GATE_PARAMETERS: dict[str, Any] = {"score": str, "reject_label": Any, "input": str, "n_jobs": int | None}
_TEMPERATURE = {"kind": "TemperatureScaling", "parameters": {"input": "logits", "n_jobs": None}, "classes": None}


def describe_temperature_gate(
    gate: Gate,
    classes: NDArray[Any],
    *,
    constraint: Constraint,
    score: str,
    reject_label: Any,
    input: str,
    given: bool,
    n_jobs: int | None,
) -> Document:
    """The document of a fitted `MetaCal` whose base calibrator is `TemperatureScaling()`."""
    parameters = {"input": input, "n_jobs": n_jobs, "reject_label": reject_label, "score": scores.name_of(score)}
    return {
        "kind": "MetaCal",
        "parameters": {name: encode(value, name, {}) for name, value in parameters.items()},
        "constraint": describe_constraint(constraint),
        "calibrator": _TEMPERATURE,
        "certificate": describe_certificate(gate.certificate),  # type: ignore[arg-type]
        "data_hash": gate.data_hash,
        "n_features": len(classes),
        "feature_names": None,
        "classes": describe_classes(classes, given=given),
        "map": encode_map(MetaMap.of(gate), "the fitted map", TEMPERATURE_MAPS),
    }


def article(noun: str) -> str:
    """The noun with its article.

    Examples
    --------
    >>> article("estimator")
    'an estimator'
    """
    return f"{'an' if noun[:1] in 'AEIOUaeiou' else 'a'} {noun}"
