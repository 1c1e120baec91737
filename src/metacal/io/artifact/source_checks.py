"""Checks of maps and of certificates against the source of their scores."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from metacal.certificates.certificate import Certificate
from metacal.certificates.subgroups import SubgroupCertificate
from metacal.errors import ArtifactError
from metacal.io.artifact.certificate_checks import (
    MAX_RELATIVE_ROUNDING_ERROR,
    max_rounding_error,
    require,
)
from metacal.kernels.grid import Grid
from metacal.maps.map import find_component_maps
from metacal.scores import named as scores

# Attribute of each map that holds the points of a curve.
_POINTS_ATTRIBUTE_OF_MAP = {"SplineMap": "knots", "GaussianProcessMap": "inducing"}

# Maximum number of points of a curve, which is the cost of applying the curve to a logit.
# A fit produces at most 200 points.
_MAX_POINTS = 1000

# Maximum number of points times classes, which is the cost of applying the map to a row.
_MAX_OPERATIONS_PER_ROW = 2_000_000


def check_map_cost(fitted: Any, n_classes: int) -> None:
    """Raise ArtifactError if applying a map would take too much time or memory.

    Parameters
    ----------
    fitted : Map
        Map to check, including the maps that it contains.

    n_classes : int
        Number of classes.

    Raises
    ------
    ArtifactError
        If a map has too many points.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> check_map_cost(TemperatureMap(1.0), 10)
    """
    for inner_map in find_component_maps(fitted):
        check_map_cost(inner_map, n_classes)
    map_name = type(fitted).__name__
    if map_name not in _POINTS_ATTRIBUTE_OF_MAP:
        return
    attribute = _POINTS_ATTRIBUTE_OF_MAP[map_name]
    n_points = len(getattr(fitted, attribute))
    if n_points > _MAX_POINTS:
        raise ArtifactError(
            f"{map_name} must have at most {_MAX_POINTS:,} {attribute}, but it has {n_points:,}."
        )
    if n_points * n_classes > _MAX_OPERATIONS_PER_ROW:
        raise ArtifactError(
            f"{map_name} has {n_points:,} {attribute}, which is too many for {n_classes:,} classes."
        )


def check_classes(certificate: Certificate, classes: NDArray[Any]) -> None:
    """Raise ArtifactError unless subgroups by class match the classes of the gate."""
    subgroups = certificate.subgroups
    if subgroups is None or subgroups.by != "class":
        return
    certified_classes = {name for subgroup in subgroups.items for name in subgroup.names}
    require(certified_classes == set(classes.tolist()), "its parts are not the classes of the file")


def check_score_range(
    certificate: Certificate, n_classes: int, score: str, threshold: float
) -> None:
    """Check that thresholds and calibration scores are values that the score can have.

    Parameters
    ----------
    certificate : Certificate
        Certificate with calibration scores.

    n_classes : int
        Number of classes, which determines the range of some scores.

    score : str
        Name of the score. Only named scores have a known range.

    threshold : float
        Threshold of the stage.

    Raises
    ------
    ArtifactError
        If a value is out of range. Infinite thresholds are allowed.
    """
    named_score = scores.NAMED.get(score)
    if named_score is None:
        return
    lowest, highest = named_score.value_range(n_classes)
    lowest_allowed = lowest - max_rounding_error(
        lowest, MAX_RELATIVE_ROUNDING_ERROR, min_magnitude=1.0
    )
    highest_allowed = highest + max_rounding_error(
        highest, MAX_RELATIVE_ROUNDING_ERROR, min_magnitude=1.0
    )
    for name, value in _list_threshold_scores(certificate, threshold):
        if value is None or lowest_allowed <= value <= highest_allowed:
            continue
        range_text = f"lies between {lowest:g} and {highest:g}"
        if math.isinf(lowest):
            range_text = f"is at most {highest:g}"
        is_infinite_threshold = name == "threshold" and math.isinf(value)
        require(
            is_infinite_threshold,
            f"{name} {value:g} is out of reach: {score} of {n_classes} classes {range_text}",
        )


def _list_threshold_scores(
    certificate: Certificate, threshold: float
) -> list[tuple[str, float | None]]:
    """Return the names and values of all thresholds and of the scores next to them."""
    named_values = [
        ("threshold", threshold),
        ("highest_accepted", certificate.highest_accepted),
        ("lowest_rejected", certificate.lowest_rejected),
    ]
    for subgroup in _list_subgroups(certificate):
        named_values.append(("threshold", subgroup.threshold))
        named_values.append(("highest_accepted", subgroup.highest_accepted))
        named_values.append(("lowest_rejected", subgroup.lowest_rejected))
    return named_values


def check_thresholds_between_scores(certificate: Certificate, grid: Grid, threshold: float) -> None:
    """Check that no threshold coincides with a possible score.

    Otherwise rounding would decide whether such a row is accepted.

    Parameters
    ----------
    certificate : Certificate
        Certificate with the thresholds of subgroups.

    grid : Grid
        Grid to which scores are rounded.

    threshold : float
        Threshold of the stage.

    Raises
    ------
    ArtifactError
        If a threshold lies on the grid.
    """
    thresholds = [threshold]
    thresholds += [subgroup.threshold for subgroup in _list_subgroups(certificate)]
    for value in thresholds:
        require(
            grid.make_robust_to_rounding(value) == value,
            f"the threshold {value!r} does not lie between two scores",
        )


def _list_subgroups(certificate: Certificate) -> tuple[SubgroupCertificate, ...]:
    """Return the subgroups of a certificate, if there are any."""
    if certificate.subgroups is None:
        return ()
    return certificate.subgroups.items
