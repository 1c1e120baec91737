"""Reader of cost matrices: a csv file with the cost of each answer for each true class."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any

from metacal.cli.values import bad_option
from metacal.errors import InputError


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
    answer_names = table[0][1:]
    true_names = [line[0] for line in table[1:]]
    if classes is None:
        class_names = [str(code) for code in range(len(answer_names))]
    else:
        class_names = [str(name) for name in classes]
    expected_names = sorted(class_names)
    if sorted(answer_names) != expected_names or sorted(true_names) != expected_names:
        shown_names = ", ".join(class_names[:8])
        ellipsis = ", ..." if len(class_names) > 8 else ""
        raise bad_option(
            "--cost-matrix",
            f"{path}: the first line must name the predicted classes, and the first column must"
            " name the true classes. The names must be those of the predictions:"
            f" {shown_names}{ellipsis}.",
        )
    if any(len(line) != len(class_names) + 1 for line in table):
        raise bad_option(
            "--cost-matrix",
            f"{path}: each line must have one cost for each predicted class, but some lines have"
            " too few or too many costs.",
        )

    sorted_table = []
    costs_by_class = {line[0]: line[1:] for line in table[1:]}
    answer_order = [answer_names.index(name) for name in class_names]
    for true_name in class_names:
        costs = costs_by_class[true_name]
        sorted_table.append([costs[column] for column in answer_order])
    return sorted_table
