"""Between a fitted estimator and what a file holds of it: its gate, its threads, the names of its columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from metacal.errors import ArtifactError
from metacal.estimators.auto import AutoCalibrator, chosen
from metacal.estimators.base import Calibrator, base_calibrator
from metacal.estimators.cascade import Cascade
from metacal.estimators.metacal import MetaCal
from metacal.estimators.scored import ScoreGate
from metacal.gate import Gate, Recipe
from metacal.io.artifact.document import Content
from metacal.io.artifact.encoding import article, built
from metacal.io.artifact.parameters import calibrator_kinds, method_of
from metacal.maps.methods import method_named
from metacal.rows.labels import default_reject_label
from metacal.scores.registry import AUTO

#: Parameters of MetaCal that its gate has taken over; changed after fit, they would say what was never fitted.
_TAKEN_OVER = ("promise", "reject_label", "input")


#: By estimator, the parameters that its gate has taken over; changed after fit, they would say what was not fitted.
_PLAIN_KINDS: dict[type, tuple[str, ...]] = {ScoreGate: ("higher_is", "promise"), Cascade: ("promise",)}


def content_of(estimator: Any) -> Content:
    """What a file would hold of a fitted MetaCal or calibrator, or ArtifactError with what to do instead."""
    estimator = chosen(estimator)
    kind = type(estimator).__name__
    if isinstance(estimator, type):
        raise ArtifactError(f"cannot save the class {estimator.__name__}; save a fitted {estimator.__name__}(...).")
    plain = _PLAIN_KINDS.get(type(estimator))
    if plain is None and type(estimator) is not MetaCal and not _is_ours(estimator):
        if kind == "CalibratedClassifier":
            raise ArtifactError(
                "a CalibratedClassifier holds your classifier, which this file cannot; save the gate, "
                "mc.save(clf.gate_, path), and the classifier by its own means; then gate.predict(clf.logits(X))."
            )
        known = ", ".join(["MetaCal", "ScoreGate", "Cascade", *calibrator_kinds()])
        raise ArtifactError(f"cannot save {article(kind)}; what can be saved is a fitted {known}.")
    try:
        check_is_fitted(estimator, "gate_" if plain else None)
    except ValueError:
        raise ArtifactError(f"this {kind} is not fitted; call fit first, then save.") from None
    if isinstance(estimator, MetaCal):
        _check_base(estimator)
    changed = _changed(estimator) if plain is None else _changed_since(estimator, plain)
    if changed is not None:
        raise ArtifactError(f"the parameter {changed} was changed after fit; fit again, then save.")
    names = getattr(estimator, "feature_names_in_", None)
    n_jobs = getattr(estimator, "n_jobs", None)
    return Content(estimator.gate_, n_jobs, None if names is None else tuple(map(str, names)))


def _changed_since(estimator: Any, names: tuple[str, ...]) -> str | None:
    """The first of these parameters that the gate has otherwise."""
    gate = estimator.gate_
    held = {name: getattr(gate, name) if hasattr(gate, name) else getattr(gate.source, name) for name in names}
    return next((name for name in names if getattr(estimator, name) != held[name]), None)


def estimator_of(content: Content) -> MetaCal | Calibrator | Cascade | ScoreGate:
    """The fitted estimator around a gate.

    Examples
    --------
    >>> from metacal.gate import Table
    >>> from metacal.maps.temperature import TemperatureMap
    >>> estimator_of(Content(Gate.of(Table(TemperatureMap(0.5), np.arange(3))))).temperature_
    2.0
    """
    gate = content.gate
    make = {"scores": _scored, "cascade": _cascade, "logits": _metacal if gate.certificate is not None else _calibrator}
    return make[gate.kind](content)


def _scored(content: Content) -> ScoreGate:
    gate = content.gate
    estimator = ScoreGate(gate.promise, gate.source.higher_is, gate.source.score)
    estimator.gate_ = gate
    return estimator


def _is_ours(estimator: Any) -> bool:
    """Whether it is one of the registered calibrators, and no class derived from one."""
    method = method_named(type(estimator).__name__)
    return method is not None and type(estimator) is method.estimator_class()


def _check_base(estimator: MetaCal) -> None:
    """Raise where the base calibrator is somebody else's: its class may bear the name of one of ours."""
    base = estimator.calibrator_
    if not _is_ours(base):
        raise ArtifactError(
            f"the base calibrator is {article(type(base).__name__)}, which only pickle could store; "
            f"use one of metacal's own ({', '.join(calibrator_kinds())})."
        )


def _changed(estimator: MetaCal | Calibrator) -> str | None:
    """The parameter that no longer says what was fitted, if there is one."""
    gate, given = estimator.gate_, estimator.classes
    if given is not None and not np.array_equal(np.asarray(given), gate.classes):
        return "classes"
    if not isinstance(estimator, MetaCal):
        return None
    if (given is not None or gate.classes.dtype.kind == "U") != gate.source.classes_given:
        return "classes"
    base = base_calibrator(estimator.calibrator, estimator.promise)
    learned = gate.certificate is None or gate.certificate.labelled
    if learned and not isinstance(base, AutoCalibrator) and type(base).__name__ != _recipe_of(gate).estimator:
        return "calibrator"
    asked_for = {name: getattr(estimator, name) for name in _TAKEN_OVER}
    if asked_for["reject_label"] is None:
        asked_for["reject_label"] = default_reject_label(gate.classes)
    held = {"promise": gate.promise, "reject_label": gate.reject_label, "input": gate.source.input}
    taken_over = [(name, now, held[name]) for name, now in asked_for.items()]
    asked_score = estimator.score
    pairs = [*taken_over, ("score", gate.source.score if asked_score == AUTO else asked_score, gate.source.score)]
    return next((name for name, now, fitted in pairs if now is not fitted and now != fitted), None)


def _cascade(content: Content) -> Cascade:
    """The fitted estimator around a cascade; it reads tables, for the models are not in the file."""
    gate, certificate = content.gate, content.gate.certificate
    assert certificate is not None
    assert certificate.stages is not None
    estimator = Cascade(
        promise=gate.promise,  # type: ignore[arg-type]
        score=gate.source.score,
        large_score=gate.stages[1].source.score,
        people=certificate.stages.people,
        reject_label=gate.reject_label,
        input=gate.source.input,
        classes=gate.classes.tolist() if gate.source.classes_given else None,
        n_jobs=content.n_jobs,
    )
    estimator.gate_, estimator.classes_ = gate, gate.classes
    return estimator


def _metacal(content: Content) -> MetaCal:
    gate = content.gate
    estimator = MetaCal(
        gate.promise,
        calibrator=_asked_for(gate),
        score=gate.source.score,
        reject_label=gate.reject_label,
        input=gate.source.input,
        classes=gate.classes.tolist() if gate.source.classes_given else None,
        n_jobs=content.n_jobs,
    )
    base = _made(_recipe_of(gate))
    base.classes_, base.n_features_in_, base.map_ = np.arange(gate.n_classes), gate.n_classes, gate.source.map
    estimator.gate_, estimator.calibrator_ = gate, base
    fitted: MetaCal = _with_columns(estimator, content)
    return fitted


def _with_columns(estimator: Any, content: Content) -> Any:
    """The estimator with what scikit-learn wants to know of the columns."""
    estimator.classes_, estimator.n_features_in_ = np.array(content.gate.classes), content.gate.n_classes
    if content.feature_names is not None:
        estimator.feature_names_in_ = np.array(content.feature_names, dtype=object)
    return estimator


def _recipe_of(gate: Gate) -> Recipe:
    """How the map was fitted: as its recipe says or, where there is none, by the first method that fits such maps."""
    recipe: Recipe | None = gate.source.recipe
    return Recipe(method_of(gate.source).public_name) if recipe is None else recipe


def _asked_for(gate: Gate) -> Calibrator | None:
    """The calibrator that was asked for; None where it is what goes with the promise, or nothing was learned."""
    if gate.certificate is not None and not gate.certificate.labelled:
        return None
    made, usual = _made(_recipe_of(gate)), base_calibrator(None, gate.promise)
    same = type(made) is type(usual) and made.get_params() == usual.get_params()
    return None if same else made


def _calibrator(content: Content) -> Calibrator:
    gate = content.gate
    recipe = _recipe_of(gate)
    estimator = _made(replace(recipe, parameters={"input": gate.source.input, **recipe.parameters}))
    estimator.map_ = gate.source.map
    fitted: Calibrator = _with_columns(estimator, content)
    return fitted


def _made(recipe: Recipe) -> Calibrator:
    """The estimator that a recipe names, not fitted."""
    method = method_named(recipe.estimator)
    assert method is not None
    estimator: Calibrator = built(method.estimator_class(), recipe.parameters, "parameters")
    return estimator
