"""`metacal label`: certify a gate from a pool with as few labels as possible.

Terms used in this module:

- *pool*: the file of rows without labels, from which rows are drawn.
- *answer sheet*: csv file with the rows to label now, which a person fills in.
- *journal*: file beside the answer sheet that stores every question and every answer.
- *round*: one call of the command. It reads the filled-in sheet and writes the next one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.answer_sheet import SheetSettings
from metacal.cli.options import (
    as_command,
    column_option,
    file_option,
    fraction_option,
    option,
    option_group,
    switch_option,
)
from metacal.cli.outputs import (
    OutputPath,
    check_output_is_not_input,
    check_saves_to_file,
    output_option,
    print_saved_note,
    save_gate,
)
from metacal.cli.printing import echo, flag_is_set, print_json, print_note, wrap_lines
from metacal.cli.promise_options import PromiseOptions, max_miscoverage_option, min_accuracy_option
from metacal.cli.read_options import ReadOptions
from metacal.cli.values import SEED_RANGE, RegistryChoice, bad_option
from metacal.scores.registry import NAMED

if TYPE_CHECKING:
    from metacal.cli.labelling import LabellingCall, LabellingOutcome
    from metacal.io.predictions import Predictions
    from metacal.io.scores import Scores


@dataclass(frozen=True)
class Options:
    """Options of `metacal label`."""

    min_accuracy: float | None = min_accuracy_option()
    max_miscoverage: float | None = max_miscoverage_option()
    confidence: float | None = fraction_option(
        "Confidence level of the promise, whenever you stop.  [default: 0.9]", "C"
    )
    n_labels: int | None = option(
        "Number of rows drawn from POOL, the largest number of labels.  [default: 40 / (1 - B), or"
        " 40 / A]",
        "--labels N",
        type=click.IntRange(1),
    )
    may_extend: bool = switch_option(
        "First call: allow --extend to draw up to 4 N rows later. This uses a fifth of 1 - C."
    )
    extend: bool = switch_option("Draw more rows, as --may-extend declared.")
    output: str = output_option(
        "Sheet of rows to label, with an empty column.",
        "CSV",
        required=True,
    )
    gate_file: str | None = option(
        "Save the gate that is certified so far.", "--gate JSON", type=OutputPath()
    )
    coverage: float | None = fraction_option(
        "Stop as soon as a gate with this coverage is certified.", "C"
    )
    show: str | None = column_option(
        "First call: column of POOL to show in the sheet, such as a text or a link."
    )
    show_prediction: bool = switch_option(
        "First call: show the prediction, so that right and wrong are valid answers. This may bias"
        " the answers."
    )
    batch: int | None = option(
        "Number of rows in the sheet.  [default: as in the first call, or N / 40, at least 5]",
        "ROWS",
        type=click.IntRange(1),
    )
    score: str | None = option(
        "Score that ranks the rows.  [default: entropy]", type=RegistryChoice(NAMED.keys)
    )
    seed: int | None = option(
        "Seed of the draw, stored in the certificate.  [default: derived from the pool]",
        type=SEED_RANGE,
    )
    replay: bool = switch_option(
        "Answer from the labels in POOL, to see how many labels would have been needed."
    )
    reading: ReadOptions = option_group(
        ReadOptions, excluded_fields=("large", "labels", "agree_key", "rows")
    )
    key: str | None = file_option(
        "Sign the answers and the gate with this key, a secret or an Ed25519 private key in PEM. Pass"
        " it in every call.",
        "KEYFILE",
    )


@as_command(Options, "POOL", has_help_sections=True)
def command(pool: str, options: Options) -> None:
    """Certify a promise with few labels, from a pool of unlabelled rows.

    POOL holds logits or scores of a random sample of new rows. The first call draws N rows and
    writes a sheet (CSV) with some of them and an empty column 'label' ('right' for scores). Write
    the true class of each row, or the word none, into that column, and call again. Each call reads the
    answers and writes the next rows, until more labels would change nothing.

    You may stop at any time, and --gate saves the gate that is certified so far. A journal next to
    the sheet stores all answers, so an interrupted call loses none. Later calls repeat only the
    options that name columns of POOL.

    \b
    Examples:
      metacal label pool.parquet --min-accuracy 0.97 -o labels.csv
      metacal label pool.parquet -o labels.csv --gate cal.json
      metacal label pool.csv --show text --min-accuracy 0.95 -o labels.csv
      metacal label judge.jsonl --score-key mark --min-accuracy 0.9 -o labels.csv
    """  # noqa: D301
    from metacal.cli.labelling import LabellingCall, run_labelling_call

    journal_path = _check_outputs_and_name_journal(
        options.output, options.gate_file, pool, options.reading
    )
    call = LabellingCall(
        sheet_path=options.output,
        journal_path=journal_path,
        draws_more_rows=options.extend,
        answers_from_pool=options.replay,
        target_coverage=options.coverage,
        batch_size=options.batch,
    )
    is_first_round = not os.path.exists(journal_path)
    promise_options = _choose_promise_options(options, journal_path, is_first_round=is_first_round)
    if options.reading.group_key is not None:
        raise click.UsageError(
            "label certifies a single promise for all rows, so it does not support"
            " --group-key. Leave out --group-key."
        )
    pool_options = _choose_pool_options(options, journal_path, is_first_round=is_first_round)
    pool_rows = _read_pool(pool, pool_options, options)
    outcome = run_labelling_call(
        call,
        pool_rows,
        None if promise_options is None else promise_options.build_promise(),
        certifier_options={
            "labels": options.n_labels,
            "random_state": options.seed,
            "score": options.score,
            "may_extend": options.may_extend or None,
            "higher_is": pool_options.reading.higher_is,
        },
        sheet_settings=pool_options.sheet_settings,
        key=options.key,
    )
    if options.gate_file is not None and outcome.is_gate_certified:
        save_gate(outcome.certifier.gate(), options.gate_file, options.key)
    _print_outcome(outcome, call, pool, options)


def _choose_promise_options(
    options: Options, journal_path: str, *, is_first_round: bool
) -> PromiseOptions | None:
    """Return the options of the promise, or None to use the promise in the journal."""
    if options.min_accuracy is not None or options.max_miscoverage is not None:
        return PromiseOptions(
            options.min_accuracy, options.max_miscoverage, confidence=options.confidence
        )
    if is_first_round and not os.path.exists(options.output):
        raise click.UsageError(
            f"No promise given, and {journal_path} does not exist yet. Pass --min-accuracy 0.97"
            " (accepted predictions are correct at least 97% of the time) or"
            " --max-miscoverage 0.05 (at most 5% of correct predictions are rejected)."
        )
    if options.confidence is not None:
        raise click.UsageError(
            "--confidence requires a promise. Pass both options as in the first call, or neither."
        )
    return None


def _check_outputs_and_name_journal(
    output: str, gate: str | None, pool: str, reading: ReadOptions
) -> str:
    """Check that no output overwrites a file, and return the journal's path.

    Parameters
    ----------
    output : str
        Path of the answer sheet.
    gate : str or None
        Path of the gate to save.
    pool : str
        File of the pool.
    reading : ReadOptions
        Options for reading the pool.

    Returns
    -------
    str
    """
    from metacal.io.input_paths import is_same_file

    path_without_extension, extension = os.path.splitext(output)
    if extension.lower() not in (".csv", ".tsv"):
        raise bad_option("-o", f"The name of the sheet must end in .csv or .tsv, but got {output}.")
    journal_path = path_without_extension + ".journal"
    for path in (output, journal_path, gate):
        check_saves_to_file(path)
        check_output_is_not_input(path, pool, reading=reading)
    lock_path = f"{os.path.realpath(journal_path)}.lock"
    paths_in_use = (output, journal_path, lock_path)
    if gate is not None and any(is_same_file(gate, path) for path in paths_in_use):
        raise click.UsageError(
            f"The sheet (-o), its journal {journal_path} and the gate (--gate) must be different files."
        )
    return journal_path


def _choose_pool_options(
    options: Options, journal_path: str, *, is_first_round: bool
) -> _PoolOptions:
    """Return the options that the first round fixes: given now, or read from the journal."""
    if is_first_round:
        sheet_settings = SheetSettings(
            shown_column=options.show,
            shows_prediction=options.show_prediction,
            batch_size=options.batch,
        )
        pool_options = _PoolOptions(sheet_settings=sheet_settings, reading=options.reading)
    else:
        pool_options = _read_pool_options_from_journal(journal_path, options.key, options.reading)
        sheet_settings = pool_options.sheet_settings
        shows_other_column = options.show not in (None, sheet_settings.shown_column)
        adds_prediction = options.show_prediction and not sheet_settings.shows_prediction
        if shows_other_column or adds_prediction:
            raise click.UsageError(
                "--show and --show-prediction have an effect only in the first call. Leave them"
                " out, or start again with another sheet."
            )
    shown_column = sheet_settings.shown_column
    if shown_column is not None and shown_column.lower() in _COLUMNS_OF_EVERY_SHEET:
        raise bad_option(
            "--show",
            f"The sheet already has a column {shown_column}. Rename the column of the pool.",
        )
    return pool_options


def _read_pool_options_from_journal(
    journal_path: str, key: str | None, reading: ReadOptions
) -> _PoolOptions:
    """Read the options of the first round from the journal."""
    from metacal.io.artifact.certifier import open_journal

    with open_journal(journal_path, key=key) as journal:
        if not journal.records:
            return _PoolOptions(sheet_settings=SheetSettings(), reading=reading)
        settings_record = journal.records[0]
    is_pool_of_scores = settings_record["classes"] is None
    if is_pool_of_scores:
        reading = replace(reading, score_key=reading.score_key or settings_record["score_name"])
    else:
        reading = replace(reading, input=reading.input or settings_record["input"])
    sheet_settings = SheetSettings.from_dict(settings_record.get("sheet", {}))
    return _PoolOptions(sheet_settings=sheet_settings, reading=reading)


def _read_pool(pool: str, pool_options: _PoolOptions, options: Options) -> Predictions | Scores:
    """Read the pool, with the column to show as the groups of the rows."""
    from metacal.cli.reading import read_score_table, read_table

    # A pool has no groups, so their place is free for the column that the sheet shows.
    reading = replace(pool_options.reading, group_key=pool_options.sheet_settings.shown_column)
    if reading.score_key is None:
        return read_table(pool, reading)
    scores = read_score_table(pool, reading)
    if options.show_prediction:
        raise click.UsageError(
            "A pool of scores has no predictions, so --show-prediction has no effect. To show a"
            " column of the pool, pass --show NAME."
        )
    return scores


def _print_outcome(
    outcome: LabellingOutcome, call: LabellingCall, pool: str, options: Options
) -> None:
    """Print the certificate, the rows that wait for a label, and the next step.

    Parameters
    ----------
    outcome : LabellingOutcome
        Result of the round.
    call : LabellingCall
        Files and options of the round.
    pool : str
        File of the pool.
    options : Options
        Options of the command.

    Raises
    ------
    InfeasibleTargetError
        If labelling is over and nothing is certified.
    """
    if outcome.was_sheet_saved_during_call:
        print_note(
            wrap_lines(
                f"{call.sheet_path} was saved during this call. It was not overwritten: the answers "
                "that were saved were taken too."
            )
        )
    if flag_is_set("json"):
        print_json(_convert_outcome_to_json(outcome, call, pool, options.gate_file))
    is_labelling_over = outcome.n_waiting_rows == 0
    if is_labelling_over:
        # If no gate is certified, `certificate` raises an error with the reason.
        certificate = outcome.certifier.certificate
        if not flag_is_set("json"):
            echo(wrap_lines(str(certificate)))
    _print_progress_note(outcome, call)
    _print_gate_note(outcome, call, options)


def _convert_outcome_to_json(
    outcome: LabellingOutcome, call: LabellingCall, pool: str, gate_file: str | None
) -> dict[str, Any]:
    """Return the outcome of a round as JSON types.

    Parameters
    ----------
    outcome : LabellingOutcome
        Result of the round.
    call : LabellingCall
        Files and options of the round.
    pool : str
        File of the pool.
    gate_file : str or None
        File of the gate, if it was to be saved.

    Returns
    -------
    dict
    """
    certifier = outcome.certifier
    n_waiting_rows = outcome.n_waiting_rows
    certificate_content = None
    if outcome.is_gate_certified:
        certificate_content = certifier.certificate.to_dict(words=True)
    return {
        "pool": pool,
        "journal": call.journal_path,
        "file": call.sheet_path if n_waiting_rows > 0 else None,
        "n_waiting": n_waiting_rows,
        "n_drawn": certifier.n_drawn,
        "n_labels": certifier.n_labels,
        "finished": certifier.finished,
        "coverage": certifier.coverage,
        "within_reach": certifier.within_reach,
        "gate": gate_file if outcome.is_gate_certified else None,
        "saved_meanwhile": outcome.was_sheet_saved_during_call,
        "certificate": certificate_content,
    }


def _print_progress_note(outcome: LabellingOutcome, call: LabellingCall) -> None:
    """Print how many rows wait, or why labelling stops."""
    from metacal.cli.labelling import get_answer_column

    certifier = outcome.certifier
    certified_coverage = certifier.coverage
    target_coverage = call.target_coverage if outcome.is_target_out_of_reach else None
    if outcome.n_waiting_rows > 0:
        print_note(wrap_lines(str(certifier)))
        print_note(
            f"{outcome.n_waiting_rows:,} rows wait in {call.sheet_path}: fill in"
            f" {get_answer_column(certifier)!r} and call again."
        )
    elif target_coverage is not None and certified_coverage is not None:
        if certifier.finished:
            advice = "more labels would change nothing."
        else:
            advice = (
                f"at most {certifier.within_reach:.0%} is within it: leave out --coverage to go on."
            )
        print_note(
            f"A coverage of {target_coverage:.0%} is out of reach. {certified_coverage:.0%} is"
            f" certified; {advice}"
        )
    elif not certifier.finished:
        print_note(wrap_lines(str(certifier)))


def _print_gate_note(outcome: LabellingOutcome, call: LabellingCall, options: Options) -> None:
    """Print whether a gate was saved, or how to save it."""
    gate_file = options.gate_file
    is_labelling_over = outcome.n_waiting_rows == 0
    if gate_file is not None and not outcome.is_gate_certified:
        print_note(f"{gate_file} is not written: no gate is certified yet.")
    elif gate_file is not None:
        print_saved_note(
            gate_file,
            options.key,
            next_command=f"metacal apply {gate_file} NEW -o out.csv",
            note_if_not_saved="",
        )
    elif outcome.is_gate_certified and is_labelling_over and not flag_is_set("json"):
        print_note(
            f"--gate cal.json saves the gate; call again with it, {call.journal_path} has everything."
        )


#: Names that a column to show must not have, because every answer sheet may have such columns.
_COLUMNS_OF_EVERY_SHEET = ("row", "id", "prediction", "label", "right")


@dataclass(frozen=True)
class _PoolOptions:
    """Options of the pool and the sheet that the first round fixes for all rounds.

    Attributes
    ----------
    sheet_settings : SheetSettings
        Settings of the answer sheet.
    reading : ReadOptions
        Options for reading the pool.
    """

    sheet_settings: SheetSettings
    reading: ReadOptions
