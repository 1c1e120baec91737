"""Between a fitted estimator and what a file holds of it: its gate, its threads, the names of its columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from metacal.decision import Recipe
from metacal.errors import ArtifactError
from metacal.estimators.auto import AutoCalibrator, chosen
from metacal.estimators.base import Calibrator, base_calibrator
from metacal.estimators.cascade import Cascade
from metacal.estimators.metacal import MetaCal
from metacal.estimators.scored import ScoreGate
from metacal.gate import CascadeGate, Gate, ScoredGate
from metacal.io.artifact.document import Content
from metacal.io.artifact.encoding import article, built
from metacal.io.artifact.parameters import calibrator_kinds
from metacal.maps.methods import method_named, method_of_map
from metacal.rows.labels import default_reject_label
from metacal.scores.registry import AUTO

#: Parameters of MetaCal that its gate has taken over; changed after fit, they would say what was never fitted.
_TAKEN_OVER = ("promise", "reject_label", "input")


def content_of(estimator: Any) -> Content:
    """What a file would hold of a fitted MetaCal or calibrator, or ArtifactError with what to do instead."""
    if isinstance(estimator, Cascade):
        return _cascade_content(estimator)
    estimator = chosen(estimator)
    kind = type(estimator).__name__
    if isinstance(estimator, type):
        raise ArtifactError(f"cannot save the class {estimator.__name__}; save a fitted {estimator.__name__}(...).")
    if type(estimator) is ScoreGate:
        return _content_of_scored(estimator)
    if type(estimator) is not MetaCal and not _is_ours(estimator):
        if kind == "CalibratedClassifier":
            raise ArtifactError(
                "a CalibratedClassifier holds your classifier, which this file cannot; save the gate, "
                "mc.save(clf.gate_, path), and the classifier by its own means; then gate.predict(clf.logits(X))."
            )
        known = ", ".join(["MetaCal", "ScoreGate", *calibrator_kinds()])
        raise ArtifactError(f"cannot save {article(kind)}; what can be saved is a fitted {known}.")
    try:
        check_is_fitted(estimator)
    except ValueError:
        raise ArtifactError(f"this {kind} is not fitted; call fit(logits, labels) first, then save.") from None
    if isinstance(estimator, MetaCal):
        _check_base(estimator)
    if (changed := _changed(estimator)) is not None:
        raise ArtifactError(f"the parameter {changed} was changed after fit; fit again, then save.")
    names = getattr(estimator, "feature_names_in_", None)
    return Content(estimator.gate_, estimator.n_jobs, None if names is None else tuple(map(str, names)))


def _content_of_scored(estimator: ScoreGate) -> Content:
    gate: ScoredGate | None = getattr(estimator, "gate_", None)
    if gate is None:
        raise ArtifactError("this ScoreGate is not fitted; call fit(score, correct) first, then save.")
    if estimator.higher_is != gate.higher_is or estimator.promise != gate.promise:
        changed = "higher_is" if estimator.higher_is != gate.higher_is else "promise"
        raise ArtifactError(f"the parameter {changed} was changed after fit; fit again, then save.")
    return Content(gate)


def estimator_of(content: Content) -> MetaCal | Calibrator | Cascade | ScoreGate:
    """The fitted estimator around a gate.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> estimator_of(Content(Gate(TemperatureMap(0.5), np.arange(3)))).temperature_
    2.0
    """
    gate = content.gate
    if isinstance(gate, CascadeGate):
        return _cascade(gate, content.n_jobs)
    if isinstance(gate, ScoredGate):
        scored = ScoreGate(gate.promise, gate.higher_is, gate.score)  # type: ignore[arg-type]
        scored.gate_ = gate
        return scored
    estimator = _calibrator(gate) if gate.certificate is None else _metacal(gate, content.n_jobs)
    estimator.classes_, estimator.n_features_in_ = np.array(gate.classes), gate.n_classes
    if content.feature_names is not None:
        estimator.feature_names_in_ = np.array(content.feature_names, dtype=object)
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
    if (given is not None or gate.classes.dtype.kind == "U") != gate.classes_given:
        return "classes"
    base = base_calibrator(estimator.calibrator, estimator.promise)
    learned = gate.certificate is None or gate.certificate.labelled
    if learned and not isinstance(base, AutoCalibrator) and type(base).__name__ != _recipe_of(gate).estimator:
        return "calibrator"
    asked_for = {name: getattr(estimator, name) for name in _TAKEN_OVER}
    if asked_for["reject_label"] is None:
        asked_for["reject_label"] = default_reject_label(gate.classes)
    taken_over = [(name, now, getattr(gate, name)) for name, now in asked_for.items()]
    asked_score = estimator.score
    pairs = [*taken_over, ("score", gate.score if asked_score == AUTO else asked_score, gate.score)]
    return next((name for name, now, fitted in pairs if now is not fitted and now != fitted), None)


def _cascade_content(estimator: Cascade) -> Content:
    """What a file holds of a cascade: its gate. The two models are stored by their own means."""
    if not hasattr(estimator, "gate_"):
        raise ArtifactError("this Cascade is not fitted; call fit first, then save.")
    gate = estimator.gate_
    if estimator.promise != gate.certificate.promise:
        raise ArtifactError("the parameter promise was changed after fit; fit again, then save.")
    return Content(gate, estimator.n_jobs)


def _cascade(gate: CascadeGate, n_jobs: int | None) -> Cascade:
    """The fitted estimator around a cascade; it reads tables, for the models are not in the file."""
    small, certificate = gate.small, gate.certificate
    estimator = Cascade(
        promise=certificate.promise,
        score=small.score,
        large_score=gate.large.score,
        people=certificate.people,
        reject_label=small.reject_label,
        input=small.input,
        classes=gate.classes.tolist() if small.classes_given else None,
        n_jobs=n_jobs,
    )
    estimator.gate_, estimator.classes_ = gate, gate.classes
    return estimator


def _metacal(gate: Gate, n_jobs: int | None) -> MetaCal:
    estimator = MetaCal(
        gate.promise,  # type: ignore[arg-type]
        calibrator=_asked_for(gate),
        score=gate.score,
        reject_label=gate.reject_label,
        input=gate.input,
        classes=gate.classes.tolist() if gate.classes_given else None,
        n_jobs=n_jobs,
    )
    base = _made(_recipe_of(gate))
    base.classes_, base.n_features_in_, base.map_ = np.arange(gate.n_classes), gate.n_classes, gate.map
    estimator.gate_, estimator.calibrator_ = gate, base
    return estimator


def _recipe_of(gate: Gate) -> Recipe:
    """How the map was fitted: as its recipe says or, where there is none, by the first method that fits such maps."""
    if gate.recipe is not None:
        return gate.recipe
    method = method_of_map(type(gate.map))
    assert method is not None
    return Recipe(method.public_name)


def _asked_for(gate: Gate) -> Calibrator | None:
    """The calibrator that was asked for; None where it is what goes with the promise, or nothing was learned."""
    if gate.certificate is not None and not gate.certificate.labelled:
        return None
    made, usual = _made(_recipe_of(gate)), base_calibrator(None, gate.promise)
    same = type(made) is type(usual) and made.get_params() == usual.get_params()
    return None if same else made


def _calibrator(gate: Gate) -> Calibrator:
    recipe = gate.recipe or Recipe(method_of_map(type(gate.map)).public_name, {"input": gate.input})  # type: ignore[union-attr]
    estimator = _made(recipe)
    estimator.map_ = gate.map
    return estimator


def _made(recipe: Recipe) -> Calibrator:
    """The estimator that a recipe names, not fitted."""
    method = method_named(recipe.estimator)
    assert method is not None
    estimator: Calibrator = built(method.estimator_class(), recipe.parameters, "parameters")
    return estimator
