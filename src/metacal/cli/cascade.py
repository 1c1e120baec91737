"""`metacal cascade`: several models under one promise, saved as a cascade.

In a cascade, the first model answers the rows that it is sure of, and the next model answers the
rest. The rows that no model is sure of may go to people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.fitters import choose_map_fitter, parse_reject_label
from metacal.cli.options import (
    as_command,
    file_option,
    fraction_option,
    jobs_option,
    option,
    option_group,
    resolve_n_jobs,
    switch_option,
)
from metacal.cli.outputs import (
    check_can_sign,
    check_output_is_not_input,
    output_option,
    print_saved_note,
    save_gate,
    sign_option,
    store_column_names_in_gate,
)
from metacal.cli.printing import print_result, progress_bar, wrap_lines
from metacal.cli.promise_options import min_accuracy_option
from metacal.cli.read_options import ReadOptions
from metacal.cli.values import (
    SEED_RANGE,
    RegistryChoice,
    convert_confidence_to_delta,
    parse_numbers,
)
from metacal.errors import CascadeError, NumberError
from metacal.maps.methods import get_all_methods
from metacal.scores.registry import NAMED

if TYPE_CHECKING:
    from metacal.gate import Gate
    from metacal.io.predictions import Predictions
    from metacal.promises.promise import Promise


@dataclass(frozen=True)
class Options:
    """Options of `metacal cascade`."""

    max_loss: float | None = fraction_option(
        "At most E more predictions are incorrect than with the large model alone.",
        "E",
    )
    min_accuracy: float | None = min_accuracy_option("predictions of the cascade")
    confidence: float = fraction_option("Confidence level of the promise.", "C", default=0.9)
    no_people: bool = switch_option(
        "the large model predicts all remaining rows, and no row goes to review.",
        needs=("min_accuracy",),
    )
    review_cost: float = option(
        "Cost of reviewing one row, in calls of the large model.",
        "R",
        type=click.FloatRange(min=0.0, min_open=True),
        default=10.0,
    )
    costs: list[float] | None = option(
        "cost of calling each model.  [default: 1,10,...]",
        "A,B,C",
        type=parse_numbers,
        needs=("score_key",),
    )
    pool: bool = switch_option(
        "the promise covers the rows of SMALL, and the labelled ones were drawn at random from them.",
        needs=("score_key",),
    )
    thresholds_from: str | None = file_option(
        "Further rows of the small model, which choose the thresholds and need no labels."
        "  [default: a part of SMALL]"
    )
    score: str = option(
        "Score that ranks the rows.", type=RegistryChoice(NAMED.keys), default="entropy"
    )
    calibrator: str = option(
        "Calibrator of each model. 'metacal compare --help' lists them.",
        "NAME",
        type=RegistryChoice(get_all_methods),
        default="composed",
    )
    seed: int | None = option(
        "Seed of the draw of pilot rows, stored in the certificate.  [default: derived from the"
        " scores]",
        type=SEED_RANGE,
    )
    reject_label: str | None = option(
        "Predicted label of rows that go to review.  [default: -1, or 'rejected']", "LABEL"
    )
    reading: ReadOptions = option_group(ReadOptions, excluded_fields=("large", "rows"))
    n_jobs: int | None = jobs_option()
    output: str | None = output_option("Save the cascade to this file.", "JSON")
    key: str | None = sign_option()

    @property
    def uses_people(self) -> bool:
        """Whether people answer the rows that no model is sure of."""
        return self.max_loss is None and not self.no_people


@as_command(Options, "SMALL", "[LARGE]", has_help_sections=True)
def command(small: str, large: str | None, options: Options) -> None:
    """Certify a cascade: a small model predicts easy rows, a large model the others.

    SMALL and LARGE hold the logits of the two models for the same rows in the same order, with the
    same classes. Neither model was trained on these rows. The labels may be in either file or in
    --labels.

    --max-loss compares the cascade with the large model. It needs labels only for rows on which the
    two models disagree: write -1 for an unknown label. --min-accuracy needs all labels, and sends
    rows to review that neither model predicts with confidence.

    With --score-key a,b, SMALL alone holds one score of each model. --max-loss then needs
    --agree-key, and --min-accuracy needs --correct-key.

    \b
    Examples:
      metacal cascade small.parquet large.parquet --max-loss 0.01 -o cascade.json
      metacal cascade small.npz large.npz --min-accuracy 0.95 --review-cost 20 -o cascade.json
      metacal cascade rows.jsonl --score-key a.p,b.p --agree-key a.same --max-loss 0.01
      metacal apply cascade.json new-small.npz --large new-large.npz -o out.csv
    """  # noqa: D301
    check_output_is_not_input(
        options.output,
        small,
        large,
        options.key,
        options.thresholds_from,
        reading=options.reading,
    )
    promise = _build_promise(options)
    check_can_sign(options.key, options.output)

    from metacal.rows import report_progress_to

    with (
        progress_bar(None, "row", "rows, gone through again and again") as bar,
        report_progress_to(bar.update),
    ):
        if options.reading.score_key is not None:
            gate = _fit_score_cascade(small, large, promise, options)
        elif large is None:
            raise click.UsageError(
                "The predictions of the large model are missing. Pass them as the second file."
                " For a cascade of scores, pass --score-key."
            )
        else:
            gate = _fit_logits_cascade(small, large, promise, options)
    gate = store_column_names_in_gate(gate, options.reading)
    save_gate(gate, options.output, options.key, options.n_jobs)
    assert gate.certificate is not None
    json_content = {
        "small": small,
        "large": large,
        "artifact": options.output,
        "signed": options.key is not None,
        "certificate": gate.certificate.to_dict(words=True),
    }
    print_result(json_content, wrap_lines(str(gate.certificate)))
    large_option = "" if large is None else " --large NEW-LARGE"
    print_saved_note(
        options.output,
        options.key,
        next_command=f"metacal apply {options.output} NEW-SMALL{large_option}",
        note_if_not_saved="-o cascade.json saves the cascade for metacal apply.",
    )


def _build_promise(options: Options) -> Promise:
    """Build the promise about accuracy, or about errors beyond those of the large model."""
    from metacal.promises.accuracy import MinAccuracy
    from metacal.promises.cascade import MaxLoss

    delta = convert_confidence_to_delta(options.confidence)
    if options.max_loss is None and options.min_accuracy is not None:
        return MinAccuracy(options.min_accuracy, delta)
    if options.max_loss is None or options.min_accuracy is not None:
        raise click.UsageError(
            "A cascade requires exactly one promise. Pass --max-loss 0.01 (at most 1% more"
            " errors than the large model alone) or --min-accuracy 0.95 (at least 95% of the"
            " predictions are correct)."
        )
    return MaxLoss(options.max_loss, delta)


def _fit_logits_cascade(small: str, large: str, promise: Promise, options: Options) -> Gate:
    """Fit a cascade of two models on their logits.

    Parameters
    ----------
    small : str
        File of the small model.
    large : str
        File of the large model.
    promise : Promise
        Promise to certify.
    options : Options
        Options of the command.

    Returns
    -------
    Gate
    """
    from metacal.cli.gate_rows import check_and_merge_labels
    from metacal.cli.reading import read_table
    from metacal.gate import LogitsCascadeData
    from metacal.gate.calibrate import calibrate
    from metacal.gate.ranking_score import check_score
    from metacal.promises.cascade_candidates import CascadePlan
    from metacal.rows import Rows, open_executor, validate

    small_predictions = read_table(small, options.reading)
    large_predictions = read_table(large, options.reading)
    _raise_unless_tables_match(small_predictions, large_predictions, small, large)
    check_score(options.score, small_predictions.input)
    small_logits = validate.read_logits(small_predictions.table, small_predictions.input)
    large_logits = validate.read_logits(large_predictions.table, large_predictions.input)
    labels = check_and_merge_labels(small_predictions, large_predictions, small, large)
    pilot_scores = _read_pilot_scores(options)
    if labels is None:
        labels = small_predictions.require_truth()
    map_fitter = choose_map_fitter(options.calibrator, options.seed, small_logits.shape[1])
    with open_executor(resolve_n_jobs(options.n_jobs)) as executor:
        cascade_data = LogitsCascadeData(
            small_rows=Rows(small_logits, executor=executor),
            large_rows=Rows(large_logits, executor=executor),
            labels=labels,
            score=options.score,
            fit_map=map_fitter.fit_map,
            plan=CascadePlan(options.uses_people, options.review_cost, options.seed, pilot_scores),
            class_names=small_predictions.class_names,
            has_class_names=small_predictions.class_names is not None,
            input=small_predictions.input,
            reject_label=parse_reject_label(options.reject_label, small_predictions),
        )
        return calibrate(cascade_data, promise)


def _read_pilot_scores(options: Options) -> Any:
    """Return the scores of the rows in --thresholds-from, or None without that option."""
    if options.thresholds_from is None:
        return None
    from metacal.cli.reading import read_table
    from metacal.rows import Rows, validate
    from metacal.scores import score_rows

    predictions = read_table(options.thresholds_from, options.reading)
    logits = validate.read_logits(predictions.table, predictions.input)
    return score_rows(Rows(logits), options.score)


def _fit_score_cascade(file: str, large: str | None, promise: Promise, options: Options) -> Gate:
    """Fit a cascade of any number of models on their scores, all in one file.

    Parameters
    ----------
    file : str
        File with the scores of all models.
    large : str or None
        Second file, which must not be given.
    promise : Promise
        Promise to certify.
    options : Options
        Options of the command.

    Returns
    -------
    Gate
    """
    from metacal.cli.reading import read_cascade_scores, split_names
    from metacal.gate import ScoreCascadeData
    from metacal.gate.calibrate import calibrate

    if large is not None:
        raise click.UsageError(
            "With --score-key, a single file holds the scores of all models, but two files were"
            " passed. Leave out the second file."
        )
    uses_agreement = options.max_loss is not None
    score_names = split_names(options.reading.score_key)
    flag_names = _choose_flag_columns(options.reading, uses_agreement=uses_agreement)
    cascade_scores = read_cascade_scores(
        file, options.reading, score_names, flag_names, flags_mean_agreement=uses_agreement
    )
    _raise_if_score_missing(file, score_names, cascade_scores.scores)
    agreement_flags = cascade_scores.model_flags if uses_agreement else None
    correctness_flags = None if uses_agreement else cascade_scores.model_flags
    cascade_data = ScoreCascadeData(
        scores=cascade_scores.scores,
        agrees=agreement_flags,
        correct=correctness_flags,
        costs=options.costs,
        score_names=score_names,
        higher_is=options.reading.score_direction,
        people=options.uses_people,
        pool=options.pool,
        random_state=options.seed,
    )
    return calibrate(cascade_data, promise)


def _raise_if_score_missing(file: str, score_names: list[str], scores: list[Any]) -> None:
    """Raise InputError if a score of any model is missing."""
    import numpy as np

    for name, score in zip(score_names, scores):
        missing_rows = np.flatnonzero(np.isnan(np.asarray(score, dtype=np.float64)))
        if len(missing_rows):
            raise NumberError(
                f"{file}: row {missing_rows[0] + 1} has no {name!r}, but every row requires one"
                " for each model. Leave out the rows without it."
            )


def _choose_flag_columns(reading: ReadOptions, *, uses_agreement: bool) -> list[str]:
    """Return the names of the columns that hold a flag for each model.

    Parameters
    ----------
    reading : ReadOptions
        Options for reading the file.
    uses_agreement : bool
        Whether the promise needs flags of agreement with the last model. Otherwise it needs flags
        of correctness.

    Returns
    -------
    list of str

    Raises
    ------
    click.UsageError
        If no flags were named, or those of the other promise.
    """
    from metacal.cli.reading import split_names

    if uses_agreement:
        _raise_unless_only_agreement(reading)
        return split_names(reading.agree_key)
    if reading.correct_key is None or reading.agree_key is not None:
        raise click.UsageError(
            "For scores, --min-accuracy requires the correctness of each model, but --agree-key"
            " names their agreement. Pass --correct-key instead, or promise --max-loss."
        )
    return split_names(reading.correct_key)


def _raise_unless_only_agreement(reading: ReadOptions) -> None:
    """Raise a usage error unless --agree-key was given, and --correct-key was not."""
    if reading.agree_key is None:
        error_message = (
            "For scores, --max-loss requires --agree-key, with the columns that mark whether"
            " each model except the last agrees with the last one."
        )
        if reading.correct_key is not None:
            error_message += (
                " --correct-key does not replace --agree-key, because two incorrect predictions"
                " may differ. If you know only which predictions are correct, pass"
                " --min-accuracy."
            )
        raise click.UsageError(error_message)
    if reading.correct_key is not None:
        raise click.UsageError(
            "For scores, --max-loss requires the agreement of the models instead of their"
            " correctness. Leave out --correct-key."
        )


def _raise_unless_tables_match(
    small_predictions: Predictions, large_predictions: Predictions, small: str, large: str
) -> None:
    """Raise InputError if two files differ in the number of rows, or in the classes.

    Parameters
    ----------
    small_predictions, large_predictions : Predictions
        Predictions of the two models.
    small, large : str
        Names of their files in messages.
    """
    small_shape = small_predictions.table.shape
    large_shape = large_predictions.table.shape
    if small_shape != large_shape:
        raise CascadeError(
            f"{small} has {small_shape[0]:,} rows and {small_shape[1]} columns, but {large} has"
            f" {large_shape[0]:,} rows and {large_shape[1]} columns. Pass the predictions of both"
            " models for the same rows, in the same order."
        )
    small_names = small_predictions.class_names
    large_names = large_predictions.class_names
    if small_names is None or large_names is None:
        return
    if small_names != large_names:
        raise CascadeError(
            f"{small} and {large} have different classes, or the same classes in a different"
            " order. Write both files with the same classes in the same order."
        )
