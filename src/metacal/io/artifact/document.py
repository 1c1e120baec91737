"""A gate as a document, a dict of plain values, and back, without scikit-learn. `file` puts it in a file.

A gate with a certificate is a file of kind "MetaCal"; one without, which promises nothing and accepts every row, is of
the kind of the calibrator that its recipe names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from metacal.decision import Recipe
from metacal.errors import ArtifactError
from metacal.gate import CascadeGate, Gate, ScoredGate
from metacal.io.artifact.audit import (
    audited_certificate,
    check_cost,
    check_data_hash,
    check_reach,
    check_settled,
    describe_certificate,
)
from metacal.io.artifact.cascade import CASCADE, cascade_of, document_of_cascade
from metacal.io.artifact.classes import check_features, classes_from, describe_classes
from metacal.io.artifact.encoding import article, decode, decode_map, encode, encode_map, exact_keys, maps_in, shown
from metacal.io.artifact.parameters import (
    calibrator_kinds,
    describe_gate_parameters,
    describe_parameters,
    describe_recipe,
    parameters_of,
    read_gate_parameters,
    read_parameters,
    read_recipe,
)
from metacal.io.artifact.parts import check_classes
from metacal.io.artifact.probe import check_map
from metacal.io.artifact.profile import decode_profile, encode_profile
from metacal.io.artifact.promises import describe_promise, read_promise
from metacal.io.artifact.rankers import RANKERS, describe_ranker, ranker_from
from metacal.io.artifact.scored import SCORED, describe_scored, scored_from
from metacal.maps.map import Map
from metacal.maps.methods import Method, method_named, method_of_map
from metacal.promises.certificate import Certificate
from metacal.promises.parts.thresholds import thresholds_of
from metacal.scores import NAMED, Score, grid_of, name_of

Document = dict[str, Any]

#: The kind of a file with a certificate.
WITH_PROMISE = "MetaCal"
#: What every document has, and what a gate has besides.
COMMON = ("kind", "parameters", "n_features", "feature_names", "classes", "map")
GATE = ("promise", "calibrator", "certificate")
#: What a gate may have: files of the first days have no fingerprint and no profile of their calibration rows.
OPTIONAL = ("data_hash", "profile")
#: What stands under "map" in the file of a gate.
META_MAP = ("type", "base", "score", "threshold")


@dataclass(frozen=True)
class Content:
    """What a file holds: a gate and, of the estimator around it, the threads and the names of the columns."""

    gate: Gate | CascadeGate | ScoredGate
    n_jobs: int | None = None
    feature_names: tuple[str, ...] | None = None


# ── saving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def document_of(content: Content) -> Document:
    """Describe what is to be saved, or raise ArtifactError with what to do instead.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.maps.temperature import TemperatureMap
    >>> found = document_of(Content(Gate(TemperatureMap(0.5), np.arange(3))))
    >>> found["kind"], found["map"]
    ('TemperatureScaling', {'type': 'TemperatureMap', 'inverse_temperature': 0.5})
    """
    gate = content.gate
    if isinstance(gate, CascadeGate):
        return document_of_cascade(gate, content.n_jobs)
    if isinstance(gate, ScoredGate):
        return describe_scored(gate)
    method = method_of(gate)
    names = content.feature_names
    return {
        **(_without_promise(gate, method) if gate.certificate is None else _with_promise(gate, content.n_jobs, method)),
        "n_features": gate.n_classes,
        "feature_names": None if names is None else list(names),
        "classes": describe_classes(gate.classes, given=gate.classes_given),
        "map": _describe_map(gate),
    }


def method_of(gate: Gate) -> Method:
    """What fitted the gate's map: as its recipe says or, where there is none, the first method that fits such maps."""
    recipe = gate.recipe
    method = method_of_map(type(gate.map)) if recipe is None else method_named(recipe.estimator)
    if method is None or type(gate.map) is not method.map_class():
        name = type(gate.map).__name__ if recipe is None else recipe.estimator
        raise ArtifactError(
            f"the base calibrator is {article(name)}, which only pickle could store; "
            f"use one of metacal's own ({', '.join(calibrator_kinds())})."
        )
    return method


def _without_promise(gate: Gate, method: Method) -> Document:
    if gate.threshold != math.inf:
        raise ArtifactError(
            "this gate has a threshold without a certificate, and a threshold is only saved with its promise; "
            "fit it with one, say MetaCal(MaxMiscoverage(0.05))."
        )
    given = {} if gate.recipe is None else gate.recipe.parameters
    return {"kind": method.public_name, "parameters": describe_parameters(method, {**given, "input": gate.input})}


def _with_promise(gate: Gate, n_jobs: int | None, method: Method) -> Document:
    assert gate.certificate is not None
    name = name_of(gate.score)
    if not isinstance(gate.score, str) and type(gate.score) is not RANKERS.get(name):
        raise ArtifactError(
            f"the score is a function ({name}), which a file cannot hold; use a named score: "
            f"{', '.join(NAMED)}, or a trained {' or '.join(RANKERS)}."
        )
    by_default = gate.recipe is None and method.name == "temperature"
    recipe = None if by_default else gate.recipe or Recipe(method.public_name)
    document: Document = {
        "kind": WITH_PROMISE,
        "parameters": describe_gate_parameters(gate, n_jobs),
        "promise": describe_promise(gate.promise),
        "calibrator": describe_recipe(recipe, method),
        "certificate": describe_certificate(gate.certificate),
    }
    if gate.data_hash is not None:
        document["data_hash"] = gate.data_hash
    if gate.profile is not None:
        document["profile"] = encode_profile(gate.profile)
    return document


def _describe_map(gate: Gate) -> dict[str, Any]:
    """The map and its fields; around the base map of a gate stand the score, a learned one with all its numbers, and
    the certificate's threshold: a file loaded and saved again says what it said.
    """
    if gate.certificate is None:
        return encode_map(gate.map, "the fitted map", maps_in(type(gate.map)))
    return {
        "type": "MetaMap",
        "base": encode_map(gate.map, "the fitted map.base", maps_in(type(gate.map))),
        "score": gate.score if isinstance(gate.score, str) else describe_ranker(gate.score),  # type: ignore[arg-type]
        "threshold": encode(gate.certificate.threshold, "the fitted map.threshold", {}),
    }


# ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def content_of(document: Document) -> Content:
    """What a document describes, or ArtifactError: every field is checked, alone and against the others.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.maps.temperature import TemperatureMap
    >>> gate = Gate(TemperatureMap(0.5), np.arange(3))
    >>> content_of(document_of(Content(gate))).gate == gate
    True
    """
    kind = document.get("kind")
    if kind == CASCADE:
        return Content(*cascade_of(document))
    if kind == SCORED:
        return Content(scored_from(document))
    method = method_named(kind) if type(kind) is str else None
    if kind != WITH_PROMISE and method is None:
        known = ", ".join([WITH_PROMISE, CASCADE, SCORED, *calibrator_kinds()])
        raise ArtifactError(f"unknown kind {shown(kind)}; this metacal knows {known}.")
    _check_keys(document, gate=method is None)
    classes, given = classes_from(document["classes"])
    n_jobs = None
    if method is None:
        gate, n_jobs = _read_gate(document, classes, given)
    else:
        gate = _read_calibrator(document, method, classes, given)
    names = check_features(document["n_features"], document["feature_names"], len(classes))
    check_cost(gate.map, len(classes))
    check_map(gate.map if gate.certificate is None else gate, len(classes))
    return Content(gate, n_jobs, names)


def _check_keys(document: Document, *, gate: bool) -> None:
    optional = [name for name in OPTIONAL if gate and name in document]
    exact_keys(document, [*COMMON, *(GATE if gate else ()), *optional], "the file")


def _read_calibrator(document: Document, method: Method, classes: NDArray[Any], given: bool) -> Gate:
    values = read_parameters(parameters_of(method), document["parameters"], "parameters")
    recipe = Recipe(method.public_name, {**values, "classes": classes.tolist() if given else None})
    fitted = _read_map(document["map"], "map", method)
    return Gate(fitted, classes, input=values["input"], recipe=recipe, classes_given=given)


def _read_gate(document: Document, classes: NDArray[Any], given: bool) -> tuple[Gate, int | None]:
    """The gate and its number of threads."""
    recipe, method = read_recipe(document["calibrator"])
    values = read_gate_parameters(document["parameters"], classes)
    promise = read_promise(document["promise"])
    certificate = audited_certificate(document["certificate"], promise)
    fitted, score = _read_meta_map(document["map"], method, certificate, len(classes))
    if not name_of(score) == certificate.score == values["score"]:
        raise ArtifactError("the score is not the same in the map, the certificate and the parameters.")
    check_reach(certificate, len(classes))
    check_settled(certificate, grid_of(score))
    check_classes(certificate, classes)
    gate = Gate(
        fitted,
        classes,
        score=score,
        threshold=certificate.threshold,
        thresholds=thresholds_of(certificate, classes),
        certificate=certificate,
        promise=promise,
        reject_label=values["reject_label"],
        input=values["input"],
        data_hash=check_data_hash(document["data_hash"]) if "data_hash" in document else None,
        recipe=recipe,
        classes_given=given,
        profile=decode_profile(document["profile"], certificate) if "profile" in document else None,
    )
    return gate, values["n_jobs"]


def _read_meta_map(data: Any, method: Method, certificate: Certificate, n_classes: int) -> tuple[Map, str | Score]:
    """The base map and the score, a name or a learned one with all its numbers."""
    kind = data.get("type") if isinstance(data, dict) else data
    if kind != "MetaMap":
        raise ArtifactError(f"map must be one of MetaMap, not {shown(kind)}.")
    exact_keys(data, META_MAP, "map")
    fitted, score = _read_map(data["base"], "map.base", method), data["score"]
    if decode(float, data["threshold"], "map.threshold", {}) != certificate.threshold:
        raise ArtifactError("the map's threshold and the certificate's differ.")
    if isinstance(score, dict):
        return fitted, ranker_from(score, n_classes)
    if decode(str, score, "map.score", {}) not in NAMED:
        raise ArtifactError(f"map.score must be one of {', '.join(NAMED)}, not {shown(score)}.")
    return fitted, score


def _read_map(data: Any, where: str, method: Method) -> Map:
    cls = method.map_class()
    found: Map = decode_map(data, where, maps_in(cls), only=cls)
    return found
