"""Promises as plain values, and back. A new one is one entry here, and brings its own `contradiction(certificate)`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from metacal.errors import ArtifactError
from metacal.io.artifact.encoding import annotations_of, article, built, decode, encode, exact_keys, shown
from metacal.promises.kinds import promise_classes
from metacal.promises.promise import ByPart, Promise


def describe_promise(promise: Any) -> dict[str, Any]:
    """The promise as {"type", and its parameters}.

    Examples
    --------
    >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
    >>> describe_promise(MaxMiscoverage(0.05))
    {'type': 'MaxMiscoverage', 'alpha': 0.05, 'delta': 0.1}
    """
    kind = next((kind for kind, known in promise_classes().items() if type(promise) is known), None)
    if kind is None:
        known = ", ".join(promise_classes())
        raise ArtifactError(f"the promise is {article(type(promise).__name__)}; what can be saved is {known}.")
    params = {name: value for name, value in promise.get_params(deep=False).items() if name in saved_fields(promise)}
    state = params.get("random_state")
    if state is not None and not isinstance(state, int | np.integer):
        raise ArtifactError(
            f"random_state is {article(type(state).__name__)}, which cannot be saved; "
            "give a whole number and fit again."
        )
    inner = {name: describe_promise(value) for name, value in params.items() if isinstance(value, Promise)}
    left = [name for name in optional_fields(promise) if params[name] is None]
    plain = {name: encode(value, name, {}) for name, value in params.items() if name not in (*inner, *left)}
    return {"type": kind, **inner, **plain}


def saved_fields(promise: Any) -> list[str]:
    """The parameters that a file holds.

    Examples
    --------
    >>> from metacal.promises.parts.per import PerGroup
    >>> saved_fields(PerGroup)
    ['promise', 'shares', 'fallback']
    """
    return [field.name for field in fields(promise)]


def optional_fields(promise: Any) -> list[str]:
    """The parameters that stand in a file only where they were given: files from before they were there go on loading.

    Examples
    --------
    >>> from metacal.promises.rules.both import AfterLooking
    >>> optional_fields(AfterLooking)
    ['threshold']
    """
    return [field.name for field in fields(promise) if field.metadata.get("optional", False)]


def read_promise(data: Any) -> Any:
    """The promise, built from its checked arguments.

    Examples
    --------
    >>> read_promise({"type": "MaxMiscoverage", "alpha": 0.05, "delta": 0.1})
    MaxMiscoverage(alpha=0.05, delta=0.1)
    """
    kind, known = (data.get("type") if isinstance(data, dict) else None), promise_classes()
    if type(kind) is not str or kind not in known:
        raise ArtifactError(f"promise must be one of {', '.join(known)}, not {shown(kind)}.")
    cls: Any = known[kind]
    annotations = annotations_of(cls)
    names = [name for name in saved_fields(cls) if name in data or name not in optional_fields(cls)]
    exact_keys(data, ["type", *names], "promise")
    inner = {"promise": _inner(data["promise"])} if "promise" in names else {}
    values = {name: decode(annotations[name], data[name], f"promise.{name}", {}) for name in names if name not in inner}
    values |= inner
    if not isinstance(values.get("random_state"), int | None):
        raise ArtifactError("promise.random_state must be a whole number or null.")
    return built(cls, values, "promise")


def _inner(data: Any) -> Any:
    """The promise that is made for each part; none that has parts itself."""
    kind = data.get("type") if isinstance(data, dict) else None
    if kind not in inner_kinds():
        raise ArtifactError(f"promise.promise must be one of {', '.join(inner_kinds())}, not {shown(kind)}.")
    return read_promise(data)


def inner_kinds() -> list[str]:
    """The promises that can be made for each class or group.

    Examples
    --------
    >>> inner_kinds()
    ['MaxMiscoverage', 'MinAccuracy']
    """
    return [name for name, cls in promise_classes().items() if issubclass(cls, ByPart)]
