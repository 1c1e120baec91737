"""Recommended steps after a report or an alarm, as texts with shell commands."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Reason in the command that acknowledges alarms, which the user replaces.
_EXAMPLE_REASON = "what was found and done"

#: First step after each alarm, in the order in which alarms are shown.
_FIRST_STEPS = {
    "promise": (
        "Send the rows that the gate accepts to review until the cause is known: labelled rows"
        " show that the promise is no longer kept."
    ),
    "abstention": (
        "Label some of the latest rows. More or fewer rows are rejected than at calibration;"
        " only labels show whether the promise is still kept."
    ),
    "score": (
        "Label some of the latest rows. The scores have changed since calibration; only labels"
        " show whether the promise is still kept."
    ),
    "calibration": (
        "Do not use the probabilities of accepted rows until the cause is known: they no longer"
        " match the labels."
    ),
    "unreadable": "Repair the source of the lines that cannot be read.",
    "silence": "Check the source of the rows: nothing has come in.",
}
_REFIT_STEP = (
    "If the rows have changed for good, fit a new gate on labelled rows of the new kind, and watch"
    " it with a new state file."
)
_ACKNOWLEDGE_STEP = (
    "If the cause is removed, {stop}acknowledge the alarm with what was found and done. Every"
    " alarm then begins again with the rows that come later."
)
_STOP_FIRST = "stop this monitor (Ctrl-C) and "
_KEEP_STATE_STEP = (
    "This monitor keeps no state, so its alarm cannot be acknowledged. Watch with --state, and"
    " acknowledge the alarm there once its cause is removed."
)


@dataclass(frozen=True)
class NewRowsCommand:
    """Command that writes a report on new rows, and its files.

    Attributes
    ----------
    command : str
        The command.

    file : str
        File of the other rows, which the user has to write.

    old_file : str
        File of the rows of the report, which has the same columns.
    """

    command: str
    file: str
    old_file: str


def choose_new_path(path: str, name: str) -> str:
    """Return a new file name with the file extension of an existing path.

    Examples
    --------
    >>> choose_new_path("data/val.csv.gz", "new-rows"), choose_new_path("logs", "new-rows")
    ('new-rows.csv.gz', 'new-rows')
    """
    return name + "".join(Path(path).suffixes[-2:])


def list_report_steps(
    verdict_word: str, new_rows_command: NewRowsCommand | None
) -> list[dict[str, Any]]:
    """List the recommended steps after a report.

    Parameters
    ----------
    verdict_word : str
        Verdict on the promise.

    new_rows_command : NewRowsCommand or None
        Command that makes the same report on other rows. None if there is no command line.

    Returns
    -------
    list of dict
        One "text" and "command" for each step. Only rows of the fit have a next step.
    """
    if verdict_word != "not judged" or new_rows_command is None:
        return []
    step_text = (
        f"Save labelled rows that were not part of the fit as {new_rows_command.file}, with the"
        f" columns of {new_rows_command.old_file}. Then make the report on them:"
    )
    return [{"text": step_text, "command": new_rows_command.command}]


def list_next_steps(
    raised_alarms: list[str],
    *,
    command: str | None = None,
    has_state: bool = True,
    is_running: bool = False,
    quarantine: str | None = None,
) -> list[dict[str, str | None]]:
    """List the recommended steps after alarms of a monitor.

    Parameters
    ----------
    raised_alarms : list of str
        Names of the raised alarms.

    command : str, default=None
        Command that goes on with the monitor. None if it does not run on the command line.

    has_state : bool, default=True
        Whether the monitor keeps a state. A watch in Python does.

    is_running : bool, default=False
        Whether the monitor still runs, so that no other can write its state.

    quarantine : str, default=None
        File of the lines that cannot be read.

    Returns
    -------
    list of dict
        One "text" and "command" for each step. The command is None if there is none. The list is
        empty if no alarm is raised.

    Examples
    --------
    >>> steps = list_next_steps(["silence"])
    >>> steps[0]["text"], steps[0]["command"]
    ('Check the source of the rows: nothing has come in.', None)
    """
    steps: list[dict[str, str | None]] = []
    for alarm_name, step_text in _FIRST_STEPS.items():
        if alarm_name not in raised_alarms:
            continue
        step_command = None
        if alarm_name == "unreadable" and quarantine is not None:
            step_command = shlex.join(["head", "-n", "3", quarantine])
        steps.append({"text": step_text, "command": step_command})
    # A silence ends by itself when rows come in.
    lasting_alarms = [name for name in raised_alarms if name != "silence"]
    if not lasting_alarms:
        return steps
    has_alarm_about_rows = lasting_alarms != ["unreadable"]
    if has_alarm_about_rows:
        steps.append({"text": _REFIT_STEP, "command": None})
    if not has_state:
        state_command = None if command is None else f"{command} --state watch.journal"
        steps.append({"text": _KEEP_STATE_STEP, "command": state_command})
        return steps
    acknowledge_command = None
    if command is not None:
        acknowledge_command = f"{command} {shlex.join(['--acknowledge', _EXAMPLE_REASON])}"
    must_stop_monitor = is_running and command is not None
    step_text = _ACKNOWLEDGE_STEP.format(stop=_STOP_FIRST if must_stop_monitor else "")
    steps.append({"text": step_text, "command": acknowledge_command})
    return steps
