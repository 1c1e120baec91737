"""Bases of estimators that are dataclasses, and of estimators that contain a gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from inspect import get_annotations
from typing import Any, Self, dataclass_transform

from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from metacal.certificates.certificate import Certificate
from metacal.gate import Gate
from metacal.gate.verbs import GateMethods
from metacal.promises.promise import Promise

#: Prefix by which `set_params` recognises a parameter of the promise.
_PROMISE_PREFIX = "promise__"


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class DataclassEstimator(GateMethods, BaseEstimator):
    """Estimator whose dataclass fields are its parameters.

    Every subclass becomes a dataclass automatically. A field whose name ends in "_" is not a
    parameter but a fitted attribute, as scikit-learn requires.
    """

    def __init_subclass__(cls, *, kw_only: bool = True, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name in get_annotations(cls):
            if name.endswith("_") and not hasattr(cls, name):
                setattr(cls, name, field(init=False))
        dataclass(kw_only=kw_only, eq=False, repr=False)(cls)

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the estimator and of its promise.

        `promise__delta=0.05` sets the parameter `delta` of the promise. A promise is frozen, so a
        changed copy replaces it.
        """
        estimator_params = {}
        prefixed_promise_params = {}
        for param_name, param_value in params.items():
            if param_name.startswith(_PROMISE_PREFIX):
                prefixed_promise_params[param_name] = param_value
            else:
                estimator_params[param_name] = param_value
        super().set_params(**estimator_params)
        promise: Any = getattr(self, "promise", None)
        if not isinstance(promise, Promise):
            return super().set_params(**prefixed_promise_params)
        new_promise_params = {
            prefixed_name.removeprefix(_PROMISE_PREFIX): param_value
            for prefixed_name, param_value in prefixed_promise_params.items()
        }
        if new_promise_params:
            changed_promise = promise.set_params(**new_promise_params)
            super().set_params(promise=changed_promise)
        return self


class GateEstimator(DataclassEstimator):
    """Base class of the estimators that fit a gate under a promise."""

    gate_: Gate = field(init=False)

    @property
    def certificate_(self) -> Certificate:
        """Certificate of the promise, with its confidence level and number of rows."""
        check_is_fitted(self, "gate_")
        assert self.gate_.certificate is not None
        return self.gate_.certificate

    @property
    def threshold_(self) -> float:
        """Threshold of the ranking score. A row is accepted iff score <= threshold_.

        For a cascade it is the threshold of the first model. If each class or group has its own
        threshold, it is -inf.
        """
        check_is_fitted(self, "gate_")
        return self.gate_.threshold

    def _repr_html_(self) -> str:
        """Return the parameters and, once fitted, the certificate as escaped HTML."""
        certificate = getattr(self, "certificate_", None)
        if certificate is None:
            promise_html = "<p>Not fitted: nothing is promised yet.</p>"
        else:
            promise_html = certificate._repr_html_()
        return f"<div><code>{escape(repr(self))}</code>{promise_html}</div>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """Return the text and HTML representations for notebooks."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}
