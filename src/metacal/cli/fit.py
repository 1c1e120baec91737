"""`metacal fit`: from labelled predictions to a certificate and a saved gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.cluster import executor_option, open_cluster
from metacal.cli.fit_output import print_certificate
from metacal.cli.fitters import choose_map_fitter, parse_reject_label
from metacal.cli.options import (
    as_command,
    column_option,
    jobs_option,
    option,
    option_group,
    resolve_n_jobs,
    switch_option,
)
from metacal.cli.outputs import (
    check_can_sign,
    check_output_is_not_input,
    check_saves_to_file,
    output_option,
    print_saved_note,
    save_gate,
    sign_option,
    store_column_names_in_gate,
)
from metacal.cli.printing import progress_bar
from metacal.cli.promise_options import PromiseOptions
from metacal.cli.read_options import ReadOptions
from metacal.cli.values import SEED_RANGE, RegistryChoice, bad_option, parse_numbers
from metacal.maps.methods import get_all_methods
from metacal.scores.registry import AUTO_SCORE, NAMED

if TYPE_CHECKING:
    from metacal.certification.units import Units
    from metacal.gate import DecisionRule, FitMap, Gate
    from metacal.gate.score_source import HigherIs
    from metacal.io.predictions import Predictions
    from metacal.io.scores import Scores
    from metacal.promises.promise import Promise


@dataclass(frozen=True)
class Options:
    """Options of `metacal fit`."""

    promise_options: PromiseOptions = option_group(PromiseOptions)
    score: str = option(
        "Score that ranks the rows. auto: the best of three scores.",
        type=RegistryChoice(NAMED.keys, AUTO_SCORE),
        default="entropy",
    )
    calibrator: str | None = option(
        "Calibrator. 'metacal compare --help' lists them.",
        "NAME",
        type=RegistryChoice(get_all_methods),
        show_default="composed; monotone for two classes; temperature with --rule paper",
    )
    seed: int | None = option(
        "Seed of all random draws, stored in the certificate.  [default: derived from the rows]",
        type=SEED_RANGE,
    )
    unit_key: str | None = column_option(
        "Column of clusters of dependent rows. One row of each cluster is counted.",
        excludes=("id_key",),
    )
    every_row: bool = switch_option("count every row of a cluster.", needs=("unit_key",))
    largest_unit: int | None = option(
        "largest number of rows of a cluster. Without it the promise is approximate.",
        "N",
        type=click.IntRange(min=1),
        needs=("every_row",),
    )
    marks: list[float] | None = option(
        "possible values of the score. The certificate shows the counts of each.",
        "1,2,3",
        type=parse_numbers,
        needs=("score_key",),
    )
    positive: str | None = option(
        "Positive class: the class that a higher score favours.  [default: the second class]",
        "LABEL",
    )
    decision: DecisionRule = option(
        "Two classes: the prediction that the promise covers, the larger score's or the one with the"
        " higher calibrated probability.",
        type=click.Choice(("largest", "calibrated")),
        default="largest",
    )
    reject_label: str | None = option(
        "Predicted label of rejected rows.  [default: -1, or 'rejected' for named classes]", "LABEL"
    )
    reading: ReadOptions = option_group(ReadOptions, excluded_fields=("large", "agree_key"))
    n_jobs: int | None = jobs_option()
    executor: str | None = executor_option()
    output: str | None = output_option("Save the gate to this file.", "JSON")
    key: str | None = sign_option()

    def extract_clusters(self, columns: Predictions | Scores) -> Units | None:
        """Return the clusters of dependent rows, or None if every row is its own cluster."""
        if columns.units is None:
            return None
        from metacal.certification.units import Units

        return Units(columns.units, "row" if self.every_row else "unit", self.largest_unit)


@as_command(Options, "FILE", has_help_sections=True)
def command(file: str, options: Options) -> None:
    """Fit a calibrator and a gate that keeps a promise about new rows.

    FILE holds logits and true labels of rows that the classifier was not trained on, in a NumPy,
    Parquet, Arrow, CSV, JSON lines, safetensors or torch file. '-' reads CSV from standard input.
    With --score-key, FILE holds one score per row and whether each row is correct.

    Pass one promise. --min-accuracy and --max-miscoverage may be combined. The command prints the
    certificate, and -o saves the gate.

    \b
    Examples:
      metacal fit val.npz --min-accuracy 0.97 -o cal.json
      metacal fit val.parquet --max-miscoverage 0.05 --confidence 0.95 -o cal.json
      metacal fit val.csv --label-key truth --classes cat,dog,bird --min-accuracy 0.9 -o cal.json
      metacal fit judge.jsonl --score-key confidence --correct-key ok --min-accuracy 0.9 -o cal.json
      metacal fit val.npz --max-cost 2 --cost-wrong 50 -o cal.json
    """  # noqa: D301
    # Few commands have --unit-key, so it is not one of the common options for reading a file.
    options = replace(options, reading=replace(options.reading, unit_key=options.unit_key))
    options = _treat_lines_as_cases_or_clusters(options)
    _check_options(file, options)

    from metacal.rows import report_progress_to

    with (
        progress_bar(None, "row", "rows, gone through again and again") as bar,
        report_progress_to(bar.update),
    ):
        gate, n_rows = _fit_file(file, options)
    gate = store_column_names_in_gate(gate, options.reading)
    save_gate(gate, options.output, options.key, options.n_jobs)
    print_certificate(
        gate,
        {"file": file, "artifact": options.output, "n_rows": n_rows},
        is_signed=options.key is not None,
    )
    print_saved_note(
        options.output,
        options.key,
        next_command=f"metacal evaluate {options.output} TEST",
        note_if_not_saved="-o cal.json saves the gate for metacal apply.",
    )


def _check_options(file: str, options: Options) -> None:
    """Raise a usage error for invalid combinations, before any file is read."""
    reading = options.reading
    check_saves_to_file(options.output)
    check_output_is_not_input(options.output, file, options.key, reading=reading)
    if options.executor is not None and options.calibrator is not None:
        get_all_methods()[options.calibrator].check_fits_on_cluster()
    options.promise_options.check_subgroups(by_group=reading.group_key is not None)
    check_can_sign(options.key, options.output)
    _check_promise_fits_case_key(options)
    if reading.score_key is None:
        return
    if options.executor is not None:
        raise click.UsageError(
            "--executor supports only logits, but the file holds scores. Leave out --executor."
        )
    if options.promise_options.per_class:
        raise click.UsageError(
            "--per-class requires the logits of a classifier, because scores have no classes."
            " Leave out --per-class, or pass logits."
        )


def _treat_lines_as_cases_or_clusters(options: Options) -> Options:
    """Treat each line with a list of scored items as a case or cluster by default.

    If --score-key selects the items of a list, as in 'fields[*].score', each line has several rows.
    For a promise about cases, the line is then the case of its items, and for other promises their
    cluster. Options that name the case, the cluster or the group of an item are not changed.
    """
    reading = options.reading
    if reading.score_key is None or reading.case_key is not None:
        return options
    from metacal.io.formats.item_lists import LINE_NAME_KEY, find_item_list_key

    has_items_in_lines = find_item_list_key(reading.score_key) is not None
    if not has_items_in_lines:
        return options
    if options.promise_options.is_about_cases:
        return replace(options, reading=replace(reading, case_key=LINE_NAME_KEY))
    if reading.unit_key is not None or reading.group_key is not None:
        return options
    # The items of one line depend on each other, and a certificate needs independent rows.
    return replace(options, reading=replace(reading, unit_key=LINE_NAME_KEY))


def _check_promise_fits_case_key(options: Options) -> None:
    """Raise a usage error if the promise and --case-key do not belong together."""
    is_about_cases = options.promise_options.is_about_cases
    if is_about_cases and options.reading.case_key is None:
        raise click.UsageError(
            "A promise about cases requires the case of each item. Name the column of cases with"
            " --case-key, for example --case-key document."
        )
    if options.reading.case_key is not None and not is_about_cases:
        raise click.UsageError(
            "--case-key has no effect without a promise about cases. Pass --max-case-errors,"
            " --min-case-recall or --max-errors-per-case. If rows depend on each other, name"
            " their clusters with --unit-key instead."
        )


def _fit_file(file: str, options: Options) -> tuple[Gate, int]:
    """Read a file and fit a gate, and return the gate and the number of rows."""
    from metacal.cli.reading import read_score_table, read_table

    if options.reading.score_key is not None:
        scores = read_score_table(file, options.reading)
        return _fit_score_gate(scores, options), len(scores)
    # Workers of a cluster read the rows from the file themselves, so the table stays in its file.
    stream = True if options.executor is not None else None
    predictions = read_table(file, options.reading, stream=stream)
    return _fit_logits_gate(predictions, options), len(predictions)


def _fit_score_gate(scores: Scores, options: Options) -> Gate:
    """Fit a gate on a column of scores."""
    from metacal.gate import ScoreData
    from metacal.gate.calibrate import calibrate

    score_direction = options.reading.score_direction
    promise_options = options.promise_options
    if promise_options.at_threshold is not None:
        # The user gives the threshold as a score, and a promise needs it as an uncertainty.
        uncertainty_threshold = _convert_score_to_uncertainty(
            promise_options.at_threshold, score_direction
        )
        promise_options = replace(promise_options, at_threshold=uncertainty_threshold)
    promise = promise_options.build_promise(options.seed, per_group=scores.groups is not None)
    losses_or_correctness = scores.require_truth()
    has_losses = options.reading.loss_key is not None
    calibration_data = ScoreData(
        scores=scores.score,
        correct=None if has_losses else losses_or_correctness,
        losses=losses_or_correctness if has_losses else None,
        score_name=scores.name,
        higher_is=score_direction,
        clusters=options.extract_clusters(scores),
        groups=scores.groups,
        cases=scores.cases,
        random_state=options.seed,
        marks=options.marks,
    )
    return calibrate(calibration_data, promise)


def _convert_score_to_uncertainty(score: float, higher_is: HigherIs) -> float:
    """Convert a score to the uncertainty by which a gate ranks rows."""
    import numpy as np

    from metacal.gate import ScoreSource

    return float(ScoreSource("score", higher_is).uncertainty_scores(np.array([score]))[0])


def _fit_logits_gate(predictions: Predictions, options: Options) -> Gate:
    """Fit a gate on logits, as `MetaCal.fit` does but without scikit-learn.

    Importing scikit-learn would take longer than most fits.
    """
    from metacal.gate import check_logits_gate_options
    from metacal.rows import open_executor, validate

    n_jobs = resolve_n_jobs(options.n_jobs)
    n_classes = predictions.table.shape[1]
    class_names = _choose_class_names(predictions, options.positive)
    promise = _build_promise(predictions, class_names, options)
    check_logits_gate_options(promise, options.score, predictions.input, options.decision)
    is_unlabelled = predictions.labels is None and not promise.needs_labels
    if is_unlabelled and options.calibrator is not None:
        raise bad_option(
            "--calibrator",
            "--calibrator requires labels, but FILE has none. Add labels, or leave out"
            " --calibrator.",
        )
    calibrator_name = options.calibrator or promise.default_calibrator
    map_fitter = choose_map_fitter(calibrator_name, options.seed, n_classes)
    with (
        open_cluster(options.executor, n_jobs) as client,
        open_executor(n_jobs, client) as executor,
    ):
        table = validate.read_logits(
            predictions.table, predictions.input, executor=executor, defer_validation=True
        )
        classes = validate.check_classes(class_names, table.shape[1])
        label_codes = None
        if not is_unlabelled:
            labels = predictions.require_truth()
            label_codes = validate.encode_labels(labels, len(table), classes)
        gate = _fit_validated_logits(
            predictions,
            table,
            promise,
            options,
            label_codes=label_codes,
            classes=classes,
            fit_map=map_fitter.fit_map,
            executor=executor,
        )
    if is_unlabelled:
        return gate
    return gate.with_source(recipe=map_fitter.make_recipe())


def _fit_validated_logits(
    predictions: Predictions,
    table: Any,
    promise: Promise,
    options: Options,
    *,
    label_codes: Any,
    classes: Any,
    fit_map: FitMap,
    executor: Any,
) -> Gate:
    """Fit a gate on a validated table of logits.

    Parameters
    ----------
    predictions : Predictions
        All columns of the file.
    table : array or stored table of shape (n_rows, n_classes)
        Validated logits.
    promise : Promise
        Promise to certify.
    options : Options
        Options of the command.
    label_codes : array of int or None
        Class code of each label. None if there are no labels.
    classes : array
        Class of each column.
    fit_map : callable
        Function that fits the base calibration map.
    executor : object
        Executor of the work on blocks of rows.

    Returns
    -------
    Gate
    """
    from metacal.certificates.notes import note_remark
    from metacal.certification.row_selection import build_row_selection
    from metacal.gate import LogitsData
    from metacal.gate.calibrate import calibrate
    from metacal.rows import Rows, validate

    are_classes_column_numbers = classes.tolist() == list(range(len(classes)))
    has_class_names = predictions.class_names is not None or not are_classes_column_numbers
    # Some kernels check the values of the logits while they compute the scores.
    is_validated_by_kernel = validate.can_defer_validation(table, predictions.input)
    logits_rows = Rows(table, executor=executor, is_unvalidated=is_validated_by_kernel)
    clusters = options.extract_clusters(predictions)
    rows_that_certify = build_row_selection(len(predictions), clusters, random_state=options.seed)
    calibration_data = LogitsData(
        rows=logits_rows,
        labels=label_codes,
        score=options.score,
        fit_map=fit_map,
        allow_softmax_fallback=options.calibrator is None,
        class_names=classes,
        has_class_names=has_class_names,
        input=predictions.input,
        decision=options.decision,
        reject_label=parse_reject_label(options.reject_label, predictions),
        selection=rows_that_certify,
        groups=predictions.groups,
        notes=[note_remark(text=text) for text in predictions.remarks],
    )
    return calibrate(calibration_data, promise)


def _choose_class_names(predictions: Predictions, positive: str | None) -> Any:
    """Return the class of each column, or None if the classes are the column numbers.

    If two columns have no names, the labels name the classes, and the positive class comes last.
    """
    n_columns = predictions.table.shape[1]
    has_two_unnamed_columns = not predictions.class_names and n_columns == 2
    if not has_two_unnamed_columns or predictions.labels is None:
        return predictions.class_names
    from metacal.rows.binary import find_two_classes
    from metacal.rows.labels import check_labels

    labels = check_labels(predictions.labels).tolist()
    positive_label = _find_label_by_text(positive, labels)
    # --positive is only needed for a file with a single score per row, read as two columns.
    has_one_score_per_row = positive is not None
    classes_of_labels = find_two_classes(
        predictions.labels, positive_label, has_one_score=has_one_score_per_row
    )
    return predictions.class_names if classes_of_labels is None else classes_of_labels


def _build_promise(predictions: Predictions, class_names: Any, options: Options) -> Any:
    """Build the promise for the classes and groups of a file."""
    if class_names is not None and not isinstance(class_names, tuple):
        class_names = class_names.tolist()
    return options.promise_options.build_promise(
        options.seed,
        class_names,
        per_group=predictions.groups is not None,
        positive=_find_label_by_text(options.positive, class_names),
    )


def _find_label_by_text(text: str | None, labels: Sequence[Any] | None) -> Any:
    """Return the label that is written as `text`. Without labels, the classes are 0 and 1."""
    if text is None:
        return None
    distinct_labels = dict.fromkeys([0, 1] if labels is None else labels)
    label_by_its_text = {str(label): label for label in distinct_labels}
    for label in distinct_labels:
        if isinstance(label, float) and label.is_integer():
            label_by_its_text.setdefault(str(int(label)), label)
    if text not in label_by_its_text:
        shown_labels = ", ".join(list(label_by_its_text)[:5])
        raise click.UsageError(
            f"--positive must be one of the labels ({shown_labels}), but got {text}."
        )
    return label_by_its_text[text]
