"""The parameters of a gate and of a method as plain values, and back, typed by the method's own fit function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError
from metacal.gate import Gate, Recipe
from metacal.io.artifact.classes import described, read_classes
from metacal.io.artifact.encoding import decode, encode, exact_keys, shown
from metacal.io.artifact.rankers import RANKERS
from metacal.maps.methods import METHODS, Method, every_method, method_named
from metacal.scores import NAMED, name_of, needs_logits

#: What a gate's own parameters are.
GATE_PARAMETERS: dict[str, Any] = {"score": str, "reject_label": Any, "input": str, "n_jobs": int | None}
#: More threads than this are no honest wish.
MOST_JOBS = 1024
#: What a method has besides its options: the kind of table, and how many threads read it.
_OF_THE_TABLE: dict[str, Any] = {"input": "logits", "n_jobs": None}


def calibrator_kinds() -> list[str]:
    """The kinds of file without a promise: the public name of every method's estimator, in alphabetical order.

    Examples
    --------
    >>> calibrator_kinds()[:2]
    ['AutoCalibrator', 'BBQ']
    """
    return sorted(method.public_name for method in every_method())


def parameters_of(method: Method) -> dict[str, Any]:
    """The parameters that stand in the file under "parameters", and their types.

    Examples
    --------
    >>> list(parameters_of(METHODS["ensemble-temperature"]))
    ['loss', 'input', 'n_jobs']
    """
    own = {name: option.annotation for name, option in method.options().items()}
    return {**own, "input": str, "n_jobs": int | None}


def describe_parameters(method: Method, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters in alphabetical order; what is not given has its default."""
    defaults = {name: option.default for name, option in method.options().items()}
    values = {**defaults, **_OF_THE_TABLE, **given}
    return {name: encode(values[name], name, {}) for name in sorted(parameters_of(method))}


def describe_gate_parameters(gate: Gate, n_jobs: int | None) -> dict[str, Any]:
    """The gate's own parameters in alphabetical order; a learned score by its name."""
    values = {
        "input": gate.source.input,
        "n_jobs": n_jobs,
        "reject_label": gate.reject_label,
        "score": name_of(gate.source.score),
    }
    return {name: encode(value, name, {}) for name, value in values.items()}


def describe_recipe(recipe: Recipe | None, method: Method) -> dict[str, Any] | None:
    """The base calibrator that was asked for: what it is, and its parameters; None for the default one."""
    if recipe is None:
        return None
    classes = recipe.parameters.get("classes")
    return {
        "kind": method.public_name,
        "parameters": describe_parameters(method, recipe.parameters),
        "classes": None if classes is None else described(np.asarray(classes)),
    }


def read_parameters(annotations: Mapping[str, Any], data: Any, where: str) -> dict[str, Any]:
    """The parameters, each of its own type."""
    exact_keys(data, list(annotations), where)
    values = {name: decode(kind, data[name], f"{where}.{name}", {}) for name, kind in annotations.items()}
    if values["input"] not in ("logits", "probabilities"):
        raise ArtifactError(f'{where}.input must be "logits" or "probabilities", not {shown(values["input"])}.')
    n_jobs = values["n_jobs"]
    if n_jobs is not None and not 1 <= abs(n_jobs) <= MOST_JOBS:
        raise ArtifactError(f"{where}.n_jobs must not be 0, nor beyond {MOST_JOBS} threads.")
    return values


def read_gate_parameters(data: Any, classes: NDArray[Any]) -> dict[str, Any]:
    """The gate's own parameters; the score is a name that is known, the reject label fits the classes."""
    values = read_parameters(GATE_PARAMETERS, data, "parameters")
    if values["score"] not in (*NAMED, *RANKERS):
        known = ", ".join([*NAMED, *RANKERS])
        raise ArtifactError(f"parameters.score must be one of {known}, not {shown(values['score'])}.")
    label = values["reject_label"]
    if not isinstance(label, str if classes.dtype.kind == "U" else int) or label in classes.tolist():
        raise ArtifactError(
            f"parameters.reject_label must be of the type of the classes and none of them, not {shown(label)}."
        )
    if needs_logits(values["score"]) and values["input"] == "probabilities":
        raise ArtifactError(f"the score {values['score']} is the same for every row of probabilities.")
    return values


def read_recipe(data: Any) -> tuple[Recipe | None, Method]:
    """The base calibrator that was asked for, None for the default one, and its method."""
    if data is None:
        return None, METHODS["temperature"]
    exact_keys(data, ["kind", "parameters", "classes"], "calibrator")
    method = method_named(data["kind"]) if type(data["kind"]) is str else None
    if method is None:
        known = ", ".join(calibrator_kinds())
        raise ArtifactError(f"calibrator.kind must be one of {known}, not {shown(data['kind'])}.")
    values = read_parameters(parameters_of(method), data["parameters"], "calibrator.parameters")
    classes = None if data["classes"] is None else read_classes(data["classes"], "calibrator.classes").tolist()
    return Recipe(method.public_name, {**values, "classes": classes}), method
