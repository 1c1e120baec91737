"""Conversion between fitted estimators and the content of a saved file."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from metacal.errors import ArtifactError, SavingError
from metacal.estimators.base import Calibrator
from metacal.estimators.calibrator_factory import make_base_calibrator
from metacal.estimators.cascade import Cascade
from metacal.estimators.metacal import MetaCal
from metacal.estimators.scored import ScoreGate
from metacal.gate import Gate
from metacal.io.artifact.document import SavedContent, get_document_kind
from metacal.io.artifact.encoding import call_constructor
from metacal.io.artifact.messages import with_article
from metacal.io.artifact.sources import (
    build_unsupported_calibrator_error,
    find_source_method,
    list_calibrator_names,
)
from metacal.maps.methods import AUTOMATIC_METHODS, find_method_by_public_name
from metacal.rows.labels import default_reject_label
from metacal.scores.registry import AUTO_SCORE

#: Estimators with a promise, keyed by the `kind` field of their file.
ESTIMATORS: dict[str, Any] = {"MetaCal": MetaCal, "ScoreGate": ScoreGate, "Cascade": Cascade}

# A change of these parameters after fitting does not change the fitted gate.
_PARAMETERS_FREE_TO_CHANGE = ("score_name", "calibrator", "large_score", "people")


def file_content(estimator: Any) -> SavedContent:
    """Return the content of a saved file for a fitted estimator.

    Parameters
    ----------
    estimator : MetaCal, ScoreGate, Cascade or calibrator
        Fitted estimator.

    Returns
    -------
    Content

    Raises
    ------
    ArtifactError
        If the estimator is not fitted, is not one of metacal's own, or was changed after fitting.
    """
    _raise_unless_savable(estimator)
    changed_parameter = _find_changed_parameter(estimator)
    if changed_parameter is not None:
        raise SavingError(
            f"The parameter {changed_parameter} was changed after fit. Call fit again before you"
            " save."
        )
    feature_names = None
    if hasattr(estimator, "feature_names_in_"):
        feature_names = tuple(map(str, estimator.feature_names_in_))
    n_jobs = getattr(estimator, "n_jobs", None)
    return SavedContent(gate=estimator.gate_, n_jobs=n_jobs, feature_names=feature_names)


def _raise_unless_savable(estimator: Any) -> None:
    """Raise ArtifactError unless an object is a fitted estimator of a supported class."""
    if isinstance(estimator, type):
        raise SavingError(
            f"Expected a fitted object, but got the class {estimator.__name__}. Save a fitted"
            f" {estimator.__name__}(...) instead."
        )
    class_name = type(estimator).__name__
    is_calibrator = _is_registered_calibrator(estimator)
    if type(estimator) is not ESTIMATORS.get(class_name) and not is_calibrator:
        raise _unsupported_estimator_error(estimator)
    try:
        check_is_fitted(estimator, None if is_calibrator else "gate_")
    except ValueError:
        raise SavingError(
            f"This {class_name} is not fitted. Call fit before you save it."
        ) from None
    # A calibrator of another library may have the class name of a registered one.
    if isinstance(estimator, MetaCal) and not _is_registered_calibrator(estimator.calibrator_):
        raise build_unsupported_calibrator_error(type(estimator.calibrator_).__name__)


def _unsupported_estimator_error(estimator: Any) -> ArtifactError:
    """Build the error about an estimator that cannot be saved."""
    class_name = type(estimator).__name__
    if hasattr(estimator, "best_estimator_"):
        return SavingError(
            f"Cannot save {with_article(class_name)}. Save its best_estimator_, or the gate"
            " inside it."
        )
    is_pipeline = hasattr(estimator, "steps")
    if is_pipeline:
        return SavingError(
            f"A {class_name} contains your classifier, which metacal does not save. Save the gate"
            " with pipeline[-1].save(path), and save the pipeline separately. To use both, call"
            " gate.predict(pipeline[-1].logits(pipeline[:-1].transform(X)))."
        )
    if class_name == "CalibratedClassifier":
        return SavingError(
            "A CalibratedClassifier contains your classifier, which metacal does not save. Save"
            " the gate with clf.save(path), and save the classifier separately. To use both,"
            " call gate.predict(clf.logits(X))."
        )
    supported_names = ", ".join([*ESTIMATORS, *list_calibrator_names()])
    return SavingError(f"Cannot save {with_article(class_name)}. Save a fitted {supported_names}.")


def _is_registered_calibrator(estimator: Any) -> bool:
    """Check whether an object is exactly of the class of a registered calibrator."""
    method = find_method_by_public_name(type(estimator).__name__)
    return method is not None and type(estimator) is method.estimator_class()


def build_estimator(content: SavedContent) -> MetaCal | Calibrator[Any] | Cascade | ScoreGate:
    """Build the fitted estimator from the content of a saved file.

    Parameters
    ----------
    content : Content
        Gate and parameters of the estimator.

    Returns
    -------
    MetaCal, ScoreGate, Cascade or calibrator

    Examples
    --------
    >>> from metacal.gate import LogitsSource
    >>> from metacal.maps.temperature import TemperatureMap
    >>> build_estimator(SavedContent(Gate.from_source(LogitsSource(TemperatureMap(0.5), np.arange(3))))).temperature_
    2.0
    """
    gate = content.gate
    if gate.certificate is None:
        estimator = _build_calibrator(gate)
    else:
        estimator = _build_promise_estimator(gate, content.n_jobs)
    if gate.has_classes:
        estimator.classes_ = np.array(gate.classes)
        estimator.n_features_in_ = gate.n_classes
    if content.feature_names is not None:
        estimator.feature_names_in_ = np.array(content.feature_names, dtype=object)
    return estimator


def _build_calibrator(gate: Gate) -> Any:
    """Build the fitted calibrator of a gate without a promise."""
    source = gate.logits_source
    # The stored parameters may contain another input or other classes than the source.
    calibrator = _build_unfitted_calibrator(
        gate, input=source.input, classes=_classes_passed_by_user(gate)
    )
    calibrator.map_ = source.map
    return calibrator


def _build_promise_estimator(gate: Gate, n_jobs: int | None) -> Any:
    """Build the fitted estimator of a gate with a promise."""
    fit_parameters = _parameters_used_by_fit(gate)
    if n_jobs is not None:
        fit_parameters["n_jobs"] = n_jobs
    estimator = ESTIMATORS[get_document_kind(gate)](**fit_parameters)
    estimator.gate_ = gate
    if gate.is_logits_gate:
        calibrator = _build_unfitted_calibrator(gate)
        calibrator.classes_ = np.arange(gate.n_classes)
        calibrator.n_features_in_ = gate.n_classes
        calibrator.map_ = gate.logits_source.map
        estimator.calibrator_ = calibrator
    return estimator


def _parameters_used_by_fit(gate: Gate) -> dict[str, Any]:
    """Return the estimator parameters that a gate with a promise was fitted with."""
    if gate.is_score_gate:
        score_source = gate.score_source
        return {
            "promise": gate.promise,
            "higher_is": score_source.higher_is,
            "score_name": score_source.score,
        }
    is_cascade_on_scores = not gate.has_classes
    if is_cascade_on_scores:
        return {"promise": gate.promise, "people": True if gate.has_human_review else None}
    source = gate.logits_source
    fit_parameters = {
        "promise": gate.promise,
        "score": source.score,
        "reject_label": gate.reject_label,
        "input": source.input,
        "classes": _classes_passed_by_user(gate),
    }
    if gate.is_logits_gate:
        is_two_sided = gate.promise is not None and gate.promise.is_two_sided
        decision_offset = source.decision_at
        has_learned_decision = decision_offset != 0.0 and not is_two_sided
        fit_parameters["calibrator"] = _nondefault_calibrator(gate)
        fit_parameters["decision"] = "calibrated" if has_learned_decision else "largest"
    else:
        _small_model_stage, large_model_stage = gate.stages[:2]
        fit_parameters["large_score"] = large_model_stage.source.score
        fit_parameters["people"] = gate.has_human_review
    return fit_parameters


def _classes_passed_by_user(gate: Gate) -> list[Any] | None:
    """Return the classes of a gate, or None if the user did not pass them."""
    if not gate.source.classes_given:
        return None
    classes: list[Any] = gate.classes.tolist()
    return classes


def _find_changed_parameter(estimator: Any) -> str | None:
    """Return the name of the first parameter that was changed after fit, or None."""
    gate = estimator.gate_
    if gate.certificate is None:
        classes = estimator.classes
        has_same_classes = classes is None or np.array_equal(np.asarray(classes), gate.classes)
        return None if has_same_classes else "classes"

    # Without labels, `fit` does not use the calibrator.
    has_fitted_calibrator = isinstance(estimator, MetaCal) and gate.certificate.has_labels
    if has_fitted_calibrator and _has_changed_calibrator(estimator, gate):
        return "calibrator"
    for name, fitted_value in _parameters_used_by_fit(gate).items():
        current_value = getattr(estimator, name)
        positive_class = getattr(estimator, "positive", None)
        if name == "promise" and positive_class is not None:
            # The promise of the gate is about the positive class of the estimator.
            current_value = current_value.with_positive_class(positive_class)
        if not _is_parameter_unchanged(gate, name, current_value, fitted_value):
            return name
    return None


def _has_changed_calibrator(estimator: MetaCal, gate: Gate) -> bool:
    """Check whether the calibrator parameter is of another class than the fitted calibrator.

    An automatic calibrator can have fitted a map of any method.
    """
    calibrator = make_base_calibrator(estimator.calibrator, estimator.promise, gate.n_classes)
    possible_methods = [*AUTOMATIC_METHODS.values(), find_source_method(gate.logits_source)]
    possible_class_names = [method.public_name for method in possible_methods]
    return type(calibrator).__name__ not in possible_class_names


def _is_parameter_unchanged(gate: Gate, name: str, current_value: Any, fitted_value: Any) -> bool:
    """Check whether a parameter still has the value that a gate was fitted with.

    Parameters
    ----------
    gate : Gate
        Fitted gate.

    name : str
        Name of the parameter.

    current_value : object
        Current value of the parameter.

    fitted_value : object
        Value that the gate was fitted with.

    Returns
    -------
    bool
    """
    if name in _PARAMETERS_FREE_TO_CHANGE:
        return True
    if name == "classes":
        return _are_classes_unchanged(gate, current_value)
    if name == "score":
        is_two_sided = gate.promise is not None and gate.promise.is_two_sided
        is_chosen_by_fit = current_value == AUTO_SCORE or is_two_sided
        if is_chosen_by_fit:
            return True
    if name == "reject_label" and current_value is None:
        current_value = default_reject_label(gate.classes)
    return current_value is fitted_value or bool(current_value == fitted_value)


def _are_classes_unchanged(gate: Gate, classes: Any) -> bool:
    """Check whether the parameter `classes` can still result in the classes of a gate."""
    fitted_classes = _classes_passed_by_user(gate)
    if fitted_classes is None:
        return classes is None
    if classes is None or gate.n_classes == 2:
        # `fit` then takes the classes from the column names or, if there are two, from the labels.
        return True
    return bool(np.asarray(classes).tolist() == fitted_classes)


def _nondefault_calibrator(gate: Gate) -> Calibrator[Any] | None:
    """Return the calibrator to pass to a gate's estimator, or None for the default.

    It is also None if the gate was certified without labels, so that no map was fitted.
    """
    is_certified_without_labels = gate.certificate is not None and not gate.certificate.has_labels
    if is_certified_without_labels:
        return None
    calibrator: Calibrator[Any] = _build_unfitted_calibrator(gate)
    default_calibrator = make_base_calibrator(
        calibrator_or_name=None, promise=gate.promise, n_classes=gate.n_classes
    )
    has_default_class = type(calibrator) is type(default_calibrator)
    if has_default_class and calibrator.get_params() == default_calibrator.get_params():
        return None
    return calibrator


def _build_unfitted_calibrator(gate: Gate, **parameters: Any) -> Any:
    """Build an unfitted calibrator of the class that fitted a gate's map.

    Its parameters are those stored with the gate, overridden by `parameters`.
    """
    fit_recipe = gate.logits_source.recipe
    stored_parameters = {} if fit_recipe is None else fit_recipe.parameters
    calibrator_class = find_source_method(gate.logits_source).estimator_class()
    return call_constructor(calibrator_class, {**stored_parameters, **parameters}, "parameters")
