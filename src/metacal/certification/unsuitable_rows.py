"""Errors for rows that lack a column, or have an unsupported one.

`metacal.certification.statements` has the errors for rows that do not support a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metacal.certificates.subgroups import Name
from metacal.errors import (
    ClustersError,
    GroupsError,
    InputError,
    MissingLabelsError,
    PositiveClassError,
    UnsupportedPromiseError,
)

if TYPE_CHECKING:
    from metacal.certification.rows import CalibrationRows
    from metacal.certification.sides import ClassPromise


def build_missing_labels_error(promise: object) -> InputError:
    """Build the error for rows without labels."""
    return MissingLabelsError(
        f"{type(promise).__name__} needs to know which predictions are correct. Pass correct,"
        " with one boolean per row."
    )


def build_missing_subgroups_error(promise: object, by: str) -> InputError:
    """Build the error for rows whose subgroups are unknown."""
    return GroupsError(
        f"{type(promise).__name__} needs the {by} of each row. Pass a Sample with part and"
        " names, or fit a MetaCal."
    )


def build_unsupported_clusters_error(promise: object) -> InputError:
    """Build the error for a promise that cannot count every row of a cluster."""
    return ClustersError(
        f"{promise!r} cannot count every row of a cluster; only MinAccuracy, MaxMiscoverage and"
        " MaxReview with a delta can. Count one row of each: Units(names, per='unit')."
    )


def build_sorting_required_error(promise: object) -> InputError:
    """Build the error for a promise that cannot be certified from counts."""
    return UnsupportedPromiseError(
        f"{type(promise).__name__} needs all rows in order of their scores, and does not"
        " support counts. Pass the rows to certify(scores, correct). MaxMiscoverage,"
        " MaxReview and MinAccuracy support counts."
    )


def build_trivial_promise_error(class_promise: ClassPromise, rows: CalibrationRows) -> InputError:
    """Build the error for a precision that accepting every row would keep."""
    class_code = class_promise.get_predicted_code(rows.class_names)
    class_name = rows.class_names[class_code]
    other_class_name = rows.class_names[1 - class_code]
    class_share = float((rows.true_class_codes == class_code).mean())
    return UnsupportedPromiseError(
        f"A precision of {class_promise.target:g} for {class_name} is met without a gate:"
        f" {class_share:.1%} of the rows have this class. Pass a precision above"
        f" {class_share:.4g}, or limit missed rows of the other class with MinRecall(0.95,"
        f" positive={other_class_name}) (--min-recall)."
    )


def build_unknown_class_error(positive: Name, class_names: Sequence[Name]) -> InputError:
    """Build the error for a positive class that the rows do not have."""
    first_class, second_class = class_names
    return PositiveClassError(
        f"positive={positive!r} is neither of the classes {first_class!r} and {second_class!r}."
        " Pass one of them."
    )


def build_same_class_error(class_name: Name) -> InputError:
    """Build the error for two promises about the rows accepted as one class."""
    return UnsupportedPromiseError(
        f"Both promises are about rows predicted {class_name}. Promise one quantity for each"
        " class, for example TwoSided(MinPrecision(0.9), MinRecall(0.95))."
    )
