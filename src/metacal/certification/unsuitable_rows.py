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
        f"{type(promise).__name__} requires the correctness of each prediction. Pass correct,"
        " with one boolean per row."
    )


def build_missing_subgroups_error(promise: object, by: str) -> InputError:
    """Build the error for rows whose subgroups are unknown."""
    return GroupsError(
        f"{type(promise).__name__} requires the {by} of each row. Pass a Sample with part and"
        " names, or fit a MetaCal."
    )


def build_unsupported_clusters_error(promise: object) -> InputError:
    """Build the error for a promise that cannot count every row of a cluster."""
    return ClustersError(
        f"{promise!r} cannot count every row of a cluster. Count one row of each cluster with"
        " Units(names, per='unit'), or promise MinAccuracy, MaxMiscoverage or MaxReview with a"
        " delta."
    )


def build_sorting_required_error(promise: object) -> InputError:
    """Build the error for a promise that cannot be certified from counts."""
    return UnsupportedPromiseError(
        f"{type(promise).__name__} does not support counts, because it reads all rows in the"
        " order of their scores. Pass the rows to certify(scores, correct), or promise"
        " MaxMiscoverage, MaxReview or MinAccuracy."
    )


def build_trivial_promise_error(class_promise: ClassPromise, rows: CalibrationRows) -> InputError:
    """Build the error for a precision that holds if every row is accepted."""
    class_code = class_promise.get_predicted_code(rows.class_names)
    class_name = rows.class_names[class_code]
    other_class_name = rows.class_names[1 - class_code]
    class_share = float((rows.true_class_codes == class_code).mean())
    return UnsupportedPromiseError(
        f"A precision of {class_promise.target:g} for {class_name!r} requires no gate, because"
        f" {class_share:.1%} of the rows have this class. Pass a precision above"
        f" {class_share:.1%}, or limit the missed rows of the other class with MinRecall(0.95,"
        f" positive={other_class_name!r}) (--min-recall)."
    )


def build_unknown_class_error(positive: Name, class_names: Sequence[Name]) -> InputError:
    """Build the error for a positive class that is not a class of the rows."""
    first_class, second_class = class_names
    return PositiveClassError(
        f"positive must be {first_class!r} or {second_class!r}, but got {positive!r}. Pass one of"
        " the two classes."
    )


def build_same_class_error(class_name: Name) -> InputError:
    """Build the error for two promises about rows of the same predicted class."""
    return UnsupportedPromiseError(
        f"Both promises limit the rows that are predicted as {class_name!r}. Promise one quantity"
        " for each class, for example TwoSided(MinPrecision(0.9), MinRecall(0.95))."
    )
