"""Between a fitted estimator and what a file holds of it: its gate, its threads, the names of its
columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from metacal.errors import ArtifactError
from metacal.estimators.base import Calibrator, base_calibrator
from metacal.estimators.cascade import Cascade
from metacal.estimators.metacal import MetaCal
from metacal.estimators.scored import ScoreGate
from metacal.gate import Gate
from metacal.io.artifact.document import Content, kind_of
from metacal.io.artifact.encoding import built
from metacal.io.artifact.messages import article
from metacal.io.artifact.sources import calibrator_kinds, method_of_table, unsupported_calibrator
from metacal.maps.methods import CHOOSERS, method_named
from metacal.rows.labels import default_reject_label
from metacal.scores.registry import AUTO

#: The estimators around a gate with a promise, by the kind of their file.
ESTIMATORS: dict[str, Any] = {"MetaCal": MetaCal, "ScoreGate": ScoreGate, "Cascade": Cascade}
#: Parameters that may be others than what was fitted: they say how to compute, or another name for
#: the same.
_FREE = ("score_name", "calibrator", "large_score", "people")


def content_of(estimator: Any) -> Content:
    """What a file would hold of a fitted MetaCal or calibrator, or ArtifactError with what to do
    instead.
    """
    kind = type(estimator).__name__
    if isinstance(estimator, type):
        raise ArtifactError(
            f"cannot save the class {estimator.__name__}; save a fitted {estimator.__name__}(...)."
        )
    if type(estimator) is not ESTIMATORS.get(kind) and not _is_ours(estimator):
        if kind == "CalibratedClassifier":
            raise ArtifactError(
                "a CalibratedClassifier holds your classifier, which this file cannot;"
                " clf.save(path) saves its gate alone. Save the classifier by its own means; then"
                " gate.predict(clf.logits(X))."
            )
        known = ", ".join([*ESTIMATORS, *calibrator_kinds()])
        raise ArtifactError(f"cannot save {article(kind)}; what can be saved is a fitted {known}.")
    try:
        check_is_fitted(estimator, None if _is_ours(estimator) else "gate_")
    except ValueError:
        raise ArtifactError(f"this {kind} is not fitted; call fit first, then save.") from None
    if isinstance(estimator, MetaCal) and not _is_ours(
        estimator.calibrator_
    ):  # though it may bear such a name
        raise unsupported_calibrator(type(estimator.calibrator_).__name__)
    changed = _changed(estimator)
    if changed is not None:
        raise ArtifactError(f"the parameter {changed} was changed after fit; fit again, then save.")
    names = getattr(estimator, "feature_names_in_", None)
    n_jobs = getattr(estimator, "n_jobs", None)
    return Content(estimator.gate_, n_jobs, None if names is None else tuple(map(str, names)))


def estimator_of(content: Content) -> MetaCal | Calibrator[Any] | Cascade | ScoreGate:
    """The fitted estimator around a gate.

    Examples
    --------
    >>> from metacal.gate import Table
    >>> from metacal.maps.temperature import TemperatureMap
    >>> estimator_of(Content(Gate.of(Table(TemperatureMap(0.5), np.arange(3))))).temperature_
    2.0
    """
    gate, source = content.gate, content.gate.source
    if (
        gate.certificate is None
    ):  # what it reads is what the source says, whatever the recipe has recorded
        estimator = _made(
            gate,
            input=source.input,
            classes=gate.classes.tolist() if source.classes_given else None,
        )
        estimator.map_ = source.map
    else:
        jobs = {} if content.n_jobs is None else {"n_jobs": content.n_jobs}
        estimator = ESTIMATORS[kind_of(gate)](**_parameters(gate), **jobs)
        estimator.gate_ = gate
        if gate.kind == "logits":
            base = estimator.calibrator_ = _made(gate)
            base.classes_, base.n_features_in_, base.map_ = (
                np.arange(gate.n_classes),
                gate.n_classes,
                source.map,
            )
    if gate.n_classes:
        estimator.classes_, estimator.n_features_in_ = np.array(gate.classes), gate.n_classes
    if content.feature_names is not None:
        estimator.feature_names_in_ = np.array(content.feature_names, dtype=object)
    return estimator


def _parameters(gate: Gate) -> dict[str, Any]:
    """The parameters of the estimator around a gate with a promise, as far as the gate has taken
    them over.
    """
    source = gate.source
    if gate.kind == "scores":
        return {"promise": gate.promise, "higher_is": source.higher_is, "score_name": source.score}
    if not gate.n_classes:
        return {"promise": gate.promise, "people": gate.people or None}
    held = {
        "promise": gate.promise,
        "score": source.score,
        "reject_label": gate.reject_label,
        "input": source.input,
    }
    held["classes"] = gate.classes.tolist() if source.classes_given else None
    if gate.kind == "logits":
        learned = bool(source.decision_at) and not (gate.promise is not None and gate.promise.sided)
        return {
            **held,
            "calibrator": _asked_for(gate),
            "decision": "calibrated" if learned else "largest",
        }
    return {**held, "large_score": gate.stages[1].source.score, "people": gate.people}


def _changed(estimator: Any) -> str | None:
    """The first parameter that no longer says what was fitted, if there is one."""
    gate = estimator.gate_
    if gate.certificate is None:
        given = estimator.classes
        return (
            None if given is None or np.array_equal(np.asarray(given), gate.classes) else "classes"
        )
    if isinstance(estimator, MetaCal) and gate.certificate.labelled:
        base = base_calibrator(estimator.calibrator, estimator.promise, gate.n_classes)
        choosers = [row.public_name for row in CHOOSERS.values()]
        if type(base).__name__ not in (*choosers, method_of_table(gate.source).public_name):
            return "calibrator"
    for name, fitted in _parameters(gate).items():
        now = getattr(estimator, name)
        if name == "reject_label" and now is None:
            now = default_reject_label(gate.classes)
        if name == "classes" and (now is None or gate.n_classes == 2) and gate.source.classes_given:
            # Names always come from a user, if not by this parameter; two classes may be in the
            # labels alone.
            continue
        if name == "classes" and now is not None:
            now = np.asarray(now).tolist()
        own_score = name == "score" and (now == AUTO or gate.promise.sided)
        if not (name in _FREE or now is fitted or now == fitted or own_score):
            return name
    return None


def _is_ours(estimator: Any) -> bool:
    """Whether it is one of the registered calibrators, and no class derived from one."""
    method = method_named(type(estimator).__name__)
    return method is not None and type(estimator) is method.estimator_class()


def _asked_for(gate: Gate) -> Calibrator[Any] | None:
    """The calibrator that was asked for; None where it is what goes with the promise, or nothing
    was learned.
    """
    if gate.certificate is not None and not gate.certificate.labelled:
        return None
    made, usual = _made(gate), base_calibrator(None, gate.promise, gate.n_classes)
    same = type(made) is type(usual) and made.get_params() == usual.get_params()
    return None if same else made


def _made(gate: Gate, **own: Any) -> Any:
    """The calibrator that fitted a gate's map, not fitted, with the parameters of its recipe and
    these.
    """
    recipe = gate.source.recipe
    parameters = {} if recipe is None else recipe.parameters
    return built(
        method_of_table(gate.source).estimator_class(), {**parameters, **own}, "parameters"
    )
