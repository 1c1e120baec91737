"""Reader of cost matrices: a csv file with the cost of each answer for each true class."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any

from metacal.cli.values import bad_option
from metacal.errors import InputError

#: Largest number of classes that an error message lists.
_MAX_LISTED_CLASSES = 8


def read_cost_matrix(path: str, classes: Sequence[Any] | None) -> tuple[tuple[float, ...], ...]:
    """Read a cost matrix from a csv file.

    Parameters
    ----------
    path : str
        File with one line per true class and one column per answer. If it has names, in the first
        line and the first column, the costs are put into the order of the classes. Otherwise they
        are used in the order of the file.
    classes : sequence or None
        Names of the logit columns.

    Returns
    -------
    tuple of tuples of float
        Cost of each answer (inner) for each true class (outer).
    """
    from metacal.certification.row_losses import validate_error_costs
    from metacal.cli.reading import read_lines
    from metacal.io.formats.text_cells import is_number

    table = []
    for line in csv.reader(read_lines(path, "save the table of costs as csv")):
        cells = [cell.strip() for cell in line]
        if any(cells):
            table.append(cells)
    has_names = bool(table) and not is_number(table[0][-1])
    if has_names:
        table = _sort_into_class_order(path, table, classes)
    try:
        costs = [[float(cell) for cell in line] for line in table]
        return validate_error_costs(costs)  # type: ignore[return-value]
    except InputError as error:
        raise bad_option("--cost-matrix", f"{path}: {error}") from None
    except ValueError:
        raise bad_option("--cost-matrix", f"{path}: every cost must be a number.") from None


def _sort_into_class_order(
    path: str, table: list[list[str]], classes: Sequence[Any] | None
) -> list[list[str]]:
    """Remove the names from a cost matrix and sort it into the order of the classes."""
    header, *class_lines = table
    predicted_names = header[1:]
    true_names = [line[0] for line in class_lines]
    if classes is None:
        class_names = [str(code) for code in range(len(predicted_names))]
    else:
        class_names = [str(name) for name in classes]
    expected_names = sorted(class_names)
    if sorted(predicted_names) != expected_names or sorted(true_names) != expected_names:
        listed_names = ", ".join(class_names[:_MAX_LISTED_CLASSES])
        ellipsis = ", ..." if len(class_names) > _MAX_LISTED_CLASSES else ""
        raise bad_option(
            "--cost-matrix",
            f"{path}: the first line must name the predicted classes, and the first column must"
            " name the true classes. The names must be those of the predictions:"
            f" {listed_names}{ellipsis}.",
        )
    n_cells_per_line = 1 + len(class_names)
    if any(len(line) != n_cells_per_line for line in table):
        raise bad_option(
            "--cost-matrix",
            f"{path}: each line must have one cost for each predicted class, but some lines have"
            " too few or too many costs.",
        )

    costs_by_true_class = {line[0]: line[1:] for line in class_lines}
    column_order = [predicted_names.index(name) for name in class_names]
    sorted_costs = []
    for true_name in class_names:
        class_costs = costs_by_true_class[true_name]
        sorted_costs.append([class_costs[column] for column in column_order])
    return sorted_costs
