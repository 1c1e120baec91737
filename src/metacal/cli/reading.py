"""Reading of users' files with the options of the command line.

NumPy is imported when a command runs, not before.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from metacal.cli.options import option_flag
from metacal.cli.read_options import ReadOptions
from metacal.cli.values import bad_option
from metacal.errors import ColumnError, FileContentError

if TYPE_CHECKING:
    from metacal.gate import Gate
    from metacal.io.columns import Columns
    from metacal.io.predictions import Predictions
    from metacal.io.scores import Scores

_ColumnsType = TypeVar("_ColumnsType", bound="Columns")

# Options for a table of logits, as fields of `ReadOptions`.
_READ_OPTIONS_FOR_LOGITS = ("input", "labels", "logits_key", "classes", "drop")
# Options for scores in place of logits, as fields of `ReadOptions`.
_READ_OPTIONS_FOR_SCORES = (
    "score_key",
    "correct_key",
    "prediction_key",
    "agree_key",
    "loss_key",
    "case_key",
    "higher_is",
)
# Options of single commands that have an effect only for logits.
_COMMAND_OPTIONS_FOR_LOGITS = (
    "score",
    "calibrator",
    "reject_label",
    "rejected",
    "comparing",
    "calibrators",
)


# Number of bytes from the beginning of a file that identify a saved gate.
_N_BYTES_TO_INSPECT = 64

# First bytes of a saved gate, without white space.
_GATE_MAGIC = b'{"format":"metacal"'


def read_table(path: str, reading: ReadOptions, *, stream: bool | None = None) -> Predictions:
    """Read a table of logits or probabilities, and warn if it looks implausible.

    Parameters
    ----------
    path : str
        File to read.
    reading : ReadOptions
        Options for reading it.
    stream : bool or None, default=None
        Whether the table stays in its file. None decides by its size.

    Returns
    -------
    Predictions
    """
    raise_if_score_options_given(reading)
    from metacal.io.predictions import read_predictions
    from metacal.rows.plausibility import warn_if_implausible

    raise_if_saved_gate(path)
    predictions = read_predictions(
        path, input=reading.input or "logits", stream=stream, **convert_to_reader_arguments(reading)
    )
    predictions = select_row_range(predictions, reading)
    warn_if_implausible(predictions.table, predictions.input)
    return predictions


def select_row_range(columns: _ColumnsType, reading: ReadOptions) -> _ColumnsType:
    """Return the part of the rows that --rows names, or all rows."""
    if reading.rows is None:
        return columns
    return columns.draw_part(*reading.rows)


def convert_to_reader_arguments(reading: ReadOptions) -> dict[str, Any]:
    """Return the keyword arguments of `read_predictions`, without `input`."""
    return {
        "labels": reading.labels,
        "logits_key": reading.logits_key,
        "label_key": reading.label_key,
        "id_key": reading.id_key,
        "group_key": reading.group_key,
        "unit_key": reading.unit_key,
        "format": reading.format,
        "drop": reading.drop,
        "keep": reading.keep,
        "classes": parse_class_names(reading.classes),
    }


def parse_class_names(text: str | None) -> tuple[str | int, ...] | None:
    """Parse --classes: names separated by commas, or @ and a file of names.

    Examples
    --------
    >>> parse_class_names("cat, dog"), parse_class_names("0,1"), parse_class_names(None)
    (('cat', 'dog'), (0, 1), None)
    """
    from metacal.rows.labels import as_class_names

    if text is None:
        return None
    if text.startswith("@"):
        file_lines = read_lines(text[1:], "save the class names as UTF-8")
        class_names = [line.strip() for line in file_lines if line.strip()]
    else:
        class_names = split_names(text)
    if len(class_names) < 2 or "" in class_names:
        raise bad_option(
            "--classes",
            f"Expected at least two class names, separated by commas, but got {text!r}.",
        )
    return as_class_names(class_names)


def read_lines(path: str, advice: str) -> list[str]:
    """Read lines of UTF-8 text. Raise InputError with `advice` if it is not."""
    from metacal.io.opening import input_error_if_read_fails

    try:
        with input_error_if_read_fails(path):
            return Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise FileContentError(f"{path}: the file is not UTF-8 text; {advice}.") from None


def raise_if_score_options_given(
    reading: ReadOptions, reason: str = "this command needs logits"
) -> None:
    """Raise a usage error if an option for scores was given."""
    for name in _READ_OPTIONS_FOR_SCORES:
        if getattr(reading, name) is not None:
            flag = option_flag(name)
            raise click.UsageError(
                f"{flag} requires scores instead of logits, but {reason}. Leave out {flag}."
            )


def load_gate(artifact: str, file: str | None = None) -> Gate:
    """Load a saved gate without importing scikit-learn.

    Parameters
    ----------
    artifact : str
        File of the gate. With --key, it must be signed with that key.
    file : str or None, default=None
        Other file of the command line, to detect that the two are swapped.

    Returns
    -------
    Gate
    """
    import metacal

    if file is not None and _begins_like_saved_gate(file) and not _begins_like_saved_gate(artifact):
        raise click.UsageError(
            f"The gate must come before the file of rows, but {file} is a saved gate and"
            f" {artifact} is not. Swap the two files."
        )
    return metacal.load_gate(artifact, key=click.get_current_context().meta.get("metacal.key"))


def check_read_options_fit_gate(
    gate: Gate, artifact: str, reading: ReadOptions, *, allows_group_key: bool = False
) -> None:
    """Raise a usage error if reading options do not fit the input of a gate.

    Parameters
    ----------
    gate : Gate
        The gate.
    artifact : str
        Name of its file in messages.
    reading : ReadOptions
        Options to check.
    allows_group_key : bool, default=False
        Whether --group-key is allowed for a gate that has no threshold by group.
    """
    # A gate on logits or probabilities has classes. A gate on scores has none.
    if gate.has_classes:
        _check_logit_options(artifact, reading, fitted_input=gate.logits_source.input)
    else:
        _check_score_options(artifact, reading, fitted_higher_is=gate.score_source.higher_is)
    stored_group_column = gate.file_layout.group_key
    names_group_column = reading.group_key is not None or stored_group_column is not None
    if gate.has_group_thresholds and not names_group_column:
        raise click.UsageError(
            f"{artifact} has one threshold for each group. Name the column of groups in FILE"
            " with --group-key NAME."
        )
    if reading.group_key is not None and not gate.has_group_thresholds and not allows_group_key:
        raise click.UsageError(
            f"{artifact} has the same threshold for all rows, so --group-key has no effect. Leave"
            " out --group-key."
        )


def _check_logit_options(artifact: str, reading: ReadOptions, *, fitted_input: str) -> None:
    """Raise a usage error if options do not fit a gate on logits or probabilities."""
    raise_if_score_options_given(reading, f"{artifact} was fitted on {fitted_input}")
    if reading.input not in (None, fitted_input):
        raise bad_option(
            "--input",
            f"FILE must hold {fitted_input}, because {artifact} was fitted on {fitted_input}."
            " Leave out --input.",
        )


def _check_score_options(artifact: str, reading: ReadOptions, *, fitted_higher_is: str) -> None:
    """Raise a usage error if options do not fit a gate on scores."""
    _raise_if_logit_options_given(reading)
    if reading.higher_is not in (None, fitted_higher_is):
        raise click.UsageError(
            f"{artifact} stores that a higher score is {fitted_higher_is}. Leave out --higher-is."
        )


def raise_if_saved_gate(path: str) -> None:
    """Raise a usage error if a file of rows is a saved gate."""
    if _begins_like_saved_gate(path):
        raise click.UsageError(
            f"{path} is a saved gate, but a file of predictions is required. Pass a file with rows."
        )


def _begins_like_saved_gate(path: str) -> bool:
    """Check whether a file begins like a saved gate."""
    with suppress(OSError, ValueError):
        # A pipe is not a file. It can be read only once, so its beginning must not be consumed.
        if Path(path).is_file():
            with open(path, "rb") as file:
                first_bytes = file.read(_N_BYTES_TO_INSPECT)
            return b"".join(first_bytes.split()).startswith(_GATE_MAGIC)
    return False


def read_score_table(
    path: str,
    reading: ReadOptions,
    gate: Gate | None = None,
    artifact: str | None = None,
    *,
    flags_mean_agreement: bool = False,
) -> Scores:
    """Read a file with one score per row.

    Parameters
    ----------
    path : str
        File to read.
    reading : ReadOptions
        Options for reading it.
    gate : Gate or None, default=None
        Gate that names the score column, if --score-key does not.
    artifact : str or None, default=None
        Name of the gate's file in messages.
    flags_mean_agreement : bool, default=False
        Whether flags mean agreement with the last model of a cascade.

    Returns
    -------
    Scores
    """
    from metacal.io.gate_predictions import add_column_names_of_gate
    from metacal.io.opening import MissingScoreColumnError
    from metacal.io.scores import build_score_request, read_requested_scores

    _raise_if_logit_options_given(reading)
    if reading.agree_key is not None:
        raise click.UsageError(
            "--agree-key requires a cascade over scores with --max-loss. To name a column of"
            " correctness, pass --correct-key instead."
        )
    score_name = reading.score_key or "score"
    prediction_name = reading.prediction_key
    if gate is not None:
        stored_name = gate.file_layout.score_key or gate.score_source.score
        score_name = reading.score_key or stored_name
        if reading.label_key is not None:
            prediction_name = prediction_name or gate.file_layout.prediction_key
    column_request = build_score_request(
        score_key=score_name,
        losses=gate is not None and gate.reads_losses,
        agreement=flags_mean_agreement,
        correct_key=reading.correct_key,
        label_key=reading.label_key,
        prediction_key=prediction_name,
        loss_key=reading.loss_key,
        id_key=reading.id_key,
        group_key=reading.group_key,
        unit_key=reading.unit_key,
        case_key=reading.case_key,
        keep=reading.keep,
        format=reading.format,
    )
    if gate is not None:
        column_request = add_column_names_of_gate(column_request, gate, artifact or "the gate")
        if reading.score_key is None:
            fields_set_by_gate = column_request.fields_set_by_gate | {"logits_key"}
            column_request = replace(column_request, fields_set_by_gate=fields_set_by_gate)
    try:
        return select_row_range(read_requested_scores(path, column_request), reading)
    except MissingScoreColumnError as error:
        if gate is None or reading.score_key is not None:
            raise
        raise ColumnError(
            f"{error} ({artifact} is a gate on the score {score_name!r}, not on logits.)"
        ) from error


@dataclass(frozen=True)
class CascadeScores:
    """Scores of the models of a cascade, read from one file.

    Attributes
    ----------
    scores : list of arrays
        Score of each model.
    model_flags : list of arrays or None
        Flag of each model (agreement or correctness), or None if no column was named.
    columns_of_first_model : Scores
        Columns of the first model, with ids and a flag for the answer that was given.
    """

    scores: list[Any]
    model_flags: list[Any] | None
    columns_of_first_model: Scores


def read_cascade_scores(
    path: str,
    reading: ReadOptions,
    score_names: list[str],
    flag_names: list[str],
    *,
    flags_mean_agreement: bool,
) -> CascadeScores:
    """Read the scores and flags of the models of a cascade from one file.

    Parameters
    ----------
    path : str
        File to read.
    reading : ReadOptions
        Options for reading it.
    score_names : list of str
        Column with the score of each model.
    flag_names : list of str
        Column with the flag of each model. May be empty.
    flags_mean_agreement : bool
        Whether a flag means agreement with the last model. Otherwise it means that the answer is
        correct.

    Returns
    -------
    CascadeScores
    """
    reading_without_flags = replace(reading, correct_key=None, agree_key=None)

    def read_number_column(column_name: str) -> Scores:
        column_reading = replace(reading_without_flags, score_key=column_name)
        return read_score_table(path, column_reading, flags_mean_agreement=flags_mean_agreement)

    score_columns = [read_number_column(name) for name in score_names]
    # A flag is a number, too: 0, 1, or missing.
    flag_columns = [read_number_column(name) for name in flag_names]
    return CascadeScores(
        scores=[score_column.score for score_column in score_columns],
        model_flags=[flag_column.score for flag_column in flag_columns] or None,
        columns_of_first_model=score_columns[0],
    )


def split_names(text: str | None) -> list[str]:
    """Split names separated by commas.

    >>> split_names("small.p, middle.p"), split_names(None)
    (['small.p', 'middle.p'], [])
    """
    if text is None:
        return []
    return [name.strip() for name in text.split(",")]


class CascadeColumnNames(NamedTuple):
    """Names of the columns that a cascade reads, with one entry for each model.

    Attributes
    ----------
    score_names : list of str
        Columns of the scores: those of --score-key, or those that the cascade was fitted on.
    flag_names : list of str
        Columns of the flags. Empty if the options name none.
    """

    score_names: list[str]
    flag_names: list[str]


def choose_cascade_columns(gate: Gate, reading: ReadOptions) -> CascadeColumnNames:
    """Return the names of the score columns and flag columns that a cascade reads.

    Raises
    ------
    click.UsageError
        If the flags are not those that the cascade was fitted on, or their number is wrong.
    """
    flag_option = "agree_key" if gate.needs_agreement_flags else "correct_key"
    _check_flag_option(reading, flag_option)
    n_models = gate.n_stages
    # Without human review, the last model answers every remaining row, whatever its score.
    n_required_scores = n_models if gate.has_human_review else n_models - 1
    # The last model always agrees with itself, so it has no flag of agreement.
    n_required_flags = n_models - 1 if gate.needs_agreement_flags else n_models
    score_names_in_fit = [str(stage.source.score) for stage in gate.stages[:n_required_scores]]
    stored_names = gate.file_layout
    score_names = (
        split_names(reading.score_key) or split_names(stored_names.score_key) or score_names_in_fit
    )
    flag_names = split_names(getattr(reading, flag_option) or getattr(stored_names, flag_option))
    # A score of the last model may be named although it is not needed.
    has_all_scores = len(score_names) in (n_required_scores, n_models)
    has_all_or_no_flags = len(flag_names) in (0, n_required_flags)
    if not has_all_scores or not has_all_or_no_flags:
        raise click.UsageError(
            f"This cascade requires {n_required_scores} names in --score-key and {n_required_flags} names in"
            f" {option_flag(flag_option)}, one for each model."
        )
    return CascadeColumnNames(score_names[:n_required_scores], flag_names)


def _check_flag_option(reading: ReadOptions, flag_option: str) -> None:
    """Raise a usage error if the flags of a cascade are named by an unsuitable option."""
    if reading.loss_key is not None:
        raise click.UsageError(
            "A cascade does not support --loss-key. Name the columns with"
            f" {option_flag(flag_option)} instead."
        )
    if flag_option == "agree_key" and reading.correct_key is not None:
        raise click.UsageError(
            "This cascade limits the disagreement with the large model, so it requires agreement"
            " instead of correctness. Replace --correct-key with --agree-key."
        )
    if flag_option == "correct_key" and reading.agree_key is not None:
        raise click.UsageError(
            "This cascade promises an accuracy, so it requires correctness instead of agreement."
            " Replace --agree-key with --correct-key."
        )


def _raise_if_logit_options_given(reading: ReadOptions) -> None:
    """Raise a usage error if the user passed an option that requires logits."""
    click_context = click.get_current_context()
    given_options = [
        name for name in _READ_OPTIONS_FOR_LOGITS if getattr(reading, name) not in (None, ())
    ]
    for parameter in click_context.command.params:
        value_source = click_context.get_parameter_source(parameter.name or "")
        is_given = value_source is click.core.ParameterSource.COMMANDLINE
        if parameter.name in _COMMAND_OPTIONS_FOR_LOGITS and is_given:
            given_options.append(parameter.opts[0].lstrip("-"))
    if given_options:
        raise click.UsageError(
            f"{option_flag(given_options[0])} requires logits, but this gate reads scores. Leave"
            f" out {option_flag(given_options[0])}."
        )
