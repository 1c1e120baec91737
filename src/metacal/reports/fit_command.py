"""Shell command or Python promise that certifies an operating point of a report."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from metacal.gate import Gate
from metacal.maps.composed import get_default_calibrator_name
from metacal.maps.methods import find_method_by_public_name

#: Error probability of the default confidence level of `metacal fit`.
_DEFAULT_DELTA = 0.1
#: Number of decimals of a confidence level. Rounding removes the floating-point error.
_LEVEL_DECIMALS = 12
#: Values that are left out of the command, because they are the defaults of `metacal fit`.
_DEFAULT_OPTION_VALUES = {"--higher-is": "surer", "--input": "logits", "--score": "entropy"}
#: Files that the command may write. The first one that is not the file of the gate is used.
_OUTPUT_NAMES = ("new-gate.json", "new-gate-2.json")


@dataclass(frozen=True)
class FitCommand:
    """Parts of a `metacal fit` command before and after the options of the promise.

    Attributes
    ----------
    language : {"shell", "python"} or None
        "python" if the rows of the report are arrays, which no command can read. The page then
        shows the promise in Python. None if neither would certify a point of the report.

    before_promise : str or None
        Program, file and options before the promise. None unless `language` is "shell".

    after_promise : str
        Options after the promise.
    """

    language: Literal["shell", "python"] | None
    before_promise: str | None = None
    after_promise: str = ""


def build_fit_command(
    gate: Gate, command: str | None, file: str | None, artifact: str | None, delta: float
) -> FitCommand:
    """Build the shell command that fits a gate with the options of an existing gate.

    Parameters
    ----------
    gate : Gate
        Gate of the report. Its options are added unless `command` has them.

    command : str or None
        Start of the command, with the options to read the rows. None for "metacal fit" and `file`.

    file, artifact : str or None
        File of the rows, and file of the gate, which the command must not overwrite.

    delta : float
        Error probability of the promise.

    Returns
    -------
    FitCommand
    """
    if not _can_certify_report_points(gate):
        return FitCommand(language=None)
    if command is None and file is None:
        return FitCommand(language="python")
    before_promise = command or shlex.join(["metacal", "fit", str(file)])
    if gate.is_score_gate:
        layout = gate.file_layout
        value_by_option = {
            "--score-key": layout.score_key or gate.score_source.score,
            "--higher-is": gate.score_source.higher_is,
        }
    else:
        value_by_option = {
            "--input": gate.logits_source.input,
            "--calibrator": _nondefault_calibrator_name(gate),
        }
    value_by_option |= _column_options(gate, before_promise)
    for option_name, value in value_by_option.items():
        is_default = not value or value == _DEFAULT_OPTION_VALUES.get(option_name)
        if not is_default and not _contains_option(before_promise, option_name):
            before_promise += f" {option_name} {shlex.quote(value)}"
    if not gate.is_score_gate:
        for column_name in gate.file_layout.drop:
            before_promise += f" --drop {shlex.quote(column_name)}"
    return FitCommand(
        language="shell",
        before_promise=before_promise,
        after_promise=_format_options_after_promise(gate, artifact, delta),
    )


def _format_options_after_promise(gate: Gate, artifact: str | None, delta: float) -> str:
    """Format the score, the confidence level and the output file as options."""
    options = []
    if not gate.is_score_gate:
        score_name = gate.logits_source.registered_score
        if score_name != _DEFAULT_OPTION_VALUES["--score"]:
            options.append(f"--score {score_name}")
    if delta != _DEFAULT_DELTA:
        confidence_level = round(1.0 - delta, _LEVEL_DECIMALS)
        options.append(f"--confidence {confidence_level:g}")
    options.append(f"-o {_choose_output_name(artifact)}")
    return "".join(f" {option}" for option in options)


def _can_certify_report_points(gate: Gate) -> bool:
    """Check whether `metacal fit` can certify the operating points of a report.

    The bands of a report take rows as independent, so a gate that was certified by clusters has no
    command. Neither has a promise about cases, nor a gate with a learned decision, which is fitted on other rows than it is
    certified on.
    """
    has_score_name = isinstance(gate.source.score, str)
    if gate.is_cascade or gate.reads_losses or not has_score_name:
        return False
    has_learned_decision = not gate.is_score_gate and gate.logits_source.decision_at != 0.0
    if has_learned_decision:
        return False
    certificate = gate.certificate
    if certificate is None:
        return True
    is_about_cases = certificate.cases is not None
    is_certified_by_clusters = certificate.design.cluster_counting is not None
    return not is_about_cases and not is_certified_by_clusters


def _choose_output_name(artifact: str | None) -> str:
    """Return the name of a file that is not the file of the gate."""
    gate_name = None if artifact is None else Path(artifact).name
    return next(name for name in _OUTPUT_NAMES if name != gate_name)


def _contains_option(command: str, name: str) -> bool:
    """Return whether a command gives an option."""
    return f" {name} " in command


def _column_options(gate: Gate, command: str) -> dict[str, str]:
    """Return the options that name the columns of the calibration file.

    Columns of groups and clusters are left out, because the command certifies one threshold on
    independent rows.
    """
    layout = gate.file_layout
    value_by_option = {"--id-key": layout.id_key or ""}
    if not gate.is_score_gate:
        value_by_option["--logits-key"] = layout.logits_key or ""
    truth_options = ("--labels", "--label-key", "--correct-key", "--prediction-key")
    if not any(_contains_option(command, option) for option in truth_options):
        value_by_option["--label-key"] = layout.label_key or ""
        value_by_option["--correct-key"] = layout.correct_key or ""
        value_by_option["--prediction-key"] = layout.prediction_key or ""
    return value_by_option


def _nondefault_calibrator_name(gate: Gate) -> str:
    """Return the value of `--calibrator`, which is empty for the default calibrator.

    The value is also empty if no calibrator was fitted to labels.
    """
    certificate = gate.certificate
    is_fitted_to_labels = certificate is None or certificate.has_labels
    recipe = gate.logits_source.recipe
    if recipe is None or not is_fitted_to_labels:
        return ""
    estimator_name = recipe.estimator
    calibrator = find_method_by_public_name(estimator_name)
    default_calibrator_name = get_default_calibrator_name(gate.n_classes)
    if calibrator is None or calibrator.name == default_calibrator_name:
        return ""
    return calibrator.name
