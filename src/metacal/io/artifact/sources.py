"""Score sources of a gate in a file.

A *source* computes the scores of a stage of a gate. There are two kinds: `LogitsSource` computes a ranking
score from logits, and `ScoreSource` takes scores as given. A `LogitsSource` contains a fitted map and,
optionally, the *recipe* of the map: the estimator that fitted it, with its parameters.
"""

from __future__ import annotations

from dataclasses import make_dataclass
from functools import cache, partial
from typing import Any, Literal, NewType

from metacal import scores
from metacal.errors import ArtifactError, SavingError
from metacal.formulas import Float
from metacal.gate.file_layout import FileLayout
from metacal.gate.logits_source import LogitsSource
from metacal.gate.score_source import HigherIs, ScoreSource, Truth
from metacal.gate.source import Recipe
from metacal.gate.stages import Source
from metacal.io.artifact.labels import Labels
from metacal.io.artifact.messages import with_article
from metacal.io.artifact.registry import (
    ALLOWED_NAME_LISTERS,
    CUSTOM_CONSTRUCTOR_OF_CLASS,
    FIELD_TYPES,
    STORABLE_SUBCLASS_LISTERS,
    STORED_FORM_OF_TYPE,
    StoredForm,
    get_field_types,
)
from metacal.maps.confidence import ConfidenceCurve
from metacal.maps.map import Map
from metacal.maps.methods import (
    LazyClassMapping,
    Method,
    find_map_method,
    find_method_by_public_name,
    get_all_methods,
)
from metacal.scores.learned import LogisticRanker, PairwiseRanker, Ranker

#: Type of the model outputs.
Input = Literal["logits", "probabilities"]

#: Name of a ranking score that can be computed without fitting.
ScoreName = NewType("ScoreName", str)
ALLOWED_NAME_LISTERS[ScoreName] = lambda: scores.NAMED

#: Maximum number of threads that a file may request.
MAX_JOBS = 1024

#: Learned ranking scores by their name in a file.
LEARNED_SCORE_CLASSES: dict[str, type[Ranker]] = {
    "LogisticRanker": LogisticRanker,
    "PairwiseRanker": PairwiseRanker,
}

# Fitted attributes of a ranker and their types.
_FITTED_TYPES: dict[str, Any] = {
    "n_classes_": int,
    "means_": Float,
    "scales_": Float,
    "coefficients_": Float,
}


def _build_ranker(cls: type[Ranker], **values: Any) -> Ranker:
    """Construct a fitted ranker from its parameters and fitted attributes."""
    fitted_values = [values.pop(name) for name in _FITTED_TYPES]
    if values["classes"] is not None:
        values["classes"] = values["classes"].tolist()
    return cls(**values).restore(*fitted_values)


STORABLE_SUBCLASS_LISTERS[Ranker] = lambda: LEARNED_SCORE_CLASSES
for _ranker in LEARNED_SCORE_CLASSES.values():
    FIELD_TYPES[_ranker] = {**get_field_types(_ranker), "classes": Labels | None, **_FITTED_TYPES}
    CUSTOM_CONSTRUCTOR_OF_CLASS[_ranker] = partial(_build_ranker, _ranker)


class StoredRecipe:
    """Base class of the stored forms of recipes, one subclass per calibration method.

    The fields of a subclass are the parameters of the method's estimator.
    """


def list_calibrator_names() -> list[str]:
    """Return the public names of all calibrators, sorted."""
    return sorted(method.public_name for method in get_all_methods().values())


def get_estimator_parameter_types(method: Method) -> dict[str, Any]:
    """Return the parameters of a method's estimator and their types, sorted by name."""
    parameter_types = {name: option.annotation for name, option in method.options.items()}
    parameter_types["classes"] = Labels | None
    parameter_types["input"] = Input
    parameter_types["n_jobs"] = int | None
    return dict(sorted(parameter_types.items()))


def find_source_method(source: LogitsSource) -> Method:
    """Return the calibration method that fitted the map of a source.

    Parameters
    ----------
    source : LogitsSource
        Source with a fitted map.

    Returns
    -------
    Method
        The method that the recipe names. Without a recipe, the first method that fits such maps.

    Raises
    ------
    ArtifactError
        If the method is not registered.
    """
    map_class = type(source.map)
    if source.recipe is None:
        calibrator_name = map_class.__name__
        method = find_map_method(map_class)
    else:
        calibrator_name = source.recipe.estimator
        method = find_method_by_public_name(calibrator_name)
    if method is None:
        raise build_unsupported_calibrator_error(calibrator_name)
    if method.map_class() is not map_class:
        raise SavingError(
            f"The fit function of {calibrator_name} returned {with_article(map_class.__name__)},"
            f" but the registry row of {method.name!r} names {method.map_class().__name__}. A method"
            " returns one class of maps. Return this class, or change `map` in the row."
        )
    return method


def check_calibrator_is_supported(source: LogitsSource) -> None:
    """Raise ArtifactError if a file cannot contain the calibrator of a source."""
    find_source_method(source)


def build_unsupported_calibrator_error(name: str) -> ArtifactError:
    """Build the error about a calibrator that a file cannot contain."""
    return SavingError(
        f"The base calibrator is {with_article(name)}, which cannot be saved without pickle."
        f" Use one of metacal's calibrators ({', '.join(list_calibrator_names())})."
    )


def check_n_jobs(n_jobs: int | None, location: str = "n_jobs") -> int | None:
    """Return a number of threads. Raise ArtifactError if it is 0 or too large."""
    if n_jobs is not None and not 1 <= abs(n_jobs) <= MAX_JOBS:
        raise ArtifactError(
            f"{location} must be a number of threads other than 0 and at most {MAX_JOBS}."
        )
    return n_jobs


@cache
def _create_stored_recipe_class(method: Method) -> type:
    """Create the subclass of `StoredRecipe` for a method."""
    parameter_types = get_estimator_parameter_types(method)
    return make_dataclass(method.public_name, parameter_types.items(), bases=(StoredRecipe,))


def _map_stored_recipe_classes() -> LazyClassMapping:
    """Return the subclasses of `StoredRecipe` by the public names of the calibrators."""
    methods = {method.public_name: method for method in get_all_methods().values()}
    sorted_methods = {name: methods[name] for name in list_calibrator_names()}
    return LazyClassMapping(sorted_methods, _create_stored_recipe_class)


def _recipe_to_stored(recipe: Recipe, location: str) -> Any:
    """Convert a recipe to its stored form, with default values for missing parameters."""
    method = find_method_by_public_name(recipe.estimator)
    # `find_source_method` has already rejected unknown estimators.
    assert method is not None
    default_parameters: dict[str, Any] = {
        name: option.default for name, option in method.options.items()
    }
    default_parameters |= {"input": "logits", "n_jobs": None, "classes": None}
    parameters = {**default_parameters, **recipe.parameters}
    stored_class = _create_stored_recipe_class(method)
    return stored_class(
        **{name: parameters[name] for name in get_estimator_parameter_types(method)}
    )


def _recipe_from_stored(stored_recipe: Any, location: str) -> Recipe:
    """Convert the stored form of a recipe to a recipe."""
    parameters = dict(vars(stored_recipe))
    check_n_jobs(parameters["n_jobs"], f"{location}.n_jobs")
    if parameters["classes"] is not None:
        parameters["classes"] = parameters["classes"].tolist()
    return Recipe(type(stored_recipe).__name__, parameters)


STORABLE_SUBCLASS_LISTERS[StoredRecipe] = _map_stored_recipe_classes
STORED_FORM_OF_TYPE[Recipe] = StoredForm(
    stored_type=StoredRecipe, to_stored=_recipe_to_stored, from_stored=_recipe_from_stored
)

STORABLE_SUBCLASS_LISTERS[Source] = lambda: {"Table": LogitsSource, "Marks": ScoreSource}
FIELD_TYPES[LogitsSource] = {
    "classes": Labels,
    "classes_given": bool,
    "input": Input,
    "score": ScoreName | Ranker,
    "recipe": Recipe | None,
    "map": Map,
    "decision_at": float,
    "file_layout": FileLayout | None,
}
FIELD_TYPES[ScoreSource] = {
    "score": str,
    "higher_is": HigherIs,
    "truth": Truth,
    "curve": ConfidenceCurve | None,
    "file_layout": FileLayout | None,
}
