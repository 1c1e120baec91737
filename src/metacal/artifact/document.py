"""A fitted estimator as a document, a dict of plain values, and back. `artifact` puts it in a file."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from metacal.artifact.audit import check_cost
from metacal.artifact.checking import check_features, check_keys, classes_from, read_gate, read_parameters
from metacal.artifact.classes import described, read_classes
from metacal.artifact.describing import Document, article, describe_certificate, describe_classes, describe_constraint
from metacal.artifact.encoding import built, decode_map, encode, encode_map, exact_keys, shown
from metacal.artifact.metamap import MetaMap
from metacal.artifact.probe import check_map
from metacal.artifact.rankers import RANKERS, describe_ranker
from metacal.artifact.registry import CALIBRATORS, maps
from metacal.errors import ArtifactError
from metacal.estimators.auto import AutoCalibrator, chosen
from metacal.estimators.base import Calibrator
from metacal.estimators.metacal import MetaCal
from metacal.gate import Gate, Recipe
from metacal.scores import named as scores

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
        "map": _map(MetaMap.of(estimator.gate_) if isinstance(estimator, MetaCal) else estimator.map_),
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
    check_keys(document, gate=kind == "MetaCal")
    classes, given = classes_from(document["classes"])
    estimator = _gate(document, classes, given) if kind == "MetaCal" else _calibrator(kind, document)
    estimator.set_params(classes=classes.tolist() if given else None)
    estimator.classes_ = classes
    names = check_features(document["n_features"], document["feature_names"], len(classes))
    estimator.n_features_in_ = len(classes)
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    check_cost(getattr(estimator.map_, "map", estimator.map_), len(classes))
    check_map(estimator.map_, len(classes))
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
    return read_parameters(parameters_of(cls), data, where)


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


def _gate(document: Document, classes: NDArray[Any], given_classes: bool) -> MetaCal:
    base, fitted = _read_base(document["calibrator"]), _read_base(document["calibrator"])
    fitted = CALIBRATORS["TemperatureScaling"][0]() if fitted is None else fitted
    map_class = CALIBRATORS[type(fitted).__name__][1]
    parts = read_gate(document, classes, parameters=parameters_of(MetaCal), maps=maps(), base=map_class)
    given = {**parts.parameters, "constraint": parts.constraint, "calibrator": base}
    estimator: MetaCal = built(MetaCal, given, "parameters")
    estimator.gate_ = Gate(
        parts.map.base,
        classes,
        score=parts.map.score,
        threshold=parts.map.threshold,
        certificate=parts.certificate,
        constraint=parts.constraint,
        reject_label=estimator.reject_label,
        input=estimator.input,
        data_hash=parts.data_hash,
        recipe=None if base is None else Recipe(type(base).__name__, base.get_params(deep=False)),
        classes_given=given_classes,
    )
    estimator.score = parts.map.score
    fitted.classes_, fitted.n_features_in_ = np.arange(len(classes)), len(classes)
    fitted.map_ = parts.map.base
    estimator.calibrator_ = fitted
    return estimator


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
