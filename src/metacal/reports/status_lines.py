"""Text lines on the state of a watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metacal.reports.evidence import format_evidence

#: Largest number of facts about an alarm that have a line of their own.
_MAX_FACT_LINES = 5


def format_status_lines(state: dict[str, Any]) -> list[str]:
    """Format the state of a watch, as returned by `status`, as lines of text."""
    text_lines = [state["headline"], ""]
    text_lines.append(
        _format_row_counts_line(
            n_rows=state["rows"], n_accepted=state["accepted"], coverage=state["coverage"]
        )
    )
    text_lines.append(
        _format_label_counts_line(
            n_labelled=state["labelled"],
            n_labelled_accepted=state["labelled_accepted"],
            n_correct_accepted=state["correct_accepted"],
            selective_accuracy=state["selective_accuracy"],
            labels_are_agreement=state["agreement"],
            n_waiting_rows=state["waiting"],
            clusters=state["units"],
        )
    )
    text_lines += _format_unknown_label_lines(
        n_unknown_labels=state["unknown"], has_horizon=bool(state["horizon"])
    )
    text_lines += _format_counting_rule_lines(
        clusters=state["units"], horizon=state["horizon"], n_unlabelled=state["unlabelled"]
    )
    text_lines += _format_gap_lines(n_gaps=state["gaps"])
    text_lines += _format_unreadable_lines(
        n_unreadable=state["unreadable"], n_lines=state["lines"], quarantine=state["quarantine"]
    )
    text_lines += _format_silence_lines(state["silence"])
    text_lines += _format_estimate_lines(state)
    text_lines.append("")
    for alarm in state["alarms"]:
        text_lines += _format_alarm_lines(alarm)
    for acknowledgement in state["acknowledged"]:
        text_lines.append(_format_acknowledgement_line(acknowledgement))
    for missing_alarm in state["missing"]:
        missing_text = f"cannot be watched: {missing_alarm['why']}"
        text_lines.append(_format_line(missing_alarm["name"], missing_text))
    text_lines.append("")
    text_lines.append(_format_line("levels", state["levels"]))
    return text_lines


def _format_line(heading: str, text: str) -> str:
    """Format a line of text with its heading in a column of 12 characters."""
    return f"  {heading:<12} {text}"


def _format_row_counts_line(n_rows: int, n_accepted: int, coverage: float | None) -> str:
    """Format a line about the numbers of rows and of accepted rows."""
    row_text = f"{n_rows:,}, accepted {n_accepted:,}"
    if coverage is not None:
        row_text += f" ({100 * coverage:.1f}%)"
    return _format_line("rows", row_text)


def _format_label_counts_line(
    *,
    n_labelled: int,
    n_labelled_accepted: int,
    n_correct_accepted: int,
    selective_accuracy: float | None,
    labels_are_agreement: bool,
    n_waiting_rows: int,
    clusters: dict[str, Any] | None,
) -> str:
    """Format a line about the labelled rows, and the rows that wait for a label.

    Parameters
    ----------
    n_labelled, n_labelled_accepted, n_correct_accepted : int
        Numbers of labelled rows, of accepted rows among them, and of correct rows among these.

    selective_accuracy : float or None
        Share of correct rows among the accepted ones. None without an accepted row with a label.

    labels_are_agreement : bool
        Whether a label tells if the large model of a cascade makes the same prediction.

    n_waiting_rows : int
        Number of rows that wait for a label or for the rest of their cluster.

    clusters : dict or None
        Output of `_count_clusters`.

    Returns
    -------
    str
    """
    label_text = f"{n_labelled:,}, accepted {n_labelled_accepted:,}"
    if selective_accuracy is not None:
        share_text = f"{100 * selective_accuracy:.2f}%"
        if labels_are_agreement:
            label_text += f", {n_correct_accepted:,} as the large model predicts ({share_text})"
        else:
            label_text += f", {n_correct_accepted:,} correct (selective accuracy {share_text})"
    if n_waiting_rows:
        awaited_text = _describe_awaited_input(clusters)
        label_text += f", {n_waiting_rows:,} wait for {awaited_text}"
    return _format_line("labelled", label_text)


def _describe_awaited_input(clusters: dict[str, Any] | None) -> str:
    """Describe the input that a row waits for until it is counted."""
    if clusters is None:
        return "a label"
    if clusters["are_cases"]:
        return "the rest of their case or its labels"
    return "the rest of their unit"


def _format_unknown_label_lines(n_unknown_labels: int, *, has_horizon: bool) -> list[str]:
    """Format a line about the labels that match no waiting row, if there are any."""
    if not n_unknown_labels:
        return []
    unknown_text = f"{n_unknown_labels:,} labels match no row that waits for one"
    if has_horizon:
        unknown_text += ", or came after the horizon and were not counted"
    return [_format_line("unknown", unknown_text)]


def _format_counting_rule_lines(
    clusters: dict[str, Any] | None, horizon: int, n_unlabelled: int
) -> list[str]:
    """Format a line that explains when a row or a cluster of rows is counted.

    Parameters
    ----------
    clusters : dict or None
        Output of `_count_clusters`.

    horizon : int
        Number of later rows after which a row is counted. 0 if there is no horizon.

    n_unlabelled : int
        Number of rows whose label had not come by then.

    Returns
    -------
    list of str
        One line, or none if rows are counted as soon as they are labelled.
    """
    unlabelled_text = ""
    if n_unlabelled:
        unlabelled_text = f"; {n_unlabelled:,} had no label by then"
    if clusters is None:
        if not horizon:
            return []
        row_text = f"a row counts once {horizon:,} rows have come after it{unlabelled_text}"
        return [_format_line("horizon", row_text)]

    completion_text = "another begins"
    if horizon:
        completion_text = f"{horizon:,} rows have come after its first"
    if clusters["are_cases"]:
        completion_text += " and it has all of its labels"
    n_complete_clusters = clusters["complete"]
    n_stray_rows = clusters["strays"]
    cluster_text = f"{n_complete_clusters:,} are complete; one counts once {completion_text}"
    cluster_text += unlabelled_text
    if n_stray_rows:
        cluster_text += f"; {n_stray_rows:,} rows came later or are of far too large a unit"
    return [_format_line("cases" if clusters["are_cases"] else "units", cluster_text)]


def _format_gap_lines(n_gaps: int) -> list[str]:
    """Format a line about the files that were lost before their end, if there are any."""
    if not n_gaps:
        return []
    gap_text = f"{n_gaps:,} times a file was gone or cut off before it was read to its end"
    return [_format_line("gaps", gap_text)]


def _format_unreadable_lines(n_unreadable: int, n_lines: int, quarantine: str | None) -> list[str]:
    """Format a line about the unreadable input and the file that it was moved to."""
    if not n_unreadable:
        return []
    unreadable_text = f"{n_unreadable:,} of {n_lines:,} lines, which cannot be read"
    if quarantine:
        unreadable_text += f", in {quarantine}"
    return [_format_line("put aside", unreadable_text)]


def _format_silence_lines(silence: dict[str, Any] | None) -> list[str]:
    """Format a line about the alarm for missing input, if it was ever raised."""
    if silence is None:
        return []
    n_times_raised = silence["times"]
    if not (n_times_raised or silence["raised"]):
        return []
    silent_seconds = silence["after"]
    times_text = "once" if n_times_raised == 1 else f"{n_times_raised:,} times"
    silence_text = f"ALARM: nothing came in for {silent_seconds:g} seconds, {times_text}"
    return [_format_line("silence", silence_text)]


def _format_estimate_lines(state: dict[str, Any]) -> list[str]:
    """Format a line about the accuracy that the confidence alone implies."""
    estimate = state["estimate"]
    if estimate is None:
        return []
    estimate_text = (
        f"selective accuracy {100 * estimate['accuracy']:.2f}%"
        f" ({100 * estimate['low']:.2f}% to {100 * estimate['high']:.2f}%), from confidence alone:"
        " not valid if the rows have changed"
    )
    return [_format_line("estimate", estimate_text)]


def _format_alarm_lines(alarm: dict[str, Any]) -> list[str]:
    """Format lines about an alarm: its verdict, its evidence, and the observed facts."""
    verdict = "no alarm"
    if alarm["raised"]:
        verdict = f"ALARM by row {alarm['at_row']:,}: {alarm['meaning']}"
    peak_evidence = format_evidence(alarm["log_peak"])
    needed_evidence = format_evidence(alarm["log_needed"])
    first_fact, *other_facts = alarm["seen"]
    verdict_text = f"{verdict}; {first_fact}; evidence {peak_evidence}, alarm at {needed_evidence}"
    text_lines = [_format_line(alarm["name"], verdict_text)]
    for fact in other_facts[:_MAX_FACT_LINES]:
        text_lines.append(_format_line("", fact))
    return text_lines


def _format_acknowledgement_line(acknowledgement: dict[str, Any]) -> str:
    """Format a line about one acknowledgement and its alarms."""
    alarm_texts = [
        f"{alarm['name']} (by row {alarm['at_row']:,})" for alarm in acknowledgement["alarms"]
    ]
    return _format_line(
        "acknowledged",
        f"at row {acknowledgement['at_row']:,}, {acknowledgement['time']}:"
        f" {', '.join(alarm_texts)}: {acknowledgement['reason']}",
    )


def format_next_step_lines(state: dict[str, Any], wrap: Callable[[str], str]) -> list[str]:
    """Format the next steps as lines of text, without wrapping the commands."""
    text_lines = []
    for number, step in enumerate(state["next_steps"]):
        heading = "to do" if number == 0 else ""
        text_lines.append(wrap(_format_line(heading, step["text"])))
        if step["command"] is not None:
            text_lines.append(_format_line("", step["command"]))
    return text_lines
