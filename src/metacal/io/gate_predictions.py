"""Predictions in the form that a fitted gate requires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import format_names
from metacal.errors import ClassMismatchError, InputKindError, warn_caller
from metacal.io.input_paths import Paths
from metacal.io.named_columns import OtherInputKindError
from metacal.io.predictions import Predictions, read_requested_predictions
from metacal.io.request import ClassNames, Request
from metacal.rows.plausibility import Suspected, find_suspicion_about_logits
from metacal.rows.validate import check_classes, encode_labels
from metacal.spelling import format_option

if TYPE_CHECKING:
    from metacal.gate import Gate


def read_for_gate(
    gate: Gate,
    gate_name: str,
    path: Paths,
    *,
    classes: Sequence[str | int] | None = None,
    labels: Paths | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] | None = (),
    unpack_limit: int | None = None,
    **names: Any,
) -> Predictions:
    """Read predictions in the form that a gate requires.

    The table has the kind of input and the classes of the gate, in the order of the gate.

    Parameters
    ----------
    gate : Gate
        Gate that will be applied.

    gate_name : str
        Name of the gate in messages, usually its file.

    path : path, sequence of paths, or table in memory
        What to read, as in `read_predictions`.

    classes : sequence, optional
        Class names in column order. By default, the classes of the gate select columns of the same
        names.

    labels, drop, keep, unpack_limit
        See `read_predictions`.

    **names
        Other parameters of `read_predictions`, such as `label_key`. By default, columns have the
        names that they had when the gate was fitted.

    Returns
    -------
    Predictions

    Raises
    ------
    InputError
        If the file holds another kind of input or other classes than the gate was fitted on.
    """
    path_text = str(path)
    gate_input = gate.logits_source.input
    gate_classes = tuple(gate.classes.tolist())
    uses_gate_classes = classes is None
    keeps_all_columns = keep is None
    request = Request(
        "",
        input=names.pop("input", gate_input),
        classes=None if classes is None else tuple(classes),
        excluded_columns=tuple(drop),
        kept_names=tuple(keep or ()),
        keeps_other_columns=keeps_all_columns,
        gate_classes=gate_classes if uses_gate_classes else None,
        **names,
    )
    request = add_column_names_of_gate(request, gate, gate_name, has_label_file=labels is not None)
    try:
        predictions = read_requested_predictions(
            path, request, labels=labels, unpack_limit=unpack_limit
        )
    except OtherInputKindError:
        other_input = "logits" if gate_input == "probabilities" else "probabilities"
        raise InputKindError(
            f"{path_text} holds {other_input}, but {gate_name} was fitted on {gate_input}. Pass"
            f" {gate_input} of the same classifier, or fit the gate again on {other_input}."
        ) from None

    n_columns = predictions.table.shape[1]
    if n_columns != len(gate_classes):
        difference_text = _describe_column_difference(predictions, gate_classes)
        raise ClassMismatchError(
            f"{path_text} has {n_columns} columns of {gate_input}, but {gate_name} was fitted on"
            f" {len(gate_classes)} classes ({format_names(gate_classes)}){difference_text}."
        )
    _warn_if_implausible(gate, gate_name, predictions)
    if uses_gate_classes and predictions.class_names == gate_classes:
        predictions = _recode_labels_to_selected_columns(predictions)
    column_order = find_required_column_order(
        predictions.class_names, gate_classes, path_text, gate_name
    )
    if column_order is None:
        return predictions
    return replace(
        predictions.select_table_columns(column_order),
        labels=_renumber_labels(predictions, column_order),
    )


def add_column_names_of_gate(
    request: Request, gate: Gate, gate_name: str, *, has_label_file: bool = False
) -> Request:
    """Add to a request the names of the columns on which the gate was fitted.

    Parameters
    ----------
    request : Request
        Columns to read. Names that the user gave are not changed.

    gate : Gate
        Gate that will be applied.

    gate_name : str
        Name of the gate in messages.

    has_label_file : bool, default=False
        Whether the labels are in another file, so that no column holds them.

    Returns
    -------
    Request
    """
    calibration_layout = gate.file_layout
    column_name_of_field = {
        "id_key": calibration_layout.id_key,
        "group_key": calibration_layout.group_key,
        "unit_key": calibration_layout.unit_key,
        "case_key": calibration_layout.case_key,
    }
    if request.table_is_score_column:
        has_outcome_option = request.label_key is not None or request.prediction_key is not None
        if not has_outcome_option:
            column_name_of_field["label_key"] = calibration_layout.score_outcome_key
            column_name_of_field["prediction_key"] = calibration_layout.prediction_key
    else:
        column_name_of_field["logits_key"] = calibration_layout.logits_key
        if not has_label_file:
            column_name_of_field["label_key"] = calibration_layout.label_key
    added_names: dict[str, Any] = {}
    for field_name, column_name in column_name_of_field.items():
        if column_name is not None and getattr(request, field_name) is None:
            added_names[field_name] = column_name
    return replace(
        request,
        **added_names,
        excluded_columns=(*request.excluded_columns, *calibration_layout.drop),
        gate_name=gate_name,
        fields_set_by_gate=frozenset(added_names),
    )


def _describe_column_difference(predictions: Predictions, gate_classes: ClassNames) -> str:
    """Describe the surplus and missing columns of a file, for a message."""
    if predictions.class_names is None:
        return ""
    return f"; {describe_class_difference(predictions.class_names, gate_classes)}"


def describe_class_difference(table_classes: ClassNames, gate_classes: ClassNames) -> str:
    """Describe how the classes of a table differ from those of a gate.

    Examples
    --------
    >>> describe_class_difference(("dog", "cow"), ("cat", "dog"))
    "it has no 'cat', and it has 'cow', which the gate does not have"
    """
    table_names = {str(name) for name in table_classes}
    gate_names = {str(name) for name in gate_classes}
    missing_names = [name for name in gate_classes if str(name) not in table_names]
    unknown_names = [name for name in table_classes if str(name) not in gate_names]
    differences = []
    if missing_names:
        differences.append(f"it has no {format_names(missing_names)}")
    if unknown_names:
        differences.append(f"it has {format_names(unknown_names)}, which the gate does not have")
    return ", and ".join(differences)


def _recode_labels_to_selected_columns(predictions: Predictions) -> Predictions:
    """Renumber labels that are column numbers, counting only selected columns.

    The columns were selected in the order of the gate, but such labels count them in the order of
    the file.
    """
    if predictions.class_column_positions is None:
        return predictions
    rank_in_file = np.argsort(np.argsort(predictions.class_column_positions)).tolist()
    return replace(predictions, labels=_renumber_labels(predictions, rank_in_file))


def find_required_column_order(
    table_classes: ClassNames | None, gate_classes: ClassNames, table_name: str, gate_name: str
) -> list[int] | None:
    """Return the order of the columns of a table that matches the classes of a gate.

    Parameters
    ----------
    table_classes : tuple or None
        Class names of the table.

    gate_classes : tuple
        Classes of the gate.

    table_name : str
        Name of the table in messages.

    gate_name : str
        Name of the gate in messages.

    Returns
    -------
    list of int or None
        Position of each class of the gate among the columns of the table. None if the columns are in
        the right order. The order is assumed to be right if the table
        has no class names, or if only one of the two has numbers for names.

    Raises
    ------
    InputError
        If the table has other classes than the gate.

    Examples
    --------
    >>> find_required_column_order(("dog", "cat"), ("cat", "dog"), "new.csv", "cal.json")
    [1, 0]
    >>> find_required_column_order(("dog", "cow"), ("cat", "dog"), "new.csv", "cal.json")
    Traceback (most recent call last):
    metacal.errors.ClassMismatchError: new.csv has different classes than cal.json was fitted ...
    """
    if table_classes is None or table_classes == gate_classes:
        return None
    has_different_name_types = type(table_classes[0]) is not type(gate_classes[0])
    if has_different_name_types:
        return None
    if sorted(map(str, table_classes)) != sorted(map(str, gate_classes)):
        raise ClassMismatchError(
            f"{table_name} has different classes than {gate_name} was fitted on:"
            f" {describe_class_difference(table_classes, gate_classes)}."
        )
    return [table_classes.index(name) for name in gate_classes]


def _warn_if_implausible(gate: Gate, gate_name: str, predictions: Predictions) -> None:
    """Warn if the rows do not look like the kind of input that the gate requires.

    There is no warning if the calibration rows looked the same.
    """
    if gate.logits_source.input != "logits":
        return
    suspected_kinds_at_fit = _list_suspicions_at_fit(gate)
    suspicion = find_suspicion_about_logits(predictions.table)
    if suspicion is None:
        if suspected_kinds_at_fit & {"probabilities", "one probability"}:
            warn_caller(
                f"{gate_name} was fitted on probabilities that were read as logits, but the rows"
                f" of {predictions.path} are not probabilities. The decisions have no guarantee"
                " for these rows. Fit the gate again on logits, or with"
                f" {format_option('input', 'probabilities')}."
            )
        return
    if suspicion.kind in suspected_kinds_at_fit:
        return
    if suspicion.kind == "probabilities":
        warn_caller(
            f"{predictions.path}: every row lies in [0, 1] and sums to one, as probabilities do,"
            f" but {gate_name} was fitted on logits. Pass logits, or fit the gate on"
            f" probabilities with {format_option('input', 'probabilities')}."
        )
    else:
        warn_caller(f"{predictions.path}: {suspicion.remark}")


def _list_suspicions_at_fit(gate: Gate) -> set[Suspected]:
    """List the kinds of input other than logits that calibration rows looked like."""
    if gate.certificate is None:
        return set()
    return {
        dict(note.facts)["looks"] for note in gate.certificate.notes if note.kind == "suspicion"
    }


def _renumber_labels(predictions: Predictions, order: list[int]) -> NDArray[Any] | None:
    """Convert labels that are column numbers to the new order of the columns.

    Parameters
    ----------
    predictions : Predictions
        Predictions before the columns are reordered.

    order : list of int
        Old position of each column in the new order.

    Returns
    -------
    array of shape (n_rows,) or None
        Labels that are class names are returned unchanged.
    """
    if not predictions.labels_count_columns:
        return predictions.labels
    old_codes = encode_labels(predictions.labels, len(predictions), check_classes(None, len(order)))
    new_position = np.argsort(order)
    return new_position[old_codes]
