"""Page of `metacal start` with the commands and the Python code for the next time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from metacal.cli.start_promises import OfferedPromise
from metacal.cli.start_runs import shell_line

if TYPE_CHECKING:
    from metacal.io.inspection import Inspection

#: Options that are arguments of the estimator, and not of the reader.
_ESTIMATOR_OPTIONS = ("positive", "higher_is")


def format_next_steps_page(
    inspection: Inspection,
    commands_run: Sequence[list[str]],
    later_commands: Sequence[list[str]],
    python_code: str,
) -> str:
    """Return a Markdown page with the findings, the commands and the Python code.

    Parameters
    ----------
    inspection : Inspection
        Meaning of the columns.
    commands_run : sequence of lists of str
        Commands that were run.
    later_commands : sequence of lists of str
        Commands for new files, which are called NEW.
    python_code : str
        Code that fits the same gate.

    Returns
    -------
    str
    """
    findings = [f"- {finding}: {reason}" for finding, reason in inspection.findings]
    sections = [
        f"# {inspection.path}",
        inspection.description + ".",
        "\n".join(findings),
        "These commands were run:",
        _code_block("sh", "\n".join(map(shell_line, commands_run))),
        "The gate remembers the columns of the file. For new files of the same columns, run:",
        _code_block("sh", "\n".join(map(shell_line, later_commands))),
        "The same gate in Python:",
        _code_block("python", python_code),
    ]
    return "\n\n".join(sections) + "\n"


def _code_block(language: str, text: str) -> str:
    """Return a fenced block of code."""
    return f"```{language}\n{text}\n```"


def format_python_code(
    inspection: Inspection,
    promise: OfferedPromise,
    target: float,
    *,
    fit_row_range: tuple[float, float] | None,
    gate_path: str,
) -> str:
    """Return Python code that reads the file, fits the gate and saves it.

    Parameters
    ----------
    inspection : Inspection
        Meaning of the columns, with the options of the reader.
    promise : OfferedPromise
        Promise of the gate.
    target : float
        Target of the promise.
    fit_row_range : tuple of float or None
        Part of the rows that is used to fit, or None for all rows.
    gate_path : str
        File of the gate.

    Returns
    -------
    str
    """
    reader_options = promise.reader_options_for(inspection)
    reads_scores = "score_key" in reader_options
    read_call = _format_read_call(inspection.path, reader_options, reads_scores=reads_scores)
    if fit_row_range is not None:
        start, stop = fit_row_range
        read_call += f".draw_part({start:g}, {stop:g})"

    fit_keywords = ""
    if promise.is_about_cases:
        fit_keywords = ", cases=rows.cases"
        fit_keywords += ", groups=rows.groups" if "group_key" in reader_options else ""
    elif "unit_key" in reader_options:
        fit_keywords = ", units=rows.units"
    promise_code = _format_promise(inspection, promise, target)
    if reads_scores:
        score_keyword = f", score_name={reader_options['score_key']!r}"
        keywords = score_keyword + _format_keywords(reader_options, ("higher_is",))
        estimator_call = f"mc.ScoreGate({promise_code}{keywords})"
        fit_call = f"{estimator_call}.fit(rows.score, rows.correct{fit_keywords})"
    else:
        keywords = _format_keywords(reader_options, ("input",)) + _format_classes_keyword(
            inspection
        )
        estimator_call = f"mc.MetaCal({promise_code}{keywords})"
        fit_call = f"{estimator_call}.fit(rows.table, rows.labels{fit_keywords})"
    return (
        f"import metacal as mc\n\nrows = {read_call}\ngate = {fit_call}\ngate.save({gate_path!r})"
    )


def _format_read_call(path: str, options: Mapping[str, Any], *, reads_scores: bool) -> str:
    """Return the Python code that reads the rows of a file."""
    read_arguments = [repr(path)]
    for option_name, value in options.items():
        if option_name not in _ESTIMATOR_OPTIONS:
            read_arguments.append(f"{option_name}={value!r}")
    reader = "mc.io.read_scores" if reads_scores else "mc.read_predictions"
    return f"{reader}({', '.join(read_arguments)})"


def _format_classes_keyword(inspection: Inspection) -> str:
    """Return the keyword with the classes of the columns."""
    if "score" in inspection.column_of_role:
        return f", classes=[{', '.join(_class_literals(inspection))}]"
    return ", classes=None if rows.labels_count_columns else rows.class_names"


def _class_literals(inspection: Inspection) -> tuple[str, str]:
    """Return the negative and the positive class as Python literals."""
    if inspection.negative_and_positive is None:
        return "", ""
    negative, positive = inspection.negative_and_positive
    labels = inspection.column_of_role.get("labels")
    if labels is not None and inspection.facts[labels].is_number:
        return negative, positive
    return repr(negative), repr(positive)


def _format_promise(inspection: Inspection, promise: OfferedPromise, target: float) -> str:
    """Return the Python code of the promise, with the classes as Python literals."""
    negative, positive = _class_literals(inspection)
    return promise.python.format(target=f"{target:.4g}", negative=negative, positive=positive)


def _format_keywords(options: Mapping[str, Any], option_names: tuple[str, ...]) -> str:
    """Return named options as keyword arguments in Python code, each after a comma."""
    keywords = [f", {name}={options[name]!r}" for name in option_names if name in options]
    return "".join(keywords)
