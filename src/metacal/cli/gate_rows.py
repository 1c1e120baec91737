"""Rows of a user's file in the form that a gate reads.

A gate reads a table of logits, a column of scores, or the tables of both models of a cascade. NumPy is imported when a command runs, not before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.printing import print_note
from metacal.cli.read_options import ReadOptions
from metacal.cli.reading import (
    check_read_options_fit_gate,
    choose_cascade_columns,
    convert_to_reader_arguments,
    load_gate,
    raise_if_saved_gate,
    read_cascade_scores,
    read_score_table,
    read_table,
    select_row_range,
)
from metacal.errors import CascadeError, warn_caller

if TYPE_CHECKING:
    from metacal.certificates.overlap_with_fit import OverlapWithFit
    from metacal.gate import Gate
    from metacal.io.predictions import Predictions


@dataclass(frozen=True, eq=False)
class GateRows:
    """Rows of a file in the form that a gate reads.

    Attributes
    ----------
    path : str
        Name of the file in messages.
    tables : tuple
        Input of each stage of the gate: validated logits, which may stay in their file, or
        scores.
    truth : array or None
        Labels, or whether each prediction is correct.
    columns : Predictions or Scores
        All columns of the file of the first stage.
    large_columns : Predictions or None
        All columns of the --large file.
    """

    path: str
    tables: tuple[Any, ...]
    truth: Any
    columns: Any
    large_columns: Any = None

    def require_truth(self) -> Any:
        """Return the labels or correctness flags. Raise InputError if the file has none."""
        if self.truth is not None:
            return self.truth
        return self.columns.require_truth()

    def note_rows_without_score(self, n_with_score: int) -> None:
        """Print how many rows have no score, if there are any.

        Items of cases are not left out: a true item without a score counts as missed.
        """
        n_rows = len(self.columns)
        if n_with_score < n_rows and self.columns.cases is None:
            print_note(
                f"{n_rows - n_with_score:,} of {n_rows:,} rows have no score: left out here, and"
                " rejected by every gate."
            )

    def count_unlabelled_rows_with_score(self) -> int:
        """Count the rows with a score and no label, which only groups and clusters may have."""
        import numpy as np

        from metacal.rows.score_columns import find_missing_labels

        gate_input = self.tables[0]
        is_column_of_scores = isinstance(gate_input, np.ndarray) and gate_input.ndim == 1
        # A label may be missing only if the file has groups or clusters.
        has_groups_or_clusters = self.columns.groups is not None or self.columns.units is not None
        if not is_column_of_scores or not has_groups_or_clusters or self.truth is None:
            return 0
        has_score = ~np.isnan(gate_input)
        lacks_label = find_missing_labels(np.asarray(self.truth))
        return int((has_score & lacks_label).sum())

    def warn_of_fit_rows(self, fit_rows: OverlapWithFit | None, artifact: str | None) -> None:
        """Warn if rows of the file were used to fit the gate."""
        if fit_rows is not None:
            warn_caller(
                f"{self.path}: {fit_rows}. Results are too optimistic on rows that {artifact} was"
                " fitted on. Use new rows."
            )


def read_gate_and_rows(
    artifact: str | None,
    file: str,
    reading: ReadOptions,
    *,
    allows_group_key: bool = False,
    skips_validation: bool = False,
    stream: bool | None = None,
) -> tuple[Gate | None, GateRows]:
    """Read a saved gate, if there is one, and the rows of a file.

    Parameters
    ----------
    artifact : str or None
        Saved gate, or None to measure the classifier or the scores alone.
    file : str
        File of rows.
    reading : ReadOptions
        Options for reading the file.
    allows_group_key, skips_validation, stream
        See `read_gate_rows`.

    Returns
    -------
    gate : Gate or None
        The saved gate. Without one, None for logits, and for scores a gate that accepts every row.
    gate_rows : GateRows
    """
    if artifact is not None:
        from metacal.gate.feature_checks import check_accuracy_is_measurable

        saved_gate = load_gate(artifact, file)
        check_accuracy_is_measurable(saved_gate)
        gate_rows = read_gate_rows(
            saved_gate,
            artifact,
            file,
            reading,
            allows_group_key=allows_group_key,
            skips_validation=skips_validation,
            stream=stream,
        )
        return saved_gate, gate_rows

    check_large_option(gate=None, artifact=None, large=reading.large)
    if reading.score_key is not None:
        return _read_scores_without_gate(file, reading)
    predictions = read_table(file, reading, stream=stream)
    gate_rows = GateRows(
        path=file, tables=(predictions.table,), truth=predictions.labels, columns=predictions
    )
    return None, gate_rows


def _read_scores_without_gate(file: str, reading: ReadOptions) -> tuple[Gate, GateRows]:
    """Read scores, and build a gate without a threshold, which accepts every row."""
    from metacal.gate import Gate, ScoreSource
    from metacal.gate.score_source import clean_score_name

    scores = read_score_table(file, reading)
    score_source = ScoreSource(
        score=clean_score_name(scores.name), higher_is=reading.score_direction
    )
    gate = Gate.from_source(score_source)
    gate_rows = GateRows(path=file, tables=(scores.score,), truth=scores.correct, columns=scores)
    return gate, gate_rows


def check_large_option(gate: Gate | None, artifact: str | None, large: str | None) -> None:
    """Raise a usage error if --large was given but the gate reads a single table."""
    if large is None:
        return
    if gate is None:
        raise click.UsageError(
            "--large requires a cascade, but no gate was passed. Pass a cascade that 'metacal"
            " cascade' saved before FILE."
        )
    if not gate.is_cascade:
        raise click.UsageError(
            f"--large requires a cascade, but {artifact} holds a gate with one model. Leave out"
            " --large."
        )
    if not gate.has_classes:
        raise click.UsageError(
            f"--large has no effect, because {artifact} holds a cascade of scores. This cascade"
            " reads the scores of all models from FILE. Leave out --large."
        )


def read_gate_rows(
    gate: Gate,
    artifact: str,
    file: str,
    reading: ReadOptions,
    *,
    requires_large_rows: bool = True,
    allows_group_key: bool = False,
    skips_validation: bool = False,
    stream: bool | None = None,
) -> GateRows:
    """Read the logits or scores for each model of a gate, from a file and from --large.

    Parameters
    ----------
    gate : Gate
        The gate.
    artifact : str
        Name of its file in messages.
    file : str
        File of rows.
    reading : ReadOptions
        Options for reading the file.
    requires_large_rows : bool, default=True
        Whether a cascade of classifiers raises a usage error if --large is not given.
    allows_group_key : bool, default=False
        Whether --group-key is allowed for a gate on logits that has no threshold by group.
    skips_validation : bool, default=False
        Whether the table of a gate on logits is returned without validation.
    stream : bool or None, default=None
        Whether the table stays in its file. None decides by its size.

    Returns
    -------
    GateRows
    """
    check_large_option(gate, artifact, reading.large)
    if reading.large is not None and reading.rows is not None:
        raise click.UsageError(
            "--rows cannot be combined with --large, because the two files may hold different"
            " rows. Write the selected rows to new files."
        )
    check_read_options_fit_gate(
        gate, artifact, reading, allows_group_key=allows_group_key and gate.has_classes
    )
    is_score_cascade = gate.is_cascade and not gate.has_classes
    if is_score_cascade:
        return _read_score_cascade_rows(gate, file, reading)
    if gate.is_cascade and requires_large_rows and reading.large is None:
        raise click.UsageError(
            f"{artifact} holds a cascade, which requires the predictions of both models. Pass the"
            " predictions of the large model with --large LARGEFILE."
        )
    if gate.is_score_gate:
        scores = read_score_table(file, reading, gate, artifact)
        return GateRows(path=file, tables=(scores.score,), truth=scores.correct, columns=scores)
    return _read_logit_rows(
        gate, artifact, file, reading, skips_validation=skips_validation, stream=stream
    )


def _read_score_cascade_rows(gate: Gate, file: str, reading: ReadOptions) -> GateRows:
    """Read the scores of all models of a cascade from one file."""
    from metacal.gate.judged import find_gate_and_stage_inputs
    from metacal.io.opening import MissingScoreColumnError

    score_names, flag_names = choose_cascade_columns(gate, reading)
    try:
        cascade_scores = read_cascade_scores(
            file, reading, score_names, flag_names, flags_mean_agreement=gate.needs_agreement_flags
        )
    except MissingScoreColumnError:
        were_flags_requested = reading.correct_key is not None or reading.agree_key is not None
        if not flag_names or were_flags_requested:
            raise
        # The names of the flags come from the fit. New rows without labels do not have these columns.
        cascade_scores = read_cascade_scores(
            file,
            reading,
            score_names,
            flag_names=[],
            flags_mean_agreement=gate.needs_agreement_flags,
        )
    _, score_of_each_model = find_gate_and_stage_inputs(gate, cascade_scores.scores)
    return GateRows(
        path=file,
        tables=score_of_each_model,
        truth=cascade_scores.model_flags,
        columns=cascade_scores.columns_of_first_model,
    )


def _read_logit_rows(
    gate: Gate,
    artifact: str,
    file: str,
    reading: ReadOptions,
    *,
    skips_validation: bool,
    stream: bool | None,
) -> GateRows:
    """Read the logits of a classifier, or of both classifiers of a cascade.

    Parameters
    ----------
    gate, artifact, file, reading, skips_validation, stream
        See `read_gate_rows`.

    Returns
    -------
    GateRows
    """
    from metacal.io.gate_predictions import read_for_gate
    from metacal.rows import Rows

    raise_if_saved_gate(file)
    predictions = read_for_gate(
        gate, artifact, file, stream=stream, **convert_to_reader_arguments(reading)
    )
    predictions = select_row_range(predictions, reading)
    if skips_validation and gate.is_logits_gate:
        return GateRows(
            path=file, tables=(predictions.table,), truth=predictions.labels, columns=predictions
        )

    first_table = gate.source.read(predictions.table, convert_lazily=True)
    if reading.large is None:
        return GateRows(
            path=file,
            tables=(Rows(first_table),),
            truth=predictions.labels,
            columns=predictions,
        )

    raise_if_saved_gate(reading.large)
    large_predictions = read_for_gate(
        gate.stage(1), artifact, reading.large, **convert_to_reader_arguments(reading)
    )
    large_table = gate.stages[1].source.read(large_predictions.table, convert_lazily=True)
    truth = predictions.labels
    # If the large model's file has fewer rows, its labels cannot be matched with those of FILE.
    if len(predictions) == len(large_predictions):
        truth = check_and_merge_labels(predictions, large_predictions, file, reading.large)
    tables = (Rows(first_table), Rows(large_table))
    return GateRows(
        path=file,
        tables=tables,
        truth=truth,
        columns=predictions,
        large_columns=large_predictions,
    )


def check_and_merge_labels(
    small_predictions: Predictions, large_predictions: Predictions, small: str, large: str
) -> Any:
    """Check that two files hold the same rows, and return the labels of these rows.

    Parameters
    ----------
    small_predictions, large_predictions : Predictions
        Predictions of two models.
    small, large : str
        Names of their files in messages.

    Returns
    -------
    array or None
        Labels of the first file, or of the second if the first has none.

    Raises
    ------
    InputError
        If ids or labels show that the files hold other rows, or in another order.
    """
    column_pairs = {
        "ids": (small_predictions.ids, large_predictions.ids),
        "labels": (small_predictions.labels, large_predictions.labels),
    }
    for column_name, (small_column, large_column) in column_pairs.items():
        differing_row = _find_first_differing_row(small_column, large_column)
        if differing_row is not None:
            raise CascadeError(
                f"{small} and {large} must hold the same rows in the same order, but the column"
                f" of {column_name} differs in row {differing_row}. Write both files with the same rows."
            )
    if small_predictions.labels is None:
        return large_predictions.labels
    return small_predictions.labels


def _find_first_differing_row(column: Any, other_column: Any) -> int | None:
    """Return the first row in which two columns differ, or None.

    A missing column differs from nothing, nor does text from numbers, nor NaN from NaN.
    """
    import numpy as np

    if column is None or other_column is None:
        return None
    is_text = column.dtype.kind in "US"
    other_is_text = other_column.dtype.kind in "US"
    if is_text != other_is_text:
        return None
    both_missing = (column != column) & (other_column != other_column)
    differing_rows = np.flatnonzero((column != other_column) & ~both_missing)
    if not len(differing_rows):
        return None
    return int(differing_rows[0])
