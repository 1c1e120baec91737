"""A fitted estimator as a document, a dict of plain values, and back. `artifact` puts it in a file."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from metacal import scores
from metacal.calibrators import AutoCalibrator, Calibrator, chosen
from metacal.errors import ArtifactError
from metacal.io.audit import audited_certificate, check_against_constraint, check_cost, check_data_hash
from metacal.io.classes import described, read_classes
from metacal.io.describing import Document, article, describe_certificate, describe_classes, describe_constraint
from metacal.io.encoding import annotations_of, built, decode, decode_map, encode, encode_map, exact_keys, shown
from metacal.io.promises import CONSTRAINTS
from metacal.io.rankers import describe_ranker, ranker_from
from metacal.io.registry import CALIBRATORS, RANKERS, maps
from metacal.maps.meta import MetaMap
from metacal.meta import MetaCal

#: What every document has, and what a gate has besides.
COMMON = ("kind", "parameters", "n_features", "feature_names", "classes", "map")
GATE = ("constraint", "calibrator", "certificate")
#: What a gate may have: files of the first days have no fingerprint of their calibration rows.
OPTIONAL = ("data_hash",)

#: More threads than this are no honest wish.
MOST_JOBS = 1024
#: Parameters with a place of their own in the document.
_ELSEWHERE = ("classes", "constraint", "calibrator")


def document_of(estimator: Any) -> Document:
    """Describe a fitted MetaCal or calibrator, or raise ArtifactError with what to do instead."""
    estimator = chosen(estimator)
    kind = type(estimator).__name__
    if isinstance(estimator, type):
        raise ArtifactError(f"cannot save the class {estimator.__name__}; save a fitted {estimator.__name__}(...).")
    if type(estimator) is not (MetaCal if kind == "MetaCal" else CALIBRATORS.get(kind, (None,))[0]):
        known = ", ".join(["MetaCal", *CALIBRATORS])
        if kind == "CalibratedClassifier":
            raise ArtifactError(
                "a CalibratedClassifier holds your classifier, which this file cannot; save the gate, "
                "mc.save(clf.gate_, path), and the classifier by its own means; then gate.predict(clf.logits(X))."
            )
        raise ArtifactError(f"cannot save {article(kind)}; what can be saved is a fitted {known}.")
    try:
        check_is_fitted(estimator)
    except ValueError:
        raise ArtifactError(f"this {kind} is not fitted; call fit(logits, labels) first, then save.") from None
    if isinstance(estimator, MetaCal):
        _check_can_be_saved(estimator)
    document: Document = {"kind": kind, "parameters": _parameters(estimator)}
    if isinstance(estimator, MetaCal):
        document["constraint"] = describe_constraint(estimator.constraint)
        document["calibrator"] = _base(_settled(estimator))
        document["certificate"] = describe_certificate(estimator.certificate_)
        if getattr(estimator, "data_hash_", None) is not None:
            document["data_hash"] = estimator.data_hash_
    names = getattr(estimator, "feature_names_in_", None)
    return document | {
        "n_features": int(estimator.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
        "classes": _classes(estimator),
        "map": _map(_as_certified(estimator)),
    }


def estimator_from(document: Document) -> Any:
    """Build the fitted estimator that a document describes, or raise ArtifactError; every field is checked first.

    Examples
    --------
    >>> import metacal as mc
    >>> cal = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1])
    >>> estimator_from(document_of(cal)).map_ == cal.map_
    True
    """
    kind = document.get("kind")
    if kind != "MetaCal" and (type(kind) is not str or kind not in CALIBRATORS):
        known = ", ".join(["MetaCal", *CALIBRATORS])
        raise ArtifactError(f"unknown kind {shown(kind)}; this metacal knows {known}.")
    optional = [name for name in OPTIONAL if kind == "MetaCal" and name in document]
    exact_keys(document, [*COMMON, *(GATE if kind == "MetaCal" else ()), *optional], "the file")
    classes, given = _classes_from(document["classes"])
    estimator = _gate(document, classes) if kind == "MetaCal" else _calibrator(kind, document)
    estimator.set_params(classes=classes.tolist() if given else None)
    estimator.classes_ = classes
    _set_features(estimator, document["n_features"], document["feature_names"], len(classes))
    _probe(estimator)
    return estimator


# ── saving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_can_be_saved(estimator: MetaCal) -> None:
    name = scores.name_of(estimator.score)
    if not isinstance(estimator.score, str) and type(estimator.score) is not RANKERS.get(name):
        raise ArtifactError(
            f"the score is a function ({name}), which a file cannot hold; use a named score: "
            f"{', '.join(scores.NAMED)}, or a trained {' or '.join(RANKERS)}."
        )
    for base in (estimator.calibrator_, _settled(estimator)):
        if base is not None and type(base) is not CALIBRATORS.get(type(base).__name__, (None,))[0]:
            raise ArtifactError(
                f"the base calibrator is {article(type(base).__name__)}, which only pickle could store; "
                f"use one of metacal's own ({', '.join(CALIBRATORS)})."
            )


def _settled(estimator: MetaCal) -> Any:
    """The base calibrator asked for; where that was to choose one, the one that was chosen."""
    return estimator.calibrator_ if isinstance(estimator.calibrator, AutoCalibrator) else estimator.calibrator


def _as_certified(estimator: Any) -> Any:
    """The map with the certificate's threshold: a file loaded and saved again says what it said."""
    if not isinstance(estimator, MetaCal):
        return estimator.map_
    return replace(estimator.map_, threshold=estimator.certificate_.threshold)


def _map(fitted: Any) -> dict[str, Any]:
    """The map and its fields; a learned score stands inside it, everywhere else only its name."""
    if not isinstance(fitted, MetaMap) or isinstance(fitted.score, str):
        return encode_map(fitted, "the fitted map", maps())
    ranker = describe_ranker(fitted.score)  # type: ignore[arg-type]
    return encode_map(replace(fitted, score=ranker["type"]), "the fitted map", maps()) | {"score": ranker}


def _parameters(estimator: Any) -> dict[str, Any]:
    params = estimator.get_params(deep=False)
    if isinstance(estimator, MetaCal):
        params["score"] = scores.name_of(estimator.score)
    return {name: encode(value, name, {}) for name, value in params.items() if name not in _ELSEWHERE}


def _base(base: Any) -> dict[str, Any] | None:
    """The unfitted base calibrator as given to MetaCal: what it is, and its parameters."""
    if base is None:
        return None
    classes = None if base.classes is None else described(np.asarray(base.classes))
    return {"kind": type(base).__name__, "parameters": _parameters(base), "classes": classes}


def _classes(estimator: Any) -> dict[str, Any]:
    classes = estimator.classes_
    if estimator.classes is not None and not np.array_equal(np.asarray(estimator.classes), classes):
        raise ArtifactError("the parameter classes was changed after fit; fit again, then save.")
    return describe_classes(classes, given=estimator.classes is not None)


# ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_parameters(cls: type, data: Any, where: str) -> dict[str, Any]:
    annotations = parameters_of(cls)
    exact_keys(data, list(annotations), where)
    values = {name: decode(kind, data[name], f"{where}.{name}", {}) for name, kind in annotations.items()}
    if values["input"] not in ("logits", "probabilities"):
        raise ArtifactError(f'{where}.input must be "logits" or "probabilities", not {shown(values["input"])}.')
    n_jobs = values["n_jobs"]
    if n_jobs is not None and not 1 <= abs(n_jobs) <= MOST_JOBS:
        raise ArtifactError(f"{where}.n_jobs must not be 0, nor beyond {MOST_JOBS}.")
    return values


@cache
def parameters_of(cls: type) -> dict[str, Any]:
    """The constructor's parameters that stand in the file under "parameters", and their annotations."""
    signature = inspect.signature(cls, eval_str=True).parameters
    return {name: param.annotation for name, param in signature.items() if name not in _ELSEWHERE}


def _calibrator(kind: str, document: Document) -> Calibrator:
    cls, map_class = CALIBRATORS[kind]
    estimator: Calibrator = built(cls, _read_parameters(cls, document["parameters"], "parameters"), "parameters")
    estimator.map_ = decode_map(document["map"], "map", maps(), only=map_class)
    return estimator


def _gate(document: Document, classes: NDArray[Any]) -> MetaCal:
    parameters = _read_parameters(MetaCal, document["parameters"], "parameters")
    _check_gate_parameters(parameters, classes)
    kind, constraint = _read_constraint(document["constraint"])
    base, fitted = _read_base(document["calibrator"]), _read_base(document["calibrator"])
    fitted = CALIBRATORS["TemperatureScaling"][0]() if fitted is None else fitted
    map_class = CALIBRATORS[type(fitted).__name__][1]
    certificate = audited_certificate(document["certificate"])
    check_against_constraint(certificate, kind, constraint)
    estimator: MetaCal = built(MetaCal, {**parameters, "constraint": constraint, "calibrator": base}, "parameters")
    estimator.map_ = _meta_map(document["map"], map_class, len(classes))
    estimator.certificate_ = certificate
    estimator.data_hash_ = check_data_hash(document["data_hash"]) if "data_hash" in document else None
    if estimator.map_.threshold != certificate.threshold:
        raise ArtifactError("the map's threshold and the certificate's differ.")
    # Files from before scores were rounded have the threshold at a score: decisions are made in the middle beside it.
    level = certificate.settled_threshold(scores.grid_of(estimator.map_.score))
    estimator.map_ = replace(estimator.map_, threshold=level)
    if not scores.name_of(estimator.map_.score) == certificate.score == parameters["score"]:
        raise ArtifactError("the score is not the same in the map, the certificate and the parameters.")
    if (parameters["score"], parameters["input"]) == ("energy", "probabilities"):
        raise ArtifactError("the score energy is the same for every row of probabilities.")
    estimator.score = estimator.map_.score
    fitted.classes_, fitted.n_features_in_ = np.arange(len(classes)), len(classes)
    fitted.map_ = estimator.map_.base
    estimator.calibrator_ = fitted
    return estimator


def _meta_map(data: Any, base: type, n_classes: int) -> MetaMap:
    """The gate's map; its score is a name, or a learned one with all its numbers."""
    learned = data.get("score") if isinstance(data, dict) else None
    if isinstance(learned, dict):
        ranker = ranker_from(learned, n_classes)
        data = {**data, "score": scores.name_of(ranker)}
    fields = {"base": base, "score": str}
    found: MetaMap = decode_map(data, "map", maps(), only=MetaMap, overrides=fields)
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


def _read_constraint(data: Any) -> tuple[str, Any]:
    kind = data.get("type") if isinstance(data, dict) else None
    if type(kind) is not str or kind not in CONSTRAINTS:
        raise ArtifactError(f"constraint must be one of {', '.join(CONSTRAINTS)}, not {shown(kind)}.")
    cls = CONSTRAINTS[kind].constraint
    annotations = annotations_of(cls)
    names = list(cls.__dataclass_fields__)  # type: ignore[attr-defined]
    exact_keys(data, ["type", *names], "constraint")
    values = {name: decode(annotations[name], data[name], f"constraint.{name}", {}) for name in names}
    if not isinstance(values.get("random_state"), int | None):
        raise ArtifactError("constraint.random_state must be a whole number or null.")
    return kind, built(cls, values, "constraint")


def _read_base(data: Any) -> Calibrator | None:
    if data is None:
        return None
    exact_keys(data, ["kind", "parameters", "classes"], "calibrator")
    kind = data["kind"]
    if type(kind) is not str or kind not in CALIBRATORS:
        raise ArtifactError(f"calibrator.kind must be one of {', '.join(CALIBRATORS)}, not {shown(kind)}.")
    cls = CALIBRATORS[kind][0]
    base: Calibrator = built(cls, _read_parameters(cls, data["parameters"], "calibrator.parameters"), "calibrator")
    if data["classes"] is not None:
        base.set_params(classes=read_classes(data["classes"], "calibrator.classes").tolist())
    return base


def _classes_from(data: Any) -> tuple[NDArray[Any], bool]:
    exact_keys(data, ["dtype", "values", "given"], "classes")
    if type(data["given"]) is not bool:
        raise ArtifactError(f"classes.given must be true or false, not {shown(data['given'])}.")
    return read_classes({"dtype": data["dtype"], "values": data["values"]}), data["given"]


def _set_features(estimator: Any, n_features: Any, names: Any, n_classes: int) -> None:
    if type(n_features) is not int or n_features != n_classes or n_classes < 2:
        raise ArtifactError(f"n_features {shown(n_features)} and the {n_classes} classes do not agree.")
    estimator.n_features_in_ = n_features
    if names is not None:
        if not isinstance(names, list) or len(names) != n_features:
            raise ArtifactError(f"feature_names must be null or a list of {n_features} names.")
        estimator.feature_names_in_ = np.array(decode(tuple[str, ...], names, "feature_names", {}), dtype=object)


def _probe(estimator: Any) -> None:
    """Two rows go through the map: its arrays must fit the number of classes and give probabilities."""
    width = estimator.n_features_in_
    table = np.stack([np.zeros(width), np.linspace(-1.0, 1.0, width)])
    check_cost(getattr(estimator.map_, "base", estimator.map_))
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(estimator.map_(table))
        # Written so that NaN fails too.
        ok = found.shape == table.shape and bool(np.all((found >= 0.0) & (found <= 1.0 + 1e-6)))
    except Exception as error:
        raise ArtifactError(f"the map does not work on {width} columns ({' '.join(str(error).split())}).") from error
    if not ok:
        raise ArtifactError(f"the map does not give probabilities of {width} columns.")
