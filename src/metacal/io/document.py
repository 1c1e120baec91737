"""A fitted estimator as a document, a dict of plain values, and back. `artifact` puts it in a file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from metacal import scores, validate
from metacal.calibrators import AutoCalibrator, Calibrator, chosen
from metacal.errors import ArtifactError, InputError
from metacal.io.audit import audited_certificate, check_against_constraint
from metacal.io.encoding import built, decode, decode_map, encode, encode_map, exact_keys, shown
from metacal.io.registry import CALIBRATORS, CONSTRAINTS, maps
from metacal.maps.meta import MetaMap
from metacal.meta import MetaCal

Document = dict[str, Any]

#: What every document has, and what a gate has besides.
COMMON = ("kind", "parameters", "n_features", "feature_names", "classes", "map")
GATE = ("constraint", "calibrator", "certificate")

#: Parameters with a place of their own in the document.
_ELSEWHERE = ("classes", "constraint", "calibrator")
#: Characters of all class names together, padded to the longest: what NumPy will allocate.
_MOST_NAME_CHARACTERS = 1 << 26


def document_of(estimator: Any) -> Document:
    """Describe a fitted MetaCal or calibrator, or raise ArtifactError with what to do instead."""
    estimator = chosen(estimator)
    kind = type(estimator).__name__
    if isinstance(estimator, type):
        raise ArtifactError(f"cannot save the class {estimator.__name__}; save a fitted {estimator.__name__}(...).")
    if type(estimator) is not (MetaCal if kind == "MetaCal" else CALIBRATORS.get(kind, (None,))[0]):
        known = ", ".join(["MetaCal", *CALIBRATORS])
        raise ArtifactError(f"cannot save {_article(kind)}; what can be saved is a fitted {known}.")
    try:
        check_is_fitted(estimator)
    except ValueError:
        raise ArtifactError(f"this {kind} is not fitted; call fit(logits, labels) first, then save.") from None
    if isinstance(estimator, MetaCal):
        _check_can_be_saved(estimator)
    document: Document = {"kind": kind, "parameters": _parameters(estimator)}
    if isinstance(estimator, MetaCal):
        document["constraint"] = _constraint(estimator.constraint)
        document["calibrator"] = _base(_settled(estimator))
        document["certificate"] = _plain(estimator.certificate_.to_dict())
    names = getattr(estimator, "feature_names_in_", None)
    return document | {
        "n_features": int(estimator.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
        "classes": _classes(estimator),
        "map": encode_map(estimator.map_, "the fitted map", maps()),
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
    exact_keys(document, [*COMMON, *(GATE if kind == "MetaCal" else ())], "the file")
    classes, given = _read_classes(document["classes"])
    estimator = _gate(document, classes) if kind == "MetaCal" else _calibrator(kind, document)
    estimator.set_params(classes=classes.tolist() if given else None)
    estimator.classes_ = classes
    _set_features(estimator, document["n_features"], document["feature_names"], len(classes))
    _probe(estimator)
    return estimator


# ── saving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_can_be_saved(estimator: MetaCal) -> None:
    if not isinstance(estimator.score, str):
        raise ArtifactError(
            f"the score is a function ({scores.name_of(estimator.score)}), which a file cannot hold; "
            f"use a named score: {', '.join(scores.NAMED)}."
        )
    for base in (estimator.calibrator_, _settled(estimator)):
        if base is not None and type(base) is not CALIBRATORS.get(type(base).__name__, (None,))[0]:
            raise ArtifactError(
                f"the base calibrator is {_article(type(base).__name__)}, which only pickle could store; "
                f"use one of metacal's own ({', '.join(CALIBRATORS)})."
            )


def _settled(estimator: MetaCal) -> Any:
    """The base calibrator asked for; where that was to choose one, the one that was chosen."""
    return estimator.calibrator_ if isinstance(estimator.calibrator, AutoCalibrator) else estimator.calibrator


def _parameters(estimator: Any) -> dict[str, Any]:
    params = estimator.get_params(deep=False)
    return {name: encode(value, name, {}) for name, value in params.items() if name not in _ELSEWHERE}


def _constraint(constraint: Any) -> dict[str, Any]:
    kind = next((kind for kind, promise in CONSTRAINTS.items() if type(constraint) is promise.constraint), None)
    if kind is None:
        known = ", ".join(CONSTRAINTS)
        raise ArtifactError(f"the constraint is {_article(type(constraint).__name__)}; what can be saved is {known}.")
    params = constraint.get_params()
    state = params.get("random_state")
    if state is not None and not isinstance(state, int | np.integer):
        raise ArtifactError(
            f"random_state is {_article(type(state).__name__)}, which cannot be saved; "
            "give a whole number and fit again."
        )
    return {"type": kind, **{name: encode(value, name, {}) for name, value in params.items()}}


def _base(base: Any) -> dict[str, Any] | None:
    """The unfitted base calibrator as given to MetaCal: what it is, and its parameters."""
    if base is None:
        return None
    classes = None if base.classes is None else _described(np.asarray(base.classes))
    return {"kind": type(base).__name__, "parameters": _parameters(base), "classes": classes}


def _classes(estimator: Any) -> dict[str, Any]:
    classes = estimator.classes_
    if estimator.classes is not None and not np.array_equal(np.asarray(estimator.classes), classes):
        raise ArtifactError("the parameter classes was changed after fit; fit again, then save.")
    return {**_described(classes), "given": estimator.classes is not None}


def _described(classes: NDArray[Any]) -> dict[str, Any]:
    if classes.dtype == object:
        classes = classes.astype(np.str_)
    return {"dtype": "str" if classes.dtype.kind == "U" else classes.dtype.name, "values": classes.tolist()}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: encode(value, f"certificate.{name}", {}) for name, value in values.items()}


def _article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'AEIOUaeiou' else 'a'} {noun}"


# ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_parameters(cls: type, data: Any, where: str) -> dict[str, Any]:
    signature = inspect.signature(cls, eval_str=True).parameters
    annotations = {name: param.annotation for name, param in signature.items() if name not in _ELSEWHERE}
    exact_keys(data, list(annotations), where)
    values = {name: decode(kind, data[name], f"{where}.{name}", {}) for name, kind in annotations.items()}
    if values["input"] not in ("logits", "probabilities"):
        raise ArtifactError(f'{where}.input must be "logits" or "probabilities", not {shown(values["input"])}.')
    if values["n_jobs"] == 0:
        raise ArtifactError(f"{where}.n_jobs must not be 0.")
    return values


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
    fields = {"base": map_class, "score": str}
    estimator.map_ = decode_map(document["map"], "map", maps(), only=MetaMap, overrides=fields)
    estimator.certificate_ = certificate
    if estimator.map_.threshold != certificate.threshold:
        raise ArtifactError("the map's threshold and the certificate's differ.")
    if not estimator.map_.score == certificate.score == parameters["score"]:
        raise ArtifactError("the score is not the same in the map, the certificate and the parameters.")
    fitted.classes_, fitted.n_features_in_ = np.arange(len(classes)), len(classes)
    fitted.map_ = estimator.map_.base
    estimator.calibrator_ = fitted
    return estimator


def _check_gate_parameters(parameters: dict[str, Any], classes: NDArray[Any]) -> None:
    if parameters["score"] not in scores.NAMED:
        known = ", ".join(scores.NAMED)
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
    annotations = get_type_hints(cls)
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
        classes, _ = _read_classes({**data["classes"], "given": True} if isinstance(data["classes"], dict) else None)
        base.set_params(classes=classes.tolist())
    return base


def _read_classes(data: Any) -> tuple[NDArray[Any], bool]:
    exact_keys(data, ["dtype", "values", "given"], "classes")
    kind, values, given = data["dtype"], data["values"], data["given"]
    if type(given) is not bool or not isinstance(values, list) or not values:
        raise ArtifactError("classes: values must be a list with an entry per column, and given true or false.")
    types: dict[str, Any] = {"str": str, "bool": bool}
    types |= {f"{sign}int{bits}": int for sign in ("", "u") for bits in (8, 16, 32, 64)}
    if type(kind) is not str or kind not in types:
        raise ArtifactError(f"classes: unknown dtype {shown(kind)}.")
    for k, value in enumerate(values):
        if type(value) is not types[kind] or (types[kind] is int and not _in_range(value, kind)):
            raise ArtifactError(f"classes[{k}] must be of type {kind}, not {shown(value)}.")
    if kind == "str":
        if len(values) * max(map(len, values)) > _MOST_NAME_CHARACTERS:
            raise ArtifactError("classes: the names are too long.")
        decode(tuple[str, ...], values, "classes", {})
    try:
        return validate.class_list(np.array(values, dtype=np.dtype(kind)), len(values)), given
    except (InputError, OverflowError, ValueError) as error:
        raise ArtifactError(f"classes: {error}") from None


def _in_range(value: int, kind: str) -> bool:
    info = np.iinfo(kind)
    return int(info.min) <= value <= int(info.max)


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
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(estimator.map_(table))
        # Written so that NaN fails too.
        ok = found.shape == table.shape and bool(np.all((found >= 0.0) & (found <= 1.0 + 1e-6)))
    except Exception as error:
        raise ArtifactError(f"the map does not work on {width} columns ({' '.join(str(error).split())}).") from error
    if not ok:
        raise ArtifactError(f"the map does not give probabilities of {width} columns.")
