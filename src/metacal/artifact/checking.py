"""The parts of a saved gate, read back and checked one by one and against each other, without scikit-learn.

`document` builds estimators of them; `metacal fit` reads back through here what it is about to save.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from metacal.artifact.audit import audited_certificate, check_data_hash, check_reach
from metacal.artifact.classes import read_classes
from metacal.artifact.describing import GATE_PARAMETERS, TEMPERATURE_MAPS, Document
from metacal.artifact.encoding import Maps, annotations_of, built, decode, decode_map, exact_keys, shown
from metacal.artifact.metamap import MetaMap
from metacal.artifact.probe import check_map
from metacal.artifact.promises import CONSTRAINTS
from metacal.artifact.rankers import RANKERS, ranker_from
from metacal.errors import ArtifactError
from metacal.gate import Gate
from metacal.maps.temperature import TemperatureMap
from metacal.promises.certificate import Certificate
from metacal.scores import named as scores

#: What every document has, and what a gate has besides.
COMMON = ("kind", "parameters", "n_features", "feature_names", "classes", "map")
GATE = ("constraint", "calibrator", "certificate")
#: What a gate may have: files of the first days have no fingerprint of their calibration rows.
OPTIONAL = ("data_hash",)

#: More threads than this are no honest wish.
MOST_JOBS = 1024


class GateParts(NamedTuple):
    """What a gate is made of."""

    parameters: dict[str, Any]
    constraint: Any
    certificate: Certificate
    map: MetaMap
    data_hash: str | None


def check_keys(document: Document, *, gate: bool) -> None:
    """Raise unless the document has the entries of its kind and no others."""
    optional = [name for name in OPTIONAL if gate and name in document]
    exact_keys(document, [*COMMON, *(GATE if gate else ()), *optional], "the file")


def read_gate(
    document: Document, classes: NDArray[Any], *, parameters: Mapping[str, Any], maps: Maps, base: type
) -> GateParts:
    """The parts of a gate that agree with each other, or ArtifactError.

    `parameters` are the annotations of the gate's own parameters, `base` the class of the map inside it.
    """
    values = read_parameters(parameters, document["parameters"], "parameters")
    _check_gate_parameters(values, classes)
    constraint = read_constraint(document["constraint"])
    certificate = audited_certificate(document["certificate"], constraint)
    fitted = _meta_map(document["map"], maps, base, len(classes))
    if fitted.threshold != certificate.threshold:
        raise ArtifactError("the map's threshold and the certificate's differ.")
    if not scores.name_of(fitted.score) == certificate.score == values["score"]:
        raise ArtifactError("the score is not the same in the map, the certificate and the parameters.")
    if scores.needs_logits(values["score"]) and values["input"] == "probabilities":
        raise ArtifactError(f"the score {values['score']} is the same for every row of probabilities.")
    check_reach(certificate, len(classes))
    # Files from before scores were rounded have the threshold at a score: decisions are made in the middle beside it.
    fitted = replace(fitted, threshold=certificate.settled_threshold(scores.grid_of(fitted.score)))
    data_hash = check_data_hash(document["data_hash"]) if "data_hash" in document else None
    return GateParts(values, constraint, certificate, fitted, data_hash)


def read_temperature_gate(document: Document) -> Gate:
    """The map of a gate by temperature scaling, checked as `document.estimator_from` checks it."""
    check_keys(document, gate=True)
    classes, _ = classes_from(document["classes"])
    parts = read_gate(document, classes, parameters=GATE_PARAMETERS, maps=TEMPERATURE_MAPS, base=TemperatureMap)
    check_features(document["n_features"], document["feature_names"], len(classes))
    found = Gate(parts.map.base, classes, score=parts.map.score, threshold=parts.map.threshold)
    check_map(found, len(classes))
    return found


def read_parameters(annotations: Mapping[str, Any], data: Any, where: str) -> dict[str, Any]:
    """The constructor's arguments, each of its annotated type."""
    exact_keys(data, list(annotations), where)
    values = {name: decode(kind, data[name], f"{where}.{name}", {}) for name, kind in annotations.items()}
    if values["input"] not in ("logits", "probabilities"):
        raise ArtifactError(f'{where}.input must be "logits" or "probabilities", not {shown(values["input"])}.')
    n_jobs = values["n_jobs"]
    if n_jobs is not None and not 1 <= abs(n_jobs) <= MOST_JOBS:
        raise ArtifactError(f"{where}.n_jobs must not be 0, nor beyond {MOST_JOBS} threads.")
    return values


def read_constraint(data: Any) -> Any:
    """The promise, built from its checked arguments."""
    kind = data.get("type") if isinstance(data, dict) else None
    if type(kind) is not str or kind not in CONSTRAINTS:
        raise ArtifactError(f"constraint must be one of {', '.join(CONSTRAINTS)}, not {shown(kind)}.")
    cls: Any = CONSTRAINTS[kind]
    annotations = annotations_of(cls)
    names = [field.name for field in fields(cls)]
    exact_keys(data, ["type", *names], "constraint")
    values = {name: decode(annotations[name], data[name], f"constraint.{name}", {}) for name in names}
    if not isinstance(values.get("random_state"), int | None):
        raise ArtifactError("constraint.random_state must be a whole number or null.")
    return built(cls, values, "constraint")


def classes_from(data: Any) -> tuple[NDArray[Any], bool]:
    """The labels of the columns, and whether the user named them."""
    exact_keys(data, ["dtype", "values", "given"], "classes")
    if type(data["given"]) is not bool:
        raise ArtifactError(f"classes.given must be true or false, not {shown(data['given'])}.")
    return read_classes({"dtype": data["dtype"], "values": data["values"]}), data["given"]


def check_features(n_features: Any, names: Any, n_classes: int) -> tuple[str, ...] | None:
    """The names of the columns, if there are any; raise unless there is a column for each class."""
    if type(n_features) is not int or n_features != n_classes or n_classes < 2:
        raise ArtifactError(f"n_features {shown(n_features)} and the {n_classes} classes do not agree.")
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != n_features:
        raise ArtifactError(f"feature_names must be null or a list of {n_features} names.")
    found: tuple[str, ...] = decode(tuple[str, ...], names, "feature_names", {})
    return found


def _meta_map(data: Any, maps: Maps, base: type, n_classes: int) -> MetaMap:
    """The gate's map; its score is a name, or a learned one with all its numbers."""
    learned = data.get("score") if isinstance(data, dict) else None
    if isinstance(learned, dict):
        ranker = ranker_from(learned, n_classes)
        data = {**data, "score": scores.name_of(ranker)}
    found: MetaMap = decode_map(data, "map", maps, only=MetaMap, overrides={"base": base, "score": str})
    if isinstance(learned, dict):
        return replace(found, score=ranker)
    if found.score not in scores.NAMED:
        raise ArtifactError(f"map.score must be one of {', '.join(scores.NAMED)}, not {shown(found.score)}.")
    return found


def _check_gate_parameters(parameters: dict[str, Any], classes: NDArray[Any]) -> None:
    if parameters["score"] not in (*scores.NAMED, *RANKERS):
        known = ", ".join([*scores.NAMED, *RANKERS])
        raise ArtifactError(f"parameters.score must be one of {known}, not {shown(parameters['score'])}.")
    label = parameters["reject_label"]
    if not isinstance(label, str if classes.dtype.kind == "U" else int) or label in classes.tolist():
        raise ArtifactError(
            f"parameters.reject_label must be of the type of the classes and none of them, not {shown(label)}."
        )
