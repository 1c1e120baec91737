"""A cascade as a document and back: two maps with score and threshold each, one promise, one certificate."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any

from numpy.typing import NDArray

from metacal.errors import ArtifactError
from metacal.gate import CascadeGate, Gate
from metacal.io.artifact.audit import check_cost, check_data_hash, read_notes
from metacal.io.artifact.classes import check_features, classes_from, describe_classes
from metacal.io.artifact.encoding import (
    annotations_of,
    built,
    decode,
    decode_map,
    encode,
    encode_map,
    exact_keys,
    shown,
)
from metacal.io.artifact.encoding import maps_in as maps_inside
from metacal.io.artifact.parameters import calibrator_kinds, describe_gate_parameters, read_gate_parameters
from metacal.io.artifact.probe import check_map
from metacal.io.artifact.rankers import RANKERS, describe_ranker, ranker_from
from metacal.maps.map import Map
from metacal.maps.methods import method_named, method_of_map
from metacal.promises.rules.accuracy import MinAccuracy
from metacal.promises.rules.cascade_certificate import CascadeCertificate, CascadePromise, MaxLoss
from metacal.scores import NAMED, Score, grid_of, name_of
from metacal.scores.named import reach

#: The kind of a file with a cascade.
CASCADE = "Cascade"
#: What such a document has, and what its parts have.
KEYS = ("kind", "parameters", "n_features", "feature_names", "classes", "map", "promise", "certificate", "data_hash")
MAP = ("type", "small", "large")
PART = ("base", "score", "threshold")
#: The promises of a cascade by name.
PROMISES: dict[str, Any] = {cls.__name__: cls for cls in (MaxLoss, MinAccuracy)}
#: Entries of a certificate that follow from the others; written for readers, compared when loaded.
DERIVED: dict[str, Any] = {
    "share_small": float,
    "share_large": float,
    "share_person": float,
    "loss": float,
    "accuracy": float | None,
}
_MOST_ROWS = 2**53


def document_of_cascade(gate: CascadeGate, n_jobs: int | None = None) -> dict[str, Any]:
    """Describe a cascade that is to be saved, or raise ArtifactError with what to do instead."""
    certificate = gate.certificate.to_dict()
    del certificate["promise"]
    notes = certificate.pop("notes")
    return {
        "kind": CASCADE,
        "parameters": describe_gate_parameters(gate.small, n_jobs),
        "n_features": gate.n_classes,
        "feature_names": None,
        "classes": describe_classes(gate.classes, given=gate.small.classes_given),
        "promise": {"type": type(gate.certificate.promise).__name__, **asdict(gate.certificate.promise)},
        "certificate": {
            **{key: encode(value, f"certificate.{key}", {}) for key, value in certificate.items()},
            "notes": notes,
        },
        "data_hash": gate.data_hash,
        "map": {"type": "CascadeMap", "small": _describe_part(gate.small), "large": _describe_part(gate.large)},
    }


def _describe_part(gate: Gate) -> dict[str, Any]:
    if method_of_map(type(gate.map)) is None:
        raise ArtifactError(f"the map {type(gate.map).__name__} cannot be saved; use one of metacal's own calibrators.")
    name = name_of(gate.score)
    if not isinstance(gate.score, str) and type(gate.score) is not RANKERS.get(name):
        raise ArtifactError(
            f"the score is a function ({name}), which a file cannot hold; use a named score: {', '.join(NAMED)}."
        )
    return {
        "base": encode_map(gate.map, "the fitted map", maps_inside(type(gate.map))),
        "score": gate.score if isinstance(gate.score, str) else describe_ranker(gate.score),
        "threshold": encode(gate.threshold, "threshold", {}),
    }


def cascade_of(document: dict[str, Any]) -> tuple[CascadeGate, int | None]:
    """The cascade that a document describes, and its number of threads; ArtifactError where anything is amiss."""
    exact_keys(document, KEYS, "the file")
    classes, given = classes_from(document["classes"])
    check_features(document["n_features"], document["feature_names"], len(classes))
    values = read_gate_parameters(document["parameters"], classes)
    promise = _promise(document["promise"])
    certificate = _certificate(document["certificate"], promise)
    exact_keys(document["map"], MAP, "map")
    if document["map"]["type"] != "CascadeMap":
        raise ArtifactError(f"map must be a CascadeMap, not {shown(document['map']['type'])}.")
    known = {"reject_label": values["reject_label"], "input": values["input"], "classes_given": given}
    parts: dict[str, Gate] = {}
    for name, threshold, score in (
        ("small", certificate.threshold, certificate.score),
        ("large", certificate.large_threshold, certificate.large_score),
    ):
        gate = _part(document["map"][name], f"map.{name}", classes, known)
        _require(gate.threshold == threshold, f"the {name} model's threshold and the certificate's differ")
        _require(name_of(gate.score) == score, f"the {name} model's score and the certificate's differ")
        parts[name] = gate
    _require(
        name_of(parts["small"].score) == values["score"], "the score is not the same in the map and the parameters"
    )
    fingerprint = document["data_hash"]
    found = CascadeGate(
        parts["small"], parts["large"], certificate, None if fingerprint is None else check_data_hash(fingerprint)
    )
    return found, values["n_jobs"]


def _promise(data: Any) -> CascadePromise:
    kind = data.get("type") if isinstance(data, dict) else None
    if type(kind) is not str or kind not in PROMISES:
        raise ArtifactError(f"promise of a cascade must be one of {', '.join(PROMISES)}, not {shown(kind)}.")
    cls, annotations = PROMISES[kind], annotations_of(PROMISES[kind])
    names = [field.name for field in fields(cls)]
    exact_keys(data, ["type", *names], "promise")
    values = {name: decode(annotations[name], data[name], f"promise.{name}", {}) for name in names}
    found: CascadePromise = built(cls, values, "promise")
    _require(found.delta is not None and found.delta >= 1e-200, "a cascade is certified with a confidence")
    return found


def certificate_fields() -> dict[str, Any]:
    """The entries of a cascade's certificate that are read, with their types."""
    annotations = annotations_of(CascadeCertificate)
    return {field.name: annotations[field.name] for field in fields(CascadeCertificate) if field.name != "promise"}


def _certificate(data: Any, promise: CascadePromise) -> CascadeCertificate:
    annotations = certificate_fields()
    exact_keys(data, [*annotations, *DERIVED], "certificate")
    values = {
        name: decode(kind, data[name], f"certificate.{name}", {})
        for name, kind in annotations.items()
        if name != "notes"
    }
    for name, kind in DERIVED.items():
        decode(kind, data[name], f"certificate.{name}", {})
    _require(1 <= values["n_rows"] <= _MOST_ROWS, "n_rows must be at least 1, and not more than anybody has")
    certificate = CascadeCertificate(promise, **values, notes=read_notes(data["notes"]))
    complaint = certificate.contradiction()
    _require(complaint is None, str(complaint))
    again = certificate.to_dict()
    for name in DERIVED:
        _require(_same(data[name], again[name]), f"{name} is not what the numbers say")
    return certificate


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12)
    return bool(one == other)


def _part(data: Any, where: str, classes: NDArray[Any], known: dict[str, Any]) -> Gate:
    exact_keys(data, PART, where)
    fitted = _map(data["base"], f"{where}.base")
    score = _score(data["score"], f"{where}.score", len(classes))
    threshold = decode(float, data["threshold"], f"{where}.threshold", {})
    low, high = reach(name_of(score), len(classes))
    inside = low - 1e-6 * max(1.0, abs(low)) <= threshold <= high + 1e-6 * max(1.0, abs(high))
    _require(inside or math.isinf(threshold), f"{where}.threshold {threshold:g} is out of the score's reach")
    _require(grid_of(score).settled(threshold) == threshold, f"{where}.threshold lies on a score, not between two")
    check_cost(fitted, len(classes))
    gate = Gate(fitted, classes, score=score, threshold=threshold, **known)
    check_map(gate, len(classes))
    return gate


def _score(data: Any, where: str, n_classes: int) -> str | Score:
    if isinstance(data, dict):
        return ranker_from(data, n_classes, where)
    name: str = decode(str, data, where, {})
    if name not in NAMED:
        raise ArtifactError(f"{where} must be one of {', '.join(NAMED)}, not {shown(data)}.")
    return name


def _map(data: Any, where: str) -> Map:
    named = data.get("type") if isinstance(data, dict) else None
    classes = [method_named(kind).map_class() for kind in calibrator_kinds()]  # type: ignore[union-attr]
    cls = next((cls for cls in classes if cls.__name__ == named), None)
    if cls is None:
        raise ArtifactError(f"{where} must be a map of one of metacal's calibrators, not {shown(named)}.")
    found: Map = decode_map(data, where, maps_inside(cls), only=cls)
    return found


def _require(ok: bool, complaint: str) -> None:
    if not ok:
        raise ArtifactError(f"{complaint}.")
