"""Parameters of `fit` that a classifier and a splitter of scikit-learn receive."""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from sklearn import get_config
from sklearn.utils.metadata_routing import process_routing

from metacal.errors import CombinationError, warn_caller
from metacal.estimators.frozen import is_frozen
from metacal.formulas import Float


@dataclass(frozen=True)
class RoutedParams:
    """Parameters of each method that a meta-estimator calls.

    Attributes
    ----------
    fit : dict
        Parameters of the `fit` of the classifier.
    split : dict
        Parameters of the `split` of the splitter.
    """

    fit: dict[str, Any]
    split: dict[str, Any] = field(default_factory=dict)


def route_fit_params(
    meta_estimator: Any, weights: Float | None, fit_params: dict[str, Any]
) -> RoutedParams:
    """Divide the parameters of `fit` between the classifier and the splitter.

    Parameters
    ----------
    meta_estimator : CalibratedClassifier
        Meta-estimator whose `fit` was called.
    weights : array of shape (n_rows,) or None
        Weight of each row.
    fit_params : dict
        Further parameters.

    Returns
    -------
    RoutedParams
    """
    if get_config().get("enable_metadata_routing"):
        metadata = dict(fit_params)
        if weights is not None:
            metadata["sample_weight"] = weights
        routed_params = process_routing(meta_estimator, "fit", **metadata)
        split_params: dict[str, Any] = {}
        if "splitter" in routed_params:
            split_params = dict(routed_params.splitter.split)
        return RoutedParams(fit=dict(routed_params.estimator.fit), split=split_params)
    estimator = meta_estimator.estimator
    estimator_params = dict(fit_params)
    if weights is not None and not is_frozen(estimator):
        if "sample_weight" in signature(estimator.fit).parameters:
            estimator_params["sample_weight"] = weights
        else:
            warn_caller(
                f"{type(estimator).__name__}.fit does not support sample_weight, so the weights"
                " affect only the calibrator. In a pipeline, enable metadata routing in"
                " scikit-learn and call set_fit_request(sample_weight=True) on the step."
            )
    return RoutedParams(fit=estimator_params)


def check_frozen_classifier_options(cv: Any, routed_params: RoutedParams) -> None:
    """Raise InputError if `cv` or parameters of `fit` are set for a frozen classifier."""
    if cv is not None:
        raise CombinationError(
            "cv has no effect, because a frozen classifier is not fitted again. Leave out cv, or"
            " pass the classifier without FrozenEstimator."
        )
    unused_params = sorted(set(routed_params.fit) - {"sample_weight"})
    if unused_params:
        raise CombinationError(
            f"{', '.join(unused_params)} has no effect, because a frozen classifier is not"
            " fitted again. Leave it out, or pass the classifier without FrozenEstimator."
        )
