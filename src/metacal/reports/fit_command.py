"""`metacal fit` command that certifies an operating point of a report."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from metacal.gate import Gate
from metacal.maps.composed import get_default_base_method
from metacal.maps.methods import find_method_by_public_name

#: Error probability of the default confidence level of `metacal fit`.
_DEFAULT_DELTA = 0.1
#: Values that are left out of the command, because they are the defaults of `metacal fit`.
_DEFAULT_VALUES = {"--higher-is": "surer", "--input": "logits", "--score": "entropy"}


@dataclass(frozen=True)
class FitCommand:
    """Start and end of a `metacal fit` command, without the promise in between.

    Attributes
    ----------
    start : str or None
        Program, file and options before the promise. None if no command fits such a gate, because
        it is a cascade or its ranking score has no name.

    end : str
        Options after the promise.
    """

    start: str | None
    end: str


def build_fit_command(
    gate: Gate, command: str | None, file: str | None, delta: float
) -> FitCommand:
    """Build the command that fits another gate with the same options.

    Parameters
    ----------
    gate : Gate
        Gate of the report. Its options are added unless `command` has them.

    command : str or None
        Start of the command, with the options to read the rows. None for "metacal fit FILE".

    file : str or None
        File of the rows.

    delta : float
        Error probability of the promise.

    Returns
    -------
    FitCommand
    """
    end = " -o cal.json"
    if delta != _DEFAULT_DELTA:
        end = f" --confidence {round(1.0 - delta, 12):g}{end}"
    if gate.is_cascade or not isinstance(gate.source.score, str):
        return FitCommand(start=None, end=end)

    start = command or shlex.join(["metacal", "fit", file or "FILE"])
    if gate.is_score_gate:
        options = {
            "--score-key": gate.score_source.score,
            "--higher-is": gate.score_source.higher_is,
        }
    else:
        options = {
            "--input": gate.logits_source.input,
            "--calibrator": _get_calibrator_option(gate),
        }
        score_name = gate.logits_source.registered_score
        if score_name != _DEFAULT_VALUES["--score"]:
            end = f" --score {score_name}{end}"
    for name, value in options.items():
        is_default = not value or value == _DEFAULT_VALUES.get(name)
        is_in_command = f" {name} " in start
        if not is_default and not is_in_command:
            start += f" {name} {shlex.quote(value)}"
    return FitCommand(start=start, end=end)


def _get_calibrator_option(gate: Gate) -> str:
    """Return the value of `--calibrator`, which is empty for the default calibrator.

    The value is also empty if no calibrator was fitted to labels.
    """
    certificate = gate.certificate
    is_fitted_to_labels = certificate is None or certificate.has_labels
    if gate.logits_source.recipe is None or not is_fitted_to_labels:
        return ""
    calibrator = find_method_by_public_name(gate.logits_source.recipe.estimator)
    if calibrator is None or calibrator.name == get_default_base_method(gate.n_classes):
        return ""
    return calibrator.name
