"""Promises as plain values, and back. A new one is one entry here, and brings its own `contradiction(certificate)`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from metacal.artifact.encoding import annotations_of, article, built, decode, encode, exact_keys, shown
from metacal.errors import ArtifactError
from metacal.promises import accuracy, after_looking, both, miscoverage, paper

#: type -> the constraint.
CONSTRAINTS: dict[str, type] = {
    "MaxMiscoverage": miscoverage.MaxMiscoverage,
    "MinCoverageAccuracy": accuracy.MinCoverageAccuracy,
    "Both": both.Both,
    "AfterLooking": after_looking.AfterLooking,
    "paper.MaxMiscoverage": paper.MaxMiscoverage,
    "paper.MinCoverageAccuracy": paper.MinCoverageAccuracy,
}


def describe_constraint(constraint: Any) -> dict[str, Any]:
    """The promise as {"type", and its parameters}.

    Examples
    --------
    >>> describe_constraint(miscoverage.MaxMiscoverage(0.05))
    {'type': 'MaxMiscoverage', 'alpha': 0.05, 'delta': 0.1}
    """
    kind = next((kind for kind, promise in CONSTRAINTS.items() if type(constraint) is promise), None)
    if kind is None:
        known = ", ".join(CONSTRAINTS)
        raise ArtifactError(f"the constraint is {article(type(constraint).__name__)}; what can be saved is {known}.")
    params = constraint.get_params()
    state = params.get("random_state")
    if state is not None and not isinstance(state, int | np.integer):
        raise ArtifactError(
            f"random_state is {article(type(state).__name__)}, which cannot be saved; "
            "give a whole number and fit again."
        )
    return {"type": kind, **{name: encode(value, name, {}) for name, value in params.items()}}


def read_constraint(data: Any) -> Any:
    """The promise, built from its checked arguments.

    Examples
    --------
    >>> read_constraint({"type": "MaxMiscoverage", "alpha": 0.05, "delta": 0.1})
    MaxMiscoverage(alpha=0.05, delta=0.1)
    """
    kind = data.get("type") if isinstance(data, dict) else None
    if type(kind) is not str or kind not in CONSTRAINTS:
        raise ArtifactError(f"constraint must be one of {', '.join(CONSTRAINTS)}, not {shown(kind)}.")
    cls: Any = CONSTRAINTS[kind]
    annotations = annotations_of(cls)
    names = [field.name for field in fields(cls)]
    exact_keys(data, ["type", *names], "constraint")
    values = {name: decode(annotations[name], data[name], f"constraint.{name}", {}) for name in names}
    if not isinstance(values.get("random_state"), int | None):
        raise ArtifactError("constraint.random_state must be a whole number or null.")
    return built(cls, values, "constraint")
