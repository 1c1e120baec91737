"""Read a table of costs: a csv file with a row for each true class and a column for each answer."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import click

from metacal.errors import InputError


def read_costs(path: str, classes: list[Any] | None) -> tuple[tuple[float, ...], ...]:
    """The costs in the order of the columns of the logits.

    K rows of K numbers are taken as they stand. A first line with the names of the answers and a first column with
    those of the true classes put them in order by name.
    """
    from metacal.io.opening import plain_read_errors
    from metacal.promises.rules.costs import checked_costs

    try:
        with plain_read_errors(path):
            lines = list(csv.reader(Path(path).read_text(encoding="utf-8-sig").splitlines()))
    except UnicodeDecodeError:
        raise InputError(f"{path}: this is not UTF-8 text; save the table of costs as csv.") from None
    table = [[cell.strip() for cell in line] for line in lines if any(cell.strip() for cell in line)]
    if table and not _is_number(table[0][-1]):
        table = _by_name(path, table, classes)
    try:
        rows = [[float(cell) for cell in line] for line in table]
        return checked_costs(rows)  # type: ignore[return-value]
    except ValueError as error:
        said = str(error) if isinstance(error, InputError) else "every cost must be a number"
        raise click.BadParameter(f"{path}: {said}", param_hint="'--cost-matrix'") from None


def _by_name(path: str, table: list[list[str]], classes: list[Any] | None) -> list[list[str]]:
    """The numbers alone, in the order of the classes."""
    answers, truths = table[0][1:], [line[0] for line in table[1:]]
    own = [str(name) for name in (range(len(answers)) if classes is None else classes)]
    if sorted(answers) != sorted(own) or sorted(truths) != sorted(own):
        raise click.BadParameter(
            f"{path}: the first line must name every answer and the first column every true class, as the predictions "
            f"do: {', '.join(own[:8])}{', ...' if len(own) > 8 else ''}.",
            param_hint="'--cost-matrix'",
        )
    if any(len(line) != len(own) + 1 for line in table):
        raise click.BadParameter(f"{path}: some line has too few or too many costs.", param_hint="'--cost-matrix'")
    rows = {line[0]: dict(zip(answers, line[1:], strict=True)) for line in table[1:]}
    return [[rows[truth][answer] for answer in own] for truth in own]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
