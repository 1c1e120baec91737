"""What a file holds of a source: the labels of its columns, its score, its map, and the recipe that
fitted the map.
"""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from functools import cache, partial
from typing import Any, Literal, NewType

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, InputError
from metacal.formulas import Float
from metacal.gate.gate import Source
from metacal.gate.marks import HigherIs, Marks, Truth
from metacal.gate.table import Recipe, Table
from metacal.io.artifact.encoding import (
    BUILDERS,
    CHOICES,
    ENTRIES,
    FAMILIES,
    FORMS,
    Form,
    Unsigned,
    entries,
)
from metacal.io.artifact.messages import article, brief, shown
from metacal.maps.confidence import ConfidenceCurve
from metacal.maps.map import Map
from metacal.maps.methods import Method, OfMethods, every_method, method_named, method_of_map
from metacal.rows import validate
from metacal.scores import NAMED
from metacal.scores.learned import LogisticRanker, PairwiseRanker, Ranker

#: Labels of columns in a file.
Labels = NewType("Labels", np.ndarray)
Input = Literal["logits", "probabilities"]
#: A score that has a name.
ScoreName = NewType("ScoreName", str)
CHOICES[ScoreName] = lambda: NAMED

# ── labels ────────────────────────────────────────────────────────────────────────────────────────

#: What labels may be: JSON's own type for each dtype name.
DTYPES: dict[str, type] = {
    "str": str,
    "bool": bool,
    **{f"{sign}int{bits}": int for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float64": float,  # two classes may be called by any two numbers
}
#: Characters of all class names together, padded to the longest: what NumPy will allocate, four
#: bytes each.
_MOST_NAME_CHARACTERS = 1 << 23


@dataclass(frozen=True)
class LabelList:
    """Labels as a file has them."""

    dtype: Literal[tuple(DTYPES)]  # type: ignore[valid-type]
    values: tuple[str | bool | int | Unsigned | float, ...]


def describe_labels(labels: Any, where: str = "classes") -> LabelList:
    """Labels as they are written.

    Examples
    --------
    >>> describe_labels(np.array(["cat", "dog"]))
    LabelList(dtype='str', values=('cat', 'dog'))
    """
    array = np.asarray(labels)
    if array.dtype == object:
        array = array.astype(np.str_)
    values = tuple(array.tolist())
    if array.dtype.kind == "U":
        _check_names(values, where)
    return LabelList({"U": "str", "f": "float64"}.get(array.dtype.kind, array.dtype.name), values)


def _check_names(names: tuple[str, ...], where: str) -> None:
    """Raise ArtifactError where names are too long to be held as one array."""
    longest = max(map(len, names))
    if len(names) * longest > _MOST_NAME_CHARACTERS:
        raise ArtifactError(
            f"{where}: {len(names):,} names of up to {longest:,} characters are too long; "
            f"names times the longest may be {_MOST_NAME_CHARACTERS:,} at most: shorten them."
        )


def read_labels(labels: LabelList, where: str = "classes") -> NDArray[Any]:
    """Return the labels that `describe_labels` wrote, or raise ArtifactError.

    Examples
    --------
    >>> read_labels(LabelList("int8", (1, 300)))
    Traceback (most recent call last):
    metacal.errors.ArtifactError: classes[1] must be of type int8, not 300.
    """
    kind: str = labels.dtype
    values: tuple[Any, ...] = labels.values
    if not values:
        raise ArtifactError(f"{where}: values must be a list with an entry per column.")
    reach = np.iinfo(kind) if DTYPES[kind] is int else None
    for k, value in enumerate(values):
        beyond = (
            reach is not None
            and type(value) is int
            and not int(reach.min) <= value <= int(reach.max)
        )
        if beyond or type(value) is not DTYPES[kind]:
            raise ArtifactError(f"{where}[{k}] must be of type {kind}, not {shown(value)}.")
    if kind == "str":
        _check_names(values, where)
    try:
        return validate.class_list(np.array(values, dtype=np.dtype(kind)), len(values))
    except (InputError, OverflowError, ValueError) as error:
        raise ArtifactError(f"{where}: {brief(error)}") from None


FORMS[Labels] = Form(LabelList, describe_labels, read_labels)

# ── scores that were learned ──────────────────────────────────────────────────────────────────────

#: type -> the learned ranking score.
RANKERS: dict[str, type[Ranker]] = {
    "LogisticRanker": LogisticRanker,
    "PairwiseRanker": PairwiseRanker,
}
#: What a linear ranker has learned: of how many classes, and one number per feature.
_LEARNED: dict[str, Any] = {
    "n_classes_": int,
    **dict.fromkeys(("means_", "scales_", "coefficients_"), Float),
}


def _restored(cls: type[Ranker], **values: Any) -> Ranker:
    learned = [values.pop(name) for name in _LEARNED]
    if values["classes"] is not None:
        values["classes"] = values["classes"].tolist()
    return cls(**values).restored(*learned)


FAMILIES[Ranker] = lambda: RANKERS
for _ranker in RANKERS.values():
    ENTRIES[_ranker] = {**entries(_ranker), "classes": Labels | None, **_LEARNED}
    BUILDERS[_ranker] = partial(_restored, _ranker)

# ── recipes ───────────────────────────────────────────────────────────────────────────────────────

#: More threads than this are no honest wish.
MOST_JOBS = 1024


def calibrator_kinds() -> list[str]:
    """The kinds of file without a promise: the public name of every method's estimator, in
    alphabetical order.
    """
    return sorted(method.public_name for method in every_method().values())


def parameters_of(method: Method) -> dict[str, Any]:
    """The parameters of a method's estimator that a file holds, in alphabetical order, and their
    types.
    """
    own = {name: option.annotation for name, option in method.options.items()}
    return dict(
        sorted({**own, "classes": Labels | None, "input": Input, "n_jobs": int | None}.items())
    )


def method_of(source: Table) -> Method:
    """What fitted a source's map: as its recipe says or, where there is none, the first method that
    fits such maps.
    """
    recipe = source.recipe
    method = method_of_map(type(source.map)) if recipe is None else method_named(recipe.estimator)
    if method is None or type(source.map) is not method.map_class():
        raise somebody_elses(type(source.map).__name__ if recipe is None else recipe.estimator)
    return method


def somebody_elses(name: str) -> ArtifactError:
    """What is said of a calibrator that is none of metacal's own."""
    return ArtifactError(
        f"the base calibrator is {article(name)}, which only pickle could store; "
        f"use one of metacal's own ({', '.join(calibrator_kinds())})."
    )


class RecipeShape:
    """A recipe as a file has it: a class for each method, with the parameters of its estimator."""


@cache
def _recipe_shape(method: Method) -> type:
    return make_dataclass(method.public_name, parameters_of(method).items(), bases=(RecipeShape,))


def _describe_recipe(recipe: Recipe, where: str) -> Any:
    """The calibrator that was asked for, and all its parameters; what is not given has its
    default.
    """
    method = method_named(recipe.estimator)
    assert method is not None  # `method_of` has asked
    defaults = {name: option.default for name, option in method.options.items()}
    given = {**defaults, "input": "logits", "n_jobs": None, "classes": None, **recipe.parameters}
    return _recipe_shape(method)(**{name: given[name] for name in parameters_of(method)})


def _read_recipe(shape: Any, where: str) -> Recipe:
    values = dict(vars(shape))
    check_jobs(values["n_jobs"], f"{where}.n_jobs")
    if values["classes"] is not None:
        values["classes"] = values["classes"].tolist()
    return Recipe(type(shape).__name__, values)


def check_jobs(n_jobs: int | None, where: str = "n_jobs") -> int | None:
    """Threads: None, or a number that somebody may wish for."""
    if n_jobs is not None and not 1 <= abs(n_jobs) <= MOST_JOBS:
        raise ArtifactError(f"{where} must not be 0, nor beyond {MOST_JOBS} threads.")
    return n_jobs


def _recipe_shapes() -> OfMethods:
    rows = {method.public_name: method for method in every_method().values()}
    return OfMethods({name: rows[name] for name in calibrator_kinds()}, _recipe_shape)


FAMILIES[RecipeShape] = _recipe_shapes
FORMS[Recipe] = Form(RecipeShape, _describe_recipe, _read_recipe)

# ── both kinds of source ──────────────────────────────────────────────────────────────────────────

FAMILIES[Source] = lambda: {"Table": Table, "Marks": Marks}
ENTRIES[Table] = {
    "classes": Labels,
    "classes_given": bool,
    "input": Input,
    "score": ScoreName | Ranker,
    "recipe": Recipe | None,
    "map": Map,
    "decision_at": float,
    "score_column": str | None,
}
ENTRIES[Marks] = {
    "score": str,
    "higher_is": HigherIs,
    "truth": Truth,
    "curve": ConfidenceCurve | None,
}
