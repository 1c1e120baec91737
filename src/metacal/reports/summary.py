"""Numbers of a report, as a frozen dataclass that converts to JSON.

`summarise` computes a `Summary` from rows, their labels and a gate. The HTML page and the plots show
its numbers. Columns are NumPy arrays in a `Summary` and lists in `Summary.to_dict`. Undefined numbers
are NaN in a `Summary` and None in JSON. Only `to_dict` rounds numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import ClassMismatchError
from metacal.formulas import Array, Codes
from metacal.gate import Gate
from metacal.gate.judged import find_gate_and_stage_inputs, is_group_table
from metacal.gate.judged_cases import check_takes_cases, flatten_case_table, is_about_cases
from metacal.metrics.registry import describe_calibration_metrics, get_gate_metric_names
from metacal.reports.calibrator_comparison import compare_calibrators
from metacal.reports.fit_command import build_fit_command
from metacal.reports.json_types import to_json_types
from metacal.reports.methods import describe_methods, hash_arrays
from metacal.reports.next_steps import NewRowsCommand
from metacal.reports.operating import (
    OperatingCurves,
    compute_frontier_points,
    compute_operating_curves,
)
from metacal.reports.reliability import ReliabilityDiagram, build_diagrams
from metacal.reports.report_rows import (
    Promise,
    ReportRows,
    Settings,
    describe_promise,
    make_report_rows_from_decisions,
    make_report_rows_from_logits,
    read_tables,
)
from metacal.reports.sides import compute_side_curves
from metacal.reports.striking_rows import select_striking_rows
from metacal.reports.tables import make_class_table, make_subgroup_tables
from metacal.rows import Rows, open_executor, validate
from metacal.rows.arrays import check_fraction
from metacal.rows.score_tables import flatten_labelled_table, has_several_columns
from metacal.scores.registry import NAMED

if TYPE_CHECKING:
    from metacal.estimators.comparison import Comparison

#: Version of the JSON format. It changes when an entry changes its meaning.
FORMAT = 1
#: Number of significant digits of values that the page draws but does not print.
_DRAWN_DIGITS = 7
#: Number of significant digits that identifies every double exactly.
_ALL_DIGITS = 17
#: Number of significant digits in the tables of classes and subgroups.
_TABLE_DIGITS = 5
#: Largest number of logits for which bootstrap intervals are computed by default.
_MAX_BOOTSTRAP_ELEMENTS = 20_000_000
#: Largest number of rows times resamples for which intervals are computed by default.
_MAX_RESAMPLED_ROWS = 20_000_000
#: Default numbers of resamples, from small to large tables.
_DEFAULT_N_RESAMPLES = (1000, 200)


@dataclass(frozen=True, eq=False)
class Source:
    """Provenance of a report: its rows and its gate.

    Attributes
    ----------
    file, artifact : str or None
        File of labelled rows and file of the gate or calibrator, as the user named them.

    sha256 : str
        SHA-256 of the labelled rows.

    hashed : {"file", "arrays"}
        Whether the bytes of the file or the arrays of rows and labels were hashed.

    n_rows, n_classes, n_correct : int
        Numbers of rows, classes and correct predictions. There are 0 classes for a gate on scores.

    score : str
        Name of the ranking score.

    score_unit : str
        Unit of the ranking score, empty for a score of the user's own.

    calibrator : str or None
        Name of the calibrator. None for the softmax of the logits.

    n_without_score : int
        Number of rows that were left out because they have no score.
    """

    file: str | None
    artifact: str | None
    sha256: str
    hashed: str
    n_rows: int
    n_classes: int
    n_correct: int
    score: str
    score_unit: str
    calibrator: str | None
    n_without_score: int = 0


@dataclass(frozen=True, eq=False)
class Summary:
    """All numbers of a report.

    Attributes
    ----------
    source : Source
        Rows and gate of the report.

    settings : Settings
        Settings of the report.

    promise : Promise or None
        Promise and verdict. None without a gate.

    evaluation : dict
        Output of `metacal evaluate --json` for the same rows: n_rows, n_accepted, n_classes, level,
        n_bins, is_paper_map, accepted_rows, all_rows, gate, uncalibrated.

    calibration_metrics : list of dict
        Output of `describe_calibration_metrics` for the metrics of all rows.

    quantity_names : dict of str to str
        Output of `get_gate_metric_names`: the names of coverage, miscoverage and selective accuracy.

    diagrams : tuple of ReliabilityDiagram
        Reliability diagrams: before calibration on all rows; with a calibrator, after calibration on
        all rows; with a gate, before and after calibration on the accepted rows.

    curves : OperatingCurves
        Operating points.

    frontier : dict
        Output of `compute_frontier_points`.

    sides : dict or None
        Output of `compute_side_curves` for two classes.

    classes : dict
        Output of `make_class_table`.

    cases : dict or None
        Output of `count_cases` for a promise about cases.

    parts : list of dict
        Output of `make_subgroup_table` for predicted classes and, if the rows have groups, for groups.

    mistakes, hits : list of dict
        Most confident errors and least confident correct predictions.

    comparison : dict or None
        Output of `metacal.compare(...).to_dict()`.

    methods : dict
        Definitions as (term, text), and software versions.
    """

    source: Source
    settings: Settings
    promise: Promise | None
    evaluation: dict[str, Any]
    calibration_metrics: list[dict[str, Any]]
    quantity_names: dict[str, str]
    diagrams: tuple[ReliabilityDiagram, ...]
    curves: OperatingCurves
    frontier: dict[str, Any]
    sides: dict[str, Any] | None
    classes: dict[str, Any]
    cases: dict[str, Any] | None
    parts: list[dict[str, Any]]
    mistakes: list[dict[str, Any]]
    hits: list[dict[str, Any]]
    comparison: dict[str, Any] | None
    methods: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Convert the summary to JSON types, rounding numbers that are only drawn.

        Undefined numbers become None, and infinite numbers become "inf". Evaluation, promise and
        curves keep all digits because the page rounds and prints them. Rounding twice could change
        the last digit that `metacal evaluate` prints. Other numbers keep seven significant digits.
        """
        digits_by_field = {
            "evaluation": _ALL_DIGITS,
            "promise": _ALL_DIGITS,
            "curves": _ALL_DIGITS,
            "classes": _TABLE_DIGITS,
            "cases": _ALL_DIGITS,
            "parts": _TABLE_DIGITS,
            "sides": _ALL_DIGITS,
        }
        data: dict[str, Any] = {"format": FORMAT}
        for name, value in vars(self).items():
            data[name] = to_json_types(value, digits_by_field.get(name, _DRAWN_DIGITS))
        # Thresholds keep all digits because a rounded threshold could accept other rows.
        data["frontier"]["threshold"] = to_json_types(self.frontier["threshold"], _ALL_DIGITS)
        return data


def summarise(
    X: ArrayLike,
    y: ArrayLike,
    gate: Gate | Any = None,
    *,
    large: Any = None,
    classes: Sequence[Any] | Array | None = None,
    class_names: Sequence[str] | None = None,
    ids: Any = None,
    groups: Any = None,
    cases: Any = None,
    input: str | None = None,
    level: float = 0.95,
    delta: float = 0.1,
    n_bins: int = 15,
    n_resamples: int | None = None,
    seed: int = 0,
    compare: bool | Sequence[str] | Comparison | None = None,
    progress: Any = None,
    file: str | None = None,
    artifact: str | None = None,
    sha256: str | None = None,
    command: str | None = None,
    new_rows_command: NewRowsCommand | None = None,
    n_jobs: int | None = None,
) -> Summary:
    """Compute the numbers of a report in one pass over the logits.

    Parameters
    ----------
    X, y, gate, large
        As in `metacal.report`. Rows without a score are left out. `Rows` of logits are not
        validated again. Without a gate, the report is on the softmax of the logits, ranked by its
        entropy.

    classes : sequence, default=None
        Labels in column order. If None, those of the gate, or 0 … K-1.

    class_names : sequence of str, default=None
        Names of the classes on the page.

    ids : sequence, default=None
        Name of each row.

    groups : sequence, default=None
        Group of each row, for a table of groups, and for a gate by group. With `cases`, the type of
        each item.

    cases : sequence, default=None
        Case of each item, for a promise about cases. The verdict counts whole cases.

    input : {"logits", "probabilities"}, default=None
        Content of the columns. If None, that of the gate, or logits.

    level, n_bins, seed
        As in `metacal.metrics.evaluate`.

    delta : float, default=0.1
        The bands of the curves and the frontier hold at all points at once with probability
        1 - delta.

    n_resamples : int, default=None
        Number of bootstrap resamples. None stands for 1,000 for up to 20,000 rows, 200 for up to
        100,000 rows, and none for more rows or more than 20 million logits. Estimates and exact
        intervals of proportions are always computed.

    compare : True, sequence of str, or Comparison, default=None
        Compare calibrators by cross-validation on these rows: all of them, or those named.

    progress : callable, default=None
        As in `metacal.compare`.

    file, artifact, sha256 : str, default=None
        Files of the rows and of the gate, and hash of the file of the rows. Without a hash, the
        arrays are hashed.

    command : str, default=None
        Start of a `metacal fit` command for these rows. None stands for "metacal fit" and `file`.
        Without `command` and `file`, the page shows the promise of a point in Python.

    new_rows_command : NewRowsCommand, default=None
        Command that makes the same report on other rows. The page shows it if its rows were part
        of the fit.

    n_jobs : int, default=None
        Number of threads, which does not change any number.

    Returns
    -------
    Summary

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> (fit_x, fit_y), (new_x, new_y) = data.split(5000, random_state=0)
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y)
    >>> summary = summarise(new_x, new_y, cal, n_resamples=0)
    >>> summary.promise.verdicts[0]["text"]
    'kept: selective accuracy 0.9735 [0.9698, 0.9767], promised at least 0.97.'
    >>> round(summary.diagrams[0].ece["estimate"], 4)
    0.0507
    """
    check_fraction("level", level)
    check_fraction("delta", delta)
    user_gate, inputs = find_gate_and_stage_inputs(gate, X, large)
    has_cases = user_gate is not None and is_about_cases(user_gate)
    if user_gate is not None and user_gate.is_score_gate and has_several_columns(inputs[0]):
        scores, y, cases, groups = _flatten_score_table(user_gate, inputs[0], y, cases, groups)
        inputs = (scores,)
    effective_gate, tables = read_tables(user_gate, inputs, classes, input)
    n_input_rows = len(tables[0])
    n_classes = effective_gate.n_classes
    n_resamples = _choose_n_resamples(n_resamples, n_input_rows, n_classes)
    settings = Settings(level, delta, n_bins, n_resamples, seed)
    if classes is None and n_classes:
        classes = effective_gate.classes
    column_classes = validate.check_classes(classes, n_classes)
    displayed_class_names = _check_class_names(class_names, column_classes)

    with open_executor(n_jobs) as executor:
        if effective_gate.is_logits_gate:
            check_takes_cases(effective_gate, cases)
            label_codes = validate.encode_labels(y, n_input_rows, column_classes)
            logit_rows = Rows(tables[0], executor=executor)
            report_rows = make_report_rows_from_logits(
                user_gate, effective_gate, logit_rows, label_codes, groups, settings
            )
        else:
            report_rows = make_report_rows_from_decisions(
                effective_gate, tables, y, groups, settings, cases
            )

    true_codes = report_rows.true_codes
    correct = report_rows.correct
    uncertainty = report_rows.uncertainty
    evaluation = report_rows.evaluation.to_dict()
    # The page has its own sections for the promise and for the models of a cascade.
    evaluation.pop("promise", None)
    evaluation.pop("answered_by", None)
    side_curves = None
    if effective_gate.is_logits_gate and _has_rows_of_two_classes(
        true_codes, displayed_class_names
    ):
        side_curves = compute_side_curves(
            effective_gate, report_rows, Rows(tables[0]), displayed_class_names, settings
        )
    row_names = cases if ids is None else ids
    fit_command = build_fit_command(effective_gate, command, file, artifact, delta)
    return Summary(
        source=Source(
            file=file,
            artifact=artifact,
            sha256=hash_arrays(tables, y) if sha256 is None else sha256,
            hashed="arrays" if sha256 is None else "file",
            n_rows=len(true_codes),
            n_without_score=_count_rows_without_score(report_rows, tables),
            n_classes=len(displayed_class_names),
            n_correct=int(correct.sum()),
            score=report_rows.score_name,
            score_unit=_get_score_unit(report_rows.score_name),
            calibrator=_format_calibrator_names(user_gate),
        ),
        settings=settings,
        promise=describe_promise(effective_gate, report_rows, new_rows_command),
        evaluation=evaluation,
        calibration_metrics=describe_calibration_metrics(evaluation["all_rows"]),
        quantity_names=get_gate_metric_names(),
        diagrams=build_diagrams(report_rows, settings),
        curves=compute_operating_curves(
            uncertainty,
            correct,
            delta=delta,
            gate_threshold=report_rows.threshold,
            scores_are_negated=report_rows.score_name.startswith("-"),
            highest_score=_get_highest_score(effective_gate, report_rows.score_name),
            fit_command=fit_command,
        ),
        frontier=compute_frontier_points(uncertainty, correct, delta=delta),
        sides=side_curves,
        classes=make_class_table(displayed_class_names, report_rows),
        cases=report_rows.case_counts,
        parts=make_subgroup_tables(
            effective_gate, report_rows, displayed_class_names, None if has_cases else groups, level
        ),
        mistakes=select_striking_rows(
            report_rows, ~correct, uncertainty, displayed_class_names, row_names
        ),
        hits=select_striking_rows(
            report_rows, correct, -uncertainty, displayed_class_names, row_names
        ),
        comparison=compare_calibrators(
            compare, tables, true_codes, random_state=seed, n_jobs=n_jobs, progress=progress
        ),
        methods=describe_methods(
            settings, report_rows.score_name, "cases" if has_cases else effective_gate.kind
        ),
    )


def _flatten_score_table(
    gate: Gate, score_table: Any, y: Any, cases: Any, groups: Any
) -> tuple[Any, Any, Any, Any]:
    """Flatten a score table and its labels if the gate decides on single entries."""
    if is_about_cases(gate):
        flat_items = flatten_case_table(gate, score_table, y, cases, groups)
        return flat_items.scores, flat_items.correct, flat_items.cases, flat_items.types
    if not is_group_table(gate, score_table):
        return score_table, y, cases, groups
    flat_table = flatten_labelled_table(score_table, y, groups)
    return flat_table.scores, flat_table.truth, cases, flat_table.column_names


def _count_rows_without_score(report_rows: ReportRows, tables: Sequence[Any]) -> int:
    """Count the rows without a score, but not rows excluded for other reasons."""
    if report_rows.case_counts is not None:
        return int(report_rows.case_counts["n_without_score"])
    if len(tables) == 1 and isinstance(tables[0], np.ndarray) and tables[0].ndim == 1:
        return int(np.isnan(tables[0]).sum())
    return len(tables[0]) - len(report_rows.true_codes)


def _choose_n_resamples(n_resamples: int | None, n_rows: int, n_classes: int) -> int:
    """Return `n_resamples`, or a default for the size of the table if it is None."""
    if n_resamples is not None:
        return n_resamples
    if n_rows * max(1, n_classes) > _MAX_BOOTSTRAP_ELEMENTS:
        return 0
    for n_default_resamples in _DEFAULT_N_RESAMPLES:
        if n_rows * n_default_resamples <= _MAX_RESAMPLED_ROWS:
            return n_default_resamples
    return 0


def _check_class_names(class_names: Sequence[str] | None, classes: Array) -> Array:
    """Return the class names of the page. Raise InputError if their number is wrong."""
    if class_names is None:
        return np.asarray(classes, dtype=object)
    if len(class_names) != len(classes):
        raise ClassMismatchError(
            f"class_names must have one name for each of the {len(classes)} columns, but got"
            f" {len(class_names)} names."
        )
    return np.asarray(class_names, dtype=object)


def _has_rows_of_two_classes(codes: Codes, names: Array) -> bool:
    """Check whether there are exactly two classes and each has at least one row."""
    if len(names) != 2:
        return False
    n_positive = int(codes.sum())
    return 0 < n_positive < len(codes)


def _get_score_unit(score_name: str) -> str:
    """Return the unit of a registered score, or an empty text for another score."""
    score = NAMED.get(score_name)
    return "" if score is None else score.unit


def _get_highest_score(gate: Gate, score_name: str) -> float:
    """Return the highest value of a registered score, or inf for another score."""
    score = NAMED.get(score_name)
    if score is None or not gate.has_classes:
        return math.inf
    _, highest_score = score.value_range(gate.n_classes)
    return highest_score


def _format_calibrator_names(gate: Gate | None) -> str | None:
    """Join the distinct names of the calibrators of all stages, or return None."""
    if gate is None or not gate.has_classes:
        return None
    stages = [gate.stage(index) for index in range(gate.n_stages)]
    distinct_names = dict.fromkeys(stage.logits_source.calibrator_name for stage in stages)
    return ", ".join(distinct_names)
