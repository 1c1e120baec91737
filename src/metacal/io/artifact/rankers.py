"""Learned ranking scores as plain values, and back. Linear ones are a few numbers; trees are not saved."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, InputError
from metacal.io.artifact.classes import described, read_classes
from metacal.io.artifact.encoding import annotations_of, brief, decode, encode, exact_keys, shown
from metacal.scores.learned import LinearRanker
from metacal.scores.registry import LEARNED as LEARNED_SCORES

#: type -> the learned ranking score; only linear ones are plain numbers.
RANKERS: dict[str, type[LinearRanker]] = {row.name: row.ranker_class() for row in LEARNED_SCORES.values() if row.saved}

#: What a linear ranker has learned, one number per feature.
LEARNED = ("means", "scales", "coefficients")
KEYS = ("type", "parameters", "classes", "n_classes", *LEARNED)


def describe_ranker(ranker: LinearRanker) -> dict[str, Any]:
    """The ranker as {"type", "parameters", …, "coefficients"}."""
    name = type(ranker).__name__
    if not ranker.n_classes_:
        raise ArtifactError(f"the score is a {name} that has not been trained; train it, fit again, then save.")
    learned = {key: encode(np.asarray(getattr(ranker, f"{key}_")), f"score.{key}", {}) for key in LEARNED}
    return {
        "type": name,
        "parameters": {key: encode(getattr(ranker, key), f"score.{key}", {}) for key in parameters_of(type(ranker))},
        "classes": None if ranker.classes is None else described(np.asarray(ranker.classes)),
        "n_classes": int(ranker.n_classes_),
        **learned,
    }


def ranker_from(data: Any, n_classes: int, where: str = "map.score") -> LinearRanker:
    """Build the trained ranker, or raise ArtifactError; every number is checked first."""
    kind = data.get("type") if isinstance(data, dict) else None
    if type(kind) is not str or kind not in RANKERS:
        raise ArtifactError(f"{where} must be one of {', '.join(RANKERS)}, not {shown(kind)}.")
    exact_keys(data, KEYS, where)
    annotations = parameters_of(RANKERS[kind])
    exact_keys(data["parameters"], list(annotations), f"{where}.parameters")
    values = {
        name: decode(kind, data["parameters"][name], f"{where}.parameters.{name}", {})
        for name, kind in annotations.items()
    }
    classes = None if data["classes"] is None else read_classes(data["classes"], f"{where}.classes").tolist()
    if type(data["n_classes"]) is not int or data["n_classes"] != n_classes:
        raise ArtifactError(f"{where}.n_classes is {shown(data['n_classes'])}, but there are {n_classes} classes.")
    numbers = [decode(NDArray[np.float64], data[name], f"{where}.{name}", {}) for name in LEARNED]
    try:
        return RANKERS[kind](**values, classes=classes).restored(n_classes, *numbers)
    except InputError as error:
        raise ArtifactError(f"{where}: {brief(error)}") from error


def parameters_of(cls: type) -> dict[str, Any]:
    """The parameters of a ranker that stand in the file under "parameters", and their annotations."""
    annotations = annotations_of(cls)
    return {f.name: annotations[f.name] for f in fields(cls) if f.name != "classes"}
