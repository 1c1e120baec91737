"""A gate as a document, a dict of plain values, and back, without scikit-learn. `file` puts it in a file.

Every gate is one tree: its stages, each with its source and threshold, and the promise and certificate over all of
them. The kind says what `load` makes of it: MetaCal, ScoreGate, Cascade or, where nothing is promised, the calibrator
that its recipe names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from metacal.errors import ArtifactError
from metacal.gate import Gate, Marks, Recipe, Stage, Table
from metacal.gate.marks import HIGHER_IS, plain_name
from metacal.io.artifact.audit import (
    audited_certificate,
    check_cost,
    check_data_hash,
    check_reach,
    check_settled,
    describe_certificate,
)
from metacal.io.artifact.classes import check_features, classes_from, describe_classes
from metacal.io.artifact.encoding import article, decode, decode_map, encode, encode_map, exact_keys, maps_in, shown
from metacal.io.artifact.parameters import (
    calibrator_kinds,
    check_jobs,
    check_reject_label,
    describe_recipe,
    method_of,
    read_recipe,
)
from metacal.io.artifact.parts import check_classes
from metacal.io.artifact.probe import check_map
from metacal.io.artifact.profile import decode_profile, encode_profile
from metacal.io.artifact.promises import describe_promise, read_promise
from metacal.io.artifact.rankers import RANKERS, describe_ranker, ranker_from
from metacal.kernels.grid import RELATIVE
from metacal.maps.confidence import ConfidenceCurve
from metacal.maps.map import Map
from metacal.maps.methods import map_classes, method_named
from metacal.promises.certificate import Certificate
from metacal.promises.parts.thresholds import One, Policy, policy_of
from metacal.scores import NAMED, Score, grid_of, name_of, needs_logits

Document = dict[str, Any]

#: The kinds of files with a promise: of one table of logits, of scores, of several tables.
KINDS = {"logits": "MetaCal", "scores": "ScoreGate", "cascade": "Cascade"}
#: What every document has.
KEYS = (
    "kind", "n_jobs", "feature_names", "reject_label", "stages", "promise", "certificate", "data_hash", "profile",
)  # fmt: skip
STAGE = ("name", "threshold", "source")
TABLE = ("type", "classes", "input", "score", "calibrator", "map")
MARKS = ("type", "score", "higher_is", "curve")
#: A fit gives at most 129 corners.
_MOST_CORNERS = 1000
#: Models of a cascade, at most.
MOST_STAGES = 16


@dataclass(frozen=True)
class Content:
    """What a file holds: a gate and, of the estimator around it, the threads and the names of the columns."""

    gate: Gate
    n_jobs: int | None = None
    feature_names: tuple[str, ...] | None = None


def kind_of(gate: Gate) -> str:
    """What `load` makes of it: one of KINDS, or the calibrator that fitted the map of a gate without a promise."""
    return KINDS[gate.kind] if gate.certificate is not None else method_of(gate.source).public_name


# ── saving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def document_of(content: Content) -> Document:
    """Describe what is to be saved, or raise ArtifactError with what to do instead.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.maps.temperature import TemperatureMap
    >>> document = document_of(Content(Gate.of(Table(TemperatureMap(0.5), np.arange(3)))))
    >>> document["kind"], document["stages"][0]["source"]["map"]
    ('TemperatureScaling', {'type': 'TemperatureMap', 'inverse_temperature': 0.5})
    """
    gate, names = content.gate, content.feature_names
    promised = gate.certificate is not None
    if not promised and (gate.threshold != math.inf or gate.kind != "logits"):
        raise ArtifactError(
            "this gate has a threshold without a certificate, and a threshold is only saved with its promise; "
            "fit it with one, say MetaCal(MaxMiscoverage(0.05))."
        )
    return {
        "kind": kind_of(gate),
        "n_jobs": content.n_jobs,
        "feature_names": None if names is None else list(names),
        "reject_label": encode(gate.reject_label, "reject_label", {}) if promised and gate.n_classes else None,
        "stages": [_describe_stage(stage) for stage in gate.stages],
        "promise": describe_promise(gate.promise) if promised else None,
        "certificate": None if gate.certificate is None else describe_certificate(gate.certificate),
        "data_hash": gate.data_hash,
        "profile": None if gate.profile is None else encode_profile(gate.profile),
    }


def _describe_stage(stage: Stage) -> Document:
    source = stage.source
    described = _describe_table(source) if isinstance(source, Table) else _describe_marks(source)
    return {"name": stage.name, "threshold": encode(stage.policy.threshold, "threshold", {}), "source": described}


def _describe_marks(source: Marks) -> Document:
    curve = None if source.curve is None else encode_map(source.curve, "the curve", maps_in(ConfidenceCurve))
    name = encode(source.score, "the score's name", {})
    return {"type": "Marks", "score": name, "higher_is": source.higher_is, "curve": curve}


def _describe_table(source: Table) -> Document:
    """Classes, score, a learned one with all its numbers, and the map with the recipe that fitted it."""
    name, method = name_of(source.score), method_of(source)
    if not isinstance(source.score, str) and type(source.score) is not RANKERS.get(name):
        raise ArtifactError(
            f"the score is a function ({name}), which a file cannot hold; use a named score: "
            f"{', '.join(NAMED)}, or a trained {' or '.join(RANKERS)}."
        )
    return {
        "type": "Table",
        "classes": describe_classes(source.classes, given=source.classes_given),
        "input": source.input,
        "score": source.score if isinstance(source.score, str) else describe_ranker(source.score),
        "calibrator": describe_recipe(source.recipe, method),
        "map": encode_map(source.map, "the fitted map", maps_in(type(source.map))),
    }


# ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def content_of(document: Document) -> Content:
    """What a document describes, or ArtifactError: every field is checked, alone and against the others.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.maps.temperature import TemperatureMap
    >>> gate = Gate.of(Table(TemperatureMap(0.5), np.arange(3)))
    >>> content_of(document_of(Content(gate))).gate == gate
    True
    """
    kind = document.get("kind")
    if type(kind) is not str or (kind not in KINDS.values() and method_named(kind) is None):
        known = ", ".join([*KINDS.values(), *calibrator_kinds()])
        raise ArtifactError(f"unknown kind {shown(kind)}; this metacal knows {known}.")
    exact_keys(document, KEYS, "the file")
    promise = certificate = None
    if document["promise"] is not None or document["certificate"] is not None:
        promise = read_promise(document["promise"])
        certificate = audited_certificate(document["certificate"], promise)
    stages = _stages(document["stages"], certificate)
    hashed, profile = document["data_hash"], document["profile"]
    if certificate is None and (hashed, profile) != (None, None):
        raise ArtifactError("a fingerprint or a profile of calibration rows belongs to a certificate.")
    gate = Gate(
        stages,
        certificate,
        promise,
        data_hash=None if hashed is None else check_data_hash(hashed),
        profile=None if profile is None else decode_profile(profile, certificate),  # type: ignore[arg-type]
    )
    gate = _with_reject_label(gate, document["reject_label"])
    if kind != kind_of(gate):
        raise ArtifactError(f"this is no {kind}: its stages and its promise are those of {article(kind_of(gate))}.")
    names = check_features(document["feature_names"], gate.n_classes)
    for number, stage in enumerate(stages):
        if isinstance(stage.source, Table):
            check_map(stage.source.map if certificate is None else gate.stage(number), gate.n_classes)
    return Content(gate, check_jobs(document["n_jobs"]), names)


def _with_reject_label(gate: Gate, label: Any) -> Gate:
    """The gate with its reject label, which fits its classes; none where there are none, or nothing is rejected."""
    if gate.certificate is None or not gate.n_classes:
        if label is not None:
            raise ArtifactError(f"reject_label must be null where no class is rejected, not {shown(label)}.")
        return gate
    return Gate(**{**vars(gate), "reject_label": check_reject_label(label, gate.classes)})


def _stages(data: Any, certificate: Certificate | None) -> tuple[Stage, ...]:
    """The stages, each as the certificate says."""
    counted = None if certificate is None or certificate.stages is None else certificate.stages.items
    n_stages = 1 if counted is None else len(counted)
    if not isinstance(data, list) or len(data) != n_stages or n_stages > MOST_STAGES:
        raise ArtifactError(f"stages must be a list of {n_stages}, as the certificate says.")
    own = [None] if counted is None else list(counted)
    stages = []
    for number, (item, said) in enumerate(zip(data, own, strict=True)):
        where = f"stages[{number}]"
        exact_keys(item, STAGE, where)
        source = _source(item["source"], f"{where}.source")
        name, score = ("", getattr(certificate, "score", None)) if said is None else (said.name, said.score)
        if item["name"] != name:
            raise ArtifactError(f"{where}.name must be {name!r}, as in the certificate, not {shown(item['name'])}.")
        if certificate is not None and source.score_name != score:
            raise ArtifactError(f"{where}: the score is not the same in the source and the certificate.")
        threshold = math.inf if certificate is None else certificate.threshold if said is None else said.threshold
        if decode(float, item["threshold"], f"{where}.threshold", {}) != threshold:
            raise ArtifactError(f"{where}: the threshold and the certificate's differ.")
        stages.append(_stage(source, threshold, certificate, name))
    classes = [stage.source.classes.tolist() for stage in stages if isinstance(stage.source, Table)]
    if len(stages) > 1 and (len(classes) != len(stages) or any(other != classes[0] for other in classes)):
        raise ArtifactError("the models of a cascade need the same classes, in the same order.")
    return tuple(stages)


def _stage(source: Table | Marks, threshold: float, certificate: Certificate | None, name: str) -> Stage:
    """A stage with its policy, once the certificate's numbers are such as its score can give."""
    policy: Policy = One(threshold)
    if certificate is None:
        return Stage(source, policy, name)
    if isinstance(source, Table):
        check_reach(certificate, source.n_classes, source.score_name, threshold)
    check_settled(certificate, grid_of(source.score) if isinstance(source, Table) else RELATIVE, threshold)
    if isinstance(source, Marks):
        if certificate.parts is not None and certificate.parts.by == "class":
            raise ArtifactError("certificate: its parts are classes, and scores have none.")
        source = source.of(certificate)
    if certificate.stages is None:
        check_classes(certificate, source.classes)
        policy = policy_of(certificate, source.classes)
    return Stage(source, policy, name)


def _source(data: Any, where: str) -> Table | Marks:
    kind = data.get("type") if isinstance(data, dict) else data
    if kind == "Table":
        return _table(data, where)
    if kind == "Marks":
        return _marks(data, where)
    raise ArtifactError(f"{where} must be one of Table, Marks, not {shown(kind)}.")


def _marks(data: Any, where: str) -> Marks:
    exact_keys(data, MARKS, where)
    name, higher_is = (decode(str, data[key], f"{where}.{key}", {}) for key in ("score", "higher_is"))
    if higher_is not in HIGHER_IS:
        raise ArtifactError(f"{where}.higher_is must be one of {', '.join(HIGHER_IS)}, not {shown(higher_is)}.")
    if plain_name(name) != name:
        raise ArtifactError(f"{where}.score must be one line of plain text, not {shown(name)}.")
    curve = data["curve"]
    if curve is None:
        return Marks(name, higher_is)
    found: ConfidenceCurve = decode_map(curve, f"{where}.curve", maps_in(ConfidenceCurve), only=ConfidenceCurve)
    if len(found.knots) > _MOST_CORNERS:
        raise ArtifactError(f"{where}.curve has {len(found.knots):,} corners; {_MOST_CORNERS:,} is the most.")
    return Marks(name, higher_is, found)


def _table(data: Any, where: str) -> Table:
    exact_keys(data, TABLE, where)
    classes, given = classes_from(data["classes"])
    recipe = read_recipe(data["calibrator"])
    fitted = _map(data["map"], f"{where}.map", recipe)
    check_cost(fitted, len(classes))
    kind = data["input"]
    if kind not in ("logits", "probabilities"):
        raise ArtifactError(f'{where}.input must be "logits" or "probabilities", not {shown(kind)}.')
    score = _score(data["score"], f"{where}.score", classes)
    if needs_logits(score) and kind == "probabilities":
        raise ArtifactError(f"the score {name_of(score)} is the same for every row of probabilities.")
    return Table(fitted, classes, score, kind, recipe, given)


def _map(data: Any, where: str, recipe: Recipe | None) -> Map:
    """The map: of the class that the recipe fits or, where there is none, of any that a calibrator does."""
    method = None if recipe is None else method_named(recipe.estimator)
    named = data.get("type") if isinstance(data, dict) else None
    cls = method.map_class() if method is not None else map_classes().get(named) if type(named) is str else None
    if cls is None:
        raise ArtifactError(f"{where} must be a map of one of metacal's calibrators, not {shown(named)}.")
    found: Map = decode_map(data, where, maps_in(cls), only=cls)
    return found


def _score(data: Any, where: str, classes: NDArray[Any]) -> str | Score:
    """A name, or a learned score with all its numbers."""
    if isinstance(data, dict):
        return ranker_from(data, len(classes), where)
    name: str = decode(str, data, where, {})
    if name not in NAMED:
        raise ArtifactError(f"{where} must be one of {', '.join(NAMED)}, not {shown(data)}.")
    return name
