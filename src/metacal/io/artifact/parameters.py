"""The parameters of a calibrator as plain values, and back, typed by its method's own fit function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError
from metacal.gate import Recipe, Table
from metacal.io.artifact.classes import described, read_classes
from metacal.io.artifact.encoding import article, decode, encode, exact_keys, shown
from metacal.maps.methods import Method, every_method, method_named, method_of_map

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
    >>> list(parameters_of(method_named("EnsembleTemperatureScaling")))
    ['loss', 'input', 'n_jobs']
    """
    own = {name: option.annotation for name, option in method.options().items()}
    return {**own, "input": str, "n_jobs": int | None}


def describe_parameters(method: Method, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters in alphabetical order; what is not given has its default."""
    defaults = {name: option.default for name, option in method.options().items()}
    values = {**defaults, **_OF_THE_TABLE, **given}
    return {name: encode(values[name], name, {}) for name in sorted(parameters_of(method))}


def method_of(source: Table) -> Method:
    """What fitted a source's map: as its recipe says or, where there is none, the first method that fits such maps."""
    recipe = source.recipe
    method = method_of_map(type(source.map)) if recipe is None else method_named(recipe.estimator)
    if method is None or type(source.map) is not method.map_class():
        name = type(source.map).__name__ if recipe is None else recipe.estimator
        raise ArtifactError(
            f"the base calibrator is {article(name)}, which only pickle could store; "
            f"use one of metacal's own ({', '.join(calibrator_kinds())})."
        )
    return method


def describe_recipe(recipe: Recipe | None, method: Method) -> dict[str, Any] | None:
    """The calibrator that was asked for: what it is, and its parameters; None where none was."""
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
    check_jobs(values["n_jobs"], f"{where}.n_jobs")
    return values


def check_jobs(n_jobs: Any, where: str = "n_jobs") -> int | None:
    """Threads: None, or a number that somebody may wish for."""
    number: int | None = decode(int | None, n_jobs, where, {})
    if number is not None and not 1 <= abs(number) <= MOST_JOBS:
        raise ArtifactError(f"{where} must not be 0, nor beyond {MOST_JOBS} threads.")
    return number


def check_reject_label(label: Any, classes: NDArray[Any]) -> Any:
    """The reject label, of the type of the classes and none of them."""
    label = decode(Any, label, "reject_label", {})
    if not isinstance(label, str if classes.dtype.kind == "U" else int) or label in classes.tolist():
        raise ArtifactError(f"reject_label must be of the type of the classes and none of them, not {shown(label)}.")
    return label


def read_recipe(data: Any) -> Recipe | None:
    """The calibrator that was asked for, None where none was."""
    if data is None:
        return None
    exact_keys(data, ["kind", "parameters", "classes"], "calibrator")
    method = method_named(data["kind"]) if type(data["kind"]) is str else None
    if method is None:
        known = ", ".join(calibrator_kinds())
        raise ArtifactError(f"calibrator.kind must be one of {known}, not {shown(data['kind'])}.")
    values = read_parameters(parameters_of(method), data["parameters"], "calibrator.parameters")
    classes = None if data["classes"] is None else read_classes(data["classes"], "calibrator.classes").tolist()
    return Recipe(method.public_name, {**values, "classes": classes})
